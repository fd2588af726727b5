"""Reviewing a dataset: the worst first, decisions that are only added, and a new version that loses nothing."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile

from config.errors import UserError
from config.schema import PrepareOptions, ReviseOptions
from core import prepare, revise
from core.dataset import review
from core.dataset.clip_index import ClipIndex, MeasureStore, build_index
from core.dataset.review import ReviewDecision
from core.jobs.engines import HERE, Engine
from core.jobs.reporter import Reporter
from core.submission.jobs import check_requirements
from core.workspace import Workspace
from data import manifest
from data.clip_findings import AnalysedClip
from data.manifest import HELD_OUT, TRAIN, ManifestClip, PreparedDataset
from data.measures import Measures
from scripts import review as script
from tests.processes import PATIENCE_S
from tests.unit.small_data import AMHARIC, RATE, Recorder, SmallExtractor, SmallFamily, base, write_clip, write_dataset

GOOD = Measures(3.0, 24000, 0.7, 0.0, -20.0, 35.0, 0.1, 0.1, 10000.0, "")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with the dataset `d`: twelve clips, of which `clip3` is far too long for its text. Source: `in`."""
    folder = tmp_path_factory.mktemp("made")
    workspace = Workspace.open(folder / "workspace")
    base().save(workspace.models / "tiny")
    source = write_dataset(folder / "in", tuple(f"{text} {end}" for end in ("አለ", "ነው") for text in AMHARIC))
    write_clip(source / "clip3.wav", duration_s=9.0, pitch=411)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "family", lambda name: SmallFamily(SmallExtractor()))
        prepared(workspace, source)
    return folder


@pytest.fixture
def ready(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A copy of `made` for one test."""
    monkeypatch.setattr(prepare, "family", lambda name: SmallFamily(SmallExtractor()))
    shutil.copytree(made / "workspace", tmp_path / "workspace")
    return Workspace(tmp_path / "workspace")


def prepared(workspace: Workspace, source: Path, name: str = "d", *, keep_edges: bool = False) -> dict[str, object]:
    options = PrepareOptions(source=str(source), dataset=name, language="am", held_out=0.2, keep_edges=keep_edges)
    return dict(prepare.run(options, workspace, Recorder()))


def versions(workspace: Workspace, name: str) -> PreparedDataset:
    return manifest.load(workspace.dataset(name))


def test_preparing_puts_the_misaligned_pair_first(ready: Workspace) -> None:
    index = review.index_of(ready, "d")
    worst = index.page(0, 3)
    assert worst[0].clip.id == "clip3"
    assert worst[0].findings[0].kind == "pace"
    assert index.count() == 12
    assert worst[0].measures is not None
    assert worst[0].measures.duration_s == 9.0


def test_pages_are_the_whole_in_order(ready: Workspace) -> None:
    index = review.index_of(ready, "d")
    pages = [one.clip.id for start in range(0, 12, 5) for one in index.page(start, 5)]
    assert pages == [one.clip.id for one in index.all()]
    assert sorted(pages) == sorted(clip.id for clip in versions(ready, "d").clips)
    for kind in index.kinds():
        found = index.page(0, 100, kind.kind)
        assert len(found) == kind.count == index.count(kind.kind)
        assert all(kind.kind in {finding.kind for finding in one.findings} for one in found)


def test_a_recording_is_measured_once(ready: Workspace, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(prepare, "measure", lambda waveform, rate: calls.append(rate))
    assert prepared(ready, made / "in")["state"] == "already there"
    assert calls == []


def test_a_version_leaves_out_and_names_what_was_excluded(ready: Workspace) -> None:
    before = {path: path.read_bytes() for path in ready.dataset("d").rglob("*") if path.is_file()}
    review.exclude(ready, "d", ["clip3"], "pace")
    review.decide(ready, "d", [ReviewDecision("clip4", text="ዛሬ ዝናብ ዘነበ")])
    made = revise.save_version(ready, "d", "d-2", Recorder())
    assert (made.clips, made.excluded, made.changed) == (11, ("clip3",), ("clip4",))
    new = versions(ready, "d-2")
    assert "clip3" not in {clip.id for clip in new.clips}
    assert next(clip.text for clip in new.clips if clip.id == "clip4") == "ዛሬ ዝናብ ዘነበ"
    assert new.card.reviewed == "d"
    report = json.loads((new.folder / "report.json").read_text("utf-8"))
    assert {"kind": "excluded", "where": "clip3", "message": "excluded: pace"} in report["errors"]
    assert report["kept"] == 11
    assert "1 clip excluded, 0 included again, 1 text edited" in report["notes"][-1]
    assert all(path.read_bytes() == content for path, content in before.items())  # the old one is as it was
    index = review.index_of(ready, "d-2")
    assert index.count() == 11
    assert index.clip("clip4").spoken == "ዛሬ ዝናብ ዘነበ"  # type: ignore[union-attr]


def test_what_was_excluded_can_come_back_with_the_same_bytes(ready: Workspace) -> None:
    review.exclude(ready, "d", ["clip3"], "by ear")
    revise.save_version(ready, "d", "d-2", Recorder())
    assert [(clip.id, reason) for clip, reason in review.excluded(ready.dataset("d-2"))] == [("clip3", "by ear")]
    review.decide(ready, "d-2", [ReviewDecision("clip3")])
    made = revise.save_version(ready, "d-2", "d-3", Recorder())
    assert (made.included, made.excluded) == (("clip3",), ())
    assert versions(ready, "d-3").card.fingerprint == versions(ready, "d").card.fingerprint
    first, last = versions(ready, "d"), versions(ready, "d-3")
    for clip in last.clips:
        assert last.audio_path(clip).read_bytes() == first.audio_path(clip).read_bytes()


def test_the_last_decision_counts_and_none_is_lost(ready: Workspace) -> None:
    for text in ("አንድ ሁለት", "ሦስት አራት"):
        review.decide(ready, "d", [ReviewDecision("clip1", text=text)])
    assert review.read_decisions(ready, "d")["clip1"].text == "ሦስት አራት"
    assert len((ready.dataset("d") / review.DRAFT_FILE).read_text("utf-8").splitlines()) == 2


def test_a_text_that_becomes_a_held_out_one_goes_to_its_side(ready: Workspace) -> None:
    dataset = versions(ready, "d")
    held = next(clip for clip in dataset.clips if clip.split == HELD_OUT)
    train = next(clip for clip in dataset.clips if clip.split == TRAIN)
    review.decide(ready, "d", [ReviewDecision(train.id, text=held.text + "።")])
    revise.save_version(ready, "d", "d-2", Recorder())
    assert next(clip.split for clip in versions(ready, "d-2").clips if clip.id == train.id) == HELD_OUT


def test_a_held_out_clip_whose_text_becomes_one_that_is_trained_on_leaves_none_on_both_sides(ready: Workspace) -> None:
    dataset = versions(ready, "d")
    held = next(clip for clip in dataset.clips if clip.split == HELD_OUT)
    train = next(clip for clip in dataset.clips if clip.split == TRAIN)
    review.decide(ready, "d", [ReviewDecision(held.id, text=train.text)])
    revise.save_version(ready, "d", "d-2", Recorder())
    sides = {clip.id: clip.split for clip in versions(ready, "d-2").clips}
    assert (sides[held.id], sides[train.id]) == (TRAIN, TRAIN)


@pytest.mark.parametrize(("decided", "message"), [
    ([], "Nothing was decided"),
    ([ReviewDecision("nosuch", included=False)], "does not have: .'nosuch'"),
    ([ReviewDecision(f"clip{number}", included=False) for number in range(12)], "nothing is left to train on"),
])
def test_versions_that_make_no_sense_are_refused(ready: Workspace, decided: list[ReviewDecision], message: str) -> None:
    review.decide(ready, "d", decided)
    with pytest.raises(UserError, match=message):
        revise.save_version(ready, "d", "d-2", Recorder())
    assert ready.list_datasets() == ["d"]


def test_a_version_is_never_written_over_a_dataset(ready: Workspace) -> None:
    review.exclude(ready, "d", ["clip3"], "pace")
    with pytest.raises(UserError, match="already is a dataset named 'd'"):
        revise.save_version(ready, "d", "d", Recorder())


def test_an_empty_text_is_refused(ready: Workspace) -> None:
    with pytest.raises(UserError, match="nothing to speak"):
        review.decide(ready, "d", [ReviewDecision("clip1", text=" ። ")])
    assert review.read_decisions(ready, "d") == {}


def test_a_reviewed_dataset_is_prepared_as_it_is(ready: Workspace, made: Path) -> None:
    review.exclude(ready, "d", ["clip3"], "pace")
    revise.save_version(ready, "d", "d-2", Recorder())
    told = prepared(ready, made / "in", "d-2")
    assert (told["state"], told["clips"]) == ("already there", 11)


def test_all_with_a_finding_are_excluded_at_once(ready: Workspace) -> None:
    assert review.exclude_kind(ready, "d", "pace") == 1
    assert review.exclude_kind(ready, "d", "pace") == 0
    assert review.read_decisions(ready, "d")["clip3"] == ReviewDecision("clip3", included=False, reason="pace")


def quiet_and_silent(made: Path, workspace: Workspace) -> list[str]:
    """Prepare `q` with its edges: twelve clips of 1.5 s, of which two are far quieter and three begin with silence."""
    source = made.parent / "quiet"
    for number in range(12):
        times = np.arange(24000) / RATE
        wave = (0.02 if number < 2 else 0.3) * np.sin(2 * np.pi * (200 + 20 * number) * times)
        ends = np.zeros(RATE if 2 <= number < 5 else 0)
        source.mkdir(exist_ok=True)
        soundfile.write(str(source / f"q{number}.wav"), np.concatenate([ends, wave]), RATE)
        (source / f"q{number}.txt").write_text(f"{AMHARIC[number % 6]} {'አለ' if number < 6 else 'ነው'}", "utf-8")
    prepared(workspace, source, "q", keep_edges=True)
    return [kind.kind for kind in review.index_of(workspace, "q").kinds()]


def test_recordings_are_mended_in_a_version_and_the_old_ones_stay(ready: Workspace, tmp_path: Path) -> None:
    assert {"edges", "level"} <= set(quiet_and_silent(tmp_path / "in", ready))
    assert "Cut the silence at the ends of 3 clips" in review.describe_fix("edges", 3, -10.0)
    assert [review.fix_kind(ready, "q", kind) for kind in ("edges", "level", "level")] == [3, 2, 0]
    job = revise.run(ReviseOptions(dataset="q", save_as="q-2"), ready, Recorder())
    assert (job["repaired"], job["features"], job["features_failed"]) == (5, 12, 0)
    old, new = versions(ready, "q"), versions(ready, "q-2")
    index = review.index_of(ready, "q-2")
    assert not {"edges", "level"} & {kind.kind for kind in index.kinds()}
    level = review.index_of(ready, "q").plots().level_lufs
    for before, after in zip(old.clips, new.clips, strict=True):
        measures = index.clip(after.id).measures  # type: ignore[union-attr]
        assert measures is not None
        if before.id in ("q0", "q1"):
            assert measures.level_lufs == pytest.approx(level, abs=0.5)
        if before.id in ("q2", "q3", "q4"):
            assert after.duration_s == pytest.approx(1.6, abs=0.06)
            original = new.folder / "originals" / Path(before.audio).name
            assert original.read_bytes() == old.audio_path(before).read_bytes()
        if int(before.id[1:]) > 4:
            assert after == before
    assert review.undo_kind(ready, "q", "edges") == 3
    assert [one.fixes for one in review.read_decisions(ready, "q").values() if one.fixes] == [("level",)] * 2


def test_the_level_of_a_trimmed_clip_is_mended_and_it_stays_trimmed(ready: Workspace, tmp_path: Path) -> None:
    quiet_and_silent(tmp_path / "in", ready)
    prepared(ready, tmp_path / "quiet", "t")
    assert "edges" not in {kind.kind for kind in review.index_of(ready, "t").kinds()}
    review.decide(ready, "t", [ReviewDecision("q2", fixes=("level",)), ReviewDecision("q0", fixes=("level",))])
    revise.save_version(ready, "t", "t-2", Recorder())
    old, new = ({clip.id: clip for clip in versions(ready, name).clips} for name in ("t", "t-2"))
    assert new["q0"].sha256 != old["q0"].sha256
    assert new["q3"] == old["q3"]
    assert (new["q2"].trimmed_start_s, new["q2"].duration_s) == (old["q2"].trimmed_start_s, old["q2"].duration_s)
    assert new["q2"].trimmed_start_s == pytest.approx(0.9, abs=0.03)


def test_what_cannot_be_mended_is_refused(ready: Workspace) -> None:
    with pytest.raises(UserError, match="'pace' cannot be repaired"):
        review.fix_kind(ready, "d", "pace")


def test_a_version_that_was_cut_short_goes_on_with_its_features(ready: Workspace) -> None:
    review.exclude(ready, "d", ["clip3"], "pace")
    revise.save_version(ready, "d", "d-2", Recorder())
    assert revise.run(ReviseOptions(dataset="d", save_as="d-2"), ready, Recorder())["clips"] == 11
    review.exclude(ready, "d", ["clip4"], "pace")
    with pytest.raises(UserError, match="already is a dataset named 'd-2'"):
        revise.run(ReviseOptions(dataset="d", save_as="d-2"), ready, Recorder())


def test_a_version_is_measured_by_the_engine_that_was_chosen(ready: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = list[str]()
    measure_dataset = revise.measure_dataset

    def record(dataset: PreparedDataset, workspace: Workspace, reporter: Reporter, engine: Engine = HERE) -> None:
        engines.append(engine.name)
        measure_dataset(dataset, workspace, reporter, engine)

    monkeypatch.setattr(revise, "measure_dataset", record)
    review.exclude(ready, "d", ["clip3"], "pace")
    options = ReviseOptions(dataset="d", save_as="d-2", engine="processes", workers=1)
    assert revise.run(options, ready, Recorder())["clips"] == 11
    # A resume indexes the clips by another way.
    monkeypatch.setattr(revise.ClipIndex, "exists", lambda *_: False)
    assert revise.run(options, ready, Recorder())["clips"] == 11
    assert engines == ["processes"] * 2


def test_a_version_that_was_killed_before_its_clips_were_sorted_goes_on(ready: Workspace,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    review.exclude(ready, "d", ["clip3"], "pace")
    with monkeypatch.context() as patch:
        patch.setattr(revise, "build_index", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            revise.run(ReviseOptions(dataset="d", save_as="d-2"), ready, Recorder())
    assert ready.list_datasets() == ["d", "d-2"]
    review.exclude(ready, "d", ["clip4"], "by ear")  # meanwhile, and for the version after this one
    job = revise.run(ReviseOptions(dataset="d", save_as="d-2"), ready, Recorder())
    assert (job["clips"], job["features"]) == (11, 11)
    assert review.index_of(ready, "d-2").count() == 11


def test_what_is_decided_while_a_version_is_written_is_not_said_to_be_in_it(ready: Workspace,
                                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    review.exclude(ready, "d", ["clip3"], "pace")
    write = revise.write_audio

    def later(*given: object) -> object:
        review.exclude(ready, "d", ["clip4"], "by ear")
        return write(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(revise, "write_audio", later)
    folder = revise.save_version(ready, "d", "d-2", Recorder()).folder
    assert "clip4" not in (folder / revise.DECIDED_FILE).read_text("utf-8")
    assert any(clip.id == "clip4" for clip in versions(ready, "d-2").clips)


def test_a_version_keeps_the_speakers_of_a_split_by_speaker_apart(ready: Workspace, tmp_path: Path) -> None:
    source = tmp_path / "in"
    lines = ["id,audio,text,speaker"]
    for number in range(12):
        write_clip(source / f"s{number}.wav", pitch=200 + 10 * number)
        lines.append(f"s{number},s{number}.wav,{AMHARIC[number % 6]} {'አለ' if number < 6 else 'ነው'},p{number // 3}")
    (source / "metadata.csv").write_text("\n".join(lines), "utf-8")
    prepare.run(PrepareOptions(source=str(source), dataset="s", language="am", held_out=0.3,
                               split_disjoint_by="speaker"),
                ready, Recorder())
    dataset = versions(ready, "s")
    held, other, *_ = (clip for clip in dataset.clips if clip.split == HELD_OUT)
    train = next(clip for clip in dataset.clips if clip.split == TRAIN)
    review.decide(ready, "s", [ReviewDecision(train.id, text=other.text), ReviewDecision(held.id, text="ዝናብ መጣ ዛሬ")])
    version = revise.save_version(ready, "s", "s-2", Recorder())
    made = versions(ready, "s-2")
    sides = {side: {clip.speaker for clip in made.clips if clip.split == side} for side in (TRAIN, HELD_OUT)}
    assert not sides[TRAIN] & sides[HELD_OUT]
    assert version.excluded == (train.id,)
    assert review.excluded(made.folder)[0][1] == "overlap: its text is held out and its speaker is trained on"
    assert next(clip.split for clip in made.clips if clip.id == held.id) == HELD_OUT


def test_only_recordings_that_are_others_count_as_mended(ready: Workspace, tmp_path: Path) -> None:
    quiet_and_silent(tmp_path / "in", ready)
    review.fix_kind(ready, "q", "edges")
    dataset = versions(ready, "q")
    clips = {clip.id: clip for clip in dataset.clips}
    dataset.audio_path(clips["q2"]).write_text("no sound any more")
    for path in ready.cache.glob("measures-*.sqlite"):
        path.unlink()  # the others can be measured again
    review.decide(ready, "q", [ReviewDecision("q9", fixes=("trim",))])  # which has no silence at its ends
    recorder = Recorder()
    version = revise.save_version(ready, "q", "q-2", recorder)
    assert set(version.repaired) == {"q3", "q4"}
    assert "q2 is not repaired" in recorder.warnings
    assert "q9 has nothing to repair" in recorder.warnings
    assert "2 recordings repaired" in (version.folder / "report.json").read_text("utf-8")


def test_a_version_in_which_nothing_could_be_mended_is_none(ready: Workspace) -> None:
    review.decide(ready, "d", [ReviewDecision("clip1", fixes=("trim",))])
    with pytest.raises(UserError, match="Nothing was decided about 'd' that differs"):
        revise.save_version(ready, "d", "d-2", Recorder())
    assert ready.list_datasets() == ["d"]


def test_two_who_decide_at_once_lose_nothing(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(review, "_LOCK_TIMEOUT_S", PATIENCE_S)  # eight who write and flush on a busy disk
    (workspace.datasets / "d").mkdir(parents=True)
    ready = threading.Barrier(8)

    def with_fix(fix: str, one: ReviewDecision) -> ReviewDecision:
        return replace(one, fixes=(*one.fixes, fix))

    def work(number: int) -> None:
        ready.wait()
        for step in range(5):
            review.update_decisions(workspace, "d", ["clip"], partial(with_fix, f"{number}-{step}"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(review.read_decisions(workspace, "d")["clip"].fixes)) == 40


def test_decisions_are_read_again_only_where_the_file_grew(workspace: Workspace,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    folder = workspace.datasets / "many"
    folder.mkdir(parents=True)
    review.decide(workspace, "many", [ReviewDecision(f"c{number}") for number in range(500)])
    parsed: list[int] = []
    read = review._parse
    monkeypatch.setattr(review, "_parse", lambda content: parsed.append(len(content)) or read(content))
    assert len(review.read_decisions(workspace, "many")) == 500
    whole = parsed.pop()
    assert review.read_decisions(workspace, "many") is review.read_decisions(workspace, "many")
    review.decide(workspace, "many", [ReviewDecision("c7", included=False, reason="by ear")])
    assert review.read_decisions(workspace, "many").excluded == {"by ear": 1}
    assert sum(parsed) < whole / 50
    path = folder / review.DRAFT_FILE
    path.write_text("".join(path.read_text("utf-8").splitlines(keepends=True)[:3]), "utf-8")  # by hand
    assert list(review.read_decisions(workspace, "many")) == ["c0", "c1", "c2"]
    path.unlink()
    assert review.read_decisions(workspace, "many") == {}


def test_a_dataset_that_was_never_measured_says_so(ready: Workspace) -> None:
    (next((ready.cache / "review").glob("*.sqlite"))).unlink()
    with pytest.raises(UserError, match="not been measured") as caught:
        review.index_of(ready, "d")
    assert "Prepare it once more" in caught.value.hint


def test_measures_are_kept_by_content(workspace: Workspace) -> None:
    store = MeasureStore(workspace)
    assert store.load(["a"]) == {}
    store.save({"a": GOOD, "b": replace(GOOD, level_lufs=None)})
    assert store.load(["a", "c"]) == {"a": GOOD}


def test_the_longest_text_of_the_model_is_told(workspace: Workspace) -> None:
    clip = ManifestClip("a", "audio/a.wav", "ሰላም", "am", TRAIN, 3.0, "one", "0" * 64)
    dataset = PreparedDataset(workspace.datasets, manifest.make_card("d", "am", "x", [clip]), (clip,))
    build_index(workspace, dataset, [AnalysedClip("a", "ሰ" * 300, "one", GOOD)], {"max_text_length": "253"})
    found = ClipIndex(workspace, dataset.card.fingerprint).page(0, 1)[0].findings
    assert "300 characters; the model holds 253 tokens" in next(one.message for one in found if one.kind == "long text")


def test_the_command_line_shows_decides_and_saves(ready: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["d", "--workspace", str(ready.path), "--json"]
    assert script.main([*where, "--most", "1"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["worst"][0]["clip"]["id"] == "clip3"
    assert script.main([*where, "--exclude-kind", "pace", "--text", "clip1", "ሰላም ለዓለም", "--save-as", "d-2"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])["result"]
    assert (told["clips"], told["excluded"], told["texts_edited"], told["features"]) == (11, 1, 1, 11)
    assert script.main([*where, "--exclude", "nosuch"]) != 0
    assert "no clip 'nosuch'" in capsys.readouterr().err


def test_the_command_line_takes_back_what_was_decided_about_a_kind(ready: Workspace) -> None:
    where = ["d", "--workspace", str(ready.path), "--most", "1"]
    review.decide(ready, "d", [ReviewDecision("clip3", fixes=("trim",))])
    assert script.main([*where, "--exclude-errors", "pace"]) == 0
    assert review.read_decisions(ready, "d")["clip3"] == ReviewDecision("clip3", False, None, "pace", ("trim",))
    assert script.main([*where, "--undo-kind", "pace", "--undo-kind", "edges"]) == 0
    assert review.read_decisions(ready, "d")["clip3"] == ReviewDecision("clip3")


def test_a_decision_that_was_cut_off_loses_no_other(workspace: Workspace) -> None:
    folder = workspace.datasets / "torn"
    folder.mkdir(parents=True)
    review.decide(workspace, "torn", [ReviewDecision("one")])
    with open(folder / review.DRAFT_FILE, "a", encoding="utf-8") as file:
        file.write('{"id": "two", "exc')
    assert set(review.read_decisions(workspace, "torn")) == {"one"}
    review.decide(workspace, "torn", [ReviewDecision("three")])
    assert set(review.read_decisions(workspace, "torn")) == {"one", "three"}


def test_the_language_of_a_dataset_is_corrected_in_a_new_version(ready: Workspace) -> None:
    before = versions(ready, "d")
    assert check_requirements(ready, "revise", ReviseOptions(
        dataset="d", save_as="d-ti", language="ti", model="tiny")) == ()
    revise.save_version(ready, "d", "d-ti", Recorder(), "ti")
    after = versions(ready, "d-ti")
    assert (after.card.language, {clip.language for clip in after.clips}) == ("ti", {"ti"})
    assert [(clip.id, clip.text, clip.split, clip.sha256) for clip in after.clips] == [
        (clip.id, clip.text, clip.split, clip.sha256) for clip in before.clips]
    assert review.index_of(ready, "d-ti").about()["rules"] == ""
    assert versions(ready, "d").card == before.card
    with pytest.raises(UserError, match="Nothing was decided about 'd'"):
        check_requirements(ready, "revise", ReviseOptions(dataset="d", save_as="d-3", language="am"))
