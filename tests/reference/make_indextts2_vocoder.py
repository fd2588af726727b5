"""Write `indextts2/{s2mel,bigvgan}.safetensors` with the published code of IndexTTS2, at a small size.

It is indextts2-inference 2.1.1 (the code of index-tts/index-tts); run this in its environment:

    make reference && .reference/bin/python tests/reference/make_indextts2_vocoder.py

The models are filled from a seed by `scripts.dev.random_weights`, but for fixed tables, so that only inputs, outputs
and the shapes of the published tensors are stored. With a folder and a seed it writes `s2mel` and `vocoder` vectors of
the published sizes there, in the layout that `python -m scripts.dev.conformance indextts2` reads.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from indextts.s2mel.modules.bigvgan.bigvgan import BigVGAN
from indextts.s2mel.modules.bigvgan.env import AttrDict
from indextts.s2mel.modules.commons import MyModel
from munch import Munch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.dev.random_weights import tensor

SEED = 5
GUIDANCE, TIME = 0.7, 0.3
FIXED = ("freqs", "input_pos", "filter")
TARGET = Path(__file__).parent / "indextts2"


def s2mel(width: int, depth: int, waves: int, n_mels: int, style: int) -> torch.nn.Module:
    """The package's modules under the published names."""
    tree = Munch.fromDict({
        "dit_type": "DiT", "reg_loss_type": "l1", "style_encoder": {"dim": style},
        "DiT": {"hidden_dim": width, "num_heads": width // 64, "depth": depth, "class_dropout_prob": 0.1,
                "in_channels": n_mels, "style_condition": True, "final_layer_type": "wavenet", "content_dim": width,
                "content_codebook_size": 1024, "content_type": "discrete", "is_causal": False,
                "long_skip_connection": True, "time_as_token": False, "style_as_token": False,
                "uvit_skip_connection": True},
        "wavenet": {"hidden_dim": width, "num_layers": waves, "kernel_size": 5, "dilation_rate": 1, "p_dropout": 0.2,
                    "style_condition": True},
        "length_regulator": {"channels": width, "sampling_ratios": [1, 1, 1, 1], "is_discrete": False,
                             "in_channels": 1024, "content_codebook_size": 2048},
    })
    model = MyModel(tree, use_gpt_latent=True).models
    model["cfm"].estimator.setup_caches(max_batch_size=1, max_seq_length=8192)
    return model.eval()


def bigvgan(channels: int, rates: list[int], n_mels: int) -> torch.nn.Module:
    """The package's vocoder; a kernel is twice the rate."""
    return BigVGAN(AttrDict(
        num_mels=n_mels, upsample_rates=rates, upsample_kernel_sizes=[2 * rate for rate in rates],
        upsample_initial_channel=channels, resblock="1", resblock_kernel_sizes=[3, 7, 11],
        resblock_dilation_sizes=[[1, 3, 5]] * 3, activation="snakebeta", snake_logscale=True, use_tanh_at_final=False,
        use_bias_at_final=False,
    )).eval()


@torch.no_grad()
def fill(module: torch.nn.Module, seed: int) -> str:
    """Fill all but fixed tables; the shapes of all as JSON."""
    state = module.state_dict()
    for name, value in state.items():
        if name.rpartition(".")[2] not in FIXED:
            value.copy_(torch.from_numpy(tensor(name, tuple(value.shape), seed)))
    return json.dumps({name: list(value.shape) for name, value in state.items()})


def draw(name: str, *shape: int, seed: int) -> torch.Tensor:
    """An input, normal numbers."""
    scale = 1.0 if len(shape) < 2 else float(torch.tensor(shape[1:]).prod()) ** 0.5
    return torch.from_numpy(tensor(f"input:{name}", shape, seed)) * scale


@torch.inference_mode()
def s2mel_outputs(model: torch.nn.Module, embed: torch.Tensor, seed: int, n_mels: int, style_size: int,
                  prompt_frames: int) -> dict[str, torch.Tensor]:
    """Inputs and outputs; `embed` (1, U, 1024) are the codec's embeddings of the codes."""
    count = embed.shape[1]
    frames = int(1.72 * count)
    length = prompt_frames + frames
    latents, style = draw("latents", 1, count, 1280, seed=seed) / 8, draw("style", 1, style_size, seed=seed)
    prompt_content = draw("prompt_content", 1, prompt_frames * 10 // 17, 1024, seed=seed)
    prompt_mel, noise = draw("prompt", 1, n_mels, prompt_frames, seed=seed), draw("noise", 1, n_mels, length, seed=seed)
    hidden = model["gpt_layer"](latents)
    regulated = model["length_regulator"](embed + hidden, ylens=torch.LongTensor([frames]))[0]
    prompt = model["length_regulator"](prompt_content, ylens=torch.LongTensor([prompt_frames]))[0]
    condition = torch.cat([prompt, regulated], 1)
    noisy = draw("noisy", 1, n_mels, length, seed=seed)
    given = torch.zeros_like(noisy)
    given[..., :prompt_frames] = prompt_mel
    lengths, time = torch.LongTensor([length]), torch.tensor([TIME])
    estimator = model["cfm"].estimator
    zero = torch.zeros_like
    outputs = {
        "latents": latents, "style": style, "prompt_content": prompt_content, "prompt_mel": prompt_mel, "noise": noise,
        "gpt_layer": hidden, "content": embed + hidden, "regulated": regulated, "prompt_regulated": prompt,
        "estimator_x": noisy, "estimator_out": estimator(noisy, given, lengths, time, style, condition),
        "estimator_out_unconditional": estimator(noisy, zero(given), lengths, time, zero(style), zero(condition)),
    }
    for steps in (10, 25):
        times = torch.linspace(0, 1, steps + 1)
        mel = model["cfm"].solve_euler(noise.clone(), lengths, prompt_mel, condition, style, None, times, GUIDANCE)
        outputs[f"mel_{steps}_steps"] = mel[..., prompt_frames:]
    return outputs


def save(path: Path, outputs: dict[str, torch.Tensor], **metadata: object) -> None:
    """Write vectors."""
    path.parent.mkdir(exist_ok=True)
    save_file({name: value.contiguous().clone() for name, value in outputs.items()}, str(path),
              {name: str(value) for name, value in metadata.items()})
    print(path, path.stat().st_size)


@torch.inference_mode()
def main() -> None:
    if len(sys.argv) == 3:
        folder, seed = Path(sys.argv[1]), int(sys.argv[2])
        from indextts.utils.maskgct.models.codec.kmeans.repcodec_model import RepCodec

        codec, models, vocoder = RepCodec().eval(), s2mel(512, 13, 8, 80, 192), bigvgan(1536, [4, 4, 2, 2, 2, 2], 80)
        for module in (codec, models, vocoder):
            fill(module, seed)
        codes = torch.arange(31)[None] * 257 % 8192
        outputs = s2mel_outputs(models, codec.quantizer.vq2emb(codes[None]).transpose(1, 2), seed, 80, 192, 37)
        save(folder / "s2mel.safetensors", outputs | {"codes": codes}, seed=seed, guidance=GUIDANCE,
             estimator_time=TIME)
        mel = draw("mel", 1, 80, 13, seed=seed) - 3
        save(folder / "vocoder.safetensors", {"mel": mel, "wav": vocoder(mel)[0]}, seed=seed)
        return
    models, vocoder = s2mel(64, 5, 3, 8, 6), bigvgan(16, [4, 2], 8)
    embed = draw("embedding", 1, 7, 1024, seed=SEED)
    shapes = fill(models, SEED)
    save(TARGET / "s2mel.safetensors", {"embedding": embed} | s2mel_outputs(models, embed, SEED, 8, 6, 21),
         shapes=shapes, seed=SEED)
    shapes = fill(vocoder, SEED)
    mel = draw("mel", 1, 8, 5, seed=SEED)
    save(TARGET / "bigvgan.safetensors", {"mel": mel, "waveform": vocoder(mel)[0]}, shapes=shapes, seed=SEED)


if __name__ == "__main__":
    main()
