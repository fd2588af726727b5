"""A small tokenizer file of the kind that IndexTTS 2.5 has, made with the package `tokenizers`."""

from __future__ import annotations

import base64
from collections.abc import Iterable

from tokenizers import Tokenizer, models, pre_tokenizers, trainers


def tiktoken_file(texts: Iterable[str], size: int) -> bytes:
    """A `.tiktoken` file of `size` tokens: byte-level BPE with the ids of GPT-2's bytes."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # GPT-2 writes the others from U+0100 on
    hidden = [byte for byte in range(256) if byte not in shown]
    byte_of = {chr(byte): byte for byte in shown} | {chr(0x100 + place): byte for place, byte in enumerate(hidden)}
    vocabulary = sorted(made.get_vocab().items(), key=lambda item: item[1])
    return "".join(f"{base64.b64encode(bytes(byte_of[one] for one in token)).decode()} {number}\n"
                   for token, number in vocabulary).encode()
