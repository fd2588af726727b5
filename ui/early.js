/* What must stand before Gradio's own scripts are loaded. */

/* Gradio has a few texts of its own in the browser's language (6.31): English, as all others, which translate.js replaces. */
window.lisanPreferences = [...(navigator.languages || [])];
Object.defineProperty(navigator, "language", {value: "en", configurable: true});
Object.defineProperty(navigator, "languages", {value: ["en"], configurable: true});

/* Gradio's spinners count their time at every frame, hidden ones too, and never end where their field leaves the page
   meanwhile (6.31): an idle page then draws 60 frames a second. No spinner is shown here, so they count once a second. */
(() => {
  const frame = window.requestAnimationFrame.bind(window);
  window.requestAnimationFrame = (callback) =>
    /performance\.now\(\)-[\w$]+\([\w$]+\)\)\/1e3/.test(callback) ? setTimeout(callback, 1000) : frame(callback);
})();

/* After a wrong password the sign-in empties both fields (6.31): the name is put back. */
(() => {
  const ask = window.fetch.bind(window);
  window.fetch = async (...what) => {
    const answer = await ask(...what);
    const form = what[1] && what[1].body;
    if (!answer.ok && String(what[0]).endsWith("/login") && form instanceof FormData) {
      setTimeout(() => {
        const field = document.querySelector("input:not([type=password])");
        if (!field || field.value) return;
        field.value = form.get("username");
        field.dispatchEvent(new Event("input", {bubbles: true}));
      }, 50);
    }
    return answer;
  };
})();
