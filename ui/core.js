/* Takes the place of Gradio's search of the page's tree in its own script (see web_surface.faster_core), so it is text
   between its functions. What was found once is found again by its path from the root, if the node is still there. */
const pathsOfNodes = new Map();
const rememberPaths = (node, path) => {
  if (!pathsOfNodes.has(node.id)) pathsOfNodes.set(node.id, path);
  (node.children || []).forEach((child, at) => rememberPaths(child, [...path, at]));
};
const nodeAtPath = (root, id) => {
  let node = pathsOfNodes.has(id) ? root : null;
  for (const at of pathsOfNodes.get(id) || []) node = node && node.children && node.children[at];
  return node && node.id === id ? node : null;
};
function findNode(root, id) {
  const node = nodeAtPath(root, id);
  if (node) return node;
  pathsOfNodes.clear();
  rememberPaths(root, []);
  return nodeAtPath(root, id);
}
/* Of each event the name under which a node starts it, in the order of the events; those of all nodes are noted at once. */
const eventsOfNodes = new WeakMap();
function eventsOfNode(id, events) {
  if (!eventsOfNodes.has(events)) {
    const names = new Map();
    for (const event of events) {
      const targets = new Map([...event.targets].reverse());  // of a node that is named twice the first counts
      for (const [node, name] of targets) if (name) names.set(node, [...(names.get(node) || []), name]);
    }
    eventsOfNodes.set(events, names);
  }
  return [...(eventsOfNodes.get(events).get(id) || [])];
}
