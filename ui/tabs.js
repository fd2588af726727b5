/* The open tab: the address keeps it, so that a reload opens the same one. The drawer lies over the page at the right;
   its tabs are those of #drawer-tabs. */
(() => {
  const drawer = () => document.getElementById("drawer");
  const isOpen = () => document.body.classList.contains("drawer-open");
  const selected = (bar) => {
    const tab = document.querySelector(`${bar} > .tab-wrapper [role="tab"][aria-selected="true"]`);
    return tab ? tab.dataset.tabId : "";
  };
  window.lisanShownTab = () => selected(isOpen() ? "#drawer-tabs" : "#tabs") || "start";
  /* Each tab, run and comparison has an address. Back returns to the one before, and does not leave the app. */
  const CHOICES = {run: "train", comparison: "listen"};  // by parameter, the tab of the choice
  const shown = Object.fromEntries(new URL(window.location.href).searchParams);  // the choices that the page shows
  let returning = 0;
  const remember = (changes) => {
    const address = new URL(window.location.href);
    for (const [name, value] of Object.entries(changes)) {
      if (value) address.searchParams.set(name, value);
      else address.searchParams.delete(name);
    }
    if (address.href === window.location.href) return;
    // An address of an earlier version leads to another tab, and Back must not lead to it again.
    const before = new URL(window.location.href).searchParams.get("tab");
    const former = before && ![...document.querySelectorAll("[data-tab-id]")].some((tab) => tab.dataset.tabId === before);
    if (former || Date.now() < returning) window.history.replaceState(null, "", address);
    else window.history.pushState(null, "", address);
  };
  window.lisanRememberChoice = (name, value) => {
    shown[name] = value;
    remember({tab: CHOICES[name], [name]: value});
  };
  window.lisanRememberTab = () => setTimeout(() => {
    const tab = window.lisanShownTab();
    const others = Object.keys(CHOICES).filter((name) => CHOICES[name] !== tab);
    remember({tab, ...Object.fromEntries(others.map((name) => [name, ""]))});
  }, 60);
  window.addEventListener("popstate", () => {
    const asked = new URL(window.location.href).searchParams;
    const name = asked.get("tab") || "start";
    const tab = [...document.querySelectorAll("#tabs > .tab-wrapper [role=tab]")].find(
      (button) => button.dataset.tabId === name);
    const same = Object.keys(CHOICES).every((name) => (asked.get(name) || "") === (shown[name] || ""));
    if (!tab || !same) { window.location.reload(); return; }
    returning = Date.now() + 1000;
    if (isOpen()) change(false);
    tab.click();
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest && event.target.closest('[role="tab"], .overflow-dropdown button')) window.lisanRememberTab();
  });
  /* A button of a step on Start opens the tab of the step, and the focus goes there. */
  document.addEventListener("click", (event) => {
    const button = event.target.closest && event.target.closest("[data-open-tab]");
    if (!button) return;
    // On a narrow page the tab is in the menu of further tabs, whose buttons have a label only.
    const {openTab: name, label} = button.dataset;
    const further = [...document.querySelectorAll("#tabs > .tab-wrapper .overflow-dropdown button")];
    const tab = document.getElementById(`tab-${name}-button`)
      || further.find((button) => [label, window.lisanText(label)].includes(button.textContent.trim()));
    if (!tab) { window.location.search = `?tab=${name}`; return; }
    tab.click();
    window.lisanRememberTab();
    setTimeout(() => tab.offsetParent && tab.focus(), 100);
  });

  const show = (open, focus) => {
    const panel = drawer();
    if (!panel || open === isOpen()) return;
    document.body.classList.toggle("drawer-open", open);
    panel.setAttribute("role", "dialog");
    panel.setAttribute("aria-modal", "true");
    panel.setAttribute("aria-labelledby", "drawer-title");
    for (const other of panel.parentElement.children) if (other !== panel) other.inert = open;
    const opener = document.querySelector("#drawer-button button");
    opener.setAttribute("aria-expanded", open);
    if (focus) (open ? panel.querySelector('[role="tab"][aria-selected="true"]') : opener).focus();
  };
  const change = (open) => {
    show(open, true);
    document.getElementById("shown-tab").click();  // the app draws what is shown now
    window.lisanRememberTab();
  };
  document.addEventListener("click", (event) => {
    if (!event.target.closest) return;
    if (event.target.closest("#drawer-button button")) change(true);
    else if (event.target.closest("#drawer-close button")) change(false);
  });
  document.addEventListener("pointerdown", (event) => {
    if (isOpen() && !event.target.closest("#drawer")) change(false);
  });
  document.addEventListener("keydown", (event) => {
    const field = event.target.matches && event.target.matches("input, textarea");  // it closes its own list
    if (event.key === "Escape" && isOpen() && !field) change(false);
  });
  /* An address of one of its tabs opens the drawer; the app selects the tab. */
  const asked = new URL(window.location.href).searchParams.get("tab");
  const waiting = setInterval(() => {
    const tabs = [...document.querySelectorAll("#drawer-tabs > .tab-wrapper [role=tab]")];
    if (!tabs.length || !document.getElementById("live-tick")) return;
    clearInterval(waiting);
    if (tabs.some((tab) => tab.dataset.tabId === asked)) show(true, false);
  }, 50);
})();

/* The state of each tab, which the app knows: a mark on it, and a name that a screen reader says. */
(() => {
  const paint = () => {
    const box = document.querySelector("#tab-states [data-states]");
    if (!box) return;
    const states = JSON.parse(box.dataset.states);
    // The buttons of the menu of further tabs have no id, only a label, which may be translated.
    const byLabel = Object.fromEntries(Object.values(states).flatMap(
      (tab) => [[tab.label, tab], [window.lisanText(tab.label), tab]]));
    for (const button of document.querySelectorAll(
      ":is(#tabs, #drawer-tabs) > .tab-wrapper :is([role=tab], .overflow-dropdown button)")) {
      const tab = byLabel[button.textContent.trim()] || states[button.dataset.tabId];
      if (!tab || button.dataset.description === tab.description) continue;
      button.dataset.description = tab.description;  // the name itself may be in another language
      button.dataset.state = tab.state;
      button.setAttribute("aria-label", tab.description);
      button.title = tab.description;
    }
    const opener = document.querySelector("#drawer-button button");
    const inside = ["jobs", "storage", "doctor", "machine"].map((name) => states[name]).filter(Boolean);
    const shown = ["attention", "running"].find((state) => inside.some((tab) => tab.state === state)) || "";
    if (opener && opener.dataset.state !== shown) opener.dataset.state = shown;
  };
  // Gradio writes another tab into a button where the bar is narrow: only its text and attributes change then.
  new MutationObserver(paint).observe(document, {childList: true, characterData: true, subtree: true,
                                                 attributeFilter: ["data-states", "data-tab-id"]});
})();

/* Arrow keys, Home and End move in a list of tabs, of which one is reached with Tab (WAI-ARIA, tabs). The link before the
   header skips to what the open tab shows. */
(() => {
  const lists = ":is(#tabs, #drawer-tabs) > .tab-wrapper [role=tablist]";
  const list = (bar) => [...bar.querySelectorAll("[role=tab]")].filter((tab) => tab.offsetParent);
  const roving = () => {
    for (const bar of document.querySelectorAll(lists)) for (const tab of list(bar)) {
      const reached = tab.getAttribute("aria-selected") === "true" ? "0" : "-1";
      if (tab.getAttribute("tabindex") !== reached) tab.setAttribute("tabindex", reached);
    }
  };
  document.addEventListener("keydown", (event) => {
    const tab = event.target.closest && event.target.closest(`${lists} [role=tab]`);
    if (!tab || event.ctrlKey || event.metaKey || event.altKey) return;
    const tabs = list(tab.closest("[role=tablist]")), at = tabs.indexOf(tab);
    const to = {ArrowRight: (at + 1) % tabs.length, ArrowLeft: (at + tabs.length - 1) % tabs.length, Home: 0,
                End: tabs.length - 1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    tabs[to].focus();
    tabs[to].click();
  });
  document.addEventListener("click", (event) => {
    if (!event.target.matches || !event.target.matches(".skip-link")) return;
    event.preventDefault();
    const panel = [...document.querySelectorAll("#tabs [role=tabpanel]")].find((one) => one.offsetParent);
    if (!panel) return;
    panel.setAttribute("tabindex", "-1");
    panel.focus();
    panel.scrollIntoView({block: "start"});
  });
  new MutationObserver(roving).observe(document, {childList: true, subtree: true, attributeFilter: ["aria-selected"]});
})();
