/* Recording sentence by sentence: keys within the fold, and a focus that stays there. Gradio draws the microphone anew
   after each recording (6.31), and the focus would go to the page's body. */
(() => {
  const fold = () => document.querySelector("#recording");
  const card = () => document.querySelector("#recording-card .prompt");

  /* One change at a time. The app keeps which sentence is shown, so a recording that begins before the answer to Next
     would belong to the sentence before. Buttons and keys wait for the app's answer to each event of the fold, and until
     the page has drawn it. An error ends the wait too. */
  const SOURCES = ["list", "microphone", "back", "skip", "next"].map((name) => `recording-${name}`);
  const DRAWN_MS = 300;  // until a click is an event, and until an answer is drawn if the card does not change
  const UPLOAD_MS = 5000;  // until the upload of a recording begins; one that cannot be decoded has none
  let unanswered = 0, drawn_before = "", drawn_by = 0, upload_by = 0;
  const drawn = () => card() ? card().outerHTML : "";  // Gradio changes the card's elements in place (6.31)
  const busy = () => unanswered > 0 || Date.now() < upload_by || (Date.now() < drawn_by && drawn() === drawn_before);
  const expect_change = () => {
    drawn_before = drawn();
    drawn_by = Date.now() + DRAWN_MS;
  };
  const wait_for = (answer) => {
    if (!unanswered) drawn_before = drawn();
    unanswered += 1;
    const settle = () => {
      unanswered -= 1;
      drawn_by = Date.now() + DRAWN_MS;
    };
    answer.then(settle, settle);
  };
  const is_of_fold = (address, settings) => {
    if (/\/gradio_api\/upload/.test(address)) return Date.now() < upload_by;
    if (!/\/gradio_api\/(run\/predict|queue\/join)/.test(address) || typeof settings.body !== "string") return false;
    const {dependencies = [], components = []} = window.gradio_config || {};
    const number = JSON.parse(settings.body).fn_index;
    const event = dependencies.find(({id}) => id === number);
    const ids = event ? event.targets.map(([id]) => id) : [];
    return components.some(({id, props}) => ids.includes(id) && SOURCES.includes(props.elem_id));
  };
  const send = window.fetch;
  window.fetch = (address, settings = {}) => {
    const counts = is_of_fold(String(address.url || address), settings);
    const answer = send(address, settings);
    if (!counts) return answer;
    wait_for(answer.then((response) => response.clone().text()));
    upload_by = 0;
    return answer;
  };

  /* A browser takes noise and echo out and moves the level, as for a call: a voice to be learned is recorded as it is.
     Gradio shows nothing if there is no microphone (6.31). */
  const devices = navigator.mediaDevices;
  if (devices && devices.getUserMedia) {
    const ask = devices.getUserMedia.bind(devices);
    const plain = {echoCancellation: false, noiseSuppression: false, autoGainControl: false};
    const faults = {
      NotAllowedError: "The browser does not allow the microphone. Allow it for this page in the browser's settings, then record again.",
      NotFoundError: "The browser finds no microphone. Connect one, then record again.",
    };
    devices.getUserMedia = (wanted) => {
      const stream = ask(wanted && wanted.audio
        ? {...wanted, audio: {...(wanted.audio === true ? {} : wanted.audio), ...plain}} : wanted);
      wait_for(stream);
      return stream.catch((error) => {
        window.lisanShowFault(faults[error.name]
          || `The microphone could not be used (${error.name}). Close other programs that use it, then record again.`);
        throw error;
      });
    };
  }

  let inside = false;
  const press = (selector) => {
    const shown = [...document.querySelectorAll(selector)].find((button) => button.offsetParent && !button.disabled);
    if (shown) shown.click();
  };
  const actions = {
    r: () => press("#recording-microphone :is(.record-button, .stop-button)"),
    p: () => {
      const sound = document.querySelector("#recording-card audio");
      if (!sound) return;
      if (!sound.paused) { sound.pause(); return; }
      sound.currentTime = 0;
      sound.play().catch((error) => error.name !== "AbortError" && console.warn("not played", error));
    },
    n: () => press("#recording-next"), b: () => press("#recording-back"), s: () => press("#recording-skip"),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || !event.target.closest) return;
    if (!event.target.closest("#recording-sentences") || event.target.matches("input, textarea, select")) return;
    // The letter that is printed on the key, or with letters of another script the key's place.
    const letter = /^[a-z]$/i.test(event.key) ? event.key : (event.code || "").replace(/^Key/, "");
    const action = actions[letter.toLowerCase()];
    if (!action || !card()) return;
    event.preventDefault();
    action();
  });

  /* A recording ends before another sentence is shown: the voice would go on over it. */
  document.addEventListener("click", (event) => {
    const button = event.target.closest && event.target.closest(
      ":is(#recording-next, #recording-back, #recording-skip), #recording-microphone :is(.record-button, .stop-button)");
    if (!button) return;
    const stop = [...document.querySelectorAll("#recording-microphone .stop-button")].find((shown) => shown.offsetParent);
    if (button === stop) {
      // To stop never waits: the app refuses a recording whose beginning it does not know.
      upload_by = Date.now() + UPLOAD_MS;
      return;
    }
    if (!stop && !busy()) {
      expect_change();
      return;
    }
    event.preventDefault();
    event.stopImmediatePropagation();
    if (stop) stop.click();
  }, true);

  document.addEventListener("focusin", (event) => {
    inside = Boolean(event.target.closest && event.target.closest("#recording-sentences"));
  });
  document.addEventListener("pointerdown", (event) => {
    if (inside && event.target.closest && !event.target.closest("#recording-sentences")) inside = false;
  }, true);
  new MutationObserver(() => {
    const prompt = card();
    if (!prompt) return;
    if (!window.isSecureContext) prompt.querySelector(".insecure").hidden = false;
    if (inside && document.activeElement === document.body && fold().contains(prompt)) prompt.focus({preventScroll: true});
  }).observe(document, {childList: true, subtree: true, attributeFilter: ["data-take", "data-sentence"]});
})();
