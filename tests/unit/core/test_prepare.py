"""From a source to a dataset and its features: once, whole, and never over another one."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import soundfile
import torch

from config.errors import UserError
from config.schema import AS_IS, PrepareOptions
from core import prepare, recogniser, revise
from core.dataset.review import exclude, index_of
from core.jobs.events import Progress
from core.jobs.reporter import StopRequested
from core.library import dataset_recognisers
from core.library.dataset_recognisers import DatasetRecogniserRecord, HeldOutCER
from core.sources import dataset_source
from core.speech.dataset_recogniser import DatasetRecogniser
from core.speech.text_comparison import TextComparison
from core.workspace import Workspace
from data import augmentation, manifest
from data.feature_cache import FeatureCache
from data.manifest import PreparedDataset
from data.validation import ValidationReport
from models.base import CTCRecogniser
from tests.unit.small_data import AMHARIC, Recorder, SmallExtractor, SmallFamily, base, write_clip, write_dataset


@pytest.fixture
def extractor(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> SmallExtractor:
    family = SmallFamily()
    monkeypatch.setattr(prepare, "family", lambda name: family)
    base().save(workspace.models / "tiny")
    return family.small_extractor


def options(source: Path, name: str = "d") -> PrepareOptions:
    return PrepareOptions(source=str(source), dataset=name, language="am", held_out=0.3)


def test_dataset_is_written_with_audio_as_given_and_features(
        tmp_path: Path, workspace: Workspace, extractor: SmallExtractor) -> None:
    source = write_dataset(tmp_path / "in")
    recorder = Recorder()
    result = prepare.run(options(source), workspace, recorder)
    dataset = manifest.load(workspace.dataset("d"))
    assert {clip.text for clip in dataset.clips} == set(AMHARIC)
    assert (result["train"], result["features_failed"]) == (6 - int(str(result["held_out"])), 0)
    assert 1 <= int(str(result["held_out"])) <= 3
    assert (result["speakers"], result["speakers_with_one_clip"]) == (1, 0)
    for clip in dataset.clips:
        assert dataset.audio_path(clip).read_bytes() == (source / f"{clip.id}.wav").read_bytes()
    cache = FeatureCache(workspace.cache, extractor.fingerprint)
    assert len(cache.load(dataset.clips[0].sha256)["speech_codes"]) == 10
    assert ValidationReport.from_json(json.loads((dataset.folder / "report.json").read_text())).kept == 6
    progress = [event for event in recorder.events if isinstance(event, Progress)]
    assert (progress[-1].done, progress[-1].total) == (6, 6)


def test_a_language_of_the_base_is_prepared_to_be_rehearsed_and_takes_no_rules(
        tmp_path: Path, workspace: Workspace, extractor: SmallExtractor) -> None:
    source = write_dataset(tmp_path / "in", ("the cat", "a red bird", "it has 5 birds"))
    asked = options(source).model_copy(update={"language": "en"})
    recorder = Recorder()
    assert prepare.run(asked, workspace, recorder)["text_unknown"] == 1
    assert "speaks English (en) already, and nothing of it may change" in recorder.warnings
    assert "1 text has characters that the model does not know and will not be replayed with it: 5" in (
        recorder.warnings)
    assert "tokenizer" not in recorder.warnings
    found = {one.clip.id: one.findings for one in index_of(workspace, "d").all()}
    assert "unknown characters" in {finding.kind for finding in found["clip2"]}
    with pytest.raises(UserError, match="reads it in its own way: the text rules 'am' do not apply"):
        prepare.run(asked.model_copy(update={"rules": "am", "dataset": "e"}), workspace, Recorder())
    assert workspace.list_datasets() == ["d"]


def test_a_tokenizer_that_is_there_counts_what_it_cannot_write(
        tmp_path: Path, workspace: Workspace, extractor: SmallExtractor) -> None:
    known = sorted({letter for text in AMHARIC[:4] for letter in text if letter != " "})
    base().extended("am", "ethiopic", known, []).save(workspace.tokenizers / "mine")
    base().extended("ti", "ethiopic", ["ሰ"], []).save(workspace.tokenizers / "another-language")
    source = write_dataset(tmp_path / "in", (*AMHARIC[:4], AMHARIC[0] * 6, "ቡና"))
    recorder = Recorder()
    result = prepare.run(options(source), workspace, recorder)
    assert (result["text_unknown"], result["text_too_long"]) == (1, 1)
    assert "1 text has characters that the tokenizer mine does not know" in recorder.warnings
    assert "ቡ (U+1261)" in recorder.warnings
    found = {one.clip.id: one.findings for one in index_of(workspace, "d").all()}
    assert "unknown characters" in {finding.kind for finding in found["clip5"]}
    assert "tokens of text, the model holds 57" in next(one.message for one in found["clip4"] if one.kind == "too long")
    assert not {finding.kind for finding in found["clip0"]} & {"unknown characters", "too long"}


def test_recordings_of_another_language_are_added_and_each_text_is_read_in_its_own_way(
        tmp_path: Path, workspace: Workspace, extractor: SmallExtractor) -> None:
    amharic = write_dataset(tmp_path / "am", (*AMHARIC[:4], "5 ወፍ"))
    prepare.run(options(amharic).model_copy(update={"rules": "am"}), workspace, Recorder())
    swahili = write_dataset(tmp_path / "sw", ("paka mweusi", "ndege 5", "mtoto mdogo"))
    for at in range(3):
        write_clip(swahili / f"clip{at}.wav", pitch=700 + 10 * at)
    asked = options(swahili, "both").model_copy(update={"language": "sw", "add_to": "d"})
    prepare.run(asked, workspace, Recorder())
    card = manifest.load_card(workspace.dataset("both"))
    assert (card.languages, card.clips) == (("am", "sw"), 8)
    spoken = {one.clip.language: one.spoken for one in index_of(workspace, "both").all() if "5" in one.clip.text}
    assert spoken == {"am": "አምስት ወፍ", "sw": "ndege 5"}  # by the rules of the first import, and by none
    for part in ("train", "held_out"):
        assert all(manifest.load(workspace.dataset("both")).split(part, code) for code in card.languages)
    assert prepare.run(asked, workspace, Recorder())["state"] == "already there"

    exclude(workspace, "both", ["clip0"], "by hand")
    revise.save_version(workspace, "both", "both-2", Recorder())
    assert manifest.load_card(workspace.dataset("both-2")).languages == ("am", "sw")
    with pytest.raises(UserError, match="holds several languages"):
        revise.save_version(workspace, "both", "both-3", Recorder(), "ti")
    with pytest.raises(UserError, match="speaks English"):
        prepare.run(asked.model_copy(update={"language": "en", "dataset": "c"}), workspace, Recorder())
    as_is = PrepareOptions(source=AS_IS, dataset="both", language="am,sw")
    assert prepare.run(as_is, workspace, Recorder())["state"] == "already there"
    with pytest.raises(UserError, match="in several languages"):
        prepare.run(as_is.model_copy(update={"source": str(swahili), "dataset": "c"}), workspace, Recorder())


def test_again_computes_nothing(tmp_path: Path, workspace: Workspace, extractor: SmallExtractor) -> None:
    source = write_dataset(tmp_path / "in")
    prepare.run(options(source), workspace, Recorder())
    result = prepare.run(options(source), workspace, Recorder())
    assert result["state"] == "already there"
    assert extractor.calls == 6


def test_a_dataset_as_it_stands_needs_no_source_and_no_options_of_its_making(
        tmp_path: Path, workspace: Workspace, extractor: SmallExtractor) -> None:
    source = write_dataset(tmp_path / "in")
    more = write_dataset(tmp_path / "more", tuple(text + " ቡና" for text in AMHARIC[:2]))
    for at in range(2):
        write_clip(more / f"clip{at}.wav", pitch=700 + 10 * at)
    prepare.run(options(source).model_copy(update={"held_out": 0.4, "seed": 5}), workspace, Recorder())
    prepare.run(options(more, "both").model_copy(update={"add_to": "d"}), workspace, Recorder())
    shutil.rmtree(source)
    before = {name: manifest.load(workspace.dataset(name)).card for name in ("d", "both")}
    for name, card in before.items():
        as_is = PrepareOptions(source=AS_IS, dataset=name, language="am")
        result = prepare.run(as_is, workspace, Recorder())
        assert (result["state"], result["features"]) == ("already there", card.train_clips + card.held_out_clips)
        assert manifest.load(workspace.dataset(name)).card == card


@pytest.mark.parametrize(("changed", "message"), [
    ({"dataset": "none"}, "There is no dataset"), ({"language": "ti"}, "is in 'am', not 'ti'"),
    ({"dataset": "new", "add_to": "d"}, "is not added to 'd'")])
def test_a_dataset_as_it_stands_must_be_there(tmp_path: Path, workspace: Workspace, extractor: SmallExtractor,
                                              changed: dict[str, str], message: str) -> None:
    prepare.run(options(write_dataset(tmp_path / "in")), workspace, Recorder())
    asked = PrepareOptions(source=AS_IS, dataset="d", language="am").model_copy(update=changed)
    with pytest.raises(UserError, match=message):
        prepare.run(asked, workspace, Recorder())


def test_features_follow_the_content_of_the_audio(
        tmp_path: Path, workspace: Workspace, extractor: SmallExtractor) -> None:
    source = write_dataset(tmp_path / "in")
    prepare.run(options(source), workspace, Recorder())
    write_clip(source / "clip0.wav", pitch=999)
    prepare.run(options(source, "other"), workspace, Recorder())
    assert extractor.calls == 7


def test_another_dataset_under_the_same_name_is_refused(
        tmp_path: Path, workspace: Workspace, extractor: SmallExtractor) -> None:
    prepare.run(options(write_dataset(tmp_path / "in")), workspace, Recorder())
    with pytest.raises(UserError, match="already is another dataset named 'd': 6 clips in 'am'") as caught:
        prepare.run(options(write_dataset(tmp_path / "two", AMHARIC[:3])), workspace, Recorder())
    assert caught.value.hint.startswith("Choose another dataset name")
    assert len(manifest.load(workspace.dataset("d")).clips) == 6


def test_stop_keeps_what_is_done_and_goes_on(
        tmp_path: Path, workspace: Workspace, extractor: SmallExtractor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "_BATCH_CLIPS", 2)
    source = write_dataset(tmp_path / "in")
    with pytest.raises(StopRequested, match="Stopped after 2 of 6 clips"):
        prepare.run(options(source), workspace, Recorder(stop_after=7))
    assert extractor.calls == 2
    recorder = Recorder()
    prepare.run(options(source), workspace, recorder)
    assert extractor.calls == 6
    progress = [event for event in recorder.events if isinstance(event, Progress)
                and event.note not in ("checked", "measured")]
    assert [(event.done, event.total) for event in progress] == [(2, 6), (4, 6), (6, 6)]


def test_clips_of_like_length_are_extracted_together(
        tmp_path: Path, workspace: Workspace, extractor: SmallExtractor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "_BATCH_S", 6.0)
    source = write_dataset(tmp_path / "in")
    for index, duration_s in enumerate((1.0, 3.0, 1.0, 3.0, 1.0, 1.0)):
        write_clip(source / f"clip{index}.wav", duration_s, pitch=200 + 10 * index)
    recorder = Recorder()
    prepare.run(options(source), workspace, recorder)
    assert extractor.batches == [2, 4]  # two of three seconds, four of one
    notes = [event.note for event in recorder.events if isinstance(event, Progress) and event.note != "measured"]
    assert notes[-2] in ("clip1", "clip3")


def test_the_features_of_a_dataset_are_in_one_file_too(
        tmp_path: Path, workspace: Workspace, extractor: SmallExtractor) -> None:
    prepare.run(options(write_dataset(tmp_path / "in")), workspace, Recorder())
    dataset = manifest.load(workspace.dataset("d"))
    cache = FeatureCache(workspace.cache, extractor.fingerprint)
    pack = cache.load_pack(dataset.card.fingerprint)
    for clip in dataset.clips:
        for name, array in cache.load(clip.sha256).items():
            assert np.array_equal(pack.arrays(clip.sha256)[name], array)
            assert pack.arrays(clip.sha256)[name].dtype == array.dtype


def write_padded(folder: Path, start_s: float = 0.9, end_s: float = 0.5) -> Path:
    """A folder whose recordings have silence with a little noise before and after a tone of one second."""
    write_dataset(folder)
    noise = np.random.default_rng(0)
    for path in folder.glob("*.wav"):
        tone, rate = soundfile.read(str(path))
        edges = [noise.normal(0, 1e-4, int(seconds * rate)) for seconds in (start_s, end_s)]
        soundfile.write(str(path), np.concatenate([edges[0], tone, edges[1]]), rate)
    return folder


def test_silence_at_the_edges_is_trimmed_and_the_recordings_stay(
        tmp_path: Path, workspace: Workspace, extractor: SmallExtractor) -> None:
    source = write_padded(tmp_path / "in")
    result = prepare.run(options(source), workspace, Recorder())
    dataset = manifest.load(workspace.dataset("d"))
    assert (result["trimmed_clips"], result["trimmed_s"]) == (6, pytest.approx(6 * 1.2, abs=0.1))
    assert (dataset.card.trimmed_clips, dataset.card.duration_s) == (6, pytest.approx(6 * 1.2, abs=0.1))
    report = ValidationReport.from_json(json.loads((dataset.folder / "report.json").read_text()))
    assert (report.trimmed_clips, report.trimmed_s) == (6, dataset.card.trimmed_s)
    cache = FeatureCache(workspace.cache, extractor.fingerprint)
    for clip in dataset.clips:
        assert dataset.audio_path(clip).read_bytes() == (source / f"{clip.id}.wav").read_bytes()
        assert not cache.has(clip.sha256)
        codes = cache.load(clip.feature_key)["speech_codes"]  # the loudness of each tenth of a second
        assert (len(codes) in (11, 12), (codes >= 29).sum() in (10, 11)) == (True, True)
    index = index_of(workspace, "d")
    assert not {"silence", "edges"} & {kind.kind for kind in index.kinds()}
    measures = index.all().__next__().measures
    assert measures is not None
    assert measures.silence_start_s == pytest.approx(0.1, abs=0.01)


def test_silence_at_the_edges_can_be_kept(tmp_path: Path, workspace: Workspace, extractor: SmallExtractor) -> None:
    source = write_padded(tmp_path / "in")
    result = prepare.run(options(source).model_copy(update={"keep_edges": True}), workspace, Recorder())
    dataset = manifest.load(workspace.dataset("d"))
    assert (result["trimmed_clips"], dataset.card.duration_s) == (0, pytest.approx(6 * 2.4, abs=0.01))
    cache = FeatureCache(workspace.cache, extractor.fingerprint)
    assert all(len(cache.load(clip.sha256)["speech_codes"]) == 24 for clip in dataset.clips)
    assert "edges" in {kind.kind for kind in index_of(workspace, "d").kinds()}

    # Prepared again, it stays as it is; under another name the silence is trimmed.
    recorder = Recorder()
    again = prepare.run(options(source), workspace, recorder)
    assert (again["state"], again["trimmed_clips"]) == ("already there", 0)
    assert "'d' stays as it is, with silence at the ends of 6 clips (7 s)" in recorder.warnings
    assert prepare.run(options(source, "e"), workspace, Recorder())["trimmed_clips"] == 6
    with pytest.raises(UserError, match="'e' has 6 clips whose silence at the ends is trimmed"):
        prepare.run(options(source, "e").model_copy(update={"keep_edges": True}), workspace, Recorder())


def test_clips_with_times_in_a_recording_are_trimmed_alike(
        tmp_path: Path, workspace: Workspace, extractor: SmallExtractor) -> None:
    write_padded(tmp_path / "whole")
    (tmp_path / "in").mkdir()
    sound = np.concatenate([soundfile.read(str(tmp_path / "whole" / f"clip{n}.wav"))[0] for n in range(6)])
    soundfile.write(str(tmp_path / "in" / "long.wav"), sound, 16000)
    times = "".join(f"{n + 1}\n00:00:{2.4 * n:06.3f} --> 00:00:{2.4 * (n + 1):06.3f}\n{text}\n\n".replace(".", ",")
                    for n, text in enumerate(AMHARIC))
    (tmp_path / "in" / "long.srt").write_text(times, "utf-8")
    result = prepare.run(options(tmp_path / "in"), workspace, Recorder())
    dataset = manifest.load(workspace.dataset("d"))
    assert (result["clips"], result["trimmed_clips"]) == (6, 6)
    assert [clip.duration_s for clip in dataset.clips] == [pytest.approx(1.2, abs=0.03)] * 6
    assert all(soundfile.info(str(dataset.audio_path(clip))).duration == pytest.approx(2.4, abs=0.01)
               for clip in dataset.clips)


def test_variants_are_of_the_trimmed_clip(tmp_path: Path, workspace: Workspace, extractor: SmallExtractor) -> None:
    asked = options(write_padded(tmp_path / "in")).model_copy(update={"variants": 1, "variant_speed": 0.0})
    prepare.run(asked, workspace, Recorder())
    dataset = manifest.load(workspace.dataset("d"))
    recipe, cache = augmentation.require(dataset.folder), FeatureCache(workspace.cache, extractor.fingerprint)
    train = dataset.split(manifest.TRAIN)
    keys = [key for clip in train for key, _ in recipe.of(clip.feature_key)]
    assert {len(cache.load(key)["speech_codes"]) for key in keys} <= {11, 12}


def test_stop_while_checking_writes_nothing(tmp_path: Path, workspace: Workspace, extractor: SmallExtractor) -> None:
    with pytest.raises(StopRequested):
        prepare.run(options(write_dataset(tmp_path / "in")), workspace, Recorder(stop_after=3))
    assert workspace.list_datasets() == []


def test_full_disk_leaves_no_half_dataset(
        tmp_path: Path, workspace: Workspace, extractor: SmallExtractor, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(UserError, match="could not be written: No space left on device") as caught:
        prepare.run(options(write_dataset(tmp_path / "in")), workspace, Recorder())
    assert "Free space" in caught.value.hint
    assert list(workspace.datasets.iterdir()) == []


def test_what_is_left_out_is_said_and_kept_in_the_report(
        tmp_path: Path, workspace: Workspace, extractor: SmallExtractor) -> None:
    source = write_dataset(tmp_path / "in")
    (source / "clip0.wav").write_text("no sound")
    (source / "clip1.txt").write_text("።\n")
    recorder = Recorder()
    result = prepare.run(options(source), workspace, recorder)
    assert (result["clips"], result["left_out"]) == (4, 2)
    assert "2 of 6 rows are excluded" in recorder.warnings
    assert "clip0.wav: could not be read as audio: Format not recognised (not audio; excluded)" in recorder.warnings
    assert "the text '።' of clip1 has nothing to speak" in recorder.warnings


def test_failed_features_are_counted_and_named(
        tmp_path: Path, workspace: Workspace, extractor: SmallExtractor, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, odd = extractor.extract, []

    def fail_for_one(waveform: torch.Tensor) -> object:
        odd[:] = odd or [waveform]
        if torch.equal(waveform, odd[0]):
            raise UserError("The clip is too odd.")
        return whole(waveform)

    monkeypatch.setattr(extractor, "extract", fail_for_one)
    recorder = Recorder()
    result = prepare.run(options(write_dataset(tmp_path / "in")), workspace, recorder)
    assert (result["features"], result["features_failed"]) == (5, 1)
    assert recorder.warnings.count(" has no features: The clip is too odd.") == 1
    assert extractor.batches == [6]  # then one by one, so that the others are kept


def test_dataset_without_audio(tmp_path: Path, workspace: Workspace, extractor: SmallExtractor) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("ሰላም")
    with pytest.raises(UserError, match="is a dataset without audio"):
        prepare.run(options(tmp_path / "in"), workspace, Recorder())


def test_lost_recording_of_a_prepared_dataset_is_named(
        tmp_path: Path, workspace: Workspace, extractor: SmallExtractor) -> None:
    source = write_dataset(tmp_path / "in")
    prepare.run(options(source), workspace, Recorder())
    (workspace.dataset("d") / "audio" / "clip3.wav").unlink()
    with pytest.raises(UserError, match=r"lacks 1 of its recordings, such as audio/clip3\.wav"):
        prepare.run(options(source), workspace, Recorder())


def test_demo_of_an_unknown_language_names_those_there() -> None:
    with pytest.raises(UserError, match="no demo dataset for the language 'tlh'"):
        dataset_source.demo_dataset("tlh")


@pytest.mark.parametrize(("least_minutes", "wanted", "trains"), [(0.05, True, True), (0.05, False, False),
                                                                 (0.2, True, False)])
def test_a_recogniser_is_trained_for_enough_speech_unless_it_is_turned_off(
        tmp_path: Path, workspace: Workspace, extractor: SmallExtractor, monkeypatch: pytest.MonkeyPatch,
        least_minutes: float, wanted: bool, trains: bool) -> None:
    def train(dataset: PreparedDataset, *others: object) -> DatasetRecogniserRecord:
        return DatasetRecogniserRecord(dataset.card.name, dataset.card.fingerprint, "", {}, ("a",), 5, 0.1, 0, 1.0, 2.5,
                                       {"am": HeldOutCER(1, 10, 3, 0.3, 0.3)})

    monkeypatch.setattr(dataset_recognisers, "MIN_MINUTES", least_minutes)
    monkeypatch.setattr(recogniser, "train", train)
    chosen = options(write_dataset(tmp_path / "in")).model_copy(update={"recogniser": wanted})

    result = prepare.run(chosen, workspace, Recorder())

    assert result.get("recogniser_cer_am") == (0.3 if trains else None)
    assert result.get("recogniser_cpu_seconds") == (2.5 if trains else None)


def test_a_dataset_whose_recogniser_cannot_be_trained_is_prepared_with_a_warning(
        tmp_path: Path, workspace: Workspace, extractor: SmallExtractor, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*given: object) -> DatasetRecogniserRecord:
        raise UserError("There is no training clip.", "Add some.")

    monkeypatch.setattr(dataset_recognisers, "MIN_MINUTES", 0.0)
    monkeypatch.setattr(recogniser, "train", train)
    recorder = Recorder()

    assert prepare.run(options(write_dataset(tmp_path / "in")), workspace, recorder)["clips"] == 6
    assert "The dataset has no recogniser: There is no training clip." in recorder.warnings


def test_the_recogniser_of_the_dataset_finds_texts_of_other_clips_and_they_come_first(
        tmp_path: Path, workspace: Workspace, extractor: SmallExtractor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's recogniser does not know Amharic, and the dataset's own one does."""
    languages = list[str]()

    def compare(dataset: PreparedDataset, texts: list[str], recogniser: object, language: str, *others: object,
                **settings: object) -> TextComparison:
        languages.append(language)
        return TextComparison(6, 5, {"clip4": "the recogniser hears the text of clip1 in it: “ሰላም”"})

    monkeypatch.setattr(prepare, "compare_texts", compare)
    chosen = options(write_dataset(tmp_path / "in"))
    prepare.run(chosen, workspace, Recorder())
    assert not languages

    fingerprint = manifest.load_card(workspace.dataset("d")).fingerprint
    record = DatasetRecogniserRecord("d", fingerprint, "", {}, ("a",), 5, 0.1, 0, 1.0, 2.5,
                                     {"am": HeldOutCER(1, 10, 3, 0.3, 0.3)})
    monkeypatch.setattr(dataset_recognisers, "find", lambda workspace, dataset: record)
    monkeypatch.setattr(DatasetRecogniser, "load", lambda folder, device: SimpleNamespace(languages=record.languages))
    recorder = Recorder()
    assert prepare.run(chosen, workspace, recorder)["clips_with_findings"] >= 1
    assert languages == ["am"]
    assert "In 1 of 6 clips the recogniser finds another text" in recorder.warnings
    first = next(iter(index_of(workspace, "d").all()))
    assert first.clip.id == "clip4"
    assert "the text of clip1" in " ".join(finding.message for finding in first.findings)


@pytest.mark.parametrize(("known", "error", "used"), [((), 0.3, True), (("am",), 0.3, False), ((), 0.7, False)])
def test_the_recogniser_of_a_dataset_is_used_where_it_measures_and_the_models_does_not(
        workspace: Workspace, monkeypatch: pytest.MonkeyPatch, known: tuple[str, ...], error: float,
        used: bool) -> None:
    edits = round(100 * error)
    record = DatasetRecogniserRecord("d", "", "", {}, ("a",), 5, 0.1, 0, 1.0, 2.5,
                                     {"am": HeldOutCER(1, 100, edits, error, error)})
    monkeypatch.setattr(dataset_recognisers, "find", lambda workspace, dataset: record)
    monkeypatch.setattr(DatasetRecogniser, "load", lambda folder, device: SimpleNamespace(languages=record.languages))
    dataset = PreparedDataset(workspace.datasets / "d", manifest.make_card("d", "am", "test", []), [])
    model = cast(CTCRecogniser, SimpleNamespace(languages=known))
    assert (prepare._recogniser_of_dataset(dataset, workspace, model) is not None) is used
