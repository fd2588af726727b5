/* The review table: keys, waveforms that are played, and what is pressed or typed, told to the page as one command. */
(() => {
  const drafts = {};  /* by dataset and clip: another dataset may have clips of the same names */
  let current = "", editing = false;
  const table = () => document.querySelector("#review-table");
  const rows = () => [...document.querySelectorAll("#review-table .clip")];
  const rowOf = (node) => node && node.closest ? node.closest("#review-table .clip") : null;
  const sound = (row) => row && row.querySelector("audio");
  const datasetOf = (node) => node.closest("[data-dataset]").dataset.dataset;
  const keyOf = (row) => JSON.stringify([datasetOf(row), row.dataset.clip]);

  /* One command after another: the box holds one, and Gradio reads it a moment after it was written. */
  let turn = Promise.resolve();
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));
  const tell = (command) => {
    turn = turn.then(async () => {
      const box = document.querySelector("#review-command textarea, #review-command input");
      if (!box) return;
      const kind = box.tagName === "TEXTAREA" ? HTMLTextAreaElement : HTMLInputElement;
      Object.getOwnPropertyDescriptor(kind.prototype, "value").set.call(box, JSON.stringify(command));
      box.dispatchEvent(new Event("input", {bubbles: true}));
      await pause(60);
      box.dispatchEvent(new KeyboardEvent("keypress", {key: "Enter", bubbles: true}));
      await pause(150);
    });
  };

  const choose = (row) => {
    if (!row) return;
    current = keyOf(row);
    row.focus({preventScroll: true});
    row.scrollIntoView({block: "nearest"});
  };

  const step = (by) => {
    const all = rows(), at = all.findIndex((row) => keyOf(row) === current);
    choose(all[Math.min(all.length - 1, Math.max(0, at + by))]);
  };

  const play = (row) => {
    const mine = sound(row);
    if (!mine) return;
    for (const other of document.querySelectorAll("#review-table audio")) if (other !== mine) other.pause();
    if (mine.paused) mine.play(); else mine.pause();
  };

  const keep = (field) => {
    const row = rowOf(field);
    if (!row || field.value === field.defaultValue) return;
    tell({do: "text", dataset: datasetOf(row), clip: row.dataset.clip, text: field.value});
  };

  const press = (row) => {
    const button = row && row.querySelector("[data-do]");
    if (button) button.click();
  };

  const actions = {
    j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1), " ": (row) => play(row),
    x: (row) => press(row), e: (row) => row.querySelector("textarea").focus(),
    n: () => document.querySelector("#review-next").click(), p: () => document.querySelector("#review-back").click(),
  };

  document.addEventListener("keydown", (event) => {
    const row = rowOf(event.target);
    if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.tagName === "TEXTAREA") {
      if (event.key === "Escape" || (event.key === "Enter" && !event.shiftKey)) {
        event.preventDefault();
        choose(row);
      }
      return;
    }
    if (["BUTTON", "AUDIO"].includes(event.target.tagName) && event.key === " ") return;
    const action = actions[window.lisanKey(event)];
    if (!action) return;
    event.preventDefault();
    action(row);
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest && event.target.closest("#review-table [data-do], #review-found [data-do]");
    if (button) {
      const row = rowOf(button);
      const about = row ? {clip: row.dataset.clip} : {kind: button.dataset.kind};
      tell({do: button.dataset.do, dataset: datasetOf(button), ...about});
      return;
    }
    const wave = event.target.closest && event.target.closest("#review-table .wave");
    if (!wave) return;
    const row = rowOf(wave), mine = sound(row), box = wave.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    const start = () => { mine.currentTime = share * mine.duration; if (mine.paused) play(row); };
    if (mine.readyState > 0) start(); else { mine.addEventListener("loadedmetadata", start, {once: true}); mine.load(); }
  });

  document.addEventListener("focusin", (event) => {
    const row = rowOf(event.target);
    if (row) current = keyOf(row);
    editing = Boolean(row) && event.target.tagName === "TEXTAREA";
  });
  document.addEventListener("focusout", (event) => {
    if (event.target.isConnected && event.target.matches && event.target.matches("#review-table textarea")) keep(event.target);
  });
  document.addEventListener("input", (event) => {
    const row = event.target.matches && event.target.matches("#review-table textarea") && rowOf(event.target);
    if (row) drafts[keyOf(row)] = event.target.value;
  });

  document.addEventListener("timeupdate", (event) => {
    const row = rowOf(event.target), mark = row && row.querySelector(".wave-at");
    if (mark) mark.style.left = `${100 * event.target.currentTime / (event.target.duration || 1)}%`;
  }, true);

  /* The table is sent again after each decision: what was being typed, and where one was, stays. Gradio may change its
     nodes in place, so a field can become another clip's: it shows that one's draft or text, and none that was typed
     before. A draft is there until the text that comes is the same. */
  new MutationObserver(() => {
    if (!table()) return;
    for (const row of rows()) {
      const field = row.querySelector("textarea"), key = keyOf(row);
      if (!field) continue;
      const kept = key in drafts && drafts[key].trim() === field.defaultValue.trim();
      if (kept && document.activeElement !== field) delete drafts[key];
      const wanted = key in drafts ? drafts[key] : field.defaultValue;
      if (field.value !== wanted) field.value = wanted;
    }
    if (document.activeElement && document.activeElement !== document.body) return;
    const row = rows().find((one) => keyOf(one) === current);
    if (!row) return;
    if (editing) row.querySelector("textarea").focus({preventScroll: true}); else row.focus({preventScroll: true});
  }).observe(document.documentElement, {
    childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: ["data-dataset", "data-clip"],
  });
})();
