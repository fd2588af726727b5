"""Steps of the whole way on the page, for a family with made-up weights: dataset, tokenizer, rows, training, export.

Each step fills the form of its tab, waits for the job and checks what the next one builds on. `model` is the name of
the base model in the workspace; the language that is added is Amharic.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile
from playwright.sync_api import Locator, Page, expect

from core.jobs import control
from core.jobs.state import JobBoard, JobState
from core.workspace import Workspace
from tests.browser.conftest import Take, choose, open_tab, wait_until
from tests.processes import PATIENCE_S
from tests.worlds import RATE, SYLLABLES, tone

FULL_SIZE = "full-size"  # folder of the published sizes beside the workspace
PATIENCE_AT_FULL_SIZE_S = 3600.0


def write_recordings(folder: Path) -> Path:
    """Clips of a second with a text each."""
    noise = np.random.default_rng(3)
    for index in range(16):
        words = " ".join("".join(noise.choice(list(SYLLABLES), 3)) for _ in range(3))
        soundfile.write(folder / f"{index:02d}.wav", tone(index, 1.2, (110.0, 220.0)[index % 2]).numpy(), RATE)
        (folder / f"{index:02d}.txt").write_text(words, encoding="utf-8")
    return folder


def field(page: Page, tab: str, name: str) -> Locator:
    return page.locator(f"#tab-{tab} .field-{name} input, #tab-{tab} .field-{name} textarea").first


def done(page: Page, workspace: Workspace, verb: str, count: int = 1) -> JobState:
    """The newest job of `verb` when `count` of them have ended."""
    board = JobBoard(workspace)
    full_size = (workspace.path.parent / FULL_SIZE).is_dir()

    def ended() -> list[JobState]:
        return [state for state in board.states() if state.verb == verb and state.ended]

    wait_until(lambda: len(ended()) >= count, page, PATIENCE_AT_FULL_SIZE_S if full_size else 2 * PATIENCE_S)
    state = ended()[0]
    assert state.status == "finished", f"{state.message}\n{state.traceback}\n{control.log_tail(state.job)}"
    return state


def accept_unknown_files(page: Page, family: str) -> None:
    """Tick the boxes that name the files of a refused download, and start it again without a probe."""
    boxes = page.locator(f"#{family}-accept-unknown input")
    expect(boxes.first).to_be_visible()
    for box in boxes.all():
        box.check()
    page.locator(f"#{family}-probe input").uncheck()
    page.locator(f"#get-{family}").click()


def prepare(page: Page, workspace: Workspace, recordings: Path, model: str) -> None:
    expect(field(page, "data", "model")).to_have_value(model)
    field(page, "data", "source").fill(str(recordings))
    field(page, "data", "dataset").fill("mine")
    field(page, "data", "language").fill("am")
    page.locator("#run-prepare").click()
    state = done(page, workspace, "prepare")
    assert state.job.settings["model"] == model
    assert any(path.name.startswith(f"{model}-") for path in workspace.cache.iterdir())


def extend(page: Page, workspace: Workspace, model: str) -> None:
    open_tab(page, "Tokenizer")
    expect(field(page, "tokenizer", "dataset")).to_have_value("mine")
    expect(field(page, "tokenizer", "tokenizer")).to_have_value(f"{model}-am")
    page.locator("#run-tokenizer").click()
    done(page, workspace, "tokenizer")
    open_tab(page, "Embeddings")
    expect(field(page, "embeddings", "tokenizer")).to_have_value(f"{model}-am")
    expect(field(page, "embeddings", "extension")).to_have_value(f"{model}-am")
    page.locator("#run-extend").click()
    done(page, workspace, "extend")


def train_in_each_scope(page: Page, workspace: Workspace, take: Take, model: str) -> None:
    for count, scope in enumerate(("rows", "full", "gated"), 1):  # the last is the one that is heard and exported
        train(page, workspace, take, model, scope, count)


def train(page: Page, workspace: Workspace, take: Take, model: str, scope: str, count: int) -> None:
    """The training number `count`: a few steps."""
    open_tab(page, "Train")
    form = page.locator("#new-run")
    if count > 1:  # the form is folded away when there is a run to look at
        form.get_by_role("button", name="New run").click()
    expect(field(page, "train", "extension")).to_have_value(f"{model}-am")
    choose(field(page, "train", "scope"), page.get_by_role("option", name=scope, exact=True))
    if count == 1:
        for fold in ("Data", "Adapters", "Optimizer", "Losses and regularization", "Checkpoints and evaluation"):
            form.get_by_role("button", name=fold).click()
        for name, value in (("adapter_rank", "32"), ("evaluation_sentences", "4"), ("row_lr", "0.001")):
            expect(field(page, "train", name)).to_have_value(value)  # of the family's preset
    few = workspace.path.parent / "few.txt"  # what the base speaks to rehearse, in `full`; the app's sentences are many
    few.write_text("en\tHello.\nen\tGood day.\n", encoding="utf-8")
    for name, value in (("steps", 3), ("warmup", 1), ("batch_size", 2), ("checkpoint_every", 3),
                        ("evaluation_sentences", 1), ("replay_texts", few)):
        field(page, "train", name).fill(str(value))
    take(page, f"{model}-train-1280-light")
    page.locator("#run-train").click()
    state = done(page, workspace, "train", count)
    assert {name: state.job.settings[name] for name in ("steps", "scope", "adapter_rank", "adapter_lr")} == {
        "steps": 3, "scope": scope, "adapter_rank": 32, "adapter_lr": 1e-4}
    assert state.samples


def choose_language(page: Page, name: str) -> None:
    choose(page.locator("#listen-language input"), page.get_by_role("option", name=name, exact=True))


def export(page: Page, workspace: Workspace, model: str) -> None:
    done(page, workspace, "certify", 3)
    open_tab(page, "Share")
    expect(page.locator("#proof")).to_contain_text("checks passed")
    expect(page.locator("#export-name input, #export-name textarea")).to_have_value(f"{model}-am")
    page.locator("#accept-learning input").check()  # three steps teach nothing, so the export asks for a word
    page.locator("#export").click()
    done(page, workspace, "export")
    assert (workspace.export(f"{model}-am") / "certificate.json").is_file()
    page.get_by_role("button", name="Push to the Hub").click()
    expect(page.locator("#push-export input")).to_have_value(f"{model}-am")
