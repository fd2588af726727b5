/* Recording sentence by sentence: keys within the fold, and a focus that stays there. Gradio draws the microphone anew
   after each recording (6.31), and the focus would go to the page's body. */
(() => {
  /* A browser takes noise and echo out and moves the level, as for a call: a voice to be learned is recorded as it is. */
  const devices = navigator.mediaDevices;
  if (devices && devices.getUserMedia) {
    const ask = devices.getUserMedia.bind(devices);
    const plain = {echoCancellation: false, noiseSuppression: false, autoGainControl: false};
    devices.getUserMedia = (wanted) => ask(wanted && wanted.audio
      ? {...wanted, audio: {...(wanted.audio === true ? {} : wanted.audio), ...plain}} : wanted);
  }

  let inside = false;
  const fold = () => document.querySelector("#recording");
  const card = () => document.querySelector("#recording-card .prompt");
  const press = (selector) => {
    const button = [...document.querySelectorAll(selector)].find((one) => one.offsetParent && !one.disabled);
    if (button) button.click();
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
    const action = actions[event.key];
    if (!action || !card()) return;
    event.preventDefault();
    action();
  });

  /* A recording ends before another sentence is shown: the voice would go on over it. */
  document.addEventListener("click", (event) => {
    const moves = event.target.closest && event.target.closest("#recording-next, #recording-back, #recording-skip");
    const stop = [...document.querySelectorAll("#recording-microphone .stop-button")].find((one) => one.offsetParent);
    if (!moves || !stop) return;
    event.preventDefault();
    event.stopPropagation();
    stop.click();
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
