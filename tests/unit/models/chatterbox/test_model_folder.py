"""What a person may give as a Chatterbox model or voice: it is read strictly, or refused in words that help."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file, save_file

from config.errors import UserError
from config.schema import SamplingOptions, SoundOptions
from core import compute
from core.model import precision
from core.model.loading import TTSModel, load_base
from core.speech.synthesis import Synthesizer, find_voice, join_chunks, unused_controls
from core.workspace import Workspace
from data.acoustics.voice_encoder import VoiceEncoder
from models import matmul_backends
from models.base import Generated, Sampling, VocoderOptions
from models.chatterbox import model_folder
from models.chatterbox.codec import ChatterboxVocoder, _watermarker
from models.chatterbox.family import Chatterbox
from models.chatterbox.speech_tokenizer import SpeechTokenizer
from models.decoder import KVCache
from models.tiny.family import Tiny
from tests.chatterbox_world import TOKENIZER, write_model
from tests.reference.clips import voiced
from tests.unit import chatterbox_text
from tests.unit.chatterbox_text import english_file
from tests.worlds import tone

CPU = torch.device("cpu")
T3, S3GEN, ENCODER = "t3_mtl23ls_v2.safetensors", "s3gen.safetensors", "ve.safetensors"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chatterbox") / "model"
    write_model(folder)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(scope="module")
def world(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = Workspace.open(tmp_path_factory.mktemp("world"))
    shutil.copytree(made, workspace.models / "chatterbox")
    return workspace


@pytest.fixture(scope="module")
def model(world: Workspace) -> TTSModel:
    return load_base(world, "chatterbox", CPU)


def rewrite(path: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, str(path))


def read_all(folder: Path) -> None:
    family = Chatterbox()
    family.load_front_end(folder)
    family.load_extractor(folder, CPU)
    family.load_language_model(folder, CPU)
    family.load_vocoder(folder, CPU)
    family.load_voices(folder)


@pytest.mark.parametrize("name", [T3, S3GEN, ENCODER])
@pytest.mark.parametrize(("change", "message"), [
    (lambda held: held.pop(sorted(held)[0]), "it lacks"),
    (lambda held: held.update(surplus=torch.zeros(1)), "it has beside surplus"),
    (lambda held: held.update({sorted(held)[0]: torch.zeros(3, 5, 7)}), r"is \(3, 5, 7\), wanted"),
    (lambda held: held[sorted(held)[0]].view(-1)[:1].fill_(torch.nan), "no numbers, in"),
    (lambda held: held[sorted(held)[0]].view(-1)[-1:].fill_(torch.inf), "no numbers, in"),
])
def test_tensors_that_do_not_fit_are_named(folder: Path, name: str, change, message: str) -> None:
    rewrite(folder / name, change)
    with pytest.raises(UserError, match=message) as caught:
        read_all(folder)
    assert name in str(caught.value)


@pytest.mark.parametrize("name", [T3, S3GEN, ENCODER])
def test_a_file_that_was_cut_off_is_named_with_its_size(folder: Path, name: str) -> None:
    with open(folder / name, "r+b") as file:
        file.truncate(1000)
    with pytest.raises(UserError, match=rf"{name} is not a whole safetensors file \(1000 bytes\)"):
        read_all(folder)


def test_pt_files_are_read_as_the_others(folder: Path) -> None:
    wanted = Chatterbox().load_vocoder(folder, CPU).decode(np.arange(5), model_folder.read_voice(folder / "conds.pt"))
    for name in (S3GEN, ENCODER):
        tensors = {key: value for key, value in load_file(folder / name).items()
                   if key not in ("tokenizer._mel_filters", "tokenizer.window")}
        torch.save(tensors, folder / name.replace("safetensors", "pt"))
        (folder / name).unlink()
    read_all(folder)
    assert torch.equal(Chatterbox().load_vocoder(folder, CPU).decode(np.arange(5),
                                                                model_folder.read_voice(folder / "conds.pt")),
                       wanted)


class Harmful:
    """What a stranger could put into a pickle."""

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path("harmed"),)


def test_a_pickle_that_would_run_code_is_refused(folder: Path, tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (folder / ENCODER).unlink()
    torch.save({"lstm": Harmful()}, folder / "ve.pt")
    with pytest.raises(UserError, match="could run code when loaded; it was refused"):
        read_all(folder)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(("content", "message"), [
    ([1, 2], "holds a list, and a table of tensors is wanted"), ({"lstm": "x"}, "lstm hold something else"),
])
def test_a_pt_file_of_something_else_is_refused(folder: Path, content: object, message: str) -> None:
    (folder / ENCODER).unlink()
    torch.save(content, folder / "ve.pt")
    with pytest.raises(UserError, match=message):
        read_all(folder)


def test_the_tokenizer_of_another_model_is_refused_with_both_files_and_sizes(folder: Path) -> None:
    rows = Chatterbox().load_front_end(folder).size
    shorten = {name: load_file(folder / T3)[name][:-1].clone() for name in ("text_emb.weight", "text_head.weight")}
    rewrite(folder / T3, lambda held: held.update(shorten))
    with pytest.raises(UserError, match=rf"{TOKENIZER} has {rows} ids, and .*{T3} has {rows - 1} text rows"):
        Chatterbox().load_front_end(folder)


def test_two_checkpoints_in_a_folder_are_not_guessed_between(folder: Path) -> None:
    shutil.copyfile(folder / T3, folder / "t3_cfg.safetensors")
    with pytest.raises(UserError, match=r"there: t3_cfg\.safetensors, t3_mtl23ls_v2\.safetensors"):
        read_all(folder)
    for path in folder.glob("t3_*"):
        path.unlink()
    with pytest.raises(UserError, match="there: none"):
        read_all(folder)


def test_the_english_model_is_known_by_its_shapes(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(english_file())
    (folder / TOKENIZER).unlink()
    front_end = Chatterbox().load_front_end(folder)
    assert front_end.languages == ("en",)
    assert front_end.size == Chatterbox().load_language_model(folder, CPU).prefix_size


def test_a_file_that_is_no_t3_is_named(folder: Path) -> None:
    shutil.copyfile(folder / ENCODER, folder / T3)
    with pytest.raises(UserError, match=rf"{T3} is no T3 checkpoint: it has 16 tensors"):
        read_all(folder)


def test_a_broken_voice_is_named(folder: Path) -> None:
    torch.save({"t3": {}}, folder / "conds.pt")
    with pytest.raises(UserError, match=r"conds\.pt is no voice of Chatterbox"):
        Chatterbox().load_voices(folder)


@pytest.mark.parametrize(("rate", "channels", "seconds"), [(8000, 1, 3.0), (44100, 2, 3.0), (16000, 1, 3600.0)])
def test_a_reference_clip_of_any_rate_length_and_channels_is_a_voice(
        model: TTSModel, tmp_path: Path, rate: int, channels: int, seconds: float) -> None:
    path = tmp_path / "me.wav"
    noise = np.random.default_rng(0).standard_normal(int(rate * seconds)).astype(np.float32)
    soundfile.write(path, 0.1 * np.stack([noise] * channels, 1), rate, subtype="PCM_16")
    voice = find_voice(model, str(path))
    assert len(voice.conditioning["prompt_codes"]) == min(150, round(25 * seconds))
    assert len(voice.timbre["codes"]) == min(250, round(25 * seconds))
    assert voice.timbre["mel"].shape == (2 * len(voice.timbre["codes"]), 80)
    assert np.linalg.norm(voice.conditioning["speaker_embedding"]) == pytest.approx(1, abs=1e-4)


def test_a_reference_clip_is_resampled_step_by_step_as_published(model: TTSModel, tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """`resampling.safetensors` was made by the published package (`make_resampling.py`)."""
    wanted = load_file(Path(__file__).parents[3] / "reference" / "chatterbox" / "resampling.safetensors")
    path = tmp_path / "me.wav"
    soundfile.write(path, voiced(22051, 44100), 44100, subtype="FLOAT")
    encoded, embedded = [], []
    encode, embed = SpeechTokenizer.encode, VoiceEncoder.embed_batch
    monkeypatch.setattr(SpeechTokenizer, "encode", lambda self, clips: (encoded.extend(clips), encode(self, clips))[1])
    monkeypatch.setattr(VoiceEncoder, "embed_batch",
                        lambda self, clips: (embedded.extend(clips), embed(self, clips))[1])
    voice = find_voice(model, str(path))
    prompt, timbre = encoded
    for made, name in ((prompt, "wave_16k"), (embedded[0], "wave_16k"), (timbre, "s3gen_16k")):
        assert (made - wanted[name]).abs().max() < 1e-6, name
    assert np.abs(voice.timbre["mel"] - wanted["mel"][:len(voice.timbre["mel"])].numpy()).max() < 1e-3


@pytest.mark.parametrize(("samples", "message"), [
    (torch.zeros(32000), "is silent"), (tone(1, 0.2), r"lasts 0\.20 s"),
])
def test_a_reference_clip_without_speech_is_refused(model: TTSModel, tmp_path: Path, samples: torch.Tensor,
                                                    message: str) -> None:
    path = tmp_path / "me.wav"
    soundfile.write(path, samples.numpy(), 16000)
    with pytest.raises(UserError, match=message):
        find_voice(model, str(path))


def has_watermark(waveform: torch.Tensor, sample_rate: int) -> bool:
    with torch.no_grad():
        return bool(_watermarker().get_watermark(waveform.float().numpy(), sample_rate=sample_rate).mean() > 0.5)


def test_sound_has_the_length_of_its_codes_the_watermark_and_a_silent_start(model: TTSModel) -> None:
    vocoder, voice = model.family.load_vocoder(model.base_folder, CPU), find_voice(model, "")
    codes = np.random.default_rng(0).integers(0, 6561, 51)
    marked = vocoder.decode(codes, voice)
    assert len(marked) == 50 * 960  # the code before the stop is noise
    assert has_watermark(marked, vocoder.sample_rate)
    plain = vocoder.decode(codes, voice, rendering(watermark=False))
    assert not has_watermark(plain, vocoder.sample_rate)
    assert plain[:480].abs().max() == 0
    assert 0 < (plain - marked).abs().max() < 0.5 * plain.abs().max()


def rendering(**changes: object) -> VocoderOptions:
    return replace(VocoderOptions(), **changes)  # type: ignore[arg-type]


def test_every_sound_control_reaches_the_sound(model: TTSModel) -> None:
    vocoder, voice = model.family.load_vocoder(model.base_folder, CPU), find_voice(model, "")
    codes, plain = np.arange(20), rendering(watermark=False)
    wanted = vocoder.decode(codes, voice, plain)
    assert torch.equal(vocoder.decode(codes, voice, plain), wanted)
    for change in ({"flow_steps": 4}, {"flow_prompt_s": 1.0}, {"seed": 1}, {"watermark": True}):
        changed = vocoder.decode(codes, voice, rendering(**{"watermark": False, **change}))
        assert not torch.equal(changed, wanted), change
    lively = Synthesizer(model, sound=SoundOptions(exaggeration=1.5))
    assert lively.voice.emotion == 1.5
    assert not torch.equal(model.lm.prepare(lively.voice).keys_and_values,
                           model.lm.prepare(voice).keys_and_values)


def test_hebrew_is_read_as_chosen_and_said(model: TTSModel, monkeypatch: pytest.MonkeyPatch) -> None:
    chatterbox_text.remove_packages(monkeypatch)
    vocoder = model.family.load_vocoder(model.base_folder, CPU)
    plain, pointed = (Synthesizer(model, sound=SoundOptions(hebrew=choice), vocoder=vocoder)
                      for choice in ("unpointed", "pointed"))
    assert plain.split("שלום", "he")
    assert plain.reading_notes("שלום", "he") == ["Hebrew is read without added vowel points, as the published package "
                                                "reads it (`pointed`, a sound setting, adds them)."]
    assert "with vowel points by dicta-onnx" in pointed.reading_notes("שלום", "he")[0]
    with pytest.raises(UserError, match="needs the package dicta-onnx"):
        pointed.split("שלום", "he")
    assert plain.reading_notes("hej", "sv") == pointed.reading_notes("hej", "sv") == []


def test_a_control_that_reaches_nothing_is_named() -> None:
    assert unused_controls(SoundOptions(), Tiny()) == []
    assert unused_controls(SoundOptions(flow_steps=4, watermark=False), Tiny()) == ["flow_steps", "watermark"]
    assert unused_controls(SoundOptions(flow_steps=4), Chatterbox()) == []


@pytest.mark.parametrize("multiplies_bfloat16", [True, False])
@pytest.mark.parametrize("asked", ["auto", "float32", "bfloat16", "int8"])
def test_it_speaks_in_every_precision(world: Workspace, asked: str, multiplies_bfloat16: bool,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """Without products of bfloat16, which other processors may have, weights alone are bfloat16 where that is fast."""
    monkeypatch.setattr(precision, "_LARGE", 0)
    if not multiplies_bfloat16:
        monkeypatch.setattr(compute, "cpu_capabilities", dict)
        monkeypatch.setattr(matmul_backends, "_multiplies_bfloat16", lambda: False)
        monkeypatch.setattr(compute, "reads_bfloat16_fast", lambda: True)
    model = load_base(world, "chatterbox", CPU)
    speaker = Synthesizer(model, sound=SoundOptions(watermark=False))
    try:
        described = precision.apply_synthesis_precision(asked, model, speaker.vocoder)
    except UserError as error:
        assert (asked, multiplies_bfloat16) == ("bfloat16", True)
        pytest.skip(f"this processor cannot: {error.message}")
    if not multiplies_bfloat16:
        wanted = {"float32": "float32 (asked for)", "int8": "int8 weights"}.get(asked, "bfloat16 weights")
        assert described.startswith(wanted)
        assert isinstance(speaker.vocoder, ChatterboxVocoder)
        assert {value.dtype for value in speaker.vocoder._vocoder.parameters()} == {torch.float32}
    waveform = join_chunks(list(speaker.synthesize("a b", "en", SamplingOptions(seed=1))))
    assert torch.isfinite(waveform).all()
    assert waveform.abs().max() > 0


def test_a_slow_processor_speaks_in_float32_and_refuses_bfloat16(world: Workspace,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_LARGE", 0)
    monkeypatch.setattr(compute, "cpu_capabilities", dict)
    monkeypatch.setattr(compute, "reads_bfloat16_fast", lambda: False)
    model = load_base(world, "chatterbox", CPU)
    vocoder = Synthesizer(model).vocoder
    assert precision.apply_synthesis_precision("auto", model, vocoder).startswith("float32 (the processor has neither")
    with pytest.raises(UserError, match="no bfloat16 on this device"):
        precision.apply_synthesis_precision("bfloat16", model, vocoder)


@pytest.mark.parametrize(("kind", "stored"), [("", torch.float32), ("bfloat16", torch.bfloat16),
                                              ("int8", torch.bfloat16)])
def test_the_cache_is_half_as_large_beside_quantized_weights(world: Workspace, kind: str, stored: torch.dtype) -> None:
    model = load_base(world, "chatterbox", CPU)
    lm = model.lm
    if kind:
        lm.quantize_(kind)
    voice = lm.prepare(Synthesizer(model).voice)
    assert voice.keys_and_values.dtype is stored
    network = lm.module
    cache = KVCache(network.config.decoder, 2, lm._capacity(20), CPU, stored)  # type: ignore[attr-defined]
    states = lm.max_speech_length * network.config.decoder.width * 4 if network.keeps_hidden_states else 0
    assert lm.decode_bytes(20, Sampling(guidance=0.5)) == cache.storage.nbytes + states


def test_an_extracted_clip_does_not_depend_on_its_neighbours(model: TTSModel) -> None:
    extractor = model.family.load_extractor(model.base_folder, CPU)
    clips = [tone(seed, seconds) for seed, seconds in enumerate((0.8, 7.3, 2.0))]
    together = extractor.extract_batch(clips)
    for clip, features in zip(clips, together, strict=True):
        alone = extractor.extract(clip)
        assert np.array_equal(alone.speech_codes, features.speech_codes)
        assert np.array_equal(alone.conditioning["prompt_codes"], features.conditioning["prompt_codes"])
        np.testing.assert_allclose(alone.conditioning["speaker_embedding"],
                                   features.conditioning["speaker_embedding"], atol=1e-5)
        assert features.speech_codes.dtype == features.conditioning["prompt_codes"].dtype == np.uint16
    assert [len(item.conditioning["prompt_codes"]) for item in together] == [20, 150, 50]


def test_long_text_is_read_in_sentences_of_the_length_it_was_trained_on(model: TTSModel) -> None:
    speaker = Synthesizer(model)
    text = "the sun rises over the hill, and the birds begin to sing in the old tree. " * 280
    assert len(text) > 20_000
    pieces = speaker.split(text, "en")
    assert " ".join(piece.text for piece in pieces) == " ".join(text.split())
    assert max(len(model.front_end.encode(piece.text,
                                          "en")) for piece in pieces) <= model.lm.preferred_max_text_length < 300


def test_the_first_sound_comes_before_the_sentence_is_finished(model: TTSModel, monkeypatch) -> None:
    codes = np.random.default_rng(3).integers(0, 6561, 150)
    looked = []

    def spoken(_text, _voice, _sampling, _vocoder=None):
        for start in range(0, len(codes), 8):
            looked.append(start)
            yield codes[start:start + 8]
        yield Generated(codes, "stop")

    monkeypatch.setattr(model.lm, "stream", spoken)
    plain = Synthesizer(model, sound=SoundOptions(watermark=False))
    segments = plain.synthesize("a b c", "en", SamplingOptions(seed=4))
    first = next(segments)
    assert 0 < len(looked) < 5
    assert len(first.waveform) > 0
    whole = join_chunks([first, *segments])
    assert len(whole) == 149 * 960
    offline = plain.vocoder.decode(codes, plain.voice, rendering(watermark=False, seed=4))
    assert len(whole) == len(offline)
    marked = join_chunks(list(Synthesizer(model).synthesize("a b c", "en", SamplingOptions(seed=4))))
    assert len(marked) == len(whole)
    assert has_watermark(marked, plain.sample_rate)
    assert not has_watermark(whole, plain.sample_rate)


def test_streamed_codes_are_those_that_are_generated(model: TTSModel) -> None:
    text, voice = model.front_end.encode("hello there", "en"), model.lm.prepare(find_voice(model, ""))
    sampling = replace(model.family.sampling, seed=2)
    *pieces, last = model.lm.stream(text, voice, sampling)
    whole = model.lm.generate([text], [voice], sampling)[0]
    assert np.array_equal(np.concatenate(pieces), whole.codes)
    assert (last.finish_reason, last.codes.tolist()) == (whole.finish_reason, whole.codes.tolist())
    assert len(pieces) > 1
