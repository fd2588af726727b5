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
  window.lisanHear = (element) => {
    const box = element.querySelector(".hearing");
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
