"""Machine, in the drawer: the device, the memory and the disk, and what the check at the start found."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence

import gradio as gr

from core.jobs.gpus import Gpu
from core.jobs.reporter import size_text
from core.machine import MachineCheck, free_memory, total_memory
from core.workspace import Workspace
from ui import job_views, verb_form
from ui.markup import Html, element, join, paragraph
from ui.page import Page


def build(page: Page, findings: Sequence[MachineCheck]) -> None:
    """Lay out the tab; `findings` is filled when the check has ended."""
    verb_form.drawer_header("Machine", "What the jobs can use of this machine.")
    about = gr.HTML(elem_id="machine-about")
    checks = gr.HTML(elem_id="machine-checks", elem_classes="notices")
    gr.HTML(paragraph("What the check at the start finds appears here. To check everything: ",
                      element("code", "python -m scripts doctor"), ".", class_="small"))

    page.live.panel(about, lambda _view: about_view(page), "machine")
    page.live.panel(checks, lambda _view: findings_view(findings), "machine")


def about_view(page: Page) -> Html:
    """Device, memory and disk, system and workspace; then each GPU."""
    gpus = page.gpus()
    facts: list[tuple[str, object]] = [
        ("Device, memory and disk", machine_line(gpus, page.workspace)),
        ("System", f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"),
        ("Workspace", page.workspace.path)]
    facts += [(f"GPU {index}, {gpu.name}", f"{size_text(gpu.free_mib * 2**20)} of {size_text(gpu.total_mib * 2**20)} "
                                           "free") for index, gpu in enumerate(gpus)]
    return job_views.facts(facts)


def machine_line(gpus: Sequence[Gpu], workspace: Workspace) -> str:
    """Device, its memory, and the free disk, in whole numbers, so that it seldom changes."""
    names = list(dict.fromkeys(gpu.name for gpu in gpus))
    if gpus:
        used, total = (sum(sizes) / 1024 for sizes in zip(
            *((gpu.total_mib - gpu.free_mib, gpu.total_mib) for gpu in gpus), strict=True))
        device = (f"{len(gpus)} x " if len(gpus) > 1 else "") + ", ".join(names)
    else:
        free, size = free_memory(), total_memory()
        used, total = (size - free) / 2**30 if size and free is not None else math.nan, (size or 0) / 2**30
        device = "CPU"
    # One sentence for each case, as the tables of translations have them.
    disk = workspace.free_bytes() / 1e9
    if math.isfinite(used):
        return f"{device} · {used:.0f} of {total:.0f} GiB in use · {disk:.0f} GB of disk free"
    return f"{device} · {disk:.0f} GB of disk free"


def findings_view(findings: Sequence[MachineCheck]) -> Html:
    """What is wrong with the machine, each with the command that mends it."""
    return join([job_views.fault(f"{check.name}: {check.found}", check.hint) for check in findings])
