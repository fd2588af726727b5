"""IndexTTS 2.5 against the published package, at a small size: text, GPT, codec and S2Mel.

The stored outputs are those of `tests/reference/make_indextts25.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open

from config.errors import MissingTool, UserError
from data import normalisers
from data.languages import indextts2_normaliser
from data.segmenters import LANGUAGE_CODES, ByteLevelBpe
from models import generate
from models.base import PositionScheme, Sampling, Voice
from models.indextts2 import s2mel, semantic_codec, unified_voice
from models.indextts2.unified_voice import UnifiedVoice
from scripts.dev.random_weights import tensor
from tests.parity import relative_error

REFERENCE = Path(__file__).parents[3] / "reference" / "indextts25"
SEED, TEXT_ROWS, FAVOURED, STEPS = 25, 41, 0.8, 10  # as in make_indextts25.py
STATES, MEL = 1e-4, 1e-3
CPU = torch.device("cpu")
DIGITS = {True: "零一二三四五六七八九",
          False: ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")}


def stored(name: str) -> tuple[dict[str, torch.Tensor], dict[str, dict[str, tuple[int, ...]]]]:
    """Inputs and outputs, and the shapes of the published tensors."""
    with safe_open(str(REFERENCE / f"{name}.safetensors"), framework="pt") as file:
        shapes = {key: {one: tuple(shape) for one, shape in json.loads(value).items()}
                  for key, value in (file.metadata() or {}).items()}
        return {key: file.get_tensor(key) for key in file.keys()}, shapes  # noqa: SIM118


def published(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """The tensors of a published file, from the seed; tables are left out or computed."""
    return {name: torch.from_numpy(tensor(name, shape, SEED)) for name, shape in shapes.items()
            if name.rpartition(".")[2] not in ("pe", "freqs", "input_pos")}


@pytest.fixture(scope="module")
def reference() -> dict[str, torch.Tensor]:
    return stored("gpt")[0]


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    shapes = stored("gpt")[1]["shapes"]
    width = shapes["final_norm.weight"][0]
    made = published({**shapes, "text_head.weight": (TEXT_ROWS, width), "text_head.bias": (TEXT_ROWS,)})
    made = {name: value for name, value in made.items()
            if not name.startswith("inference_model.") and not name.startswith("gpt.wte.")}
    made["mel_head.bias"][1] += FAVOURED
    return made


@pytest.fixture
def model(tensors: dict[str, torch.Tensor], reference: dict[str, torch.Tensor]) -> UnifiedVoice:
    module = unified_voice.load(tensors, "gpt.pth")
    module.assign_languages({int(reference["text_ids"][0, 1]): int(reference["language"])})
    return module


def voice(reference: dict[str, torch.Tensor]) -> Voice:
    return Voice({name: reference[name][0].numpy() for name in ("style", "emotion_vector")})


def spoken(text: str, chinese: bool) -> str:
    """Stands in for the package of rules, as where the outputs were made."""
    return text.translate({ord(str(digit)): name for digit, name in enumerate(DIGITS[chinese])})


def test_texts_and_ids_are_those_of_the_published_package() -> None:
    held = json.loads((REFERENCE / "text.json").read_text("utf-8"))
    assert held["languages"] == {code: row for row, code in enumerate(LANGUAGE_CODES)}
    path = REFERENCE / ByteLevelBpe.base_file
    segmenter = ByteLevelBpe(path.read_bytes(), path.name)
    assert len(held["texts"]) > 350
    for one in held["texts"]:
        normal = indextts2_normaliser.normalise_for_2_5(one["text"], one["language"], spoken) if one["language"] \
            else one["text"]
        assert normal == one["normal"], one["text"]
        made = [segmenter.ids[f"<|{one['language'] or 'en'}|>"], *segmenter.encode(normal)[0]]
        assert made == [number for number in one["ids"] if number != segmenter.stop_id], one["text"]


def test_spanish_numbers_are_written_out_as_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """By nemo-text-processing where it is installed, else by what it wrote when the reference was made."""
    held = json.loads((REFERENCE / "spanish.json").read_text("utf-8"))
    if not indextts2_normaliser.spanish_rules_version():
        written_out = {one["text"]: one["written_out"] for one in held}
        monkeypatch.setattr(indextts2_normaliser, "_spanish_rules", lambda: written_out.__getitem__)
    path = REFERENCE / ByteLevelBpe.base_file
    segmenter = ByteLevelBpe(path.read_bytes(), path.name)
    assert sum(one["written_out"] != one["text"] for one in held) > 15
    for one in held:
        normal = normalisers.normalise(one["text"], normalisers.SPANISH25)
        assert normal == one["normal"].strip()
        made = [segmenter.ids["<|es|>"], *segmenter.encode(normal)[0]]
        assert made == [number for number in one["ids"] if number != segmenter.stop_id], one["text"]


def test_japanese_words_stand_apart_as_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """By fugashi where it is installed, else by the words that it found when the reference was made."""
    held = json.loads((REFERENCE / "japanese.json").read_text("utf-8"))
    if not find_spec("fugashi"):
        words = {part: cut for one in held for part, cut in one["words"].items()}
        monkeypatch.setattr(indextts2_normaliser, "_japanese_words", words.__getitem__)
    segmenter = ByteLevelBpe((REFERENCE / ByteLevelBpe.base_file).read_bytes(), ByteLevelBpe.base_file)
    assert sum(len(cut) > 1 for one in held for cut in one["words"].values()) > 20
    for one in held:
        normal = indextts2_normaliser.normalise_for_2_5(one["text"], "ja")
        assert normal == one["normal"], one["text"]
        made = [segmenter.ids["<|ja|>"], *segmenter.encode(normal)[0]]
        assert made == [number for number in one["ids"] if number != segmenter.stop_id], one["text"]


def test_without_its_package_japanese_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    indextts2_normaliser._japanese_tagger.cache_clear()
    monkeypatch.setitem(sys.modules, "unidic_lite", None)
    with pytest.raises(MissingTool, match=r"Japanese text needs the package fugashi with unidic-lite") as refused:
        normalisers.normalise("猫。", "indextts25-ja")
    assert "pip install fugashi==1.5.2 unidic-lite==1.0.8" in refused.value.hint


def test_without_the_package_spanish_digits_stay_and_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indextts2_normaliser, "_spanish_rules", lambda: None)
    monkeypatch.setattr(indextts2_normaliser, "spanish_rules_version", str)
    assert normalisers.normalise("Son las 14:30.", normalisers.SPANISH25) == "SON LAS 14,30."
    assert normalisers.leaves_digits("Son las 14:30.", normalisers.SPANISH25)
    assert not normalisers.leaves_digits("Hoy.", normalisers.SPANISH25)
    assert not normalisers.leaves_digits("14", "indextts25-ar")


@torch.inference_mode()
def test_logits_are_those_of_the_published_package(model: UnifiedVoice, reference: dict[str, torch.Tensor]) -> None:
    text, speech = reference["text_ids"], F.pad(reference["codes"], (1, 0), value=model.config.start_speech)
    conditioning = model.embed_voice(voice(reference), CPU)
    assert relative_error(conditioning, reference["conditioning"]) < STATES
    hidden = model.hidden_states(torch.cat([conditioning, model.embed_text(text), model.embed_speech(speech)], 1))
    _, of_text, of_speech = hidden.split([3, text.shape[1], speech.shape[1]], 1)
    assert relative_error(model.text_head(of_text), reference["text_logits"]) < STATES
    assert relative_error(model.speech_head(of_speech), reference["speech_logits"]) < STATES


@torch.inference_mode()
def test_the_emotion_vector_is_that_of_the_published_package(model: UnifiedVoice,
                                                             reference: dict[str, torch.Tensor]) -> None:
    prompt, emotion = (torch.from_numpy(tensor(f"input:{name}", (1, frames, 1024), SEED)) * (frames * 1024) ** 0.5 / 32
                       for name, frames in (("prompt", 27), ("emotion", 20)))
    own = model.emotion_vector(prompt)
    assert relative_error(own + 0.6 * (model.emotion_vector(emotion) - own), reference["emotion_vector"]) < STATES


@torch.inference_mode()
def test_every_text_position_has_the_row_of_the_language(model: UnifiedVoice,
                                                         reference: dict[str, torch.Tensor]) -> None:
    text = reference["text_ids"]
    other = model.embed_text(text)
    model.assign_languages({int(text[0, 1]): 3})
    moved = model.embed_text(text) - other
    wanted = model.lang_embedding.weight[3] - model.lang_embedding.weight[int(reference["language"])]
    assert torch.allclose(moved, wanted.expand_as(moved), atol=1e-6)


@pytest.mark.parametrize("penalty", [1.0, 10.0])
def test_greedy_codes_are_those_of_the_published_package(model: UnifiedVoice, reference: dict[str, torch.Tensor],
                                                         penalty: float) -> None:
    scheme: PositionScheme = "published"
    sampling = Sampling(temperature=0.0, min_p=0.0, repetition_penalty=penalty, position_scheme=scheme)
    made = generate.generate(model, [reference["text_ids"][0].numpy()], [voice(reference)], sampling, [36], CPU)[0]
    wanted = reference["published" + ("_penalty_10" if penalty > 1 else "")][0].tolist()
    assert made.codes.tolist() == [code for code in wanted if code != model.config.stop_speech]
    assert made.hidden_states is None


def test_the_gpt_is_loaded_strictly_under_the_published_names(model: UnifiedVoice,
                                                              tensors: dict[str, torch.Tensor]) -> None:
    kept = {name for name in model.state_dict() if not name.endswith(".pe")}
    assert kept == tensors.keys()
    assert model.config.languages == len(LANGUAGE_CODES) + 1 == 107
    assert (model.config.conditioning_length, model.config.code_rate) == (3, 25)
    with pytest.raises(UserError, match=r"lacks spk_emb_proj\.bias"):
        unified_voice.load({name: value for name, value in tensors.items() if name != "spk_emb_proj.bias"}, "gpt.pth")
    with pytest.raises(UserError, match=r"has beside more"):
        unified_voice.load(tensors | {"more": torch.zeros(1)}, "gpt.pth")
    unified_voice.load(tensors | {"speed_emb.weight": torch.zeros(2, 128)}, "gpt.pth")


def test_what_it_cannot_do_is_named(model: UnifiedVoice, reference: dict[str, torch.Tensor]) -> None:
    timed = Voice({**voice(reference).conditioning, "duration": np.array([20])})
    with pytest.raises(UserError, match=r"GPT of IndexTTS 2\.5 has no place for a wanted duration"):
        model.embed_voice(timed, CPU)
    with pytest.raises(UserError, match=r"conditioning's style is missing, and the model wants \(192,\)"):
        model.embed_voice(Voice({"speaker_latents": np.zeros((32, 128)), "emotion_vector": np.zeros(128)}), CPU)


@torch.inference_mode()
def test_codes_and_mel_are_those_of_the_published_package(tmp_path: Path) -> None:
    held, shapes = stored("sound")
    torch.save({"model": published(shapes["codec_shapes"]), "optimizer": {}}, tmp_path / "codec.pth")
    codec = semantic_codec.load(tmp_path / "codec.pth", CPU)
    clips = [held["states_29"][0], held["states_44"][0]]
    for alone, together, wanted in zip((codec.encode([clip])[0] for clip in clips), codec.encode(clips),
                                       (held["codes_29"], held["codes_44"]), strict=True):
        assert alone.tolist() == together.tolist() == wanted[0].tolist()
    decoded = codec.embed(held["codes_29"])
    assert relative_error(decoded, held["decoded"]) < STATES

    model = s2mel.from_tensors(published(shapes["s2mel_shapes"]), "s2mel.pth")
    prompt = model.prompt(held["states_44"], held["prompt_mel"].transpose(1, 2), held["style"])
    content = model.content(decoded, None)
    assert relative_error(torch.cat([prompt.condition, content], 1), held["condition"]) < STATES
    made = model.mel(content, prompt, steps=STEPS, noise=held["noise"][..., prompt.mel.shape[1]:])
    assert relative_error(made, held["mel"]) < MEL
    assert model.content(decoded, None, frames=40).shape[1] == 40


@torch.inference_mode()
def test_a_codec_without_its_encoding_half_speaks_and_prepares_nothing(tmp_path: Path) -> None:
    held, shapes = stored("sound")
    encoding = ("encoder.", "down.", "quantizer.quantizers.0.in_project.")
    path, tensors = tmp_path / "codec.pth", published(shapes["codec_shapes"])
    torch.save({"model": {name: value for name, value in tensors.items() if not name.startswith(encoding)}}, path)
    codec = semantic_codec.load(path, CPU)
    assert relative_error(codec.embed(held["codes_29"]), held["decoded"]) < STATES
    with pytest.raises(UserError, match=r"codec\.pth has the half of the codec that speaks, and not the encoder"):
        codec.encode([held["states_29"][0]])

    torch.save({"model": {name: value for name, value in tensors.items() if not name.startswith(encoding[0])}}, path)
    with pytest.raises(UserError, match=r"codec\.pth is no semantic codec.*encoder\.0\.embed\.weight"):
        semantic_codec.load(path, CPU)
