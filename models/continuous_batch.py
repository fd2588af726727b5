"""Continuous batching: texts are decoded together, and each joins and leaves the batch between two codes.

As in vLLM and its predecessor Orca (Yu et al. 2022, OSDI), a batch is not closed: a text that comes is prefilled by
itself and then takes a row, and a text that ends frees its row. Each text has the codes that it has alone, but for the
rounding of products over more rows. Alone in the batch it has the same bits.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from models.base import DecodedCodes, Generated, PreparedVoice, Sampling, Vocoder
from models.generate import SYNC_INTERVAL, SilenceCheck, Stepper, TextProgress, cache_capacity, is_guided
from models.speech_network import SpeechNetwork


@dataclass
class _Text:
    """A text in the batch: what it was joined with, where its row is, and how far it is."""

    key: int
    voice: PreparedVoice
    progress: TextProgress
    stepper: Stepper  # The text's own stepper until it joins the batch at the next codes.
    row: int = 0
    steps: int = 0  # codes so far
    yielded: int = 0


@dataclass
class ContinuousBatch:
    """Implements `models.base.ContinuousBatch` for a `SpeechNetwork`."""

    network: SpeechNetwork
    device: torch.device
    vocoder: Vocoder | None = None
    _texts: list[_Text] = field(default_factory=list)

    @property
    def keys(self) -> list[int]:
        """The texts in the order of their rows."""
        return [text.key for text in self._texts]

    @torch.inference_mode()
    def join(self, key: int, text: np.ndarray, voice: PreparedVoice, sampling: Sampling, limit: int) -> None:
        """See `models.base.ContinuousBatch`; the codes of the text are limited to `limit`."""
        assert key not in self.keys
        config = self.network.config
        limit = min(limit, config.max_codes)
        ids = torch.as_tensor(text, dtype=torch.long, device=self.device)
        stepper = Stepper(self.network, 1, cache_capacity(config, len(ids), limit), config.max_codes, self.device,
                          is_guided(self.network, sampling))
        stepper.prefill([ids], [voice], sampling)
        self._texts.append(_Text(key, voice, TextProgress(config, limit), stepper))

    def leave(self, keys: Collection[int]) -> None:
        """See `models.base.ContinuousBatch`."""
        self._texts = [text for text in self._texts if text.key not in keys]

    @torch.inference_mode()
    def decode(self) -> list[DecodedCodes]:
        """See `models.base.ContinuousBatch`."""
        if not self._texts:
            return []
        stepper = self._joined()
        stepper.merge(stepper.layers_to_merge())  # another batch may have merged other adapters into them
        # Texts that joined at different times are looked at after the same numbers of their codes as alone.
        count = min(min(SYNC_INTERVAL - text.steps % SYNC_INTERVAL, text.progress.limit - text.steps)
                    for text in self._texts)
        for _ in range(count):
            stepper.advance()
        codes = stepper.codes.cpu().numpy()

        decoded: list[DecodedCodes] = []
        silence = SilenceCheck(self.vocoder, [text.voice for text in self._texts],
                               self.network.config.code_rate) if self.vocoder else None
        for text in self._texts:
            text.steps += count
            if text.steps % SYNC_INTERVAL and text.steps < text.progress.limit:
                continue
            so_far = codes[text.row, :text.steps]
            result = text.progress.result(stepper, text.row, so_far, silence)
            new = (so_far if result is None else result.codes)[text.yielded:]
            text.yielded += len(new)
            decoded.append(DecodedCodes(text.key, new.copy(), _owned(result)))
        self.leave([text_codes.key for text_codes in decoded if text_codes.result is not None])
        return decoded

    def _joined(self) -> Stepper:
        """One stepper for all texts: a new one if texts have joined or left since the last codes."""
        stepper = self._texts[0].stepper
        if all(text.stepper is stepper for text in self._texts) and stepper.texts == len(self._texts):
            return stepper
        stepper = Stepper.from_texts([(text.stepper, text.row) for text in self._texts])
        for row, text in enumerate(self._texts):
            text.stepper, text.row = stepper, row
        return stepper


def _owned(result: Generated | None) -> Generated | None:
    """The result without a view of the codes of the whole batch."""
    return None if result is None else replace(result, codes=result.codes.copy())
