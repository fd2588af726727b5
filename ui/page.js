/* An event that the app refuses has no answer, and Gradio does not show why (6.31): a notice does, for ten seconds.
   A restart of the app forgets every sign-in. The page then asks for it again in place of refusing each click. */
(() => {
  const ask = window.fetch;
  let notice = null, timer = 0;
  window.lisanShowFault = (text) => {
    if (!notice) {
      notice = document.createElement("div");
      notice.id = "refused";
      notice.className = "notice bad";
      notice.setAttribute("role", "alert");
    }
    if (!notice.isConnected) document.querySelector(".gradio-container").append(notice);
    if (notice.textContent !== text) notice.textContent = text;
    clearTimeout(timer);
    timer = setTimeout(() => notice.remove(), 10000);
  };
  /* An open list that becomes shorter ends all scripts of Gradio's page (6.31), so answers wait until it is closed. A
     field that can be typed into keeps its list open for as long as it has the focus: no answer waits for that. Lists of
     several choices do not have this fault. */
  const listIsOpen = () => {
    const field = document.querySelector("input[role=combobox][aria-expanded=true]");
    return field && field.readOnly && !field.closest(".several-choices");
  };
  window.fetch = async (...what) => {
    const answer = await ask(...what);
    const event = /\/gradio_api\/(run\/predict|queue\/join)/.test(answer.url);
    while (event && listIsOpen()) await new Promise((go) => setTimeout(go, 50));
    if (answer.status === 401 && (event || answer.url.endsWith("/media/mark"))) window.location.reload();
    else if (event && !answer.ok) {
      const told = await answer.clone().json().catch(() => null);
      window.lisanShowFault((told && told.error) || `The app did not answer (HTTP ${answer.status}).`);
    }
    return answer;
  };
})();

/* Lets the page follow the workspace and what a person does. The mark is a few bytes; a tick sends every field. */
(() => {
  let mark = null, due = 0, ticked = 0, lost = false;
  const tick = () => {
    const button = document.getElementById("live-tick");
    if (!button) return;
    ticked = Date.now();
    button.click();
  };
  window.lisanTickSoon = () => { clearTimeout(due); due = setTimeout(tick, 300); };
  const ask = async () => {
    let again = 3000;
    if (!document.hidden && document.getElementById("live-tick")) {
      try {
        const answer = await fetch("media/mark");
        if (answer.ok) {
          const found = await answer.json();
          again = found.again_ms;
          if (found.mark !== mark || Date.now() - ticked > 60000) {
            mark = found.mark;
            tick();
            if (again > 2000) setTimeout(tick, 1500);  // Gradio drops a tick while one is answered
          }
          lost = false;
        }
      } catch (error) {
        if (!lost) tick();  // Gradio tells that the server is gone, and waits for it
        lost = true;
        mark = null;
      }
    }
    setTimeout(ask, again);
  };
  /* Gradio closes the menu of further tabs when a click reaches the window (6.31): the click of a tick must not. */
  document.addEventListener("click", (event) => { if (event.target.id === "live-tick") event.stopPropagation(); });
  const acted = (event) => { if (!event.target.closest || !event.target.closest("#live-tick")) window.lisanTickSoon(); };
  for (const kind of ["input", "change", "click", "keyup", "drop"]) document.addEventListener(kind, acted, true);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) window.lisanTickSoon(); });
  setTimeout(ask, 1000);
})();

/* A dropdown that was closed with Escape keeps the focus, by which alone it opens (6.31): a click gives it anew. */
document.addEventListener("mousedown", (event) => {
  const field = event.target;
  if (field === document.activeElement && field.matches("input[role=combobox][aria-expanded=false]")) field.blur();
}, true);

/* A dropdown opens its list at every key but Escape, at Tab after the focus has left it (6.31). That list stays open over
   the page, and no answer is shown while it is. The dropdown closes by losing the focus, so Tab is kept from it. A long
   list can be scrolled, and Tab would stop at it as well. */
document.addEventListener("keydown", (event) => {
  if (!["Tab", "Shift"].includes(event.key) || !event.target.matches("input[role=combobox]")) return;
  event.stopPropagation();
  for (const list of document.querySelectorAll("ul[role=listbox]")) list.tabIndex = -1;
}, true);

/* Enter takes a choice and leaves the focus to the page's body (6.31), so that the next Tab begins at the top. The field
   gets it back. Gradio opens a list when its field gets the focus, so it is told of this one when something is typed. */
(() => {
  let returning = false, untold = null;
  document.addEventListener("keydown", (event) => {
    const field = event.target;
    if (event.key !== "Enter" || !field.matches || !field.matches("input[role=combobox]")) return;
    setTimeout(() => {
      if (document.activeElement !== document.body || !field.isConnected) return;
      returning = true;
      field.focus({preventScroll: true});
      returning = false;
      untold = field;
    }, 50);
  }, true);
  document.addEventListener("input", ({target}) => {
    if (target === untold) target.dispatchEvent(new FocusEvent("focus"));
    untold = null;
  }, true);
  document.addEventListener("focus", (event) => { if (returning) event.stopPropagation(); }, true);
})();

/* The open list of a dropdown has a fixed place, which Gradio finds anew when the page is scrolled (6.31): also when its
   field moves, as what stands above it grows. */
document.addEventListener("focusin", ({target}) => {
  if (!target.matches("input[role=combobox]")) return;
  let top = target.getBoundingClientRect().top;
  const timer = setInterval(() => {
    if (document.activeElement !== target) { clearInterval(timer); return; }
    const now = target.getBoundingClientRect().top;
    if (now !== top) window.dispatchEvent(new Event("scroll"));
    top = now;
  }, 100);
});

/* Plays the parts of clips one after another while later parts are still being made. The card of the clip that is heard
   says so and has a button to pause. */
(() => {
  let context = null, job = "", done = 0, free = 0, chain = Promise.resolve(), parts = [], timer = 0;
  const heard = () => parts.find((part) => part.source && context.currentTime < part.end);
  const paint = () => {
    const at = context && heard();
    for (const card of document.querySelectorAll("#clips .side[data-clip]")) {
      const on = Boolean(at) && card.dataset.clip === at.clip;
      card.classList.toggle("streaming", on);
      const button = card.querySelector(".stream-toggle");
      if (!button) continue;
      button.hidden = !on;
      const text = window.lisanText(context && context.state === "suspended" ? "Play" : "Pause");
      if (on && button.innerText !== text) button.innerText = text;
    }
    if (!at && timer) { clearInterval(timer); timer = 0; }
  };
  const play = async (part) => {
    const answer = await fetch(part.url);
    if (!answer.ok || part.dropped) return;
    const sound = await context.decodeAudioData(await answer.arrayBuffer());
    if (part.dropped) return;
    part.source = context.createBufferSource();
    part.source.buffer = sound;
    part.source.connect(context.destination);
    free = Math.max(free, context.currentTime + 0.05);
    part.source.start(free);
    free += sound.duration;
    part.end = free;
    paint();
    timer = timer || setInterval(paint, 200);
  };
  const drop = () => {
    for (const part of parts) { part.dropped = true; if (part.source) part.source.stop(); }
    parts = [];
    free = 0;
    if (context && context.state === "suspended") context.resume();
    paint();
  };
  window.lisanStream = (element) => {
    const box = element.querySelector(".stream-player");
    if (!box) return;
    const given = JSON.parse(box.dataset.parts || "[]");
    if (box.dataset.job !== job) { drop(); for (const other of document.querySelectorAll("audio")) other.pause(); job = box.dataset.job; done = 0; }
    for (const part of given.slice(done)) {
      context = context || new AudioContext();
      parts.push(part);
      chain = chain.then(() => play(part)).catch((error) => console.warn("part not played", error));
    }
    done = Math.max(done, given.length);
  };
  document.addEventListener("click", (event) => {
    if (!event.target.matches || !event.target.matches(".stream-toggle")) return;
    (context.state === "suspended" ? context.resume() : context.suspend()).then(paint);
  });
  document.addEventListener("play", () => { job && drop(); done = Infinity; }, true);  // another clip is heard instead
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

/* A decimal comma in a number box, where it would be dropped or refused, is written as a point. A number beyond all that
   a browser can hold, such as 1e999, would be sent as nothing: it is not taken, and a notice says so. */
document.addEventListener("beforeinput", (event) => {
  if (event.target.type !== "number" || !event.data) return;
  if (event.data.includes(",")) {
    event.preventDefault();
    document.execCommand("insertText", false, event.data.replace(",", "."));
    return;
  }
  const too_large = [event.data, event.target.value + event.data].find((text) => Math.abs(Number(text)) === Infinity);
  if (!too_large) return;
  event.preventDefault();
  window.lisanShowFault(`${event.target.getAttribute("aria-label")}: ${too_large} is too large. Give a smaller number.`);
}, true);

/* Enter takes the first language whose label holds what was typed (6.31), such as Amharic for ha. The language of exactly
   that name or code goes before it, and two letters that no listed language has as its code are taken as they are. */
(() => {
  let moved = false;  // by an arrow to another language
  const field = (event) => event.target.matches && event.target.matches("#own-language input");
  document.addEventListener("input", (event) => { if (field(event)) moved = false; }, true);
  document.addEventListener("keydown", (event) => {
    if (!field(event)) return;
    if (event.key.startsWith("Arrow")) moved = true;
    if (event.key !== "Enter" || moved) return;
    const typed = event.target.value.trim().toLowerCase();
    const options = [...document.querySelectorAll("#own-language [role=option]")];
    const exact = options.find((option) => {
      const [, name, code] = /^(.*) \((.*)\)$/.exec(option.getAttribute("aria-label").toLowerCase()) || [];
      return (name || "").split(" · ").includes(typed) || typed === code;
    });
    if (!exact && !/^[a-z]{2}$/.test(typed)) return;
    event.preventDefault();
    event.stopPropagation();
    if (exact) exact.dispatchEvent(new MouseEvent("mousedown", {bubbles: true, cancelable: true}));
    else event.target.blur();
  }, true);
})();

/* The title of the browser's tab, and a notification with a sound when a long job has ended, if that was asked for. */
(() => {
  const KEY = "lisan-notify";
  let ended = null, context = null;
  const wanted = () => { try { return localStorage.getItem(KEY) === "on"; } catch (error) { return false; } };
  const keep = (on) => { try { localStorage.setItem(KEY, on ? "on" : "off"); } catch (error) { /* for this page only */ } };
  const paint = () => {
    const button = document.querySelector("#notify button");
    if (!button) return;
    const on = wanted() && window.Notification && Notification.permission === "granted";
    if (button.getAttribute("aria-pressed") !== String(Boolean(on))) button.setAttribute("aria-pressed", Boolean(on));
  };
  const sound = () => {
    try {
      context = context || new AudioContext();
      for (const [at, pitch] of [[0, 660], [0.18, 880]]) {
        const tone = context.createOscillator(), level = context.createGain();
        tone.frequency.value = pitch;
        level.gain.setValueAtTime(0.12, context.currentTime + at);
        level.gain.exponentialRampToValueAtTime(0.001, context.currentTime + at + 0.4);
        tone.connect(level).connect(context.destination);
        tone.start(context.currentTime + at);
        tone.stop(context.currentTime + at + 0.4);
      }
    } catch (error) { console.warn("no sound", error); }
  };
  const look = () => {
    paint();
    const header = document.querySelector("#header [data-title]");
    if (!header) return;
    const title = window.lisanText(header.dataset.title);
    if (document.title !== title) document.title = title;
    const now = header.dataset.ended || "";
    if (ended === null) ended = now;  // what had ended before this page was opened is no news
    if (now === ended) return;
    ended = now;
    if (!now || !wanted()) return;
    sound();
    if (window.Notification && Notification.permission === "granted")
      new Notification("Lisan", {body: window.lisanText(now.slice(now.indexOf("|") + 1)), tag: "lisan-job"});
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest && event.target.closest("#notify button");
    if (!button) return;
    if (wanted()) keep(false);
    else {
      keep(true);
      sound();  // a browser plays sound only after a click, and this shows which one it is
      if (window.Notification && Notification.permission === "default") await Notification.requestPermission();
      if (!window.Notification || Notification.permission !== "granted")
        window.lisanShowFault("This browser shows no notifications of this page: a sound is played instead.");
    }
    button.setAttribute("aria-pressed", String(wanted()));
  });
  new MutationObserver(look).observe(document, {childList: true, subtree: true, attributeFilter: ["data-title", "data-ended"]});
})();

/* Gradio names a drop zone otherwise than it shows it (6.31): its name begins with what is read there. */
(() => {
  const names = new WeakMap();  // by drop zone: the text that its name was taken from
  const rename = () => {
    for (const zone of document.querySelectorAll("button[aria-label][aria-dropeffect]")) {
      if (names.get(zone) === zone.textContent) continue;
      const shown = zone.innerText.trim().replace(/\s+/g, " ");
      if (!shown) continue;
      names.set(zone, zone.textContent);
      zone.setAttribute("data-named", "");  // what is read there is translated already
      zone.setAttribute("aria-label", shown);
    }
  };
  // A translation changes what is read there.
  new MutationObserver(rename).observe(document, {childList: true, characterData: true, subtree: true});
})();

/* Gradio draws a drop zone anew after an upload (6.31), and the focus would go to the page's body: the new one gets it. */
(() => {
  let field = null;  // the block whose drop zone has the focus, or had it until it was taken away
  const zone = () => field && [...field.querySelectorAll("button[aria-dropeffect]")].find((button) => button.checkVisibility());
  document.addEventListener("focusin", ({target}) => {
    field = target.matches("button[aria-dropeffect]") ? target.closest(".block[id]") : null;
  });
  document.addEventListener("pointerdown", ({target}) => { if (field && !field.contains(target)) field = null; }, true);
  new MutationObserver(() => {
    if (!field || document.activeElement !== document.body || !document.hasFocus()) return;
    const again = zone();
    if (again) again.focus({preventScroll: true});
  }).observe(document, {childList: true, subtree: true});
})();

/* The letter that is printed on a key, or with letters of another script the key's place; any other key as it is. */
window.lisanKey = (event) => {
  if (/^[\x21-\x7e]$/.test(event.key)) return event.key.toLowerCase();
  return /^Key[A-Z]$/.test(event.code || "") ? event.code.slice(3).toLowerCase() : event.key;
};

/* Ctrl and space in the field of a clip's text play the clip again, so that the hands stay on the keyboard. */
document.addEventListener("keydown", (event) => {
  if (event.key !== " " || !event.ctrlKey || !event.target.closest || !event.target.closest("#typing-text")) return;
  const sound = document.querySelector("#typing-clip audio");
  if (!sound) return;
  event.preventDefault();
  const begin = /#t=([\d.]+)/.exec(sound.src);
  sound.currentTime = begin ? Number(begin[1]) : 0;
  sound.play().catch((error) => error.name !== "AbortError" && console.warn("not played", error));
});
