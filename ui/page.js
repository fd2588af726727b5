/* Keeps the open tab in the address, so that a reload opens the same one. */
window.lisanRememberTab = () => setTimeout(() => {
  const open = document.querySelector('#tabs [role="tab"][aria-selected="true"]');
  if (!open) return;
  const address = new URL(window.location.href);
  address.searchParams.set("tab", open.innerText.trim().toLowerCase());
  if (address.href !== window.location.href) window.history.replaceState(null, "", address);
}, 60);
document.addEventListener("click", (event) => {
  if (event.target.closest && event.target.closest('[role="tab"]')) window.lisanRememberTab();
});

/* A restart of the app forgets every sign-in. The page then asks for it again in place of refusing each click. */
(() => {
  const ask = window.fetch;
  window.fetch = async (...what) => {
    const answer = await ask(...what);
    if (answer.status === 401 && answer.url.includes("/gradio_api/run/predict")) window.location.reload();
    return answer;
  };
})();

/* Plays the parts of a clip one after another while later parts are still being made. */
(() => {
  let context = null, job = "", done = 0, free = 0, chain = Promise.resolve();
  const play = async (part) => {
    const answer = await fetch(part.url);
    if (!answer.ok) return;
    const sound = await context.decodeAudioData(await answer.arrayBuffer());
    const source = context.createBufferSource();
    source.buffer = sound;
    source.connect(context.destination);
    free = Math.max(free, context.currentTime + 0.05);
    source.start(free);
    free += sound.duration;
  };
  window.lisanStream = (element) => {
    const box = element.querySelector(".stream-player");
    if (!box) return;
    const parts = JSON.parse(box.dataset.parts || "[]");
    if (box.dataset.job !== job) { job = box.dataset.job; done = 0; free = 0; }
    for (const part of parts.slice(done)) {
      context = context || new AudioContext();
      chain = chain.then(() => play(part)).catch((error) => console.warn("part not played", error));
    }
    done = Math.max(done, parts.length);
  };
})();

/* Says of each fold whether it is open, which Gradio shows by an arrow alone (6.31). */
(() => {
  const tell = (button) => {
    const open = String(button.classList.contains("open"));
    if (button.getAttribute("aria-expanded") !== open) button.setAttribute("aria-expanded", open);
  };
  const look = (changes) => {
    for (const change of changes) {
      if (change.type === "attributes") { if (change.target.matches("button.label-wrap")) tell(change.target); continue; }
      for (const added of change.addedNodes) {
        if (added.nodeType !== Node.ELEMENT_NODE) continue;
        if (added.matches("button.label-wrap")) tell(added);
        added.querySelectorAll("button.label-wrap").forEach(tell);
      }
    }
  };
  new MutationObserver(look).observe(document, {childList: true, subtree: true, attributeFilter: ["class"]});
})();
