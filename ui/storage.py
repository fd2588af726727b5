"""Storage, in the drawer: sizes and what depends on what, the bin, and the import of archives."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import gradio as gr

from config.errors import UserError
from core.jobs.reporter import pluralize, size_text
from core.jobs.state import JobBoard, JobState
from core.sources import source_preview
from core.submission import storage
from core.submission.storage import BinEntry, Inventory, Item, Usage
from core.workspace import KINDS, Workspace
from ui import job_views, records, verb_form
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph, table
from ui.page import Page

TITLES = {
    "model": "Base models", "dataset": "Datasets", "segments": "Segments", "tokenizer": "Tokenizers",
    "extension": "Extended models", "run": "Runs and other jobs", "export": "Exports", "recogniser": "Recognisers",
    "voice": "Reference voices", "recording": "Prompt lists and their recordings", "upload": "Uploads",
    "cache": "Caches",
}
_ABOUT = {
    "recogniser": "Downloaded again when it is used.",
    "upload": "Removed after the import, or after a day.",
    "cache": "Made again when needed; that costs time.",
}
MOST_LISTED, MOST_OFFERED = 30, 500
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
        thread = self._thread
        if thread:
            thread.join(patience_s)

    def _measure(self) -> None:
        began, fault = time.monotonic(), "unexpected error, see the app's log"
        try:
            previous, self._latest = self._latest, storage.take_inventory(self._workspace, self._board.states())
            fault = ""
            if previous is None or (previous.items, previous.deleted) != (self._latest.items, self._latest.deleted):
                os.utime(self._workspace.cache)  # the page asks for the times of these folders (`workspace_mark`)
        except (OSError, UserError) as error:
            fault = str(error).rstrip(".")
        finally:
            # The next measurement waits longer if this one took long.
            ended = time.monotonic()
            with self._guard:
                self._fault, self._thread = fault, None
                self._due = ended + max(_FRESH_S, _REST * (ended - began))


def build(page: Page) -> None:
    """Lay out the tab."""
    verb_form.drawer_header(
        "Storage", "Sizes as they are on the disk, and what depends on what. Deleting moves into the bin, from which "
        "everything can be restored until you empty it.")

    # Sizes are measured in the background, as walking through many runs takes seconds.
    live, sizes = page.live, Measurements(page.workspace, page.live.board)
    summary = gr.HTML(elem_id="storage-summary")
    live.panel(summary, lambda _view: summary_view(sizes.latest(), page.workspace), "storage")
    kind = gr.Dropdown([(title, name) for name, title in TITLES.items()], value="dataset", label="Show",
                       elem_id="storage-kind", filterable=False)
    live.watch("storage.kind", kind)
    items = gr.HTML(elem_id="storage-items")
    live.panel(items, lambda view: items_view(sizes.latest(), page.workspace, view), "storage")

    # What depends on the chosen items is shown before they are deleted.
    with gr.Row(elem_classes="controls"):
        chosen = gr.Dropdown([], label="To delete", multiselect=True,
                             elem_classes="several-choices", elem_id="storage-item", scale=4,
                             info="Items that depend on it are shown before anything is deleted.")
        delete = gr.Button("Delete", variant="stop", size="md", scale=0, min_width=110, elem_id="storage-delete")
    notice = gr.HTML(elem_classes="notices", elem_id="storage-notice")
    detail = gr.HTML(elem_id="storage-detail")

    live.panel(chosen, lambda view: gr.update(choices=deletable(sizes.latest(), view)), "storage")

    def show_detail(references: Sequence[str] | None) -> Sequence[object]:
        return [detail_view(sizes.latest(), [storage.parse(reference) for reference in references or ()])]

    def delete_items(references: Sequence[str] | None) -> Sequence[object]:
        if not references:
            raise UserError("Nothing is chosen.", "Choose what to delete under To delete.")
        deleted, board = list[str](), page.live.board
        dependencies = storage.find_dependencies(page.workspace, board.states())  # read once, as there may be many runs
        try:
            for reference in references:
                storage.delete(page.workspace, storage.parse(reference), board, dependencies)
                deleted.append(reference)
        except UserError as error:
            already = f" Before it went into the bin: {', '.join(deleted)}." if deleted else ""
            raise UserError(f"{error.message}{already}", error.hint) from error
        finally:
            sizes.renew()
        return [job_views.notice(f"In the bin: {', '.join(references)}. Restore it below."), gr.update(value=[])]

    # Whatever is deleted goes into the bin, which follows below.
    page.on(chosen.change, show_detail, [chosen], [detail])
    page.on(delete.click, delete_items, [chosen], [notice, chosen])
    _build_bin(page, sizes)
    _build_import(page)


def _build_bin(page: Page, sizes: Measurements) -> None:
    gr.HTML(element("h2", "Bin"))
    bin_list = gr.HTML(elem_id="bin")
    page.live.panel(bin_list, lambda _view: bin_view(storage.list_deleted(page.workspace), sizes.latest()),
                    "storage")
    with gr.Row(elem_classes="controls"):
        entry = gr.Dropdown([], label="Deleted", elem_id="bin-entry", scale=4)
        restore = gr.Button("Restore", size="md", scale=0, min_width=110, elem_id="bin-restore")
        empty = gr.Button("Empty bin", variant="stop", size="md", scale=0, min_width=110, elem_id="bin-empty")

    # Emptying is the one action of this tab that cannot be undone.
    sure = gr.Checkbox(False, label="Empty the bin for good: nothing in it can be restored afterwards",
                       elem_id="bin-sure")
    notice = gr.HTML(elem_classes="notices", elem_id="bin-notice")
    page.live.watch("storage.entry", entry)

    def entries(view: View) -> object:
        deleted = {bin_entry.reference: f"{bin_entry.item.reference}, deleted {job_views.clock(bin_entry.deleted)}"
                   for bin_entry in storage.list_deleted(page.workspace)}
        # The chosen entry stays while it is in the bin.
        current = view.values["storage.entry"]
        return gr.update(choices=[(title, name) for name, title in deleted.items()],
                         value=current if current in deleted else next(iter(deleted), None))

    page.live.panel(entry, entries, "storage")

    def restore_entry(reference: str | None) -> Sequence[object]:
        if not reference:
            raise UserError("Nothing in the bin is chosen.", "Choose what to restore; only what was deleted can be.")
        item = storage.restore(page.workspace, reference)
        sizes.renew()
        return [job_views.notice(f"Restored: {item.reference}.", "good")]

    def empty_all(is_sure: bool) -> Sequence[object]:
        deleted = storage.list_deleted(page.workspace)
        if deleted and not is_sure:
            raise UserError(f"The bin holds {len(deleted)} of your items; emptying cannot be undone.",
                            "Tick the box above, then press again.")
        count = storage.empty_bin(page.workspace)
        sizes.renew()
        message = f"{count} removed for good." if count else "The bin was empty."
        return [job_views.notice(message), False]

    page.on(restore.click, restore_entry, [entry], [notice])
    page.on(empty.click, empty_all, [sure], [notice, sure])


def _build_import(page: Page) -> None:
    with gr.Accordion("Import an archive", open=False, elem_classes="fold", elem_id="import-archive"):
        gr.HTML(paragraph("An export or a run that was packed on the Share tab; the hash of every file in it is "
                          "checked.", class_="small"))
        upload = gr.File(file_count="single", type="filepath", height=120, elem_id="unpack-upload",
                         label="Upload an archive")
        form, _ = verb_form.build_verb_form(page, "unpack", "Import archive", first=("archive", "save_as", "signer"),
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


def summary_view(inventory: Inventory | None, workspace: Workspace) -> Html:
    """Count and size of each kind, of the bin, and of everything."""
    if inventory is None:
        return job_views.empty("The sizes are being measured.")

    rows = []
    for kind, title in TITLES.items():
        usages = [usage for item, usage in inventory.items.items() if item.kind == kind]
        if usages:
            rows.append((title, str(len(usages)), size_text(sum(usage.size for usage in usages)), _ABOUT.get(kind, "")))

    if inventory.deleted:
        rows.append(("Bin", str(len(inventory.deleted)),
                     size_text(sum(usage.size for usage in inventory.deleted.values())),
                     "Empty it to free this space."))

    return join((job_views.facts([("Total", size_text(inventory.total)),
                                  ("Free on the disk", size_text(workspace.free_bytes()))]),
                 table(("Kind", "Items", "Size", ""), rows),
                 paragraph("In the total, files that several items share are counted once.", class_="small")))


def items_view(inventory: Inventory | None, workspace: Workspace, view: View) -> Html:
    """The items of the chosen kind, the largest first."""
    if inventory is None:
        return NOTHING
    kind = view.values.get("storage.kind") or "dataset"
    listed = _largest(inventory, kind)
    if not listed:
        return job_views.empty(f"{TITLES.get(kind, kind)}: none.")

    # Rows of runs tell the state of their jobs.
    states = {state.id: state for state in view.jobs}
    # A run that learned nothing is marked red, as it may be deleted first.
    red = {name for name, state in states.items() if kind == "run" and job_views.learned_nothing(state)}
    rows = [(item.name, join((about(workspace, item, states), " ", job_views.badge(states[item.name])))
             if item.name in red else about(workspace, item, states), size_text(usage.size),
             size_text(usage.freed), job_views.clock(usage.changed),
             users_line(inventory, item)) for item, usage in listed[:MOST_LISTED]]

    surplus = len(listed) - MOST_LISTED
    note = paragraph(f"{surplus} smaller ones are not shown; python -m scripts storage list --kind {kind} --all prints "
                     "them.", class_="small") if surplus > 0 else NOTHING
    return join((table(("Name", "About", "Size", "Frees", "Changed", "Used by"), rows), note))


def _largest(inventory: Inventory, kind: str) -> list[tuple[Item, Usage]]:
    return sorted(((item, usage) for item, usage in inventory.items.items() if item.kind == kind),
                  key=lambda entry: (-entry[1].size, entry[0].name))


def about(workspace: Workspace, item: Item, states: dict[str, JobState]) -> str:
    """What an item is, in some words."""
    if item.name.startswith("."):
        return "unfinished, or left by a job that was killed"
    if item.kind == "run" and item.name in states:
        state = states[item.name]
        return (f"{job_views.VERB_TITLES[state.verb]}, {job_views.titled_subject(state)} "
                f"({job_views.status_title(state)})")
    if item.kind == "dataset":
        dataset = records.dataset(workspace, item.name)
        clips = pluralize(dataset.clips, "clip") if dataset.clips is not None else ""
        return ", ".join(part for part in (job_views.language_name(dataset.language), clips) if part)
    return ""


def users_line(inventory: Inventory, item: Item) -> str:
    """Such as "2 runs, 1 export"."""
    # An item may be used in several ways, and counts once.
    users = {use.user for use in inventory.by_item.get(item, ())}
    counts = {kind: sum(user.kind == kind for user in users) for kind in KINDS}
    return ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in counts.items() if count)


def deletable(inventory: Inventory | None, view: View) -> list[tuple[str, str]]:
    """The largest items of the chosen kind, to choose from."""
    if inventory is None:
        return []
    listed = _largest(inventory, view.values.get("storage.kind") or "dataset")[:MOST_OFFERED]
    return [(f"{item.name} ({size_text(usage.size)})", item.reference) for item, usage in listed]


def detail_view(inventory: Inventory | None, items: Sequence[Item]) -> Html:
    """What the chosen items free, and what could no longer be used without them."""
    if inventory is None or not items:
        return NOTHING
    usages = [inventory.items.get(item, Usage()) for item in items]

    lines = []
    for item in items:
        for use in inventory.by_item.get(item, ()):
            if use.user not in items:
                lines.append(f"{use.user.reference} {use.how.replace(' it', f' {item.reference}', 1)}.")

    uses = element("ul", *(element("li", line) for line in lines[:MOST_LISTED]), class_="findings") if lines \
        else paragraph("Nothing else depends on it.", class_="small")
    remark = paragraph(f"and {len(lines) - MOST_LISTED} more", class_="small") if len(lines) > MOST_LISTED else NOTHING
    return div("card", element("strong", f"{size_text(sum(usage.size for usage in usages))}; once the bin is emptied, "
                               f"{size_text(sum(usage.freed for usage in usages))} are free."), uses, remark)


def bin_view(entries: Sequence[BinEntry], inventory: Inventory | None) -> Html:
    """What was deleted, the last first; a size that was not measured yet is a dash."""
    if not entries:
        return job_views.empty("The bin is empty.")
    sizes = inventory.deleted if inventory else {}
    rows = [(entry.item.name, TITLES.get(entry.item.kind, "Checkpoints of runs"),
             size_text(sizes[entry].size) if entry in sizes else "–",
             job_views.clock(entry.deleted)) for entry in entries[:MOST_LISTED]]
    unlisted = len(entries) - MOST_LISTED
    remark = paragraph(f"and {unlisted} more", class_="small") if unlisted > 0 else NOTHING
    return join((table(("Name", "Kind", "Size", "Deleted"), rows), remark))
