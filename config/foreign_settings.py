"""Settings of other training programs as options of Lisan: `training_config.yaml` of finetuning projects.

Each key is translated, or a sentence says what takes its place. Sizes and freezing are never settings here: they come
from the files, and the base's rows are a buffer. The keys are those of Diakonrobel/Amharic_chatterbox-TTS (`config/`),
JarodMica/index-tts (`trainers/train_gpt_v2.py`) and the trainer of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from config import foreign
from config.errors import UserError
from config.loading import parse_options
from config.schema import TrainOptions

_SECTIONS = ("model", "data", "training", "train", "finetuning", "finetune", "optimizer", "optim", "logging",
             "validation", "paths", "dataset", "checkpoint", "scheduler")
_KNOWN_AT_LEAST = 2  # keys of the table from which a file is one of another program
_FROM_FILES = "the size comes from the base's and the tokenizer's files"
_FROM_BASE = "the base model decides it"
_CACHED = "features are computed once, when the dataset is prepared"
_NOT_HERE = "there is no such setting here"


@dataclass(frozen=True)
class TranslatedKey:
    """One key of the file, `value` as it stands there, and what corresponds to it. `option` is empty if none does."""

    key: str
    value: object
    option: str
    here: str


@dataclass(frozen=True)
class Translation:
    """The keys of a file in its order, and the options of `train` that they give."""

    keys: tuple[TranslatedKey, ...]
    options: Mapping[str, object] = field(default_factory=dict)


def _number(value: object) -> object:
    """YAML reads `1e-5` as a text."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _schedule(value: object) -> object:
    name = str(value).lower()
    return next((schedule for schedule in ("cosine", "linear", "constant") if schedule in name), None)


def _optimizer(value: object) -> object:
    name = str(value).lower().replace("_", "")
    return "adamw8bit" if "8bit" in name else "adamw" if "adam" in name else None


def _device(value: object) -> object:
    name = str(value).lower().partition(":")[0]
    return name if name in ("auto", "cpu", "cuda") else None


def _whole(value: object) -> object:
    number = _number(value)
    return int(number) if isinstance(number, int | float) and not isinstance(number, bool) and number > 0 else None


def _positive(value: object) -> object:
    number = _number(value)
    return number if isinstance(number, int | float) and not isinstance(number, bool) and number > 0 else None


def _not_negative(value: object) -> object:
    number = _number(value)
    return number if isinstance(number, int | float) and not isinstance(number, bool) and number >= 0 else None


def _tracker(value: object) -> object:
    return "wandb" if value is True or value == "wandb" else None


_OPTIONS: Mapping[str, tuple[str, Callable[[object], object], str]] = {
    **dict.fromkeys(("learning_rate", "lr", "base_lr"), (
        "layer_lr", _positive, "rate of the base's layers, in scope `full`; new rows and adapters keep the preset's "
        "rates (`row_lr`, `adapter_lr`), which are higher because they start from nothing")),
    "weight_decay": ("weight_decay", _not_negative, "of the adapters; rows and base weights have none"),
    **dict.fromkeys(("optimizer", "optim"), ("optimizer", _optimizer, "AdamW, or AdamW with a state of 8 bits")),
    **dict.fromkeys(("lr_scheduler", "lr_scheduler_type", "scheduler"), (
        "schedule", _schedule, "cosine, linear or constant; the preset's otherwise")),
    **dict.fromkeys(("warmup_steps", "num_warmup_steps", "warmup"), ("warmup", _not_negative, "steps of warmup")),
    **dict.fromkeys(("max_epochs", "epochs", "num_epochs", "num_train_epochs"), (
        "max_epochs", _positive, "passes over the clips")),
    **dict.fromkeys(("max_steps", "total_steps", "num_steps"), ("steps", _whole, "optimizer steps")),
    **dict.fromkeys(("batch_size", "per_device_train_batch_size", "train_batch_size"), (
        "batch_size", _whole, "clips per step and process; split by itself if memory is short")),
    **dict.fromkeys(("grad_accumulation_steps", "gradient_accumulation_steps", "grad_accumulation",
                     "accumulate_grad_batches"), ("gradient_accumulation", _whole, "batches per step")),
    **dict.fromkeys(("grad_clip_val", "grad_clip_thresh", "grad_clip", "gradient_clip_val", "max_grad_norm"), (
        "max_grad_norm", _positive, "clipping by the global norm")),
    **dict.fromkeys(("save_interval", "save_every", "save_steps", "checkpoint_interval"), (
        "checkpoint_every", _whole, "steps between checkpoints, each with scored samples")),
    **dict.fromkeys(("eval_interval", "val_interval", "eval_steps"), (
        "validate_every", _not_negative, "steps between validations")),
    **dict.fromkeys(("patience", "early_stopping_patience"), ("patience", _not_negative, "validations")),
    **dict.fromkeys(("min_delta", "early_stopping_min_delta"), ("min_improvement", _not_negative, "smaller "
                                                                "improvements do not count")),
    **dict.fromkeys(("keep_last", "save_total_limit", "keep_last_k"), ("keep_last", _whole, "last checkpoints")),
    "text_loss_weight": ("text_loss_weight", _not_negative, "relative to the speech loss, whose weight is 1"),
    "seed": ("seed", _not_negative, ""),
    "device": ("device", _device, ""),
    "use_wandb": ("tracker", _tracker, "the run's own charts are always there"),
    "ema_decay": ("ema", _not_negative, "decay of the moving average, which is evaluated and exported"),
    **dict.fromkeys(("lora_r", "lora_rank"), ("adapter_rank", _whole, "rank of the adapters")),
}
_SENTENCES: Mapping[str, str] = {
    "freeze_original_embeddings": "freezing is always on: the old rows are a buffer, which no optimizer can change",
    "freeze_until_index": "the old rows are those of the base's file; nobody types their number",
    **dict.fromkeys(("n_vocab", "original_vocab_size", "vocab_size", "new_vocab_size", "number_text_tokens"),
                    _FROM_FILES),
    **dict.fromkeys(("freeze_encoder", "freeze_decoder", "freeze_vocoder"),
                    "`scope` selects what is trained (rows, gated or full); the base's codec and vocoder never are"),
    **dict.fromkeys(("hidden_channels", "filter_channels", "n_heads", "n_layers", "kernel_size", "p_dropout", "d_model",
                     "architecture", "name", "sampling_rate", "sample_rate", "filter_length", "hop_length",
                     "win_length", "n_mel_channels", "mel_fmin", "mel_fmax", "use_phonemes"), _FROM_BASE),
    **dict.fromkeys(("num_workers", "pin_memory", "prefetch_factor"), _CACHED),
    **dict.fromkeys(("use_amp", "fp16", "bf16", "mixed_precision", "amp"),
                    "`precision: auto` takes what the device computes best; trained weights are float32"),
    **dict.fromkeys(("train_ratio", "val_ratio", "test_ratio"), "python -m scripts prepare --held-out"),
    **dict.fromkeys(("dataset_path", "metadata_file", "data_dir", "train_manifest", "val_manifest"),
                    "python -m scripts prepare --source PATH"),
    **dict.fromkeys(("pretrained_model", "base_checkpoint", "extended_model", "pretrained_path"),
                    "python -m scripts download --folder for a base, python -m scripts import_model for a finetune"),
    **dict.fromkeys(("tokenizer", "tokenizer_path"), "python -m scripts tokenizer --tokenizer-file PATH"),
    **dict.fromkeys(("checkpoints", "output_dir", "log_dir", "checkpoint_dir"),
                    "everything lies in the workspace: --workspace, and --name of the run"),
    **dict.fromkeys(("use_ddp", "gpu_ids", "distributed"), "`processes`: one for each GPU"),
    **dict.fromkeys(("log_interval", "logging_steps", "use_tensorboard", "log_audio", "log_spectrograms",
                     "log_alignments"), "every step is logged, and each checkpoint has samples"),
    **dict.fromkeys(("sample_texts", "n_samples"), "--evaluation-texts FILE: language code, tab, sentence per line"),
    "mel_loss_weight": "the speech loss has the weight 1; `text_loss_weight` is relative to it",
    "early_stopping": "on with `patience` above 0",
    "warmup_ratio": "`warmup` counts steps; epochs and minutes shorten a warmup that is too long",
    **dict.fromkeys(("betas", "eps", "lr_decay", "min_epochs", "adam_epsilon"), _NOT_HERE),
    **dict.fromkeys(("wandb_project", "wandb_entity"), "the environment variables of wandb"),
    "enabled": "a finetune is what this program makes",
}


def is_foreign(values: object) -> bool:
    """Whether `values` of a YAML file are settings of another training program."""
    if not isinstance(values, Mapping):
        return False
    names = [key.rpartition(".")[2] for key, _ in _leaves(values)]
    nested = any(isinstance(value, Mapping) and key in _SECTIONS for key, value in values.items())
    own_keys = {"verb", "options", "preset"} & set(map(str, values))
    known_count = sum(name in _OPTIONS or name in _SENTENCES for name in names)
    own_names = {option for option, *_ in _OPTIONS.values()}
    typical = any(name in _SENTENCES or (name in _OPTIONS and name not in own_names) for name in names)
    return not own_keys and typical and known_count >= _KNOWN_AT_LEAST and (nested or known_count == len(names))


def read(path: Path) -> Translation:
    """The translation of a YAML file; `UserError` if it is none of another program, or a value is out of range here."""
    try:
        values = foreign.read_yaml(path)
    except OSError as error:
        raise UserError(f"{path} could not be read: {error.strerror}.", "Give a YAML file of settings.") from error
    if not is_foreign(values):
        raise UserError(f"{path.name} has no keys of another training program, such as `learning_rate` in a section "
                        "`training`.", "A file of options of Lisan goes to python -m scripts train --config as it is.")
    translation = translate(values)
    parse_options(TrainOptions, dict(translation.options))
    return translation


def translate(values: Mapping[str, object]) -> Translation:
    """Every key of the file with what corresponds to it, and the options of a training."""
    keys, options = list[TranslatedKey](), dict[str, object]()
    stopping = next((value for key, value in _leaves(values) if key.rpartition(".")[2] == "early_stopping"), True)
    for key, value in _leaves(values):
        name = key.rpartition(".")[2]
        if name not in _OPTIONS:
            keys.append(TranslatedKey(key, value, "", _SENTENCES.get(name, _NOT_HERE)))
            continue
        option, convert, words = _OPTIONS[name]
        translated = convert(value)
        if name == "patience" and stopping is False:
            translated = 0
        if translated is None or option in options:
            reason = f"`{option}` is set by another key" if option in options else f"not a value of `{option}` here"
            keys.append(TranslatedKey(key, value, "", reason))
            continue
        options[option] = int(translated) if option in _WHOLE and isinstance(translated, float) else translated
        keys.append(TranslatedKey(key, value, option, words))
    return Translation(tuple(keys), options)


_WHOLE = ("steps", "warmup", "batch_size", "gradient_accumulation", "checkpoint_every", "validate_every", "patience",
          "keep_last", "seed", "adapter_rank")


def _leaves(values: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    """Keys with their sections, joined by dots, and values that are no sections."""
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


def table(translation: Translation) -> list[str]:
    """A line for each key: the key and its value there, and the option or the sentence here."""
    lines = []
    for entry in translation.keys:
        value = str(entry.value) if len(str(entry.value)) <= 40 else f"{str(entry.value)[:37]}..."
        option = f"{entry.option}: {translation.options[entry.option]}" if entry.option else ""
        lines.append(f"  {entry.key}: {value}\n      -> {' (' .join(filter(None, (option, entry.here)))}"
                     f"{')' if option and entry.here else ''}")
    return lines
