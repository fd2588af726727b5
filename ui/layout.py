"""The page as a whole: header, tabs, the drawer, and which tab is open."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gradio as gr
from gradio.themes.utils.colors import Color

from core.jobs import locks
from core.jobs.gpus import CachedGpus
from core.jobs.reporter import duration_text
from core.jobs.state import JobBoard, JobState
from core.jobs.unattended import IdleCommand, RestartOffer
from core.machine import MachineCheck
from core.workspace import Workspace
from ui import (
    dataset,
    doctor,
    embeddings,
    job_views,
    jobs,
    listen,
    machine,
    model,
    share,
    start,
    storage,
    tab_states,
    tokenizer,
    train,
    translations,
    unattended,
    web_surface,
)
from ui.live import QUIET, Live, View
from ui.machine import findings_view, machine_line
from ui.markup import NOTHING, Html, div, element, join, span
from ui.page import DRAWER, FORMER_TABS, PLACES, TABS, Page

_BUILDERS = {
    "start": start.build, "model": model.build, "data": dataset.build, "tokenizer": tokenizer.build,
    "embeddings": embeddings.build, "train": train.build, "listen": listen.build, "share": share.build,
    "jobs": jobs.build, "storage": storage.build, "doctor": doctor.build,
}
_LONG_VERBS = ("train", "prepare", "certify", "evaluate", "export", "download")
"""Jobs whose end is worth a notification."""


def build(workspace: Workspace, restart: RestartOffer | None = None, idle: IdleCommand | None = None,
          findings: Sequence[MachineCheck] = (), board: JobBoard | None = None) -> gr.Blocks:
    """The whole page over `workspace`, with what the app is about to do by itself and what it found wrong."""
    live, gpus = Live(workspace, board or JobBoard(workspace)), CachedGpus()
    with gr.Blocks(title="Lisan", analytics_enabled=False, fill_width=False,
                   delete_cache=(3600, web_surface.UPLOAD_AGE_S)) as blocks:
        tab = gr.State("start")
        gr.HTML(_BEFORE_HEADER, elem_id="skip")
        with gr.Row(elem_id="bar"):
            header = gr.HTML(_header(NOTHING), elem_id="header")
            gr.HTML(join((translations.chooser(), _NOTIFY)), elem_id="notify")
            gr.HTML(_OPEN_DRAWER, elem_id="drawer-button")

        # The notices above the tabs are drawn on every tab.
        live.panel(header, lambda view: header_view(view, machine_line(gpus(), workspace)))
        apps = gr.HTML(elem_id="other-apps", elem_classes="notices")
        live.panel(apps, lambda _view: join((others_view(locks.running_apps(workspace)),
                                             findings_view([check for check in findings if check.result == "fail"]))))
        living = gr.HTML(elem_id="living-jobs", elem_classes="notices")
        live.panel(living, lambda view: job_views.living_jobs(view.jobs))
        # Its contents are laid out last, as they need the page.
        announced = gr.Column()

        stated = gr.HTML(elem_id="tab-states")
        live.panel(stated, lambda view: tab_states.states_view(tab_states.tab_states(
            workspace, view, start.shown_chain(view), findings)))

        # Run and comparison are made first, as Start sets them and other tabs render them.
        with gr.Tabs(selected="start", elem_id="tabs") as tabs:
            run = gr.Dropdown([], label="Run", elem_id="run-choice", scale=4, render=False)
            pair = gr.Dropdown([], label="Comparison", elem_id="pair-choice", render=False)
            page = Page(workspace, live, tabs, tab, run, pair, gpus)
            for name, label in TABS:
                with gr.Tab(label, id=name, elem_id=f"tab-{name}"):
                    _BUILDERS[name](page)
        with gr.Column(elem_id="drawer"):
            gr.HTML(_CLOSE_DRAWER, elem_id="drawer-close")
            with gr.Tabs(selected=DRAWER[0][0], elem_id="drawer-tabs") as drawer:
                for name, label in DRAWER:
                    with gr.Tab(label, id=name, elem_id=f"tab-{name}"):
                        if name == "machine":
                            machine.build(page, findings)
                        else:
                            _BUILDERS[name](page)

        with announced:
            unattended.build(page, restart, idle)
        # A panel of another tab would never be drawn.
        unknown = {panel.tab for panel in live.panels} - {"", *dict(PLACES)}
        assert not unknown, f"there is no tab {unknown}"
        live.attach(tab)
        _follow_tabs(blocks, page, drawer)
    return blocks


_BEFORE_HEADER = element("a", "Skip to the content", href="#tabs", class_="skip-link")
_NOTIFY = element("button", "Notify me", type="button", class_="small-button notify", aria_pressed="false",
                  title="When a job ends: a notification and a sound, while this page is open")
"""The page's script keeps the choice in the browser."""
_OPEN_DRAWER = element("button", "System", type="button", class_="small-button", aria_expanded="false",
                       aria_controls="drawer", title=", ".join(label for _, label in DRAWER))
_CLOSE_DRAWER = div("ends", element("strong", "System", id="drawer-title"), element(
    "button", "Close", type="button", class_="small-button", title="Close (Esc)"))


def header_view(view: View, machine: str) -> Html:
    """The name, the machine, and the running job with the time that is left, on every tab."""
    alive = view.alive
    running = next((state for state in alive if state.status in ("running", "stopping")), None)
    if running is not None:
        share = job_views.progress_share(running)
        text = job_views.job_title(running) + (f", {share:.0%}" if share is not None else "")
        text += f", {duration_text(running.eta_s)} left" if running.eta_s is not None else ""
        pill = span("pill busy", span("pulse"), text)
    elif alive:
        pill = span("pill wait", "Job waiting")
    else:
        pill = span("pill", "No job running")
    title, ended = page_title(view, running)
    return _header(pill, machine, title, ended)


def page_title(view: View, running: JobState | None) -> tuple[str, str]:
    """The browser's title: the running job with its share, else the last outcome; and the last job that ended.

    The page's script writes the title, and notifies of the job if that was asked for.
    """
    long_jobs = [state for state in view.jobs if state.verb in _LONG_VERBS and state.ended_at and not state.alive]
    last = max(long_jobs, key=lambda state: state.ended_at or 0.0, default=None)
    ended = ""
    if last is not None:
        outcome = job_views.short_outcome(last)
        ended = f"{last.id}|{job_views.job_title(last)}: {outcome}"
    if running is not None:
        share = job_views.progress_share(running)
        return f"{f'{share:.0%} ' if share is not None else ''}{job_views.job_title(running)}", ended
    trained = next((state for state in long_jobs if job_views.learning_of(state)), None)
    return (job_views.short_outcome(trained) if trained is not None else ""), ended


def others_view(open_pages: tuple[Path, ...]) -> Html:
    """A notice while the workspace is open in several apps."""
    if len(open_pages) < 2:
        return NOTHING
    urls = ", ".join(locks.app_addresses(open_pages))
    return job_views.notice(f"This workspace is open in {len(open_pages)} apps ({urls}). All of them show the same "
                            "jobs.")


def _header(pill: Html, machine: str = "", title: str = "", ended: str = "") -> Html:
    """The logo (three bars and a new one), the name, the machine and the state of the jobs."""
    bars = ((7, 13, 8), (13, 9, 16), (19, 12, 10))
    drawn = [element("rect", x=x, y=y, width=3.4, height=height, rx=1.7, fill="#fff") for x, y, height in bars]
    logo = element("svg", element("rect", width=34, height=34, rx=10, fill="var(--primary-600)"), *drawn,
                   element("rect", x=25, y=7, width=3.4, height=20, rx=1.7, fill="#f2b04c"),
                   viewBox="0 0 34 34", class_="brand-mark", aria_hidden="true")
    return div("top", div("brand", logo, element("span", "Lisan", class_="brand-name")),
               span("machine", machine), pill, data_title=f"{title} - Lisan" if title else "Lisan", data_ended=ended)


_SHOWN_TAB = """async () => {
  await new Promise((go) => setTimeout(go, 30));  // the click that selects a tab comes before its mark
  return [window.lisanShownTab()];
}"""


def _follow_tabs(blocks: gr.Blocks, page: Page, drawer: gr.Tabs) -> None:
    """Open the tab that the address names, keep the address up to date, refresh on each change."""
    live = page.live

    def choice_of(request: gr.Request, name: str) -> object:
        """The job that the address names, until a refresh brings all choices with their titles."""
        job = request.query_params.get(name, "")
        exists = any(state.id == job for state in live.board.states())
        return gr.update(choices=[job], value=job) if exists else gr.skip()

    def loaded(request: gr.Request) -> list[object]:
        return [*opened(request), choice_of(request, "run"), choice_of(request, "comparison")]

    def opened(request: gr.Request) -> list[object]:
        tab = request.query_params.get("tab", "start")
        name = FORMER_TABS.get(tab, tab)
        if name in dict(DRAWER):
            return [gr.skip(), gr.Tabs(selected=name), name]
        if name == "start" or name not in dict(TABS):
            return [gr.skip()] * 3  # open already, unless a person was faster than this answer
        return [gr.Tabs(selected=name), gr.skip(), name]

    # The page says which tab is shown when it is asked: of quick changes, Gradio may report an earlier one last (6.31).
    tab_button, name = gr.Button(visible="hidden", elem_id="shown-tab"), gr.Textbox("", visible="hidden")
    for tabs in (page.tabs, drawer):
        tabs.select(lambda shown_name: shown_name, [name], [page.tab], js=_SHOWN_TAB, trigger_mode="always_last",
                    **QUIET).then(live.refresh, live.inputs, live.outputs, **QUIET)
        tabs.change(None, None, None, js="() => { window.lisanRememberTab && window.lisanRememberTab(); }")
    # The page's script clicks it when the drawer is opened or closed, which selects no other tab.
    tab_button.click(lambda shown_name: shown_name, [name], [page.tab], js=_SHOWN_TAB, **QUIET).then(
        live.refresh, live.inputs, live.outputs, **QUIET)
    for kind, choice in (("run", page.run), ("comparison", page.pair)):
        choice.input(None, [choice], None, js=f"(job) => {{ window.lisanRememberChoice('{kind}', job); }}")
    blocks.load(loaded, None, [page.tabs, drawer, page.tab, page.run, page.pair], **QUIET).then(
        live.refresh, live.inputs, live.outputs, **QUIET)


_HERE = Path(__file__).parent
STYLE_SHEET = _HERE / "style.css"
SCRIPTS = tuple(_HERE / f"{name}.js" for name in (
    "translate", "page", "tabs", "review", "recording", "sample_grid", "compare"))

_PINE = Color(
    name="pine", c50="#eef7f4", c100="#d6ece5", c200="#aedacd", c300="#7cc1af", c400="#47a38f", c500="#1f8572",
    c600="#126b5c", c700="#10564b", c800="#0f443c", c900="#0d3832", c950="#06211d",
)
_STONE = Color(
    name="stone", c50="#faf9f6", c100="#f3f1ec", c200="#e6e3db", c300="#d3cfc4", c400="#a5a196", c500="#6a675f",
    c600="#57554e", c700="#41403b", c800="#2a2b29", c900="#1c1e1d", c950="#131514",
)
_SANS = ("ui-sans-serif", "system-ui", "Segoe UI", "Roboto", "Helvetica Neue", "Liberation Sans", "Arial",
         "Lisan Ethiopic", "sans-serif")
_MONO = ("ui-monospace", "SF Mono", "Menlo", "Consolas", "Liberation Mono", "Lisan Ethiopic", "monospace")


def build_theme() -> gr.themes.Base:
    """Light paper, dark slate, and one green for buttons."""
    theme = gr.themes.Base(
        primary_hue=_PINE, secondary_hue=_PINE, neutral_hue=_STONE, font=_SANS, font_mono=_MONO,
        radius_size=gr.themes.sizes.radius_lg, spacing_size=gr.themes.sizes.spacing_md,
    )

    return theme.set(
        body_background_fill="*neutral_50", body_background_fill_dark="*neutral_950",
        body_text_color="*neutral_800", body_text_color_dark="#e9e7e1",
        body_text_color_subdued="*neutral_500", body_text_color_subdued_dark="*neutral_400",
        background_fill_primary="#ffffff", background_fill_primary_dark="*neutral_900",
        background_fill_secondary="*neutral_100", background_fill_secondary_dark="*neutral_800",
        border_color_primary="*neutral_200", border_color_primary_dark="#343634",
        color_accent="*primary_600", link_text_color="*primary_600", link_text_color_dark="*primary_300",
        block_background_fill="#ffffff", block_background_fill_dark="*neutral_900",
        block_border_color="*neutral_200", block_border_color_dark="#343634",
        block_border_width="1px", block_shadow="none", block_shadow_dark="none",
        block_label_background_fill="transparent", block_label_border_width="0px",
        block_title_text_weight="600", block_title_text_size="*text_md",
        block_title_text_color="*neutral_800", block_title_text_color_dark="#e9e7e1",
        block_info_text_size="*text_sm",
        block_info_text_color="*neutral_500", block_info_text_color_dark="*neutral_400",
        input_background_fill="*neutral_50", input_background_fill_dark="*neutral_950",
        input_placeholder_color="*neutral_500", input_placeholder_color_dark="*neutral_400",
        input_border_width="1px", input_border_color="#949085", input_border_color_dark="#72756f",
        input_border_color_focus="*primary_500", input_border_color_focus_dark="*primary_400",
        input_shadow="none", input_shadow_focus="0 0 0 3px color-mix(in srgb, var(--primary-400) 25%, transparent)",
        button_large_radius="10px", button_medium_radius="8px", button_small_radius="8px",
        button_primary_background_fill="*primary_600", button_primary_background_fill_hover="*primary_700",
        button_primary_background_fill_dark="*primary_500", button_primary_background_fill_hover_dark="*primary_600",
        button_primary_text_color="#ffffff", button_primary_text_color_dark="#ffffff",
        button_secondary_background_fill="#ffffff", button_secondary_background_fill_hover="*neutral_100",
        button_secondary_background_fill_dark="*neutral_800", button_secondary_background_fill_hover_dark="#363835",
        button_secondary_border_color="*neutral_300", button_secondary_border_color_dark="#464943",
        button_cancel_background_fill="#ffffff", button_cancel_background_fill_dark="*neutral_900",
        button_cancel_background_fill_hover="#fdf0ee", button_cancel_background_fill_hover_dark="#3a211e",
        button_cancel_text_color="#a8321f", button_cancel_text_color_dark="#f0a093",
        button_cancel_border_color="#dfb3aa", button_cancel_border_color_dark="#6b3a32",
        button_border_width="1px", button_transition="background-color 120ms ease",
    )


def head() -> str:
    """What stands in the page's head: the font for Ethiopic letters, the style sheet and the script.

    The style sheet is not given to Gradio as css, because it rewrites the selectors and loses the media queries.
    """
    font = ("@font-face{font-family:'Lisan Ethiopic';src:url('media/font.woff2') format('woff2');"
            "unicode-range:U+1200-139F,U+2D80-2DDF,U+AB00-AB2F;font-display:swap}")
    return (
        "<link rel='preload' href='media/font.woff2' as='font' type='font/woff2' crossorigin>"
        f"<style>{font}{STYLE_SHEET.read_text(encoding='utf-8')}</style>"
        + f"<script>{translations.script()}</script>"
        + "".join(f"<script>{script.read_text(encoding='utf-8')}</script>" for script in SCRIPTS)
    )
