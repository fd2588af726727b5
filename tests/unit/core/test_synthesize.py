"""Speaking with a small random model: what the controls reach, what is refused, and what a comparison says."""

from __future__ import annotations

import csv
import itertools
import json
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from config.errors import UserError
from config.schema import CompareOptions, SamplingOptions, SoundOptions, SynthesizeOptions
from core import compare, synthesize
from core.jobs.events import AudioGenerated, Progress
from core.jobs.reporter import StopRequested
from core.library import reference_voices
from core.model.loading import load
from core.speech import clips, evaluation
from core.speech.model_cache import ModelCache
from core.speech.synthesis import Synthesizer, join_chunks
from core.workspace import Workspace
from data import manifest
from data.acoustics import audio
from data.importers import import_source
from models.base import Generated, RecognitionScore
from models.language_model import TransformerLanguageModel
from tests.trained import RUN, trained_world
from tests.worlds import RATE, CodesAsSound, Listener, tone

TEXT = "the cat sees a dog. we go home now, five green birds sing."
LIVELY = SamplingOptions(temperature=1.0, min_p=0.0, seed=11)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return trained_world(tmp_path_factory.mktemp("world") / "workspace")


@pytest.fixture(scope="module")
def speaker(world: Workspace) -> Synthesizer:
    model = load(world, "base:tiny", torch.device("cpu"))
    return Synthesizer(model, "low", evaluation.longest_texts(world, model))


@pytest.fixture(scope="module")
def mixed(world: Workspace) -> Synthesizer:
    """A gated model, whose adapters act in the new language alone."""
    model = load(world, f"run:{RUN}", torch.device("cpu"))
    assert model.adapters is not None
    return Synthesizer(model, "low", evaluation.longest_texts(world, model), vocoder=CodesAsSound())


@pytest.fixture
def listener(world: Workspace, request: pytest.FixtureRequest) -> Iterator[Listener]:
    name = request.node.name.split("[")[0]
    return Listener(world.runs / name)


def say(speaker: Synthesizer, text: str = TEXT, **changes: object) -> torch.Tensor:
    return join_chunks(list(speaker.synthesize(text, "en", LIVELY.model_copy(update=changes))))


def test_same_seed_text_and_voice_give_the_same_audio(speaker: Synthesizer) -> None:
    assert torch.equal(say(speaker), say(speaker))


@pytest.mark.parametrize("change", [
    {"seed": 2}, {"temperature": 0.0}, {"top_p": 0.1}, {"min_p": 0.9}, {"repetition_penalty": 3.0}, {"guidance": 3.0},
])
def test_every_control_reaches_the_sampler(speaker: Synthesizer, change: dict[str, object]) -> None:
    assert not torch.equal(say(speaker), say(speaker, **change))


def test_the_voice_is_heard(world: Workspace, speaker: Synthesizer) -> None:
    other = Synthesizer(speaker.model, "high", evaluation.longest_texts(world, speaker.model))
    assert not torch.equal(say(speaker), say(other))


def test_the_language_reaches_tag_and_adapters(world: Workspace, monkeypatch) -> None:
    model = load(world, f"run:{RUN}", torch.device("cpu"))
    assert model.adapters is not None
    asked, generate = [], model.lm.generate

    def watched(texts, voices, sampling, vocoder):
        asked.append((int(texts[0][1]), model.adapters.on))
        return generate(texts, voices, sampling, vocoder)

    monkeypatch.setattr(model.lm, "generate", watched)
    for text, language in (("cinq", "en"), ("cinq", "fr"), ("ሀለመ", "am")):
        list(Synthesizer(model, "low").synthesize(text, language, LIVELY))
    assert asked == [(model.front_end.tag_id(code), code == "am") for code in ("en", "fr", "am")]


def test_segments_end_in_pauses_but_the_last(speaker: Synthesizer) -> None:
    segments = list(speaker.synthesize(TEXT, "en", LIVELY))
    assert [segment.text for segment in segments] == [piece.text for piece in speaker.split(TEXT, "en")]
    pauses = [silence_at_the_end(segment.waveform) for segment in segments]
    assert pauses[0] >= 0.25
    assert any(0.12 <= pause < 0.25 for pause in pauses[1:-1])
    assert pauses[-1] < 0.04


def silence_at_the_end(waveform: torch.Tensor) -> float:
    heard = waveform.abs().nonzero()
    return (len(waveform) - 1 - int(heard.max())) / RATE


def test_the_first_segment_comes_before_the_second_is_made(speaker: Synthesizer) -> None:
    made = []
    generate = speaker.model.lm.generate

    def counted(*arguments):
        made.append(1)
        return generate(*arguments)

    speaker.model.lm.generate = counted  # type: ignore[method-assign]
    try:
        first = next(iter(speaker.synthesize(TEXT, "en", LIVELY)))
    finally:
        speaker.model.lm.generate = generate  # type: ignore[method-assign]
    assert first.text == "the cat sees a dog."
    assert len(made) == 1


POOL = (
    ("en", "the cat sees a dog. we go home. five green birds sing. she reads a book. a cat."),
    ("am", "ሀለመ ሰረቀ። በተነከ! ሀለ መሰ"), ("fr", "le chat voit un chien. cinq oiseaux."), ("en", "we go"), ("am", "ሰረቀ"),
)


@settings(max_examples=8, deadline=None)
@given(asked=st.lists(st.sampled_from(POOL), min_size=2, max_size=5), seed=st.integers(0, 3))
def test_texts_of_old_and_new_languages_spoken_together_are_what_they_are_alone(
    mixed: Synthesizer, asked: list[tuple[str, str]], seed: int,
) -> None:
    options = LIVELY.model_copy(update={"seed": seed})
    for (language, text), segments in zip(asked, mixed.synthesize_batch(asked, options), strict=True):
        together, alone = list(segments), list(mixed.synthesize(text, language, options))
        assert [segment.text for segment in together] == [segment.text for segment in alone]
        assert torch.equal(join_chunks(together), join_chunks(alone))


def test_the_same_pieces_of_several_texts_share_a_batch(mixed: Synthesizer, monkeypatch) -> None:
    sizes, generate = [], mixed.model.lm.generate

    def watched(texts, voices, sampling, vocoder):
        sizes.append((len(texts), sampling.seed))
        return generate(texts, voices, sampling, vocoder)

    monkeypatch.setattr(mixed.model.lm, "generate", watched)
    progress: list[Progress] = []
    mixed.synthesize_batch([POOL[0], POOL[1], POOL[3]], LIVELY, progress.append)
    counts = [len(mixed.split(text, language)) for language, text in (POOL[0], POOL[1], POOL[3])]
    assert counts == [5, 3, 1]
    assert sizes == [(3, LIVELY.seed), (4, LIVELY.seed + 1), (2, LIVELY.seed + 3)]
    assert [(one.done, one.total) for one in progress] == [(0, 9), (3, 9), (7, 9), (9, 9)]


def test_a_text_that_cannot_be_spoken_is_refused_before_the_others_are(mixed: Synthesizer, monkeypatch) -> None:
    monkeypatch.setattr(mixed.model.lm, "generate", None)
    with pytest.raises(UserError, match="The text is empty"):
        mixed.synthesize_batch([POOL[0], ("en", "?!")], LIVELY)


def test_pieces_are_no_longer_than_what_was_measured(world: Workspace, speaker: Synthesizer) -> None:
    front_end, longest = speaker.model.front_end, evaluation.longest_texts(world, speaker.model)
    assert longest["en"] == max(len(front_end.encode(item.text, "en"))
                                for item in evaluation.held_out_recordings(world, speaker.model, "en"))
    pieces = speaker.split(" ".join([TEXT] * 5), "en")
    assert all(len(front_end.encode(piece.text, "en")) <= longest["en"] for piece in pieces)


def test_speech_that_needs_more_codes_than_there_are_is_said_in_two_breaths(speaker: Synthesizer, monkeypatch) -> None:
    model, asked = speaker.model.lm, []

    def endless(texts, voices, sampling, vocoder):
        asked.append(texts[0])
        return [Generated(np.ones(model.max_speech_length, dtype=np.int64), "limit") if len(text) > 12 else
                Generated(np.ones(5, dtype=np.int64), "stop") for text in texts]

    monkeypatch.setattr(model, "generate", endless)
    segments = list(speaker.synthesize("the cat sees a dog", "en", LIVELY))
    assert " ".join(segment.text for segment in segments) == "the cat sees a dog"
    assert all(segment.finish_reason == "stop" for segment in segments)
    assert list(speaker.synthesize("incomprehensible", "en", LIVELY))[0].finish_reason == "limit"


def test_a_reference_recording_is_a_voice(world: Workspace, speaker: Synthesizer, tmp_path: Path) -> None:
    path = tmp_path / "me.wav"
    audio.save(path, tone(9, 1.2, 300.0), RATE)
    again = Synthesizer(speaker.model, str(path), evaluation.longest_texts(world, speaker.model))
    assert not torch.equal(say(again), say(speaker))
    audio.save(path, tone(9, 1.2, 90.0), RATE)  # the file changes, so the voice does
    assert not torch.equal(say(Synthesizer(speaker.model, str(path))), say(again))


@pytest.mark.parametrize(("samples", "message"), [
    (np.zeros(RATE), r"me\.wav is silent: its peak is 0\.00000"),
    (np.full(RATE // 4, 0.3), r"me\.wav lasts 0\.25 s; at least 0\.5 s are needed"),
    (np.full(RATE, np.nan), r"me\.wav holds samples that are not finite numbers"),
])
def test_a_reference_that_is_no_speech_is_refused(speaker: Synthesizer, tmp_path: Path, samples, message: str) -> None:
    soundfile.write(tmp_path / "me.wav", samples, RATE, subtype="FLOAT")
    with pytest.raises(UserError, match=message):
        Synthesizer(speaker.model, str(tmp_path / "me.wav"))


def test_a_reference_that_is_not_audio_is_refused(speaker: Synthesizer, tmp_path: Path) -> None:
    (tmp_path / "me.wav").write_text("not audio")
    with pytest.raises(UserError, match=r"me\.wav could not be read as audio"):
        Synthesizer(speaker.model, str(tmp_path / "me.wav"))


def test_an_unknown_voice_is_refused_with_the_known_ones(speaker: Synthesizer) -> None:
    with pytest.raises(UserError, match="'nobody' is neither a voice of the model nor a recording") as caught:
        Synthesizer(speaker.model, "nobody")
    assert "low, high" in caught.value.hint


@pytest.mark.parametrize(("text", "language", "message"), [
    ("", "en", "The text is empty"),
    (" ?! … ", "en", "The text is empty"),
    ("it costs 3.5", "en", r"outside the vocabulary of 'en': 3 \(U\+0033\)"),
    ("the cat", "xx", "The language 'xx' is not one of: en, fr"),
])
def test_a_text_that_cannot_be_spoken_is_refused(speaker: Synthesizer, text: str, language: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(speaker.synthesize(text, language, LIVELY))


def test_synthesis_streams_segments_and_joins_them(world: Workspace, listener: Listener) -> None:
    options = SynthesizeOptions(text=TEXT, sampling=LIVELY, device="cpu")
    result = synthesize.run(options, world, listener)
    pieces, (whole,) = listener.of("audio_chunk"), listener.clips()
    parts = [audio.read(listener.directory / piece.path)[0] for piece in pieces]
    spoken, rate = audio.read(listener.directory / whole.path)
    assert torch.equal(torch.cat(parts), spoken)
    assert rate == RATE
    assert [piece.path for piece in pieces][:2] == ["audio/chunk-000.wav", "audio/chunk-001.wav"]
    assert result["chunks"] == len(pieces)
    assert result["duration_s"] == pytest.approx(len(spoken) / RATE, abs=1e-3)
    assert result["real_time_factor"] == pytest.approx(result["seconds"] / result["duration_s"], abs=0.01)
    assert isinstance(result["error"], float)
    assert isinstance(result["recordings_cer"], float)
    assert (listener.directory / whole.spectrogram).is_file()


@pytest.mark.parametrize("verb", ["synthesize", "compare"])
def test_synthesis_stops_between_chunks_and_what_there_is_can_be_played(
    world: Workspace, listener: Listener, monkeypatch, verb: str,
) -> None:
    monkeypatch.setattr(listener, "stop_requested", lambda: len(listener.of("audio_chunk")) >= 2)
    both = CompareOptions(finetuned=f"run:{RUN}", texts=(("en", TEXT * 4),), device="cpu")
    one = SynthesizeOptions(text=TEXT * 4, device="cpu")
    with pytest.raises(StopRequested, match="after 2 chunks;"):
        compare.run(both, world, listener) if verb == "compare" else synthesize.run(one, world, listener)
    parts = [audio.read(listener.directory / chunk.path)[0] for chunk in listener.of("audio_chunk")]
    [clip] = listener.of("audio")
    assert clip.side == ("base" if verb == "compare" else "speech")
    assert torch.equal(audio.read(listener.directory / clip.path)[0], torch.cat(parts))
    assert (clip.scoring, clip.unmeasured) == (False, "the synthesis was stopped after 2 chunks")


def test_a_comparison_is_equal_to_the_bit_where_nothing_changed(world: Workspace, listener: Listener) -> None:
    texts = (("en", "the cat sees"), ("fr", "le chat voit"), ("am", "ሀለመ ሰረቀ"))
    options = CompareOptions(finetuned=f"run:{RUN}", texts=texts, sampling=LIVELY, device="cpu")
    result = compare.run(options, world, listener)
    assert result["identical_en"] is True
    assert result["identical_fr"] is True
    assert "identical_am" not in result
    made = listener.clips()
    assert [(event.side, event.index) for event in made] == list(itertools.chain.from_iterable(
        (("base", index), ("finetuned", index)) for index in range(3)))
    assert all((listener.directory / event.path).is_file() for event in made)
    rows = json.loads((listener.directory / "comparison.json").read_text(encoding="utf-8"))["rows"]
    assert rows[0]["base"]["sha256"] == rows[0]["finetuned"]["sha256"]
    assert rows[2]["base"]["sha256"] != rows[2]["finetuned"]["sha256"]
    for language in ("en", "fr", "am"):
        for side in ("base", "finetuned", "recordings"):
            assert isinstance(result[f"error_{language}_{side}"], float)


def test_what_both_models_read_alike_is_computed_in_batches_of_the_same_shape(
    world: Workspace, listener: Listener, monkeypatch,
) -> None:
    """Half precision rounds by the shape of a batch: other texts of a batch could undo bit-identity."""
    texts = (("en", "the cat"), ("am", "ሀለመ"), ("fr", "le chat"), ("am", "ሰረቀ ሀለ"))
    batches: list[list[list[int]]] = []
    monkeypatch.setattr(TransformerLanguageModel, "generate", watched(batches, TransformerLanguageModel.generate))
    compare.run(CompareOptions(finetuned=f"run:{RUN}", texts=texts, device="cpu"), world, listener)
    base_old, finetuned_old, base_new, finetuned_new = batches
    assert base_old == finetuned_old
    assert [len(batch) for batch in batches] == [2, 2, 2, 2]
    assert base_new != finetuned_new
    assert [event.index for event in listener.clips()] == [0, 0, 2, 2, 1, 1, 3, 3]
    told = listener.of("progress")
    assert {event.total for event in told} == {8}
    assert [event.done for event in told] == [0, 2, 2, 4, 4, 6, 6, 8]  # both sides of two groups, in one count
    rows = json.loads((listener.directory / "comparison.json").read_text(encoding="utf-8"))["rows"]
    assert [row["text"] for row in rows] == [text for _, text in texts]
    assert [row["identical"] for row in rows] == [True, False, True, False]


def watched(batches: list[list[list[int]]], generate):
    """`generate` of a language model, with the ids of every batch put into `batches`."""
    def generated(model, texts, voices, sampling, vocoder):
        batches.append([ids.tolist() for ids in texts])
        return generate(model, texts, voices, sampling, vocoder)

    return generated


def test_the_base_reads_a_new_language_romanised_and_says_so(world: Workspace, listener: Listener) -> None:
    options = CompareOptions(finetuned=f"run:{RUN}", texts=(("am", "ሀለመ ሰረቀ"),), device="cpu")
    compare.run(options, world, listener)
    base, finetuned = listener.clips()
    wanted = "The base model has no 'am': it reads the romanised spelling \"haleme serek'e\" as 'en'."
    assert base.note == wanted
    assert finetuned.note == ""
    assert wanted in listener.of("plan")[0].lines


def test_a_full_adapter_is_not_called_identical(tmp_path: Path) -> None:
    world = trained_world(tmp_path / "workspace", "full")
    listener = Listener(world.runs / "full")
    options = CompareOptions(finetuned=f"run:{RUN}", texts=(("en", "the cat sees"),), sampling=LIVELY, device="cpu")
    assert compare.run(options, world, listener)["identical_en"] is False


def test_without_texts_six_sentences_of_the_new_language_and_one_of_the_others_are_compared(
    world: Workspace, listener: Listener,
) -> None:
    compare.run(CompareOptions(finetuned=f"run:{RUN}", device="cpu"), world, listener)
    texts = {event.text: event.language for event in listener.clips()}
    there = len(manifest.load(world.dataset("demo-am")).split(manifest.HELD_OUT))
    assert list(texts.values()) == ["am"] * min(6, there) + ["en", "fr"]


def test_each_line_of_a_file_is_a_clip_and_all_are_in_the_archive(
    world: Workspace, listener: Listener, tmp_path: Path,
) -> None:
    lines = ["ሀለመ ሰረቀ", "ሀለ", "ሰረቀ"]
    (tmp_path / "lines.txt").write_text("\ufeff" + "\n\n".join(lines) + "\n", encoding="utf-8")
    options = SynthesizeOptions(voice_model=f"run:{RUN}", language="am", file=str(tmp_path / "lines.txt"),
                                archive=str(tmp_path / "all.zip"), device="cpu")
    result = synthesize.run(options, world, listener)
    kinds = [(event.scoring, event.index) for event in listener.of("audio")]
    assert kinds == [(True, 0), (True, 1), (True, 2), (False, 0), (False, 1), (False, 2)]  # heard, then scored
    assert result["clips"] == 3
    with zipfile.ZipFile(tmp_path / "all.zip") as archive:
        rows = list(csv.DictReader(archive.read("clips.csv").decode("utf-8-sig").splitlines()))
        assert [row["text"] for row in rows] == lines
        for row, clip in zip(rows, listener.clips(), strict=True):
            assert archive.read(row["file"]) == (listener.directory / clip.path).read_bytes()
            assert float(row["cer"]) == pytest.approx(clip.error, abs=1e-4)
    assert (listener.directory / "clips.zip").read_bytes() == (tmp_path / "all.zip").read_bytes()
    (tmp_path / "lines.txt").write_text("ሀለመ\n3\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"Clip 2 of 2 \(3\): .*outside the vocabulary"):
        synthesize.run(options, world, listener)


def test_the_table_of_clips_has_no_formulas_and_imports_equal(tmp_path: Path) -> None:
    texts = ("=1+1", "-5 ሀለ", "@ሰረቀ", "'=ሀ", "ሀለመ, \"ሰ\"\nረቀ")
    (tmp_path / "audio").mkdir()
    made = []
    for number, text in enumerate(texts):
        soundfile.write(str(tmp_path / f"audio/{number}.wav"), tone(number, 0.2).numpy(), RATE)
        made.append(AudioGenerated("one", number, f"audio/{number}.wav", text, "am", 1.0, transcript=text))
    with zipfile.ZipFile(tmp_path / clips.write_archive(tmp_path, made, {"one": {"model": "+x"}})) as archive:
        archive.extractall(tmp_path / "unpacked")
    table = csv.reader((tmp_path / "unpacked/clips.csv").read_text("utf-8-sig").splitlines(keepends=True))
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in table for cell in row)
    assert [row.text for row in import_source(tmp_path / "unpacked").rows] == [
        text.replace("\n", " ") for text in texts]


def test_the_voice_of_a_speaker_is_that_of_a_training_clip(world: Workspace) -> None:
    dataset = world.dataset("demo-am")
    speakers = reference_voices.list_speakers(dataset)
    clips = [clip for clip in manifest.load(dataset).clips if clip.split == manifest.TRAIN]
    assert set(speakers) == {clip.speaker for clip in clips}
    spoken = Counter[str]()
    for clip in clips:
        spoken[clip.speaker] += round(1000 * clip.duration_s)
    assert list(speakers) == sorted(speakers, key=lambda name: -spoken[name])
    name, recording = next(iter(speakers.items()))
    assert recording in [dataset / clip.audio for clip in clips if clip.speaker == name]
    cache, device = ModelCache(), torch.device("cpu")
    voices = [cache.synthesizer(f"run:{RUN}", world, device, "auto", voice, SoundOptions()).synthesizer.voice
              for voice in (f"speaker:{name}", str(recording), "speaker:", "low")]
    same = [all(np.array_equal(voices[0].conditioning[key], other.conditioning[key]) for key in other.conditioning)
            for other in voices[1:]]
    assert same == [True, True, False]  # without a name who speaks most
    with pytest.raises(UserError, match=r"'nobody' is no speaker of the data of run:.*"):
        cache.synthesizer(f"run:{RUN}", world, device, "auto", "speaker:nobody", SoundOptions())


@pytest.mark.parametrize(("reference", "transcript", "wanted"), [
    ("thecatsees", "thecatsees", "the cat sees"), ("thecatsees", "tecatses", "te cat ses"),
    ("thecatsees", "thehcat", "the hcat"), ("thecatsees", "", ""), ("otherletters", "thecat", "thecat"),
])
def test_a_transcript_has_the_spaces_of_the_text(reference: str, transcript: str, wanted: str) -> None:
    score = RecognitionScore.of(reference, transcript)
    letters = SimpleNamespace(normalise=lambda word, language: word.casefold().strip("."))
    assert evaluation.spaced_transcript(letters, score, "The cat sees.", "en") == wanted  # type: ignore[arg-type]


@pytest.mark.parametrize(("changes", "message"), [
    ({"texts": (("en", ""),)}, "The text is empty"),
    ({"texts": (("am", "ሀ ፩"),)}, r"outside the vocabulary of 'am': ፩ \(U\+1369\)"),
    ({"voice": "nobody"}, "'nobody' is neither a voice"),
])
def test_a_comparison_that_cannot_be_is_refused_before_anything_is_spoken(
    world: Workspace, listener: Listener, changes: dict[str, object], message: str,
) -> None:
    values = {"finetuned": f"run:{RUN}", "texts": (("en", "the cat"),), "device": "cpu", **changes}
    with pytest.raises(UserError, match=message):
        compare.run(CompareOptions(**values), world, listener)
    assert not listener.of("audio_chunk")


def test_spectrograms_share_a_time_scale_and_are_transparent(tmp_path: Path) -> None:
    waveform = tone(3, 1.0)
    clips.save_spectrogram(tmp_path / "own.png", waveform, RATE)
    clips.save_spectrogram(tmp_path / "shared.png", waveform, RATE, duration_s=2.0)
    own, shared = (np.asarray(Image.open(tmp_path / name).convert("RGBA")) for name in ("own.png", "shared.png"))
    assert own.shape == shared.shape
    assert own[0, 0, 3] == 0
    filled = [(image[:, :, 3] == 255).mean() for image in (own, shared)]
    assert filled[1] < 0.7 * filled[0]


@pytest.mark.parametrize("samples", [0, 1, 400, 1500])
def test_a_very_short_clip_has_a_spectrogram(tmp_path: Path, samples: int) -> None:
    clips.save_spectrogram(tmp_path / "empty.png", torch.zeros(samples), RATE)
    assert (tmp_path / "empty.png").read_bytes().startswith(b"\x89PNG")
