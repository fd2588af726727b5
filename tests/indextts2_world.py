"""A small IndexTTS2: every published file, of the true kind and key names, narrow, with made-up weights."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import sentencepiece
import torch
import yaml
from safetensors.torch import save_file
from sentencepiece import sentencepiece_model_pb2
from torch import nn

from core.workspace import Workspace
from models.campplus import CAMPPlus
from models.decoder import DecoderConfig
from models.gpt2 import transpose_matrices
from models.indextts2 import s2mel
from models.indextts2.bigvgan import BigVGAN, BigVGANConfig, low_pass
from models.indextts2.conditioning import ConformerConfig, PerceiverConfig
from models.indextts2.s2mel import S2Mel, S2MelConfig
from models.indextts2.semantic_codec import SemanticCodec, SemanticCodecConfig
from models.indextts2.unified_voice import UnifiedVoice, UnifiedVoiceConfig
from models.indextts2.w2v_bert import W2vBert, W2vBertConfig
from scripts.dev.benchmark.sizes import FULL, fill_randomly
from scripts.dev.random_weights import fill, tensor
from tests.chatterbox_world import stop_after
from tests.worlds import extend_world, made_once

Tensors = dict[str, torch.Tensor]
WIDTH = 64  # of the GPT and of S2Mel, whose heads have 64
SPOKEN_CODES = 60  # of a sentence; 1.2 s
CODES = 64  # of the semantic codec; published: 8192
FIXED = (".pe", ".freqs", ".filter", ".up", ".down")  # tables and filters
FEATURES, PUBLISHED_FEATURES = 64, 1024  # width of the speech features; the published code knows no other
SMALL_S2MEL = S2MelConfig(width=WIDTH, heads=1, hidden=WIDTH, layers=3, wave_layers=2, content=FEATURES,
                          latent=(WIDTH, 32, 16), regulator_layers=1)
CHINESE = ("猫看见狗。", "我们回家。", "她在读书。")
TEXTS = ("THE CAT SEES A DOG", "WE GO HOME NOW", "FIVE GREEN BIRDS SING", "SHE READS A BOOK",
         "JUMPS, QUICKLY. VEX? ZOO!", "猫 看 见 狗 。", "我 们 现 在 回 家 。", "她 在 读 书 。",
         " ".join("鉴于有必要促进各国间友好关系的发展,"))


@dataclass(frozen=True)
class Sizes:
    """Sizes of the networks; `fill` makes their weights from a seed."""

    gpt: UnifiedVoiceConfig
    s2mel: S2MelConfig
    states: W2vBertConfig
    codec: SemanticCodecConfig
    vocoder: BigVGANConfig
    fill: Callable[[nn.Module, int], Tensors]


def write_model(folder: Path, gpt_features: int = FEATURES, layers: int = 2, seed: int = 1,
                nested: bool = False) -> None:
    """A model folder in the published layout, `s2mel.pth` with an optimizer; a second, 38 MB.

    With `gpt_features` = `PUBLISHED_FEATURES` the published code loads the GPT, which then fits no other file here.
    `nested`: the GPT as a training checkpoint holds it, under `model`.
    """
    pieces = tokenizer()
    count = sentencepiece.SentencePieceProcessor(model_proto=pieces).get_piece_size()
    gpt = gpt_config(1 + count, gpt_features, layers)
    sizes = Sizes(gpt, SMALL_S2MEL, W2vBertConfig(FEATURES, FEATURES // 16, 2 * FEATURES, layers=2),
                  SemanticCodecConfig(FEATURES, 32, 64, 2, CODES), BigVGANConfig(channels=64), filled)
    _write(folder, sizes, pieces, seed, nested)


def write_full_size(folder: Path) -> None:
    """The published sizes, w2v-bert with all its 24 layers, and 12,000 pieces; 7.7 GB of made-up weights."""
    sizes = Sizes(FULL.voice, FULL.s2mel, replace(FULL.extractor.states, layers=24), FULL.extractor.codec, FULL.bigvgan,
                  filled_quickly)
    _write(folder, sizes, filled_up(tokenizer(), sizes.gpt.text_rows - 1), 1)


def _write(folder: Path, sizes: Sizes, pieces: bytes, seed: int, nested: bool = False) -> None:
    for path in ("w2v-bert-2.0", "bigvgan"):
        (folder / "hf_cache" / path).mkdir(parents=True)
    (folder / "bpe.model").write_bytes(pieces)
    network = sizes.fill(UnifiedVoice(sizes.gpt), seed)
    stop_after(SPOKEN_CODES, network["mel_pos_embedding.emb.weight"],
               network["mel_head.weight"][sizes.gpt.stop_speech])
    gpt = transpose_matrices(network)
    del network
    torch.save({"model": gpt} if nested else gpt, folder / "gpt.pth")
    del gpt
    write_settings(folder / "config.yaml", sizes.gpt, sizes.codec)

    net = s2mel_tensors(sizes.s2mel, sizes.fill, seed)
    optimizer = [[part, {"exp_avg": [value.clone() for value in held.values()]}] for part, held in net.items()]
    torch.save({"net": net, "optimizer": optimizer, "scheduler": [], "iters": 3, "epoch": 1}, folder / "s2mel.pth")
    values = {name: torch.from_numpy(tensor(name, shape, seed)) for name, shape in (
        ("mean", (sizes.states.width,)), ("var", (sizes.states.width,)), ("feat1", (73, 192)),
        ("feat2", (73, sizes.gpt.decoder.width)))}
    torch.save({"mean": values["mean"], "var": values["var"].abs()}, folder / "wav2vec2bert_stats.pt")
    torch.save(values["feat1"], folder / "feat1.pt")
    torch.save(values["feat2"], folder / "feat2.pt")
    _write_companions(folder / "hf_cache", sizes, seed)
    record = {"family": "indextts2", "variant": "2.0", "repository": "made/up", "revision": "",
              "requested_revision": "", "files": {}}
    (folder / "model.json").write_text(json.dumps(record), encoding="utf-8")


def _write_companions(folder: Path, sizes: Sizes, seed: int) -> None:
    w2v = sizes.states
    states = {**sizes.fill(W2vBert(w2v), seed), "masked_spec_embed": torch.zeros(w2v.width)}
    save_file({name: value for name, value in states.items() if name not in ("mean", "var")},
              str(folder / "w2v-bert-2.0" / "model.safetensors"))
    (folder / "w2v-bert-2.0" / "config.json").write_text(json.dumps({
        "architectures": ["Wav2Vec2BertModel"], "model_type": "wav2vec2-bert", "hidden_size": w2v.width,
        "num_hidden_layers": w2v.layers, "num_attention_heads": w2v.heads, "intermediate_size": w2v.mlp_width,
        "feature_projection_input_dim": 160, "conv_depthwise_kernel_size": w2v.kernel, "hidden_act": "swish",
        "position_embeddings_type": "relative_key", "left_max_position_embeddings": 64,
        "right_max_position_embeddings": 8, "add_adapter": False}), encoding="utf-8")
    (folder / "w2v-bert-2.0" / "preprocessor_config.json").write_text(json.dumps({
        "feature_extractor_type": "SeamlessM4TFeatureExtractor", "feature_size": 80, "num_mel_bins": 80,
        "padding_side": "right", "padding_value": 1, "return_attention_mask": True, "sampling_rate": 16000,
        "stride": 2}), encoding="utf-8")

    codec = sizes.fill(SemanticCodec(sizes.codec), seed)
    unused = {f"decoder.{name.removeprefix('encoder.')}": value.clone() for name, value in codec.items()
              if name.startswith("encoder.")}
    save_file({**codec, **unused}, str(folder / "semantic_codec_model.safetensors"))
    torch.save(sizes.fill(CAMPPlus(), seed), folder / "campplus_cn_common.bin", _use_new_zipfile_serialization=False)

    vocoder = sizes.fill(BigVGAN(sizes.vocoder), seed)
    filters = {f"{name.removesuffix('.act.alpha')}.{half}.filter": low_pass()[None, None] for name in vocoder
               if name.endswith(".act.alpha") for half in ("upsample", "downsample.lowpass")}
    torch.save({"generator": {**split_weight_norm(vocoder, [name for name, value in vocoder.items()
                                                            if value.ndim == 3]), **filters}},
               folder / "bigvgan" / "bigvgan_generator.pt")
    (folder / "bigvgan" / "config.json").write_text(json.dumps({
        "num_mels": 80, "sampling_rate": 22050, "upsample_rates": [4, 4, 2, 2, 2, 2],
        "upsample_kernel_sizes": [8, 8, 4, 4, 4, 4], "upsample_initial_channel": sizes.vocoder.channels,
        "resblock": "1",
        "resblock_kernel_sizes": [3, 7, 11], "resblock_dilation_sizes": [[1, 3, 5]] * 3, "activation": "snakebeta",
        "snake_logscale": True, "use_tanh_at_final": False, "use_bias_at_final": False}), encoding="utf-8")


def filled(module: nn.Module, seed: int) -> Tensors:
    """The tensors of `module` with reproducible weights; tables and filters stay as they are."""
    fixed = tuple(name for name in module.state_dict() if name.endswith(FIXED))
    fill(module, seed, skip=fixed)
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


@torch.no_grad()
def filled_quickly(module: nn.Module, seed: int) -> Tensors:
    """The tensors of `module` with weights of natural size; tables and filters stay as they are."""
    fixed = {name: value.clone() for name, value in module.state_dict().items() if name.endswith(FIXED)}
    fill_randomly(module, seed)
    module.load_state_dict(fixed, strict=False)
    return {name: value.detach() for name, value in module.state_dict().items()}


def gpt_config(rows: int, features: int = FEATURES, layers: int = 2) -> UnifiedVoiceConfig:
    """A narrow GPT for features of this width."""
    conformer = ConformerConfig(32, (features - 3) // 2 + 1, 1, 64, 1)  # as wide as the GPT, the published one differs
    speaker = PerceiverConfig(32, WIDTH, conformer.width, 64, int(WIDTH * 2 * 2 / 3))
    emotion = PerceiverConfig(1, features, conformer.width, 64, int(features * 2 * 2 / 3))
    return UnifiedVoiceConfig(DecoderConfig(WIDTH, layers, WIDTH // 64, 4 * WIDTH, rotary_theta=None), rows, CODES + 2,
                              102, 153, (conformer, speaker), (conformer, emotion))


def s2mel_tensors(config: S2MelConfig, fill: Callable[[nn.Module, int], Tensors], seed: int) -> dict[str, Tensors]:
    """The three parts of S2Mel, with what the published file has beside what is used."""
    tensors = fill(S2Mel(config), seed)
    estimator = "cfm.estimator."
    unused = {
        f"{estimator}input_pos": torch.arange(16384), f"{estimator}x_embedder.bias": torch.zeros(config.width),
        f"{estimator}x_embedder.weight": torch.ones(config.width, 80),
        f"{estimator}cond_embedder.weight": torch.ones(16, config.width),
        f"{estimator}content_mask_embedder.weight": torch.ones(1, config.width),
        f"{estimator}t_embedder.freqs": torch.ones(128), f"{estimator}t_embedder2.freqs": torch.ones(128),
        "length_regulator.mask_token": torch.ones(1, config.width),
        "length_regulator.embedding.weight": torch.ones(8, config.width),
    }
    for layer in range(config.layers // 2 + 1):
        name = f"{estimator}transformer.layers.{layer}.skip_in_linear."
        unused |= {f"{name}weight": torch.ones(config.width, 2 * config.width),
                   f"{name}bias": torch.zeros(config.width)}
    everything = {**unused, **tensors}
    normed = [name for name in everything if name.endswith((".conv.conv.weight", "x_embedder.weight",
                                                            "final_layer.linear.weight"))]
    everything = split_weight_norm(everything, normed)
    return {part: {name.removeprefix(f"{part}."): value for name, value in everything.items()
                   if name.startswith(f"{part}.")} for part in s2mel.PARTS}


def split_weight_norm(tensors: Mapping[str, torch.Tensor], names: Iterable[str]) -> Tensors:
    """The weights `names` as the old weight norm stores them: `weight_g` and `weight_v`."""
    split = dict(tensors)
    for name in names:
        value = split.pop(name)
        axes = tuple(range(1, value.ndim))
        split[f"{name}_g"], split[f"{name}_v"] = torch.linalg.vector_norm(value, dim=axes, keepdim=True), value
    return split


def tokenizer(texts: Iterable[str] = TEXTS) -> bytes:
    """A SentencePiece BPE with the published special ids: start 0, stop 1, unknown 2."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, model_type="bpe", vocab_size=110, hard_vocab_limit=False,
        bos_id=0, eos_id=1, unk_id=2, pad_id=-1, character_coverage=1.0, num_threads=1, minloglevel=2)
    return model.getvalue()


def filled_up(model: bytes, pieces: int) -> bytes:
    """The tokenizer with as many pieces as wanted; those that are added occur in no text."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    for index in range(len(proto.pieces), pieces):
        proto.pieces.add(piece=f"\u2581\ue000{index}", score=-1e6 - index)
    return bytes(proto.SerializeToString())


def write_settings(path: Path, config: UnifiedVoiceConfig, codec: SemanticCodecConfig) -> None:
    """`config.yaml` with the published settings, and these sizes."""
    stacks = {name: {"output_size": conformer.width, "linear_units": conformer.mlp_width,
                     "attention_heads": conformer.heads, "num_blocks": conformer.blocks, "input_layer": "conv2d2",
                     "perceiver_mult": 2}
              for name, (conformer, _) in (("condition_module", config.speaker),
                                           ("emo_condition_module", config.emotion))}
    settings = {
        "dataset": {"bpe_model": "bpe.model", "sample_rate": 24000},
        "gpt": {"model_dim": config.decoder.width, "max_mel_tokens": config.max_codes,
                "max_text_tokens": config.text_positions - 2, "heads": config.decoder.heads,
                "use_mel_codes_as_input": True, "mel_length_compression": 1024, "layers": config.decoder.layers,
                "number_text_tokens": config.text_rows - 1, "number_mel_codes": config.speech_rows,
                "start_mel_token": config.start_speech, "stop_mel_token": config.stop_speech, "start_text_token": 0,
                "stop_text_token": 1, "train_solo_embeddings": False, "condition_type": "conformer_perceiver",
                **stacks},
        "semantic_codec": {"codebook_size": codec.codes, "hidden_size": codec.features, "codebook_dim": codec.code_size,
                           "vocos_dim": codec.width, "vocos_intermediate_dim": codec.mlp_width,
                           "vocos_num_layers": codec.layers},
        "s2mel": {"preprocess_params": {"sr": 22050, "spect_params": {
            "n_fft": 1024, "win_length": 1024, "hop_length": 256, "n_mels": 80, "fmin": 0, "fmax": "None"}}},
        "gpt_checkpoint": "gpt.pth", "w2v_stat": "wav2vec2bert_stats.pt", "s2mel_checkpoint": "s2mel.pth",
        "emo_matrix": "feat2.pt", "spk_matrix": "feat1.pt", "emo_num": [3, 17, 2, 8, 4, 5, 10, 24],
        "qwen_emo_path": "qwen0.6bemo4-merge/",
        "vocoder": {"type": "bigvgan", "name": "nvidia/bigvgan_v2_22khz_80band_256x"}, "version": 2.0,
    }
    path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


@made_once
def extended_world(path: Path) -> Workspace:
    """A workspace with the model, a dataset, the tokenizer and the extension."""
    workspace = Workspace.open(path)
    write_model(workspace.models / "indextts2")
    return extend_world(workspace, "indextts2")
