"""Recognisers of transformers in miniature: random weights, whole folders."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers.convert_slow_tokenizer import bytes_to_unicode

LETTERS = "abcdefghijklmnopqrstuvwxyz'"
ETHIOPIC = "ሀለመሰረቀበተነከወዘየደገጠፈ"


def write_ctc(folder: Path, languages: dict[str, str] | None = None, **changes: object) -> Path:
    """A wav2vec 2.0 with a CTC head; with an adapter a language, by its letters, like MMS."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabularies = {code: _vocabulary(letters) for code, letters in (languages or {"": LETTERS}).items()}
    first = next(iter(vocabularies.values()))
    (folder / "vocab.json").write_text(json.dumps(vocabularies if languages else first))
    settings = {"target_lang": next(iter(languages))} if languages else {}
    transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json"), **settings).save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps(vocabularies if languages else first))
    transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True, do_normalize=True).save_pretrained(folder)
    config = transformers.Wav2Vec2Config(
        vocab_size=len(first), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        conv_dim=(8,) * 7, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, feat_extract_norm="layer",
        do_stable_layer_norm=True, adapter_attn_dim=4 if languages else None, pad_token_id=0, **changes)
    torch.manual_seed(0)
    model = transformers.Wav2Vec2ForCTC(config)
    model.save_pretrained(folder)
    for number, (code, vocabulary) in enumerate(vocabularies.items()):
        if code:
            model.lm_head = torch.nn.Linear(16, len(vocabulary))
            torch.nn.init.constant_(model.lm_head.bias, float(number))
            save_file({name: value.clone() for name, value in model._get_adapters().items()},
                      folder / f"adapter.{code}.safetensors")
    return folder


def _vocabulary(letters: str) -> dict[str, int]:
    return {sign: number for number, sign in enumerate(("<pad>", "<s>", "</s>", "<unk>", "|", *letters))}


def write_whisper(folder: Path, languages: tuple[str, ...] = ("en", "am")) -> Path:
    """A Whisper that writes bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    special = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in languages), "<|translate|>",
               "<|transcribe|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    signs = sorted(bytes_to_unicode().values())
    vocabulary = {sign: number for number, sign in enumerate([*signs, *special])}
    tokenizer = transformers.WhisperTokenizer(vocab=vocabulary, merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": special[1:]})
    tokenizer.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(feature_size=80).save_pretrained(folder)
    ids = {name: vocabulary[name] for name in special}
    config = transformers.WhisperConfig(
        vocab_size=len(vocabulary), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_target_positions=24,
        pad_token_id=ids["<|endoftext|>"], bos_token_id=ids["<|endoftext|>"], eos_token_id=ids["<|endoftext|>"],
        decoder_start_token_id=ids["<|startoftranscript|>"])
    torch.manual_seed(1)
    model = transformers.WhisperForConditionalGeneration(config)
    model.generation_config = transformers.GenerationConfig(
        pad_token_id=config.pad_token_id, bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id, is_multilingual=True, max_length=24,
        lang_to_id={f"<|{code}|>": ids[f"<|{code}|>"] for code in languages},
        task_to_id={"transcribe": ids["<|transcribe|>"], "translate": ids["<|translate|>"]},
        no_timestamps_token_id=ids["<|notimestamps|>"], suppress_tokens=[], begin_suppress_tokens=[])
    model.save_pretrained(folder)
    return folder
