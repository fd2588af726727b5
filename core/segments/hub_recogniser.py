"""Recognisers that transformers loads, from a folder: CTC models (wav2vec 2.0, MMS, HuBERT), Whisper and its like.

Nothing is fetched here and no code of a repository is run. Texts come with the mean probability of their signs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from config.errors import UserError
from core.segments.language_codes import names_of
from core.segments.recogniser import Heard, Speller, best_path
from core.sources.recognisers import AS_RECOGNISER, RecogniserOption, repair_hint

_MOST_TOKENS = 440  # that Whisper's decoder has room for beside its prompt


class _Loaded:
    """A model with what turns waveforms into its input, and its signs into text."""

    def __init__(self, folder: Path, device: torch.device, language: str, called: str, asked: RecogniserOption,
                 begun: bool = False) -> None:
        import transformers

        logging.getLogger("transformers").setLevel(logging.ERROR)
        self.folder, self.device, self._asked, self._begun = folder, device, asked, begun
        with _explained(folder, asked):
            self.config: Any = transformers.AutoConfig.from_pretrained(folder, **_LOCAL)
            self.kind = _kind(self.config)
            self.extractor: Any = transformers.AutoFeatureExtractor.from_pretrained(folder, **_LOCAL)
            self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, **_LOCAL)
            loader = transformers.AutoModelForCTC if self.kind == "ctc" else transformers.AutoModelForSpeechSeq2Seq
            self.model: Any = loader.from_pretrained(folder, **_LOCAL, dtype=torch.float32)
            self._choose_language(language, called)
        self.model.eval().requires_grad_(False).to(device)
        self.sample_rate = int(self.extractor.sampling_rate)

    def _choose_language(self, language: str, called: str) -> None:
        names = names_of(language, called)
        self.language: str | None = None
        if self.kind == "ctc":
            if getattr(self.config, "adapter_attn_dim", None) is None:
                return
            there = [name for name in names if (self.folder / f"adapter.{name}.safetensors").is_file()]
            if not there:
                raise UserError(f"The recogniser has no language {' or '.join(names[:2])}.",
                                f"Say what it calls the language, such as `amh` ({self._asked.by_name}), or "
                                f"choose another ({self._asked.option}).")
            self.tokenizer.set_target_lang(there[0])
            self.model.load_adapter(there[0], local_files_only=True, use_safetensors=True)
        elif known := getattr(self.model.generation_config, "lang_to_id", None):
            self.language = self._written(language, called, {code.strip("<|>") for code in known})

    def _written(self, language: str, called: str, codes: set[str]) -> str:
        """The code of Whisper's; of what a person calls it, alone, where they say it: it may be the English name."""
        from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

        said = called.strip("<|> ").lower()
        short = said.replace("_", "-").split("-")[0]
        own = (language, language.split("-")[0])
        names = (said, TO_LANGUAGE_CODE.get(said, ""), short, *(own if self._begun else ())) if said else own
        found = next((name for name in names if name in codes), "")
        if not found:
            raise UserError(f"The recogniser does not know {called or language!r}.",
                            f"Say what it calls the language, such as `am` or `amharic` "
                            f"({self._asked.by_name}), or choose another ({self._asked.option}), such as "
                            "facebook/mms-1b-all.")
        return found


class HubRecogniser:
    """Writes down what is said."""

    def __init__(self, loaded: _Loaded) -> None:
        self._loaded = loaded
        self.sample_rate = loaded.sample_rate

    @classmethod
    def load(cls, folder: Path, device: torch.device, language: str, called: str,
             asked: RecogniserOption = AS_RECOGNISER, begun: bool = False) -> HubRecogniser:
        """`called`: what it calls the language, where that is told; `asked`: by what it was chosen, for errors.

        `begun`: texts were written so already, maybe when a name that is not known gave way to `language`.
        """
        return cls(_Loaded(folder, device, language, called, asked, begun))

    @torch.inference_mode()
    def transcribe(self, waveforms: Sequence[np.ndarray]) -> list[Heard]:
        if self._loaded.kind == "ctc":  # one by one: some of these models hear the padding of a batch
            return [self._by_ctc(waveform) for waveform in waveforms]
        return self._by_writing(waveforms)

    def _by_ctc(self, waveform: np.ndarray) -> Heard:
        loaded = self._loaded
        rows = _letters(loaded, waveform)
        text = loaded.tokenizer.decode(rows.argmax(1).tolist(), skip_special_tokens=True)  # it joins what is held
        return Heard(" ".join(text.split()), best_path(rows, _blank(loaded))[1])

    def _by_writing(self, waveforms: Sequence[np.ndarray]) -> list[Heard]:
        loaded = self._loaded
        inputs = loaded.extractor(list(waveforms), sampling_rate=loaded.sample_rate, return_tensors="pt",
                                  return_attention_mask=True).to(loaded.device)
        more = {"language": loaded.language, "task": "transcribe"} if loaded.language else {}
        room = min(_MOST_TOKENS, int(getattr(loaded.config, "max_target_positions", 0) or _MOST_TOKENS) - 8)
        made = loaded.model.generate(**inputs, **more, max_new_tokens=max(1, room), return_dict_in_generate=True,
                                     output_scores=True)
        steps = len(made.scores)
        written = made.sequences[:, -steps:]
        chances = torch.stack(made.scores, 1).float().log_softmax(-1).gather(2, written[..., None])[..., 0]
        ends = {loaded.tokenizer.eos_token_id, loaded.tokenizer.pad_token_id}
        said = torch.tensor([[int(number) not in ends for number in row] for row in written], device=chances.device)
        texts = loaded.tokenizer.batch_decode(made.sequences, skip_special_tokens=True)
        found = []
        for text, row, kept in zip(texts, chances, said, strict=True):
            score = float(row[kept].exp().mean()) if bool(kept.any()) else 0.0
            found.append(Heard(" ".join(text.split()), score))
        return found


class HubListener:
    """Hears letters frame by frame."""

    def __init__(self, loaded: _Loaded, sample: str) -> None:
        if loaded.kind != "ctc":
            raise UserError(f"The recogniser in {loaded.folder.name} writes whole texts and does not say when a letter "
                            "is heard.", "To align, choose a CTC model, such as facebook/mms-1b-all.")
        self._loaded = loaded
        self.sample_rate, self.blank = loaded.sample_rate, _blank(loaded)
        self.frame_s = float(loaded.config.inputs_to_logits_ratio) / loaded.sample_rate
        vocabulary = loaded.tokenizer.get_vocab()
        self.separator = vocabulary.get(getattr(loaded.tokenizer, "word_delimiter_token", None) or "|")
        special = {loaded.tokenizer.pad_token, loaded.tokenizer.word_delimiter_token}
        self._speller = Speller.of({sign: number for sign, number in vocabulary.items() if sign not in special}, sample)

    @classmethod
    def load(cls, folder: Path, device: torch.device, language: str, called: str, sample: str) -> HubListener:
        return cls(_Loaded(folder, device, language, called, AS_RECOGNISER), sample)

    @torch.inference_mode()
    def heard(self, waveform: np.ndarray) -> np.ndarray:
        return _letters(self._loaded, waveform)

    def spelled(self, word: str) -> list[int]:
        return self._speller.spelled(word)


def _letters(loaded: _Loaded, waveform: np.ndarray) -> np.ndarray:
    inputs = loaded.extractor(waveform, sampling_rate=loaded.sample_rate, return_tensors="pt").to(loaded.device)
    return loaded.model(**inputs).logits[0].float().log_softmax(-1).cpu().numpy()


def _blank(loaded: _Loaded) -> int:
    number = loaded.tokenizer.pad_token_id
    return int(loaded.config.pad_token_id if number is None else number)


def _kind(config: Any) -> str:
    """`ctc`, or `text` for models that write."""
    from transformers import MODEL_FOR_CTC_MAPPING, MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING

    named = config.architectures or []
    if any(name.endswith("ForCTC") for name in named) or (not named and type(config) in MODEL_FOR_CTC_MAPPING):
        return "ctc"
    if type(config) in MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING:
        return "text"
    raise UserError(f"{' or '.join(named) or config.model_type} is no speech recogniser that Lisan can use.",
                    "Choose a CTC model (wav2vec 2.0, MMS, HuBERT) or one that writes text (Whisper).")


_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


@contextmanager
def _explained(folder: Path, asked: RecogniserOption) -> Iterator[None]:
    """No network while a recogniser is loaded, and faults in words."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, AttributeError, TypeError,
            SafetensorError) as error:
        said = " ".join(str(error).split())[:300]
        raise UserError(f"The recogniser in {folder} could not be loaded: {type(error).__name__}: {said}.",
                        repair_hint(folder, asked)) from error
    finally:
        constants.HF_HUB_OFFLINE = before
