/* The page in other languages. The app writes English; a table of one language has the translation of each sentence, with
   places such as {name} for what is put into it. Text nodes and the attributes that people read are translated when they
   appear. What a person wrote is never translated: names, texts of clips (which have a lang), code and logs. In English
   no table is loaded and nothing is observed. */
(() => {
  const KEY = "lisan-language", SOURCE = "en";
  const ATTRIBUTES = ["placeholder", "title", "aria-label", "data-name"];
  const SKIPPED = "script, style, pre, textarea, code, .id, [translate=no], body [lang]";
  const CHOICE = "input[role=listbox], input[role=combobox]";
  const SENTENCE_END = /(?<=[.!?])\s+(?=[^\sa-z])/;
  const NAME = /[\w@.:/()-]*[\d_/:@][\w@.:/()-]*|\([0-9a-f]{4}\)/g;  // an id, a path, a time, the short id of a job
  const FINISHED = /[.!?]$/;
  const ENGLISH = /(^|\s)(the|a|an|of|into|as|this|these|that)(?=\s|$)/;  // in a place of a label: the label is another one
  const NUMBER = "([+\\-\u2212]?\\d[\\d.,]*%?)";  // what a place with a name of one letter takes
  const LARGEST_MEMORY = 4000;
  const tables = window.lisanTables || {};
  const preferences = window.lisanPreferences || [];  // of the browser, see early.js
  const sources = new WeakMap();  // by node or attribute owner: what the app wrote, and what is shown instead
  let language = SOURCE, table = null, memory = new Map(), observer = null;

  const stored = () => { try { return localStorage.getItem(KEY); } catch (error) { return null; } };
  const keep = (code) => { try { localStorage.setItem(KEY, code); } catch (error) { /* for this page only */ } };
  const preferred = () => {
    const chosen = stored();
    if (chosen === SOURCE || chosen in tables) return chosen;
    for (const tag of preferences) {
      const code = tag.toLowerCase().split("-")[0];
      if (code === SOURCE || code in tables) return code;
    }
    return SOURCE;
  };

  /* A text with places becomes a pattern; patterns are found by their first word, so that a sentence is compared with few
     of them. */
  const compile = (texts) => {
    const exact = new Map(), by_word = new Map(), loose = [];
    for (const [source, shown] of Object.entries(texts)) {
      const parts = source.split(/\{(\w+)\}/);
      if (parts.length === 1) { exact.set(source, shown); continue; }
      const names = parts.filter((_, at) => at % 2);
      const literals = parts.filter((_, at) => at % 2 === 0);
      const quoted = literals.map((text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
      const places = names.map((name) => name.length === 1 ? NUMBER : /^id\d*$/.test(name) ? "(\\S+)" : "(.+?)");
      const pattern = {regex: new RegExp(`^${quoted.map((text, at) => text + (places[at] || "")).join("")}$`, "s"), names, shown,
                       size: literals.join("").length, ends: FINISHED.test(source)};
      const word = /^\S+(?=\s)/.exec(literals[0]);
      if (!word) { loose.push(pattern); continue; }
      if (!by_word.has(word[0])) by_word.set(word[0], []);
      by_word.get(word[0]).push(pattern);
    }
    const longest_first = (a, b) => b.size - a.size;
    loose.sort(longest_first);
    for (const patterns of by_word.values()) patterns.sort(longest_first);
    return {exact, by_word, loose};
  };
  const match = (texts, text, fill) => {
    const exact = texts.exact.get(text);
    if (exact !== undefined) return exact;
    const word = /^\S+(?=\s)/.exec(text);
    for (const patterns of [(word && texts.by_word.get(word[0])) || [], texts.loose]) {
      for (const {regex, names, shown, ends} of patterns) {
        const finished = FINISHED.test(text);
        const found = (ends || !finished) && regex.exec(text);  // a label's place takes no whole sentence
        if (!found || (!finished && found.slice(1).some((place) => ENGLISH.test(place)))) continue;
        const values = Object.fromEntries(names.map((name, at) =>
          [name, /^id\d*$/.test(name) ? found[at + 1] : fill(found[at + 1])]));  // an id is nobody's word
        return shown.replace(/\{(\w+)\}/g, (place, name) => name in values ? values[name] : place);
      }
    }
    return null;
  };
  /* What stands in a place stays as it is, unless it is a value of the table, such as "3 clips" or "finished". */
  const value = (text) => {
    const parts = text.split(/(,? and |, | · |; )/);
    const whole = match(table.values, text, (inner) => inner);
    if (whole !== null) return whole;
    return parts.map((part, at) => at % 2 ? (table.values.exact.get(part) ?? part)
      : match(table.values, part, (inner) => inner) ?? part).join("");
  };
  const one = (sentence) => match(table.texts, sentence, value) ?? match(table.values, sentence, value);

  /* The translation of a text of one or more sentences, and whether the table has all of it. */
  const look_up = (text) => {
    const inner = text.trim();
    if (!/[A-Za-z]/.test(inner)) return {shown: text, whole: true};
    const known = memory.get(text);
    if (known) return known;
    const plain = inner.replace(/\s+/g, " ");
    const sentences = plain.split(SENTENCE_END).map((sentence) => [sentence, one(sentence)]);
    let whole = sentences.every(([, found]) => found !== null);
    let shown = sentences.map(([sentence, found]) => found ?? sentence).join(" ");
    // A list, such as the parts of a job's title, is translated if all of its words are known.
    for (const between of [" · ", ", "]) {
      if (whole || sentences.length > 1 || !plain.includes(between)) continue;
      const parts = plain.split(between).map((part) => [part, one(part)]);
      if (!parts.every(([part, found]) => found !== null || !/[A-Za-z]{2}/.test(part.replace(NAME, "")))) continue;
      whole = true;
      shown = parts.map(([part, found]) => found ?? part).join(between.replace(",", table.comma));
    }
    const result = {shown: text.slice(0, text.indexOf(inner)) + shown + text.slice(text.indexOf(inner) + inner.length),
                    whole};
    if (memory.size >= LARGEST_MEMORY) memory.clear();
    memory.set(text, result);
    return result;
  };
  window.lisanText = (text) => table ? look_up(text).shown : text;

  const skipped = (element) => !element || element.closest(SKIPPED);
  /* A text with code in it is one sentence: `code` in the table. Returns the code elements, or null. */
  const code_parts = (element) => {
    const codes = [];
    let words = false;
    for (const child of element.childNodes) {
      if (child.nodeType === Node.TEXT_NODE) words = words || /\S/.test(child.data);
      else if (child.nodeName === "CODE" && child.children.length === 0) codes.push(child);
      else if (child.nodeType === Node.ELEMENT_NODE) return null;
    }
    return words && codes.length ? codes : null;
  };
  const marked = (nodes) => [...nodes].map((node) =>
    node.nodeName === "CODE" ? "`" + node.textContent + "`" : node.textContent).join("");
  const mixed = (element) => {
    const record = sources.get(element) || {};
    const text = marked(element.childNodes);
    if (record.mixed && record.mixed.shown === text) return record.mixed;
    const {shown, whole} = look_up(text);
    record.mixed = {shown, whole, text, nodes: [...element.childNodes].map((node) => node.cloneNode(true))};
    sources.set(element, record);
    if (shown === text) return record.mixed;
    element.replaceChildren(...shown.split("`").map((part, at) => {
      if (at % 2 === 0) return document.createTextNode(part);
      const code = document.createElement("code");
      code.textContent = part;
      return code;
    }));
    return record.mixed;
  };

  const translate_text = (node) => {
    if (skipped(node.parentElement)) return;
    if (code_parts(node.parentElement)) { mixed(node.parentElement); return; }
    const record = sources.get(node);
    if (record && record.shown === node.data) return;
    const {shown, whole} = look_up(node.data);
    sources.set(node, {text: node.data, shown, whole});
    if (shown !== node.data) node.data = shown;
  };
  /* The name of a drop zone is what is read in it, see page.js. */
  const is_named_by_its_text = (element, name) => name === "aria-label" && element.hasAttribute("data-named");
  const translate_attributes = (element) => {
    if (element.closest("[translate=no]")) return;
    for (const name of ATTRIBUTES) {
      const text = element.getAttribute(name);
      if (!text || is_named_by_its_text(element, name)) continue;
      const record = sources.get(element) || {};
      if (record[name] && record[name].shown === text) continue;
      const {shown, whole} = look_up(text);
      record[name] = {text, shown, whole};
      sources.set(element, record);
      if (shown !== text) element.setAttribute(name, shown);
    }
  };
  /* Gradio keeps the chosen label itself: the field only shows it in another language until it has the focus. */
  const translate_choice = (input) => {
    if (input === document.activeElement) return;
    const record = sources.get(input) || {};
    if (record.value && record.value.shown === input.value) return;
    const {shown} = look_up(input.value);
    record.value = {text: input.value, shown};
    sources.set(input, record);
    if (shown !== input.value) input.value = shown;
  };
  const restore_choice = (input) => {
    const record = sources.get(input);
    if (record && record.value && record.value.shown === input.value) input.value = record.value.text;
  };
  const each = (root, on_text, on_element) => {
    if (root.nodeType === Node.TEXT_NODE) { on_text(root); return; }
    if (root.nodeType !== Node.ELEMENT_NODE) return;
    const nodes = [root], walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT);
    while (walker.nextNode()) nodes.push(walker.currentNode);
    for (const node of nodes) node.nodeType === Node.TEXT_NODE ? on_text(node) : on_element(node);
  };
  const translate = (root) => each(root, translate_text, translate_attributes);
  const choices = () => document.querySelectorAll(CHOICE).forEach(translate_choice);

  const changed = (changes) => {
    for (const change of changes) {
      if (change.type === "attributes") translate_attributes(change.target);
      else if (change.type === "characterData") translate_text(change.target);
      else for (const node of change.addedNodes) if (node.isConnected) translate(node);
    }
    choices();
    paint();
  };
  const restore = () => {
    each(document.body, (node) => {
      const record = sources.get(node);
      if (record && record.shown === node.data) node.data = record.text;
      sources.delete(node);
    }, (element) => {
      const record = sources.get(element);
      if (!record) return;
      for (const name of ATTRIBUTES)
        if (record[name] && record[name].shown === element.getAttribute(name)) element.setAttribute(name, record[name].text);
      restore_choice(element);
      if (record.mixed && record.mixed.shown === marked(element.childNodes)) element.replaceChildren(...record.mixed.nodes);
      sources.delete(element);
    });
  };

  /* The chooser in the header, and the remark beside it about a table that no speaker has read. */
  const paint = () => {
    if (document.documentElement.lang !== language) document.documentElement.lang = language;  // Gradio sets its own
    const field = document.querySelector("#language select"), remark = document.querySelector("#language .draft");
    if (!field) return;
    if (field.value !== language) field.value = language;
    if (!remark) return;
    const draft = Boolean(table && !table.read_by);
    if (remark.hidden === draft) remark.hidden = !draft;
  };
  let turns = 0;
  const POLL_MS = 500;  // The value of a field may be set after all else, which no observer tells.
  let poll = 0;
  const use = async (code) => {
    const turn = ++turns;
    let loaded = null;
    if (code !== SOURCE) {
      const answer = await fetch(tables[code]).catch(() => null);
      if (!answer || !answer.ok) {
        if (window.lisanShowFault) window.lisanShowFault(`The texts of the language ${code} could not be loaded. Reload the page.`);
        paint();
        return;
      }
      loaded = await answer.json();
    }
    if (turn !== turns) return;  // another language was chosen meanwhile
    if (observer) observer.disconnect();
    clearInterval(poll);
    if (table) restore();
    memory = new Map();
    language = code;
    table = loaded && {...loaded, texts: compile(loaded.texts), values: compile(loaded.values)};
    document.documentElement.lang = code;
    document.documentElement.dir = (loaded && loaded.direction) || "ltr";
    if (table) {
      if (document.body) translate(document.body);
      choices();
      poll = setInterval(choices, POLL_MS);
      observer = observer || new MutationObserver(changed);
      observer.observe(document.documentElement, {childList: true, characterData: true, subtree: true,
                                                  attributeFilter: ATTRIBUTES});
    }
    paint();
  };
  window.lisanUseLanguage = use;

  /* Texts of the page as it stands: [what the app wrote, whether the table has it]. For tests and scripts. */
  window.lisanTexts = (visible_only = true) => {
    const found = [];
    const shows = (element) => !visible_only || (element && element.checkVisibility());
    each(document.body, (node) => {
      const parent = node.parentElement;
      if (!node.data.trim() || skipped(parent) || !shows(parent)) return;
      const inside = sources.get(parent);
      if (inside && inside.mixed) return;
      if (!table && code_parts(parent)) return;
      const record = sources.get(node);
      found.push([record ? record.text : node.data, Boolean(record && record.whole)]);
    }, (element) => {
      if (skipped(element) || !shows(element)) return;
      const record = sources.get(element) || {};
      if (record.mixed) found.push([record.mixed.text, record.mixed.whole]);
      else if (!table && code_parts(element)) found.push([marked(element.childNodes), false]);
      for (const name of ATTRIBUTES)
        if (element.getAttribute(name) && !is_named_by_its_text(element, name)) found.push([record[name] ? record[name].text : element.getAttribute(name),
                                                    Boolean(record[name] && record[name].whole)]);
      if (element.matches(CHOICE) && element.value)
        found.push([record.value ? record.value.text : element.value, Boolean(record.value && look_up(record.value.text).whole)]);
    });
    return found.map(([text, whole]) => [text.trim().replace(/\s+/g, " "), whole]);
  };

  document.addEventListener("change", (event) => {
    if (!event.target.matches || !event.target.matches("#language select")) return;
    keep(event.target.value);
    use(event.target.value);
  });
  document.addEventListener("focusin", ({target}) => { if (table && target.matches(CHOICE)) restore_choice(target); }, true);
  document.addEventListener("focusout", ({target}) => {
    if (table && target.matches(CHOICE)) setTimeout(() => table && translate_choice(target), 200);
  }, true);

  const first = preferred();
  if (first !== SOURCE) use(first);
})();
