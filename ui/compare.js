/* The players of one sentence on Listen: waveforms that are clicked, and one playhead for all of them.

   A switch goes on at the same share of the clip, since the same word stands there in clips of different lengths. */
(() => {
  const PARTS = 160;
  const drawn = new Map();  // address: points of the outline
  let context = null, current = null;  // `current`: the side that was heard last
  const sides = (pair) => [...pair.querySelectorAll(".side")].filter((side) => side.querySelector("audio"));
  const pairOf = (node) => node && node.closest ? node.closest("#clips .pair") : null;
  const soundOf = (side) => side.querySelector("audio");

  const outline = async (address) => {
    const answer = await fetch(address);
    if (!answer.ok) return null;
    context = context || new OfflineAudioContext(1, 1, 16000);
    const samples = (await context.decodeAudioData(await answer.arrayBuffer())).getChannelData(0);
    const size = Math.max(1, Math.floor(samples.length / PARTS));
    const peaks = Array.from({length: PARTS}, (_, part) => {
      let peak = 0;
      for (let at = part * size; at < Math.min(samples.length, (part + 1) * size); at++) peak = Math.max(peak, Math.abs(samples[at]));
      return Math.max(0.6, 20 * Math.min(1, peak));
    });
    const top = peaks.map((height, at) => `${at},${(20 - height).toFixed(1)}`);
    const bottom = peaks.map((height, at) => `${at},${(20 + height).toFixed(1)}`).reverse();
    return [...top, ...bottom].join(" ");
  };

  const draw = async (wave) => {
    const address = wave.dataset.wave;
    if (!drawn.has(address)) drawn.set(address, outline(address).catch(() => null));
    const points = await drawn.get(address);
    if (!points || wave.querySelector("svg") || wave.dataset.wave !== address) return;
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", `0 0 ${PARTS - 1} 40`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    const shape = document.createElementNS("http://www.w3.org/2000/svg", "polygon");
    shape.setAttribute("points", points);
    svg.append(shape);
    wave.prepend(svg);
  };
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); draw(entry.target); }
  });
  new MutationObserver(() => {
    for (const wave of document.querySelectorAll("[data-wave]:not([data-seen])")) {
      wave.setAttribute("data-seen", "");
      seen.observe(wave);
    }
  }).observe(document, {childList: true, subtree: true});

  const share = (sound) => sound.duration ? sound.currentTime / sound.duration : 0;
  const playAt = (side, at, start) => {
    const sound = soundOf(side);
    for (const other of document.querySelectorAll("audio")) if (other !== sound) other.pause();
    const go = () => {
      sound.currentTime = at * (sound.duration || 0);
      if (start) sound.play().catch((error) => error.name !== "AbortError" && console.warn("not played", error));
    };
    current = side;
    if (sound.readyState > 0) go();
    else { sound.addEventListener("loadedmetadata", go, {once: true}); sound.preload = "metadata"; sound.load(); }
    paint();
  };
  const paint = () => {
    for (const side of document.querySelectorAll("#clips .side.heard-now")) if (side !== current) side.classList.remove("heard-now");
    if (current) current.classList.add("heard-now");
  };

  document.addEventListener("click", (event) => {
    const wave = event.target.closest && event.target.closest("#clips [data-wave]");
    if (!wave) return;
    const box = wave.getBoundingClientRect();
    playAt(wave.closest(".side"), (event.clientX - box.left) / box.width, true);
  });
  document.addEventListener("play", (event) => {
    const side = pairOf(event.target) && event.target.closest(".side");
    if (side) { current = side; paint(); }
  }, true);
  document.addEventListener("timeupdate", (event) => {
    const side = event.target.closest && event.target.closest("#clips .side");
    const mark = side && side.querySelector(".wave-at");
    if (mark) mark.style.left = `${100 * share(event.target)}%`;
  }, true);

  document.addEventListener("keydown", (event) => {
    const pair = pairOf(current), at = event.target;
    if (!pair || !current.isConnected || !current.offsetParent || event.ctrlKey || event.metaKey || event.altKey) return;
    if (at.matches && at.matches("input, textarea, select, [contenteditable=true], [role=tab]")) return;
    const all = sides(pair), sound = soundOf(current);
    if (event.key === " ") {
      if (at.matches("button, a, audio, summary")) return;
      event.preventDefault();
      if (sound.paused) playAt(current, share(sound), true); else sound.pause();
      return;
    }
    const key = window.lisanKey(event);
    const next = key === "a" ? (all.indexOf(current) + 1) % all.length : Number(key) - 1;
    if (!all[next] || (key !== "a" && !/^[1-9]$/.test(key))) return;
    event.preventDefault();
    playAt(all[next], share(sound), !sound.paused || !soundOf(all[next]).paused);
  });
})();
