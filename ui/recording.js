/* Recording sentence by sentence: keys within the fold, and a focus that stays there. Gradio draws the microphone anew
   after each recording (6.31), and the focus would go to the page's body. */
(() => {
  const fold = () => document.querySelector("#recording");
  const card = () => document.querySelector("#recording-card .prompt");

  /* One change at a time. The app keeps which sentence is shown, so a recording that begins before the answer to Next
     would belong to the sentence before. Buttons and keys wait until the answer has changed the card or the notice. */
  const LONGEST_WAIT_MS = 5000;  // The same list or the same error again changes nothing.
  let waiting_until = 0;
  const wait = () => { waiting_until = Date.now() + LONGEST_WAIT_MS; };
  const running = () => [...document.querySelectorAll("#recording-microphone .stop-button")].find((shown) => shown.offsetParent);
  const is_answer = ({target}) => Boolean(target.closest && target.closest("#recording-card, #recording-notice"));

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
      return stream.catch((error) => {
        waiting_until = 0;  // nothing is recorded
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
    const action = actions[window.lisanKey(event)];
    if (!action || !card()) return;
    event.preventDefault();
    action();
  });

  /* A recording ends before another sentence is shown: the voice would go on over it. */
  document.addEventListener("click", (event) => {
    const button = event.target.closest && event.target.closest(
      ":is(#recording-next, #recording-back, #recording-skip), #recording-microphone :is(.record-button, .stop-button)");
    if (!button) return;
    const stop = running();
    // To stop never waits.
    if (button === stop) { wait(); return; }
    if (!stop && Date.now() >= waiting_until) {
      wait();
      return;
    }
    event.preventDefault();
    event.stopImmediatePropagation();
    if (stop) stop.click();
  }, true);

  /* The choice of another list shows another sentence too: like Next, it only ends a recording, and is made again when
     that is stored. Gradio takes a choice at mousedown or Enter (6.31). No answer is shown while a list is open (page.js):
     the focus goes to the card, which closes it. */
  const is_of_list = (element) => Boolean(element && element.closest && element.closest("#recording-list"));
  const choose = (event) => {
    const stop = running();
    if (!stop && Date.now() >= waiting_until) { wait(); return; }
    event.preventDefault();
    event.stopImmediatePropagation();
    if (card()) card().focus({preventScroll: true});
    if (stop) stop.click();
  };
  document.addEventListener("mousedown", (event) => {
    if (event.target.closest && event.target.closest("[role=option]") && is_of_list(document.activeElement)) choose(event);
  }, true);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && is_of_list(event.target)) choose(event);
  }, true);

  // The button of a new list goes away when its first sentence is shown.
  const PLACES = "#recording-sentences, #recording-create";
  document.addEventListener("focusin", (event) => {
    inside = Boolean(event.target.closest && event.target.closest(PLACES));
  });
  document.addEventListener("pointerdown", (event) => {
    if (inside && event.target.closest && !event.target.closest(PLACES)) inside = false;
  }, true);
  new MutationObserver((changes) => {
    if (changes.some(is_answer)) waiting_until = 0;
    const prompt = card();
    if (!prompt) return;
    if (!window.isSecureContext) prompt.querySelector(".insecure").hidden = false;
    if (inside && document.activeElement === document.body && fold().contains(prompt)) prompt.focus({preventScroll: true});
  }).observe(document, {childList: true, subtree: true, attributeFilter: ["data-answer"]});
})();
