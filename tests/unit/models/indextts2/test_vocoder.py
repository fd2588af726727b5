"""IndexTTS2's S2Mel and BigVGAN against the published package, at a small size, and the vocoder around them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from config.errors import UserError
from models import weights
from models.base import VocoderOptions, Voice
from models.indextts2 import bigvgan, s2mel
from models.indextts2.s2mel import S2Mel, S2MelPrompt, rotary_positions
from models.indextts2.vocoder import IndexTTS2Vocoder
from scripts.dev import random_weights
from tests.parity import relative_error

REFERENCE = Path(__file__).parents[3] / "reference" / "indextts2"
CPU = torch.device("cpu")
STATES, SOUND = 1e-4, 1e-3
Tensors = dict[str, torch.Tensor]


def read(name: str) -> tuple[Tensors, Tensors]:
    """Stored inputs and outputs, and the published tensors they were made with."""
    with safe_open(str(REFERENCE / name), framework="pt") as file:
        stored, metadata = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118
    shapes, seed = json.loads(metadata["shapes"]), int(metadata["seed"])
    made = {key: torch.from_numpy(random_weights.tensor(key, tuple(shape), seed)) for key, shape in shapes.items()}
    for key, value in made.items():
        if key.endswith(".filter"):
            made[key] = bigvgan.low_pass().reshape(value.shape)
    return stored, made


@pytest.fixture(scope="module")
def stored() -> Tensors:
    return read("s2mel.safetensors")[0]


@pytest.fixture(scope="module")
def published() -> Tensors:
    return read("s2mel.safetensors")[1]


@pytest.fixture(scope="module")
def model(published: Tensors) -> S2Mel:
    return s2mel.from_tensors(published, "s2mel.pth")


@pytest.fixture(scope="module")
def prompt(model: S2Mel, stored: Tensors) -> S2MelPrompt:
    return model.prompt(stored["prompt_content"], stored["prompt_mel"].transpose(1, 2), stored["style"])


@pytest.fixture(scope="module")
def vocoder() -> bigvgan.BigVGAN:
    return bigvgan.from_tensors(read("bigvgan.safetensors")[1], "bigvgan_generator.pt")


def test_prompt_and_content_are_regulated_as_published(model: S2Mel, stored: Tensors, prompt: S2MelPrompt) -> None:
    assert relative_error(model.content(stored["embedding"], stored["latents"]), stored["regulated"]) < STATES
    assert relative_error(prompt.condition, stored["prompt_regulated"]) < STATES


@torch.inference_mode()
def test_the_estimator_gives_the_published_velocity_with_and_without_conditions(
        model: S2Mel, stored: Tensors, prompt: S2MelPrompt) -> None:
    estimator, noisy = model.estimator, stored["estimator_x"].transpose(1, 2)
    condition = torch.cat([prompt.condition, stored["regulated"]], 1)
    time = estimator.time_states(torch.tensor([0.3])).at(0)
    conditions = estimator.conditions(condition, prompt.mel, prompt.style)
    both = torch.cat([conditions, estimator.unconditional(conditions.shape[1])])
    velocity = estimator(noisy, both, time, rotary_positions(noisy.shape[1], 64, CPU)).transpose(1, 2)
    assert relative_error(velocity[:1], stored["estimator_out"]) < STATES
    assert relative_error(velocity[1:], stored["estimator_out_unconditional"]) < STATES


@pytest.mark.parametrize("steps", [10, 25])
def test_the_steps_reach_the_published_mel(model: S2Mel, stored: Tensors, prompt: S2MelPrompt, steps: int) -> None:
    noise = stored["noise"][..., prompt.mel.shape[1]:]
    mel = model.mel(stored["regulated"], prompt, steps=steps, noise=noise)
    assert relative_error(mel, stored[f"mel_{steps}_steps"]) < SOUND


def test_the_seed_decides_the_noise(model: S2Mel, stored: Tensors, prompt: S2MelPrompt) -> None:
    def mel(seed: int) -> torch.Tensor:
        return model.mel(stored["regulated"], prompt, steps=2, generator=torch.Generator().manual_seed(seed))

    assert torch.equal(mel(1), mel(1))
    assert not torch.equal(mel(1), mel(2))


def test_bfloat16_products_stay_close_to_float32(published: Tensors, stored: Tensors, prompt: S2MelPrompt) -> None:
    cast = s2mel.from_tensors(published, "s2mel.pth")
    cast.estimator.cast_(torch.bfloat16)
    mel = cast.mel(stored["regulated"], prompt, steps=10, noise=stored["noise"][..., prompt.mel.shape[1]:])
    assert mel.dtype is torch.float32
    assert 0 < relative_error(mel, stored["mel_10_steps"]) < 0.05


def test_what_is_not_read_may_have_another_size_or_be_missing(published: Tensors, stored: Tensors) -> None:
    other = {**published, "cfm.estimator.input_pos": torch.arange(3)}
    del other["length_regulator.mask_token"]
    model = s2mel.from_tensors(other, "s2mel.pth")
    assert relative_error(model.content(stored["embedding"], stored["latents"]), stored["regulated"]) < STATES


@pytest.mark.parametrize("name", ["cfm.estimator.conv1.weight", "cfm.estimator.wavenet.cond_layer.conv.conv.weight_g",
                                  "cfm.estimator.transformer.layers.4.skip_in_linear.weight"])
def test_a_tensor_that_is_read_must_be_there(published: Tensors, name: str) -> None:
    with pytest.raises(UserError, match=name.removesuffix("_g")):
        s2mel.from_tensors({key: value for key, value in published.items() if key != name}, "s2mel.pth")
    with pytest.raises(UserError, match="more"):
        s2mel.from_tensors({**published, "cfm.estimator.more": torch.zeros(1)}, "s2mel.pth")


def test_the_published_file_holds_three_tables_whose_keys_may_name_a_module(tmp_path: Path, published: Tensors) -> None:
    net: dict[str, Tensors] = {"cfm": {}, "length_regulator": {}, "gpt_layer": {}}
    for key, value in published.items():
        part, _, name = key.partition(".")
        net[part][f"module.{name}" if part == "cfm" else name] = value
    torch.save({"net": net, "epoch": 3}, tmp_path / "s2mel.pth")
    model = s2mel.load(tmp_path / "s2mel.pth", CPU)
    assert torch.equal(model.estimator.conv1.weight, published["cfm.estimator.conv1.weight"])
    torch.save({"net": {"cfm": net["cfm"]}}, tmp_path / "part.pth")
    with pytest.raises(UserError, match="length_regulator"):
        s2mel.load(tmp_path / "part.pth", CPU)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_weight_norm_is_folded_over_all_axes_but_the_first() -> None:
    layer = torch.nn.utils.weight_norm(torch.nn.ConvTranspose1d(3, 2, 4))
    folded = weights.fold_weight_norm(layer.state_dict())
    assert folded.keys() == {"weight", "bias"}
    assert torch.allclose(folded["weight"], layer.weight)


def test_bigvgan_gives_the_published_waveform(vocoder: bigvgan.BigVGAN) -> None:
    stored = read("bigvgan.safetensors")[0]
    assert relative_error(vocoder.waveform(stored["mel"]), stored["waveform"]) < SOUND
    both = vocoder.waveform(torch.cat([stored["mel"], -stored["mel"]]))
    assert relative_error(both[:1], stored["waveform"]) < SOUND


def test_another_filter_is_refused() -> None:
    published = read("bigvgan.safetensors")[1]
    name = "activation_post.upsample.filter"
    with pytest.raises(UserError, match=name):
        bigvgan.from_tensors({**published, name: published[name].flip(-1) * 2}, "bigvgan_generator.pt")


def voice(frames: int = 30) -> Voice:
    draw = np.random.default_rng(1)
    return Voice({}, timbre={"codes": np.arange(frames // 2), "style": draw.standard_normal(6, dtype=np.float32),
                             "mel": draw.standard_normal((frames, 8), dtype=np.float32)})


def embed(codes: torch.Tensor) -> torch.Tensor:
    return torch.sin(codes[..., None] * torch.linspace(0.1, 1, 1024))


def test_a_voice_speaks_its_codes_and_is_regulated_once(model: S2Mel, vocoder: bigvgan.BigVGAN) -> None:
    embedded: list[int] = []

    def counted(codes: torch.Tensor) -> torch.Tensor:
        embedded.append(codes.shape[1])
        return embed(codes)

    sound, speaker = IndexTTS2Vocoder(model, vocoder, counted), voice()
    options = VocoderOptions(flow_steps=2, flow_prompt_s=0.1)
    hidden = torch.randn(6, 1280, generator=torch.Generator().manual_seed(0))
    waveform = sound.decode(np.arange(6), speaker, options, hidden)
    assert waveform.shape == (10 * 8,)  # int(1.72 * 6) frames of 8 samples in the small vocoder
    assert torch.equal(waveform, sound.decode(np.arange(6), speaker, options, hidden))
    assert not torch.equal(waveform, sound.decode(np.arange(6), speaker, options))
    assert embedded == [15, 6, 6, 6]
    assert sound.decode(np.zeros(0, np.int64), speaker, options).shape == (0,)
    assert sound.stream(speaker) is None


def test_a_voice_of_another_family_is_refused(model: S2Mel, vocoder: bigvgan.BigVGAN) -> None:
    sound = IndexTTS2Vocoder(model, vocoder, embed)
    with pytest.raises(UserError, match="nothing"):
        sound.decode(np.arange(3), Voice({}))
    with pytest.raises(UserError, match="hidden states"):
        sound.decode(np.arange(3), voice(), None, torch.zeros(2, 1280))
