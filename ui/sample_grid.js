/* The grid of samples: one player for all its buttons. It stands outside of what is sent again, so a new step, or a new
   best one, does not disturb what is heard. */
(() => {
  const sound = document.createElement("audio");
  sound.id = "grid-sound";
  sound.preload = "none";
  sound.hidden = true;
  let playing = "", next = [], turning = false, focused = "", run = "", followed = true;  // `next`: what follows in turn
  const box = () => document.querySelector("#run-samples .takes-box");
  const buttons = (within) => [...within.querySelectorAll("button.hear")];
  const at = (event) => event.target.closest && event.target.closest("#run-samples button.hear");
  const turns = (within) => [...within.querySelectorAll("button.turn")];
  const rowOf = (node) => node && node.closest(".takes-row");
  const find = (address) => box() && buttons(box()).find((one) => one.dataset.sound === address);

  /* What is sent knows nothing of what is played: say it again. */
  const paint = () => {
    if (!box()) return;
    const share = sound.duration ? sound.currentTime / sound.duration : 0;
    for (const one of buttons(box())) {
      const on = one.dataset.sound === playing;
      one.setAttribute("aria-pressed", String(on));
      if (on) one.style.setProperty("--heard", `${(100 * share).toFixed(1)}%`); else one.removeAttribute("style");
    }
    const row = turning ? rowOf(find(playing)) : null;
    for (const one of turns(box())) one.setAttribute("aria-pressed", String(rowOf(one) === row));
  };

  const stop = () => { playing = ""; next = []; turning = false; sound.pause(); paint(); };
  const hear = (button) => {
    if (button.dataset.sound === playing) return stop();
    next = [];
    turning = false;
    start(button.dataset.sound);
  };
  const inTurn = (button) => {
    if (button.getAttribute("aria-pressed") === "true") return stop();
    next = buttons(rowOf(button)).map((one) => one.dataset.sound);
    turning = true;
    onwards();
  };
  const onwards = () => {
    const button = find(next.shift());
    if (!button) return stop();
    start(button.dataset.sound);
    button.scrollIntoView({block: "nearest", inline: "nearest"});
  };
  const start = (address) => {
    for (const other of document.querySelectorAll("audio")) if (other !== sound) other.pause();
    if (!sound.isConnected) document.body.append(sound);
    playing = address;
    sound.src = playing;
    sound.play().catch((error) => error.name !== "AbortError" && missed());
    paint();
  };
  const missed = () => {
    const button = find(playing);
    stop();
    if (button) button.querySelector(".take-error").textContent = "not found";
  };
  sound.addEventListener("ended", onwards);
  sound.addEventListener("timeupdate", paint);
  document.addEventListener("play", (event) => { if (event.target !== sound && playing) stop(); }, true);

  document.addEventListener("click", (event) => {
    if (at(event)) hear(at(event));
    const turn = event.target.closest && event.target.closest("#run-samples button.turn");
    if (turn) inTurn(turn);
  });
  document.addEventListener("focusin", (event) => { focused = at(event) ? at(event).dataset.sound : ""; });
  document.addEventListener("scroll", (event) => {
    const seen = event.target;
    if (seen === box()) followed = seen.scrollLeft + seen.clientWidth >= seen.scrollWidth - 8;
  }, true);

  const beside = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
  document.addEventListener("keydown", (event) => {
    const button = at(event), way = beside[event.key];
    if (!button || !way || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const rows = [...box().querySelectorAll(".takes-row")];
    const row = button.closest(".takes-row"), column = [...row.children].indexOf(button.closest(".take"));
    let [line, place] = [rows.indexOf(row), column], beyond = null;
    while (!beyond) {
      line += way[1]; place += way[0];
      const cell = rows[line] && rows[line].children[place];
      if (!cell) return;
      beyond = cell.querySelector("button.hear");
    }
    beyond.focus();
  });

  /* After each change: what is heard and what had the focus stay what they are; the newest step comes into sight
     unless somebody is at work in the grid or has scrolled away from it. */
  window.lisanGrid = () => {
    paint();
    const seen = box();
    if (!seen) return;
    const now = document.activeElement;
    if (focused && now && now.matches("#run-samples button.hear") && now.dataset.sound !== focused && find(focused))
      find(focused).focus({preventScroll: true});
    if (seen.dataset.run !== run) { run = seen.dataset.run; followed = true; if (playing) stop(); }
    if (followed && !seen.matches(":hover, :focus-within")) seen.scrollLeft = seen.scrollWidth;
  };
})();
