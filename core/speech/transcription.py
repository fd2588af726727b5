"""Speech recognition: the built-in model's recogniser, and those that transformers loads from a folder.

A `Transcriber` gives texts, a `CTCModel` log-probabilities by frame. Of the hub there are CTC models (wav2vec 2.0,
MMS, HuBERT) and Whisper and its like. No code of a repository is run.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError

from config.errors import UserError
from core import compute
from core.jobs.reporter import Reporter, stage
from core.library import dataset_recognisers
from core.sources import recognisers
from core.sources.recognisers import BUILT_IN, LANGUAGE_OPTION, repair_hint
from core.speech.dataset_recogniser import DatasetRecogniser
from core.workspace import Workspace
from data import sound_files
from data.languages.latin import romanise
from models.base import CTCRecogniser
from models.registry import family

_OTHERS = "Choose another recogniser, such as openai/whisper-small or facebook/mms-1b-all."
_CHUNK_S, _CONTEXT_S = 16.0, 2.0  # seconds of a recording in one pass of a CTC model, and on either side of them
_BUILT_IN_MODEL = "tiny"
_MAX_NEW_TOKENS = 440  # room of Whisper's decoder beside its prompt
_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
_OF_MACROLANGUAGES = {"az": "azj", "ku": "kmr", "ms": "zlm", "ne": "npi", "no": "nob", "or": "ory", "sw": "swh",
                      "zh": "cmn"}  # the one that MMS and others have recordings of (https://iso639-3.sil.org)
_SCRIPTS = ("latin", "cyrillic", "arabic", "devanagari", "khmer", "ethiopic")


@dataclass(frozen=True)
class Transcript:
    """The text of a clip and the mean probability of its signs, 0 to 1."""

    text: str
    score: float


class Transcriber(Protocol):
    """Waveforms to text."""

    sample_rate: int  # Hz

    def transcribe(self, waveforms: Sequence[np.ndarray]) -> list[Transcript]:
        """Clips (S,) at `sample_rate`, each by itself."""
        ...


class CTCModel(Protocol):
    """Waveforms to log-probabilities of letters in every frame."""

    sample_rate: int  # Hz
    frame_s: float
    blank: int
    separator: int | None  # label between words, where it has one

    def log_probabilities(self, waveform: np.ndarray) -> np.ndarray:
        """Log-probabilities (F, V) of (S,)."""
        ...

    def encode(self, word: str) -> list[int]:
        """A word as labels, without letters that have none."""
        ...


class OwnRecogniser:
    """The recogniser of the built-in model, or of a dataset: it writes no spaces."""

    blank = 0
    separator: int | None = None

    def __init__(self, recogniser: CTCRecogniser, language: str) -> None:
        if language not in recogniser.languages:
            if isinstance(recogniser, DatasetRecogniser):
                reason = dataset_recognisers.unmeasured_reason(recogniser.record, language)
                raise UserError(f"The recogniser of a dataset cannot be used: {reason}.", _OTHERS)
            raise UserError(f"The built-in recogniser does not know {language!r}; it knows "
                            f"{', '.join(recogniser.languages)}, in synthetic voices.", _OTHERS)
        self._recogniser, self._language = recogniser, language
        self.sample_rate, self.frame_s = recogniser.sample_rate, recogniser.frame_s
        self._ids = {letter: number for number, letter in enumerate(recogniser.letters, 1)}

    @classmethod
    def load(cls, workspace: Workspace, name: str, language: str, device: str) -> OwnRecogniser:
        """`name` is `built-in` or `dataset:NAME`."""
        dataset = dataset_recognisers.dataset_of(name)
        if dataset:
            folder = dataset_recognisers.folder_of(workspace, dataset)
            return cls(DatasetRecogniser.load(folder, compute.setup_device(device)), language)
        recogniser = family(_BUILT_IN_MODEL).load_recogniser(workspace.model(_BUILT_IN_MODEL))
        assert recogniser is not None
        return cls(recogniser, language)

    def log_probabilities(self, waveform: np.ndarray) -> np.ndarray:
        return self._recogniser.log_probabilities(torch.from_numpy(waveform), self._language).numpy()

    def encode(self, word: str) -> list[int]:
        return [self._ids[letter] for letter in self._recogniser.normalise(word, self._language) if letter in self._ids]

    def transcribe(self, waveforms: Sequence[np.ndarray]) -> list[Transcript]:
        transcripts = []
        for waveform in waveforms:
            ids, score = best_path(self.log_probabilities(waveform), self.blank)
            transcripts.append(Transcript("".join(self._recogniser.letters[number - 1] for number in ids), score))
        return transcripts


class _HubModel:
    """A model with its feature extractor and tokenizer, set to one language."""

    def __init__(self, folder: Path, device: torch.device, language: str, recogniser_language: str) -> None:
        import transformers  # slow

        logging.getLogger("transformers").setLevel(logging.ERROR)
        self.folder, self.device = folder, device
        recognisers.check_named_files(folder)
        with _offline(folder):
            self.config: Any = transformers.AutoConfig.from_pretrained(folder, **_LOCAL)
            self.kind = _kind(self.config)
            self.extractor: Any = transformers.AutoFeatureExtractor.from_pretrained(folder, **_LOCAL)
            self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, **_LOCAL)
            loader = transformers.AutoModelForCTC if self.kind == "ctc" else transformers.AutoModelForSpeechSeq2Seq
            self.model: Any = loader.from_pretrained(folder, **_LOCAL, dtype=torch.float32)
            self.language = self._set_language(language, recogniser_language)
        self.model.eval().requires_grad_(False).to(device)
        self.sample_rate = int(self.extractor.sampling_rate)
        if not 1000 <= self.sample_rate <= 384_000:
            raise UserError(f"The recogniser in {folder} takes sound of {self.sample_rate} Hz.", repair_hint(folder))
        blank = self.tokenizer.pad_token_id
        self.blank = int(self.config.pad_token_id if blank is None else blank)

    def _set_language(self, language: str, recogniser_language: str) -> str | None:
        """Load the language's adapter (MMS); return the language code to generate with (Whisper)."""
        if self.kind == "ctc":
            if getattr(self.config, "adapter_attn_dim", None) is None:
                return None
            names = recogniser_language_names(language, recogniser_language)
            # MMS has an adapter of each language in a file of its own.
            code_name = next((name for name in names if (self.folder / f"adapter.{name}.safetensors").is_file()), "")
            if not code_name:
                raise UserError(f"The recogniser has no language {' or '.join(names[:2])}.",
                                f"Give its name of the language, such as `amh` ({LANGUAGE_OPTION}), or "
                                f"choose another (--recogniser).")
            self.tokenizer.set_target_lang(code_name)
            self.model.load_adapter(code_name, local_files_only=True, use_safetensors=True)
            return None
        codes_by_sign = getattr(self.model.generation_config, "lang_to_id", None)
        if not codes_by_sign:
            return None

        from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

        name = recogniser_language.strip("<|> ").lower()  # a code or the English name
        names = (name, TO_LANGUAGE_CODE.get(name, ""), name.replace("_", "-").split("-")[0]) if name else (
            language, language.split("-")[0])
        codes = {code.strip("<|>") for code in codes_by_sign}
        code_name = next((name for name in names if name in codes), "")
        if not code_name:
            raise UserError(f"The recogniser does not know {recogniser_language or language!r}.",
                            f"Give its name of the language, such as `am` or `amharic` ({LANGUAGE_OPTION}), or "
                            f"choose another (--recogniser), such as facebook/mms-1b-all.")
        return code_name

    def log_probabilities(self, waveform: np.ndarray) -> np.ndarray:
        """Log-probabilities (F, V) of a CTC model for (S,)."""
        inputs = self.extractor(waveform, sampling_rate=self.sample_rate, return_tensors="pt").to(self.device)
        return self.model(**inputs).logits[0].float().log_softmax(-1).cpu().numpy()


class HubTranscriber:
    """Texts by a recogniser that transformers loads."""

    def __init__(self, loaded: _HubModel) -> None:
        self._loaded = loaded
        self.sample_rate = loaded.sample_rate

    @classmethod
    def load(cls, folder: Path, device: torch.device, language: str, recogniser_language: str) -> HubTranscriber:
        """`recogniser_language` is the recogniser's name of the language; empty for the usual names."""
        return cls(_HubModel(folder, device, language, recogniser_language))

    @torch.inference_mode()
    def transcribe(self, waveforms: Sequence[np.ndarray]) -> list[Transcript]:
        loaded, transcripts = self._loaded, []
        if loaded.kind == "ctc":
            for waveform in waveforms:  # singly: padding changes the output of some of these models
                rows = loaded.log_probabilities(waveform)
                text = loaded.tokenizer.decode(rows.argmax(1).tolist(), skip_special_tokens=True)  # it joins repeats
                transcripts.append(Transcript(" ".join(text.split()), best_path(rows, loaded.blank)[1]))
            return transcripts

        # Whisper and its like write texts; the prompt takes a part of their room.
        inputs = loaded.extractor(list(waveforms), sampling_rate=loaded.sample_rate, return_tensors="pt",
                                  return_attention_mask=True).to(loaded.device)
        prompt = {"language": loaded.language, "task": "transcribe"} if loaded.language else {}
        room = min(_MAX_NEW_TOKENS, int(getattr(loaded.config, "max_target_positions", 0) or _MAX_NEW_TOKENS) - 8)
        output = loaded.model.generate(**inputs, **prompt, max_new_tokens=max(1, room), return_dict_in_generate=True,
                                       output_scores=True)

        # The score is the mean probability of the signs that were written.
        generated = output.sequences[:, -len(output.scores):]
        log_probs = torch.stack(output.scores, 1).float().log_softmax(-1).gather(2, generated[..., None])[..., 0]
        ends = {loaded.tokenizer.eos_token_id, loaded.tokenizer.pad_token_id}
        texts = loaded.tokenizer.batch_decode(output.sequences, skip_special_tokens=True)
        for text, row, numbers in zip(texts, log_probs, generated.tolist(), strict=True):
            keep = torch.tensor([number not in ends for number in numbers], device=log_probs.device)
            score = float(row[keep].exp().mean()) if bool(keep.any()) else 0.0
            transcripts.append(Transcript(" ".join(text.split()), score))
        return transcripts


class HubCTCModel:
    """Log-probabilities of letters by a recogniser that transformers loads."""

    def __init__(self, loaded: _HubModel, sample: str) -> None:
        if loaded.kind != "ctc":
            raise UserError(f"The recogniser in {loaded.folder.name} writes whole texts and gives no time of a letter.",
                            "To align, choose a CTC model, such as facebook/mms-1b-all.")
        self._loaded = loaded
        self.sample_rate, self.blank = loaded.sample_rate, loaded.blank
        self.frame_s = float(loaded.config.inputs_to_logits_ratio) / loaded.sample_rate
        vocabulary = loaded.tokenizer.get_vocab()
        self.separator = vocabulary.get(getattr(loaded.tokenizer, "word_delimiter_token", None) or "|")
        special = {loaded.tokenizer.pad_token, loaded.tokenizer.word_delimiter_token}
        self._speller = Speller.of({sign: number for sign, number in vocabulary.items() if sign not in special}, sample)

    @classmethod
    def load(cls, folder: Path, device: torch.device, language: str, recogniser_language: str,
             sample: str) -> HubCTCModel:
        """`sample` is some text of the language."""
        return cls(_HubModel(folder, device, language, recogniser_language), sample)

    @torch.inference_mode()
    def log_probabilities(self, waveform: np.ndarray) -> np.ndarray:
        return self._loaded.log_probabilities(waveform)

    def encode(self, word: str) -> list[int]:
        return self._speller.encode(word)


def best_path(log_probs: np.ndarray, blank: int) -> tuple[list[int], float]:
    """The labels of the likeliest path through (F, V), and their mean probability; 0 where all is blank."""
    best = log_probs.argmax(1)
    starts = [frame for frame in range(len(best))
              if best[frame] != blank and (frame == 0 or best[frame - 1] != best[frame])]
    score = float(np.exp(log_probs[starts, best[starts]]).mean()) if starts else 0.0
    return best[starts].tolist(), score


@dataclass(frozen=True)
class Speller:
    """Encodes words as labels of a vocabulary; romanises a script that the vocabulary does not have."""

    signs: Mapping[str, int]
    romanised: bool = False

    @classmethod
    def of(cls, vocabulary: Mapping[str, int], sample: str) -> Speller:
        """For a language of which `sample` is some text."""
        signs = {sign: number for sign, number in vocabulary.items() if len(sign) == 1}
        plain, latin = cls(signs), cls(signs, romanised=True)
        # Romanise if the vocabulary has less than half of the language's letters.
        letters = [letter for letter in sample if letter.isalpha()][:5000]
        encodable = sum(bool(plain.encode(letter)) for letter in letters)
        return latin if letters and encodable < len(letters) / 2 else plain

    def encode(self, word: str) -> list[int]:
        text = romanise(word) if self.romanised else unicodedata.normalize("NFC", word)
        numbers: list[int] = []
        for letter in text:
            # Marks belong to their letters, and the apostrophe to words of many languages.
            if letter.isalnum() or unicodedata.category(letter)[0] == "M" or letter == "'":
                numbers += self._signs_of(letter)
        return numbers

    def _signs_of(self, letter: str) -> list[int]:
        for form in (letter, letter.lower(), letter.upper()):
            if form in self.signs:
                return [self.signs[form]]

        # A letter without a sign is spelled by its parts, such as the letter below an accent.
        numbers: list[int] = []
        for part in unicodedata.normalize("NFKD", letter):
            numbers += [self.signs[form] for form in (part.lower(), part.upper()) if form in self.signs]
        return numbers[:4]


def recogniser_language_names(language: str, recogniser_language: str = "") -> tuple[str, ...]:
    """What recognisers may call a language, the likeliest first: ISO 639-3, the code itself, and scripts of MMS.

    `recogniser_language` is the user's answer, and then the only one.
    """
    if recogniser_language:
        return (recogniser_language,)
    import langcodes  # imported on use: its tables take a tenth of a second

    short = letters = language.split("-")[0]
    with suppress(LookupError, ValueError):  # a code of one's own
        letters = _OF_MACROLANGUAGES.get(short) or langcodes.Language.get(short, normalize=False).to_alpha3()
    return tuple(dict.fromkeys((letters, language, short, *(f"{letters}-script_{script}" for script in _SCRIPTS))))


@dataclass(frozen=True)
class RecogniserSource:
    """A recogniser whose files are on this machine, to be loaded here or in a worker."""

    workspace: Workspace
    name: str
    folder: Path | None  # Only a recogniser that transformers loads has one.
    language: str
    recogniser_language: str
    device: str

    def load_transcriber(self) -> Transcriber:
        if self.folder is None:
            return OwnRecogniser.load(self.workspace, self.name, self.language, self.device)
        return HubTranscriber.load(self.folder, compute.setup_device(self.device), self.language,
                                   self.recogniser_language)

    def load_ctc_model(self, sample: str) -> CTCModel:
        """The recogniser as a CTC model; `sample` is some text of the language."""
        if self.folder is None:
            return OwnRecogniser.load(self.workspace, self.name, self.language, self.device)
        return HubCTCModel.load(self.folder, compute.setup_device(self.device), self.language,
                                self.recogniser_language, sample)


def find_recogniser(name: str, revision: str, language: str, recogniser_language: str, device: str,
                    workspace: Workspace, reporter: Reporter) -> RecogniserSource:
    """The recogniser `name`, downloaded if necessary; `recogniser_language` is empty for the usual names."""
    folder = None
    if name != BUILT_IN and not dataset_recognisers.dataset_of(name):
        with stage(reporter, "recogniser"):
            folder = recognisers.ensure_recogniser(name, revision, recogniser_language_names(
                language, recogniser_language), workspace, reporter)
    return RecogniserSource(workspace, name, folder, language, recogniser_language, device)


def load_ctc_model(name: str, revision: str, language: str, recogniser_language: str, sample: str, device: str,
                   workspace: Workspace, reporter: Reporter) -> CTCModel:
    """The recogniser `name` as a CTC model, downloaded if necessary; `sample` is some text of the language."""
    source = find_recogniser(name, revision, language, recogniser_language, device, workspace, reporter)
    return source.load_ctc_model(sample)


def stream_log_probabilities(model: CTCModel, path: Path, progress: Callable[[float], None]) -> Iterator[np.ndarray]:
    """Log-probabilities of a long recording in consecutive blocks (F, V); `progress` gets the seconds done."""
    rate = model.sample_rate
    chunk, context = round(_CHUNK_S * rate), round(_CONTEXT_S * rate)
    chunk_frames, context_frames = round(_CHUNK_S / model.frame_s), round(_CONTEXT_S / model.frame_s)
    # Of `samples` the first `context_samples` were in the block before, and are only context.
    samples, context_samples, finished = np.zeros(0, np.float32), 0, 0
    for block in sound_files.read_resampled(path, rate):
        samples = np.concatenate([samples, block])
        while len(samples) - context_samples >= chunk + context:
            rows = model.log_probabilities(samples[:context_samples + chunk + context])
            yield rows[context_frames if context_samples else 0:][:chunk_frames]
            samples, context_samples = samples[context_samples + chunk - context:], context
            finished += chunk
            progress(finished / rate)

    # The rest, with silence after it, as the model expects at the end of speech.
    if len(samples) > context_samples:
        last_frames = -(-(len(samples) - context_samples) * chunk_frames // chunk)
        silence = np.zeros(rate // 2, np.float32)
        rows = model.log_probabilities(np.concatenate([samples, silence]))
        yield rows[context_frames if context_samples else 0:][:last_frames]
        progress((finished + len(samples) - context_samples) / rate)


def _kind(config: Any) -> str:
    """`ctc`, or `text` for models that write."""
    from transformers import MODEL_FOR_CTC_MAPPING, MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING

    # The architecture decides; without one, the class of the configuration.
    named = config.architectures or []
    if any(name.endswith("ForCTC") for name in named) or (not named and type(config) in MODEL_FOR_CTC_MAPPING):
        return "ctc"
    if type(config) in MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING:
        return "text"
    raise UserError(f"{' or '.join(named) or config.model_type} is no speech recogniser that Lisan can use.",
                    "Choose a CTC model (wav2vec 2.0, MMS, HuBERT) or one that writes text (Whisper).")


@contextmanager
def _offline(folder: Path) -> Iterator[None]:
    """No network while a recogniser is loaded; its faults as `UserError`."""
    from huggingface_hub import constants

    previous = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, AttributeError, TypeError,
            SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"The recogniser in {folder} could not be loaded: {type(error).__name__}: {reason}.",
                        repair_hint(folder)) from error
    finally:
        constants.HF_HUB_OFFLINE = previous
