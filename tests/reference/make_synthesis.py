"""Write `chatterbox/synthesis.safetensors`: mel and sound that the published package makes of made-up codes.

It is chatterbox-tts 0.1.7 (MIT); run this in its environment:

    make reference && .reference/bin/python tests/reference/make_synthesis.py

Models and inputs are filled from a seed by `scripts.dev.random_weights`, so only outputs are stored. The flow is stored
at its published size and with one block each ("shallow").
"""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

import torch
from chatterbox.models.s3gen.decoder import ConditionalDecoder
from chatterbox.models.s3gen.f0_predictor import ConvRNNF0Predictor
from chatterbox.models.s3gen.flow import CausalMaskedDiffWithXvec
from chatterbox.models.s3gen.flow_matching import CausalConditionalCFM
from chatterbox.models.s3gen.hifigan import HiFTGenerator
from chatterbox.models.s3gen.transformer.upsample_encoder import UpsampleConformerEncoder
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.dev.random_weights import fill
from tests.reference.synthesis_inputs import FLOW_SEEDS, GUIDANCE, STEPS, VOCODER_SEED, FlowInputs, VocoderInputs


def published_flow(blocks: int, transformers: int, mid_blocks: int) -> CausalMaskedDiffWithXvec:
    encoder = UpsampleConformerEncoder(
        input_size=512, output_size=512, attention_heads=8, linear_units=2048, num_blocks=blocks, input_layer="linear",
        pos_enc_layer_type="rel_pos_espnet", selfattention_layer_type="rel_selfattn", use_cnn_module=False,
        macaron_style=False, normalize_before=True,
    )
    estimator = ConditionalDecoder(
        in_channels=320, out_channels=80, causal=True, channels=[256], dropout=0.0, attention_head_dim=64,
        n_blocks=transformers, num_mid_blocks=mid_blocks, num_heads=8, act_fn="gelu",
    )
    decoder = CausalConditionalCFM(spk_emb_dim=80, estimator=estimator)
    return CausalMaskedDiffWithXvec(encoder=encoder, decoder=decoder).eval()


def flow_outputs(flow: CausalMaskedDiffWithXvec, seed: int) -> dict[str, torch.Tensor]:
    fill(flow, seed, "flow.")
    given = FlowInputs.made(seed)
    codes = torch.cat([given.prompt_codes, given.codes], 1)
    rows, length = codes.shape
    states, _ = flow.encoder(flow.input_embedding(codes), torch.full((rows,), length))
    speaker = flow.spk_embed_affine_layer(torch.nn.functional.normalize(given.speaker, dim=1))
    cond = torch.zeros(rows, 80, 2 * length)
    cond[:, :, : given.prompt_mel.shape[1]] = given.prompt_mel.transpose(1, 2)
    mu = flow.encoder_proj(states).transpose(1, 2)
    velocity = flow.decoder.estimator(given.noise, torch.ones(rows, 1, 2 * length), mu, given.times, speaker, cond)
    flow.decoder.inference_cfg_rate = GUIDANCE
    with mock.patch("torch.randn_like", return_value=given.noise.clone()):
        mel, _ = flow.inference(
            given.codes, torch.full((rows,), given.codes.shape[1]), given.prompt_codes,
            torch.full((rows,), given.prompt_codes.shape[1]), given.prompt_mel, None, given.speaker, finalize=True,
            n_timesteps=STEPS,
        )
    return {"states": states[:, :, ::8].contiguous(), "velocity": velocity, "mel": mel.contiguous()}


def vocoder_outputs() -> dict[str, torch.Tensor]:
    vocoder = HiFTGenerator(
        sampling_rate=24000, upsample_rates=[8, 5, 3], upsample_kernel_sizes=[16, 11, 7],
        source_resblock_kernel_sizes=[7, 7, 11], source_resblock_dilation_sizes=[[1, 3, 5]] * 3,
        f0_predictor=ConvRNNF0Predictor(),
    ).eval()
    fill(vocoder, VOCODER_SEED, "mel2wav.")
    given = VocoderInputs.made(VOCODER_SEED)
    turned = 2 * torch.pi * given.offsets.view(1, -1, 1)
    with (  # chance taken out of the excitation
        mock.patch("torch.distributions.uniform.Uniform.sample", return_value=turned.repeat(2, 1, 1)),
        mock.patch("torch.randn_like", torch.zeros_like),
    ):
        excitation, _, _ = vocoder.m_source(vocoder.f0_upsamp(given.f0[:, None]).transpose(1, 2))
    return {
        "f0": vocoder.f0_predictor(given.mel),
        "excitation": excitation[..., 0].contiguous(),
        "waveform": vocoder.decode(given.mel, given.source),
    }


@torch.inference_mode()
def main() -> None:
    found = {f"vocoder.{name}": value for name, value in vocoder_outputs().items()}
    for seed in FLOW_SEEDS:
        for name, value in flow_outputs(published_flow(1, 1, 1), seed).items():
            found[f"shallow.{seed}.{name}"] = value
    for name, value in flow_outputs(published_flow(6, 4, 12), FLOW_SEEDS[0]).items():
        found[f"full.{FLOW_SEEDS[0]}.{name}"] = value
    path = Path(__file__).parent / "chatterbox" / "synthesis.safetensors"
    save_file({name: value.clone() for name, value in found.items()}, path)
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
