"""Storage tab: sizes and what depends on what, the bin, and archives of exports and runs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import gradio as gr

from config.errors import UserError
from core.jobs.reporter import pluralize, size_text
from core.jobs.state import JobBoard, JobState
from core.library import catalog
from core.sources import source_preview
from core.submission import storage
from core.submission.job_subjects import subject
from core.submission.storage import BinEntry, Inventory, Item, Usage
from core.workspace import KINDS, Workspace
from ui import job_views, media, records, verb_form
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph, table
from ui.page import Page

TITLES = {
    "model": "Base models", "dataset": "Datasets", "segments": "Segments", "tokenizer": "Tokenizers",
    "extension": "Extended models", "run": "Runs and other jobs", "export": "Exports", "recogniser": "Recognisers",
    "voice": "Reference voices", "upload": "Uploads", "cache": "Caches",
}
_ABOUT = {
    "recogniser": "Downloaded again when it is used.",
    "upload": "Removed after the import, or after a day.",
    "cache": "Made again when needed; that costs time.",
}
MOST_LISTED, MOST_OFFERED, MOST_ARCHIVES = 30, 500, 5
_FRESH_S, _REST = 15.0, 20  # a measurement is at least that old, and 20 times as long as it took, before the next


class Measurements:
    """The inventory of the workspace, updated in a separate thread while the tab is open; the page never waits."""

    def __init__(self, workspace: Workspace, board: JobBoard) -> None:
        self._workspace, self._board = workspace, board
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._latest: Inventory | None = None
        self._fault = ""
        self._due = 0.0

    def latest(self) -> Inventory | None:
        """The last inventory, None before there is one; begins a new one where that is old."""
        with self._guard:
            if self._thread is None and time.monotonic() >= self._due:
                self._thread = threading.Thread(target=self._measure, name="storage", daemon=True)
                self._thread.start()
            if self._fault:
                raise UserError(f"The sizes could not be measured: {self._fault}.", "Look at the disk.")
            return self._latest

    def renew(self, patience_s: float = 1.0) -> None:
        """Measure again now, as something was changed; returns when that is done, or after `patience_s`."""
        with self._guard:
            running = self._thread
        if running:
            running.join(patience_s)
        self._due = 0.0
        self.latest()
        if thread := self._thread:
            thread.join(patience_s)

    def _measure(self) -> None:
        began, fault = time.monotonic(), "unexpected error, see the app's log"
        try:
            before, self._latest = self._latest, storage.take_inventory(self._workspace, self._board.states())
            fault = ""
            if before is None or (before.items, before.deleted) != (self._latest.items, self._latest.deleted):
                os.utime(self._workspace.cache)  # the page asks for the times of these folders (`workspace_mark`)
        except (OSError, UserError) as error:
            fault = str(error).rstrip(".")
        finally:
            ended = time.monotonic()
            with self._guard:
                self._fault, self._thread = fault, None
                self._due = ended + max(_FRESH_S, _REST * (ended - began))


def build(page: Page) -> None:
    """Lay out the tab."""
    verb_form.tab_header(
        "Storage", "Sizes as they are on the disk, and what depends on what. Deleting moves into the bin, from which "
        "everything can be restored until you empty it.")
    live, sizes = page.live, Measurements(page.workspace, page.live.board)
    summary = gr.HTML(elem_id="storage-summary")
    live.panel(summary, lambda _view: summary_view(sizes.latest(), page.workspace), "storage")
    kind = gr.Dropdown([(title, name) for name, title in TITLES.items()], value="dataset", label="Show",
                       elem_id="storage-kind", filterable=False)
    live.watch("storage.kind", kind)
    items = gr.HTML(elem_id="storage-items")
    live.panel(items, lambda view: items_view(sizes.latest(), page.workspace, view), "storage")
    with gr.Row(elem_classes="controls"):
        chosen = gr.Dropdown([], label="To delete", multiselect=True, elem_id="storage-item", scale=4,
                             info="Items that depend on it are shown before anything is deleted.")
        delete = gr.Button("Delete", variant="stop", size="md", scale=0, min_width=110, elem_id="storage-delete")
    notice = gr.HTML(elem_classes="notices", elem_id="storage-notice")
    detail = gr.HTML(elem_id="storage-detail")
    live.panel(chosen, lambda view: gr.update(choices=deletable(sizes.latest(), view)), "storage")

    def show_detail(references: Sequence[str] | None) -> Sequence[object]:
        return [detail_view(sizes.latest(), [storage.parse(one) for one in references or ()])]

    def delete_items(references: Sequence[str] | None) -> Sequence[object]:
        if not references:
            raise UserError("Nothing is chosen.", "Choose what to delete under To delete.")
        done, board = list[str](), page.live.board
        found = storage.find_dependencies(page.workspace, board.states())  # once: there may be thousands of runs
        try:
            for one in references:
                storage.delete(page.workspace, storage.parse(one), board, found)
                done.append(one)
        except UserError as error:
            before = f" Before it went into the bin: {', '.join(done)}." if done else ""
            raise UserError(f"{error.message}{before}", error.hint) from error
        finally:
            sizes.renew()
        return [job_views.notice(f"In the bin: {', '.join(references)}. Restore it below."), gr.update(value=[])]

    page.on(chosen.change, show_detail, [chosen], [detail])
    page.on(delete.click, delete_items, [chosen], [notice, chosen])
    _build_bin(page, sizes)
    _build_archives(page)


def _build_bin(page: Page, sizes: Measurements) -> None:
    gr.HTML(element("h2", "Bin"))
    bin_list = gr.HTML(elem_id="bin")
    page.live.panel(bin_list, lambda _view: bin_view(storage.list_deleted(page.workspace), sizes.latest()),
                    "storage")
    with gr.Row(elem_classes="controls"):
        entry = gr.Dropdown([], label="Deleted", elem_id="bin-entry", scale=4)
        restore = gr.Button("Restore", size="md", scale=0, min_width=110, elem_id="bin-restore")
        empty = gr.Button("Empty bin", variant="stop", size="md", scale=0, min_width=110, elem_id="bin-empty")
    sure = gr.Checkbox(False, label="Empty the bin for good: nothing in it can be restored afterwards",
                       elem_id="bin-sure")
    notice = gr.HTML(elem_classes="notices", elem_id="bin-notice")
    page.live.watch("storage.entry", entry)

    def entries(view: View) -> object:
        found = {one.reference: f"{one.item.reference}, deleted {job_views.clock(one.deleted)}"
                 for one in storage.list_deleted(page.workspace)}
        current = view.values["storage.entry"]
        return gr.update(choices=[(title, name) for name, title in found.items()],
                         value=current if current in found else next(iter(found), None))

    page.live.panel(entry, entries, "storage")

    def restore_entry(reference: str | None) -> Sequence[object]:
        if not reference:
            raise UserError("Nothing in the bin is chosen.", "Choose what to restore; only what was deleted can be.")
        item = storage.restore(page.workspace, reference)
        sizes.renew()
        return [job_views.notice(f"Restored: {item.reference}.", "good")]

    def empty_all(is_sure: bool) -> Sequence[object]:
        found = storage.list_deleted(page.workspace)
        if found and not is_sure:
            raise UserError(f"The bin holds {len(found)} of your items; emptying cannot be undone.",
                            "Tick the box above, then press again.")
        count = storage.empty_bin(page.workspace)
        sizes.renew()
        done = f"{count} removed for good." if count else "The bin was empty."
        return [job_views.notice(done), False]

    page.on(restore.click, restore_entry, [entry], [notice])
    page.on(empty.click, empty_all, [sure], [notice, sure])


def _build_archives(page: Page) -> None:
    gr.HTML(join((element("h2", "Archives"), paragraph(
        "An export or a run as one file, with the hash of every file in it. A run brings the extended model and the "
        "datasets that a resume needs, or names them.", class_="small"))))
    with gr.Row(elem_classes="two"):
        with gr.Column(min_width=300):
            verb_form.build_verb_form(page, "pack", "Pack archive", first=("item", "data", "model"),
                                      choices={"item": lambda view: list(packable(page.workspace, view))})
            packed = gr.HTML(elem_id="pack-result")
            page.live.panel(packed, packed_view, "storage")
        with gr.Column(min_width=300):
            upload = gr.File(file_count="single", type="filepath", height=120, elem_id="unpack-upload",
                             label="Upload an archive")
            form, _ = verb_form.build_verb_form(page, "unpack", "Import archive", first=("archive", "save_as"),
                                                choices={})
            notice = gr.HTML(elem_classes="notices")
            page.on(upload.upload, partial(_save_archive, page), [upload], [notice, form.widget("archive"), upload],
                    files=True)
            unpacked = gr.HTML(elem_id="unpack-result")
            page.live.panel(unpacked, verb_form.last_job_view("unpack", "What was imported appears here."), "storage")


def _save_archive(page: Page, path: str | None) -> Sequence[object]:
    """Save an uploaded archive and make it the one to import."""
    paths = [Path(path)] if path else []
    saved = source_preview.store_upload(page.workspace, paths)
    source_preview.forget_upload(paths)
    return [NOTHING, str(saved), None]


def packable(workspace: Workspace, view: View) -> Iterator[str]:
    """Exports, then trainings with a checkpoint that have ended."""
    ended = [state for state in view.jobs if not state.alive]
    found = catalog.list_references(workspace, ended)
    yield from (one.reference for one in found if one.kind == "export")
    yield from (one.reference for one in found if one.kind == "run")


def packed_view(view: View) -> Html:
    """The newest packing, and links to the archives that were packed lately."""
    state = view.newest("pack")
    if state is None:
        return job_views.empty("The archive appears here, to be downloaded.")
    done = [one for one in view.jobs if one.verb == "pack" and one.status == "finished" and one.result]
    rows = [(element("a", str(one.result["archive"]), href=media.archive_url(one.id), download=True),
             size_text(float(one.result.get("bytes") or 0)), str(one.result.get("missing") or "nothing"))
            for one in done[:MOST_ARCHIVES] if one.result]
    return join((job_views.job_card(state) if state.status != "finished" else NOTHING,
                 table(("Archive", "Size", "Not in it"), rows) if rows else NOTHING))


def summary_view(found: Inventory | None, workspace: Workspace) -> Html:
    """Count and size of each kind, of the bin, and of everything."""
    if found is None:
        return job_views.empty("The sizes are being measured.")
    rows = []
    for kind, title in TITLES.items():
        usages = [usage for item, usage in found.items.items() if item.kind == kind]
        if usages:
            rows.append((title, str(len(usages)), size_text(sum(one.size for one in usages)), _ABOUT.get(kind, "")))
    if found.deleted:
        rows.append(("Bin", str(len(found.deleted)), size_text(sum(one.size for one in found.deleted.values())),
                     "Empty it to free this space."))
    return join((job_views.facts([("Total", size_text(found.total)),
                                  ("Free on the disk", size_text(workspace.free_bytes()))]),
                 table(("Kind", "Items", "Size", ""), rows),
                 paragraph("In the total, files that several items share are counted once.", class_="small")))


def items_view(found: Inventory | None, workspace: Workspace, view: View) -> Html:
    """The items of the chosen kind, the largest first."""
    if found is None:
        return NOTHING
    kind = view.values.get("storage.kind") or "dataset"
    listed = _largest(found, kind)
    if not listed:
        return job_views.empty(f"{TITLES.get(kind, kind)}: none.")
    states = {state.id: state for state in view.jobs}
    red = {name for name, state in states.items() if kind == "run" and job_views.learned_nothing(state)}
    rows = [(item.name, join((about(workspace, item, states), " ", job_views.badge(states[item.name])))
             if item.name in red else about(workspace, item, states), size_text(usage.size),
             size_text(usage.freed), job_views.clock(usage.changed),
             users_line(found, item)) for item, usage in listed[:MOST_LISTED]]
    rest = len(listed) - MOST_LISTED
    more = paragraph(f"{rest} smaller ones are not shown; python -m scripts.storage list --kind {kind} --all prints "
                     "them.", class_="small") if rest > 0 else NOTHING
    return join((table(("Name", "About", "Size", "Frees", "Changed", "Used by"), rows), more))


def _largest(found: Inventory, kind: str) -> list[tuple[Item, Usage]]:
    return sorted(((item, usage) for item, usage in found.items.items() if item.kind == kind),
                  key=lambda one: (-one[1].size, one[0].name))


def about(workspace: Workspace, item: Item, states: dict[str, JobState]) -> str:
    """What an item is, in some words."""
    if item.name.startswith("."):
        return "unfinished, or left by a job that was killed"
    if item.kind == "run" and item.name in states:
        state = states[item.name]
        return (f"{job_views.VERB_TITLES[state.verb]}, {subject(state)} "
                f"({job_views.status_title(state)})")
    if item.kind == "dataset":
        found = records.dataset(workspace, item.name)
        clips = pluralize(found.clips, "clip") if found.clips is not None else ""
        return ", ".join(part for part in (job_views.language_name(found.language), clips) if part)
    return ""


def users_line(found: Inventory, item: Item) -> str:
    """Such as "2 runs, 1 export"."""
    users = {one.user for one in found.by_item.get(item, ())}
    counts = {kind: sum(one.kind == kind for one in users) for kind in KINDS}
    return ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in counts.items() if count)


def deletable(found: Inventory | None, view: View) -> list[tuple[str, str]]:
    """The largest items of the chosen kind, to choose from."""
    if found is None:
        return []
    listed = _largest(found, view.values.get("storage.kind") or "dataset")[:MOST_OFFERED]
    return [(f"{item.name} ({size_text(usage.size)})", item.reference) for item, usage in listed]


def detail_view(found: Inventory | None, items: Sequence[Item]) -> Html:
    """What the chosen items free, and what could no longer be used without them."""
    if found is None or not items:
        return NOTHING
    usages = [found.items.get(item, Usage()) for item in items]
    lines = []
    for item in items:
        for one in found.by_item.get(item, ()):
            if one.user not in items:
                lines.append(f"{one.user.reference} {one.how.replace(' it', f' {item.reference}', 1)}.")
    shown = element("ul", *(element("li", line) for line in lines[:MOST_LISTED]), class_="findings") if lines \
        else paragraph("Nothing else depends on it.", class_="small")
    more = paragraph(f"and {len(lines) - MOST_LISTED} more", class_="small") if len(lines) > MOST_LISTED else NOTHING
    return div("card", element("strong", f"{size_text(sum(one.size for one in usages))}; once the bin is emptied, "
                               f"{size_text(sum(one.freed for one in usages))} are free."), shown, more)


def bin_view(entries: Sequence[BinEntry], found: Inventory | None) -> Html:
    """What was deleted, the last first; a size that was not measured yet is a dash."""
    if not entries:
        return job_views.empty("The bin is empty.")
    sizes = found.deleted if found else {}
    rows = [(entry.item.name, TITLES.get(entry.item.kind, "Checkpoints of runs"),
             size_text(sizes[entry].size) if entry in sizes else "–",
             job_views.clock(entry.deleted)) for entry in entries[:MOST_LISTED]]
    rest = len(entries) - MOST_LISTED
    more = paragraph(f"and {rest} more", class_="small") if rest > 0 else NOTHING
    return join((table(("Name", "Kind", "Size", "Deleted"), rows), more))
