"""IndexTTS2 against its reference: text, GPT, features, semantic codec, style, S2Mel and BigVGAN, in float32.

The files are found by their names and filled by the seed in them, so that other seeds, inputs and numbers of layers are
compared in the same way. Weights: `scripts.dev.random_weights`, under the published names of the lists of keys, but for
fixed tables, which the models compute.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.nn.functional as F

from config.errors import UserError
from data.acoustics import audio
from data.languages import indextts2_normaliser as normaliser
from data.segmenters import SentencePieceModel
from data.text_chunking import cut_as_published
from models import weights
from models.base import PositionScheme, PreparedVoice, Sampling, Voice
from models.campplus import CAMPPlus
from models.decoder import KVCache
from models.generate import Stepper, cache_capacity
from models.gpt2 import transpose_matrices
from models.indextts2 import bigvgan, s2mel, unified_voice, w2v_bert
from models.indextts2.conditioning import GROUP_SIZES
from models.indextts2.semantic_codec import SemanticCodec
from models.indextts2.unified_voice import UnifiedVoice
from models.indextts2.w2v_bert import W2vBert
from models.sampling import Sampler
from scripts.dev import random_weights
from scripts.dev.conformance.comparison import ConformanceRow, Table, Vectors, compare_shapes, read_shapes

_STATES, _LOSSES, _SOUND, _CODES = 1e-4, 1e-5, 1e-3, 0.01
_CPU = torch.device("cpu")
_START_TEXT, _STOP_TEXT = 0, 1
_FIXED = ("pe", "freqs", "input_pos", "filter")  # tables of the published files that are not filled
_EMOTION_STRENGTH = 0.6  # weight of the emotion in the stored mix
Shapes = Mapping[str, tuple[int, ...]]


def compare(folder: Path) -> list[ConformanceRow]:
    """One row an output of every file; one that is missing is a row that fails, one that is unknown a `UserError`."""
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.", "Give the folder with the reference's files.")
    names = {path.name for path in folder.iterdir()}
    unknown = sorted(names - _FILES.keys() - {_PIECES})
    if unknown:
        raise UserError(f"It is not known what {folder / unknown[0]} is compared with.", "Remove it from the folder.")
    if not names & _FILES.keys():
        raise UserError(f"{folder} holds nothing to compare.", "Give the folder with the reference's files.")
    rows: list[ConformanceRow] = []
    with torch.inference_mode():
        for name, compared in _FILES.items():
            if name in names:
                rows += compared(folder / name)
            else:
                rows.append(ConformanceRow("missing", name, float("inf"), 0.0, "file"))
    return rows


def _filled(shapes: Shapes, seed: int) -> dict[str, torch.Tensor]:
    """Published tensors by name, without fixed tables."""
    return {name: torch.from_numpy(random_weights.tensor(name, shape, seed)) for name, shape in shapes.items()
            if name.rpartition(".")[2] not in _FIXED}


def _keys_beside(path: Path, name: str) -> Shapes:
    return read_shapes(path.with_name(name))


# Text


def _text(path: Path) -> list[ConformanceRow]:
    """The stored normaliser's reading stands for the package of rules, which may be another version, or missing."""
    try:
        examples = json.loads(path.read_text(encoding="utf-8"))["examples"]
        content = path.with_name(_PIECES).read_bytes()
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{path} and {_PIECES} beside it hold no examples: {error!r}.",
                        "Make the reference files again.") from error

    pieces = SentencePieceModel(content, str(path.with_name(_PIECES)))
    wrong = dict.fromkeys(("chinese", "spaced", "ids", "segments_120", "segments_30"), 0)
    for example in examples:
        text = example["text"]
        spaced = example["normalized"] if example["bypassed"] else normaliser.spaced(example["normalized"])
        tokens = pieces.tokens(example["spaced"])
        wrong["chinese"] += normaliser.reads_as_chinese(text) != example["chinese"]
        wrong["spaced"] += spaced != example["spaced"]
        wrong["ids"] += pieces.encode(example["spaced"])[0] != example["ids"]
        for limit in (120, 30):
            ids = [[pieces.ids.get(token, pieces.unknown_id) for token in segment]
                   for segment in cut_as_published(tokens, limit)]
            wrong[f"segments_{limit}"] += ids != example[f"segments_{limit}"]

    rows = [ConformanceRow("text", name, count / len(examples), 0.0, f"of {len(examples)} texts")
            for name, count in wrong.items()]
    if normaliser.rules_version():
        rows.append(_normalised(examples))
    return rows


def _normalised(examples: list[dict]) -> ConformanceRow:
    """The installed rules against what any version of the reference's gives."""
    wrong = 0
    for example in examples:
        readings = {example["normalized"], *example.get("other_normalizers", {}).values()}
        reading = example["text"] if example["bypassed"] else normaliser.marked(example["text"])
        wrong += "".join(reading.split()) not in {"".join(text.split()) for text in readings}
    return ConformanceRow("text", f"normalized ({normaliser.rules_version()})", wrong / len(examples), 0.0,
                          f"of {len(examples)} texts")


# GPT


def _gpt(path: Path, layers: int | None = None) -> tuple[Vectors, UnifiedVoice]:
    """The vectors of a file and the model they were made with, of `layers` or as many as the file says."""
    vectors = Vectors.read(path)
    count = layers if layers is not None else int(vectors.metadata["layers"])
    shapes = {name: shape for name, shape in _keys_beside(path, "gpt_keys.json").items()
              if not name.startswith("gpt.h.") or int(name.split(".")[2]) < count}
    return vectors, unified_voice.load(_filled(shapes, vectors.seed), str(path))


def _gpt_keys(path: Path) -> list[ConformanceRow]:
    shapes = read_shapes(path)
    module = unified_voice.empty(unified_voice.config_from_shapes(shapes, str(path)))
    return [compare_shapes("GPT", path.name, shapes, transpose_matrices(module.state_dict()))]


def _gpt_conditioning(path: Path) -> list[ConformanceRow]:
    vectors, model = _gpt(path, layers=1)
    table = Table("GPT conditioning", vectors, [])
    prompt, emotion = vectors["prompt_features"], vectors["emotion_features"]
    table.relative("speaker_conformer", model.conditioning_encoder(prompt)[0], _STATES)
    latents = model.speaker_latents(prompt)
    table.relative("speaker_latents", latents, _STATES)
    conformer = model.emo_conditioning_encoder(emotion)
    table.relative("emotion_conformer", conformer[0], _STATES)
    table.relative("emotion_latent", model.emo_perceiver_encoder(*conformer)[:, 0], _STATES)
    of_prompt, of_emotion = model.emotion_vector(prompt), model.emotion_vector(emotion)
    table.relative("emotion_vector", of_emotion, _STATES)
    table.relative("emotion_vector_of_prompt", of_prompt, _STATES)
    table.relative("emotion_vector_merged_06", torch.lerp(of_prompt, of_emotion, _EMOTION_STRENGTH), _STATES)
    conditioning = unified_voice.VoiceConditioning(latents, of_emotion, torch.zeros(1, dtype=torch.long))
    table.relative("conditioning", model.embed_conditioning(conditioning), _STATES)
    return table.complete(("prompt_features", "emotion_features"))


def _gpt_layers(path: Path) -> list[ConformanceRow]:
    vectors, model = _gpt(path)
    config = model.config
    table = Table(f"GPT, {vectors.metadata['layers']} layers", vectors, [])
    text = F.pad(F.pad(vectors["text_tokens"], (1, 0), value=_START_TEXT), (0, 1),
                 value=_STOP_TEXT)
    codes = F.pad(F.pad(vectors["codes"], (1, 0), value=config.start_speech), (0, 1), value=config.stop_speech)
    conditioning = vectors["conditioning"]
    hidden = model.hidden_states(torch.cat([conditioning, model.embed_text(text), model.embed_speech(codes)], 1))
    _, text_hidden, code_hidden = hidden.split([conditioning.shape[1], text.shape[1], codes.shape[1]], 1)
    text_logits, code_logits = model.text_head(text_hidden), model.mel_head(code_hidden)
    table.relative("text_logits_every_8", text_logits[..., ::8], _STATES)
    table.relative("mel_logits_every_8", code_logits[..., ::8], _STATES)
    table.relative("text_loss", F.cross_entropy(text_logits[0, :-1], text[0, 1:])[None], _LOSSES)
    table.relative("mel_loss", F.cross_entropy(code_logits[0, :-1], codes[0, 1:])[None], _LOSSES)
    table.relative("latents", code_hidden[:, :-2], _STATES)
    schemes: tuple[PositionScheme, ...] = ("aligned", "published")
    for scheme in schemes:
        for penalty in (1.0, 10.0):
            name = f"greedy_codes_{scheme}" + ("" if penalty == 1 else f"_penalty_{penalty:g}")
            table.different(name, _greedy(model, scheme, penalty, text[0], conditioning, vectors[name].shape[1]), 0.0)
    return table.complete(("codes", "conditioning", "text_tokens"))


def _greedy(model: UnifiedVoice, scheme: PositionScheme, penalty: float, text: torch.Tensor,
            conditioning: torch.Tensor, length: int) -> torch.Tensor:
    """The codes (1, length) of the published loop, which lets every id be chosen, by either scheme of positions."""
    cache = KVCache(model.config.decoder, 1, conditioning.shape[1], _CPU, torch.float32)
    model.hidden_states(conditioning, cache)
    stepper = Stepper(model, 1, cache_capacity(model.config, len(text), length), length, _CPU)
    every = torch.ones(model.config.speech_rows, dtype=torch.bool)
    stepper.sampler = Sampler(1, every, model.config.stop_speech, length)
    stepper.prefill([text], [PreparedVoice(Voice({}), cache.storage[:, :, 0])],
                    Sampling(temperature=0.0, min_p=0.0, repetition_penalty=penalty, position_scheme=scheme))
    for _ in range(length):
        stepper.advance()
    return stepper.codes


# Sound in


def _w2v_bert_keys(path: Path) -> list[ConformanceRow]:
    """The lists of all layers, of which ours reads the first."""
    shapes = read_shapes(path)
    used = {name: shape for name, shape in shapes.items()
            if not name.startswith("encoder.layers.") or int(name.split(".")[2]) < w2v_bert.LAYERS}
    used.pop("masked_spec_embed", None)
    module = W2vBert(w2v_bert.config_from_shapes(shapes, str(path)))
    return [compare_shapes("w2v-bert", path.name, used, module.state_dict())]


def _w2v_stats_keys(path: Path) -> list[ConformanceRow]:
    module = W2vBert(w2v_bert.W2vBertConfig(layers=0))
    return [compare_shapes("w2v-bert", path.name, read_shapes(path), {"mean": module.mean, "var": module.std})]


def _features(path: Path) -> list[ConformanceRow]:
    vectors = Vectors.read(path)
    layers = int(vectors.metadata["layers"])
    used = {name: shape for name, shape in _keys_beside(path, "w2v_bert_keys.json").items()
            if name != "masked_spec_embed"
            and (not name.startswith("encoder.layers.") or int(name.split(".")[2]) < layers)}

    module = W2vBert(w2v_bert.config_from_shapes(used, str(path)))
    weights.load_into(module, _filled(used, vectors.seed), str(path))
    module.eval()

    # The states after each layer are kept as they pass.
    layer_states: list[torch.Tensor] = []
    module.feature_projection.projection.register_forward_hook(lambda *call: layer_states.append(call[2]))
    for layer in module.encoder.layers.children():
        layer.register_forward_hook(lambda *call: layer_states.append(call[2]))

    table = Table("features", vectors, [])
    for kind in ("even", "odd"):
        rows, frames_kept = w2v_bert.filterbank(vectors[f"{kind}_wav_16k"])
        mask = (torch.arange(len(rows)) < frames_kept).long()
        table.relative(f"{kind}_features", rows[None], _STATES)
        table.different(f"{kind}_mask", mask[None], 0.0)
        layer_states.clear()
        (states,) = module([rows], [frames_kept])
        for depth, hidden in enumerate(layer_states):
            stored = hidden * mask[:, None] if depth == 0 else hidden
            if f"{kind}_hidden_{depth}_every_8" in vectors.tensors:
                table.relative(f"{kind}_hidden_{depth}_every_8", stored[None, :, ::8], _STATES)
        table.relative(f"{kind}_hidden_{layers}", states[None], _STATES)
        if f"{kind}_normalised" in vectors.tensors:
            module.mean, module.std = vectors["stats_mean"], vectors["stats_var"].sqrt()
            table.relative(f"{kind}_normalised", module.encode([vectors[f"{kind}_wav_16k"]])[0][None], _STATES)

    return table.complete(("even_wav_16k", "odd_wav_16k", "stats_mean", "stats_var"))


def _codec(path: Path, seed: int) -> SemanticCodec:
    """The codec filled by the list of keys beside `path`; its decoder is not read."""
    shapes = {name: shape for name, shape in _keys_beside(path, "semantic_codec_keys.json").items()
              if not name.startswith("decoder.")}
    module = SemanticCodec()
    weights.load_into(module, _filled(shapes, seed), str(path))
    return module.eval()


def _codec_keys(path: Path) -> list[ConformanceRow]:
    used = {name: shape for name, shape in read_shapes(path).items() if not name.startswith("decoder.")}
    return [compare_shapes("semantic codec", path.name, used, SemanticCodec().state_dict())]


def _semantic_codec(path: Path) -> list[ConformanceRow]:
    vectors = Vectors.read(path)
    codec, features = _codec(path, vectors.seed), vectors["features"]
    table = Table("semantic codec", vectors, [])
    table.relative("encoded_every_8", codec.encode_states(features[0], [features.shape[1]])[None, :, ::8], _STATES)
    codes = torch.stack(codec.encode(list(features)))
    table.different("codes", codes, _CODES)
    table.relative("embedding", codec.embed(vectors["codes"]), _STATES)
    table.relative("vq2emb", codec.embed(vectors["given_codes"][0]).transpose(1, 2), _STATES)
    return table.complete(("features", "given_codes"))


def _campplus_keys(path: Path) -> list[ConformanceRow]:
    return [compare_shapes("style", path.name, read_shapes(path), CAMPPlus().state_dict())]


def _style(path: Path) -> list[ConformanceRow]:
    vectors = Vectors.read(path)
    module = CAMPPlus().eval()
    random_weights.fill(module, vectors.seed)
    table = Table("style", vectors, [])
    fbank = audio.kaldi_filterbank(vectors["wav_16k"])
    table.relative("fbank", (fbank - fbank.mean(0))[None], _STATES)
    table.relative("style", module.embed(vectors["wav_16k"])[None], _STATES)
    return table.complete(("wav_16k",))


def _banks_keys(path: Path) -> list[ConformanceRow]:
    """73 voices and emotion vectors: `EmotionBanks` refuses other shapes."""
    shapes = read_shapes(path)
    expected = {"feat1": torch.empty(sum(GROUP_SIZES), 192), "feat2": torch.empty(sum(GROUP_SIZES), 1280)}
    return [compare_shapes("emotion banks", path.name, shapes, expected)]


def _mel(path: Path) -> list[ConformanceRow]:
    vectors = Vectors.read(path)
    table = Table("prompt mel", vectors, [])
    waveform = vectors["wav_22k"]
    mel = audio.prompt_mel(waveform[None], bigvgan.SAMPLE_RATE, 1024, 256, bigvgan.SAMPLE_RATE / 2)
    table.relative("mel_22k", mel, _SOUND)
    table.relative("wav_16k_resampled", audio.resample_windowed_sinc(waveform, bigvgan.SAMPLE_RATE, 16000), _SOUND)
    return table.complete(("wav_22k",))


# Sound out


def _s2mel_keys(path: Path) -> list[ConformanceRow]:
    shapes = read_shapes(path)
    empty = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    used = s2mel.used_tensors(empty, str(path))
    module = s2mel.S2Mel(s2mel.config_from_shapes({name: tuple(value.shape) for name, value in used.items()},
                                                  str(path)))
    return [compare_shapes("S2Mel", path.name, {name: tuple(value.shape) for name, value in used.items()},
                           module.state_dict())]


def _s2mel(path: Path) -> list[ConformanceRow]:
    vectors = Vectors.read(path)
    module = s2mel.from_tensors(_filled(_keys_beside(path, "s2mel_keys.json"), vectors.seed), str(path))
    codec, estimator = _codec(path, vectors.seed), module.estimator
    guidance = float(vectors.metadata["guidance"])
    table = Table("S2Mel", vectors, [])

    hidden = module.gpt_layer(vectors["latents"])
    table.relative("gpt_layer", hidden, _STATES)
    embedded = codec.embed(vectors["codes"])
    table.relative("content", embedded + hidden, _STATES)
    regulated = module.content(embedded, vectors["latents"])
    table.relative("regulated", regulated, _STATES)
    prompt = module.prompt(vectors["prompt_content"], vectors["prompt_mel"].transpose(1, 2), vectors["style"])
    table.relative("prompt_regulated", prompt.condition, _STATES)

    conditions = estimator.conditions(torch.cat([prompt.condition, regulated], 1), prompt.mel, prompt.style)
    length = conditions.shape[1]
    rotary = s2mel.rotary_positions(length, module.config.width // module.config.heads, _CPU)
    time = estimator.time_states(torch.tensor([float(vectors.metadata["estimator_time"])])).at(0)
    unconditional = estimator.unconditional(length)
    for name, states in (("estimator_out", conditions), ("estimator_out_unconditional", unconditional)):
        velocity = estimator(vectors["estimator_x"].transpose(1, 2), states, time, rotary)
        table.relative(name, velocity.transpose(1, 2), _STATES)

    noise = vectors["noise"][..., prompt.mel.shape[1]:]  # the prompt's is not used
    for steps in (10, 25):
        mel = module.mel(regulated, prompt, steps=steps, guidance=guidance, noise=noise)
        table.relative(f"mel_{steps}_steps", mel, _SOUND)

    return table.complete(("codes", "estimator_x", "latents", "noise", "prompt_content", "prompt_mel", "style"))


def _bigvgan_keys(path: Path) -> list[ConformanceRow]:
    shapes = read_shapes(path)
    used = bigvgan.used_tensors({name: torch.empty(shape, device="meta") for name, shape in shapes.items()})
    folded = {name: tuple(value.shape) for name, value in used.items()}
    module = bigvgan.BigVGAN(bigvgan.config_from_shapes(folded, str(path)))
    return [compare_shapes("BigVGAN", path.name, folded, module.state_dict())]


def _vocoder(path: Path) -> list[ConformanceRow]:
    vectors = Vectors.read(path)
    module = bigvgan.from_tensors(_filled(_keys_beside(path, "bigvgan_keys.json"), vectors.seed), str(path))
    table = Table("BigVGAN", vectors, [])
    table.relative("wav", module.waveform(vectors["mel"]), _SOUND)
    return table.complete(("mel",))


_PIECES = "bpe_tiny.model"
_FILES: dict[str, Callable[[Path], list[ConformanceRow]]] = {
    "text.json": _text, "gpt_keys.json": _gpt_keys, "gpt_conditioning.safetensors": _gpt_conditioning,
    "gpt_2layers.safetensors": _gpt_layers, "gpt_24layers.safetensors": _gpt_layers,
    "banks_keys.json": _banks_keys, "w2v_bert_keys.json": _w2v_bert_keys, "w2v_stats_keys.json": _w2v_stats_keys,
    "features.safetensors": _features, "semantic_codec_keys.json": _codec_keys,
    "semantic_codec.safetensors": _semantic_codec, "campplus_keys.json": _campplus_keys,
    "style.safetensors": _style, "mel.safetensors": _mel, "s2mel_keys.json": _s2mel_keys,
    "s2mel.safetensors": _s2mel, "bigvgan_keys.json": _bigvgan_keys, "vocoder.safetensors": _vocoder,
}
