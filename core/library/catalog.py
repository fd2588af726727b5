"""The base models there are, and what a reference to a model of the workspace stands for. Never loads torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from config.errors import UserError
from core.jobs.checkpoint_names import pinned_names
from core.jobs.directory import load_job
from core.jobs.state import JobReader, JobState
from core.library.model_record import read_record
from core.workspace import Workspace


@dataclass(frozen=True)
class Part:
    """Files from one repository of the hub. Each is a choice of names, of which the first that is there is taken."""

    repository: str
    files: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Variant:
    """One of a family's checkpoints; the first of its parts is the repository it is named after."""

    name: str
    title: str
    languages: str
    parts: tuple[Part, ...]
    codes: tuple[str, ...]  # of the languages

    @property
    def repository(self) -> str:
        return self.parts[0].repository


@dataclass(frozen=True)
class Family:
    """One base model as the Model tab shows it. `available`: this version can get it."""

    name: str
    title: str
    what: str
    languages: str
    licence: str
    size: str
    available: bool
    note: str
    variants: tuple[Variant, ...] = ()  # what the hub has of it, the default first; none: it ships with the app
    sampling: Mapping[str, float] = field(default_factory=dict)  # the model's own values, as its family's code has them
    sound_controls: tuple[str, ...] = ()  # fields of `config.schema.SoundOptions` that reach something
    preset: str = "demo"  # the file in `config/presets` that suits it
    own_voice: tuple[str, str] | None = None  # a file of the model, and the name of the voice in it


_CHATTERBOX = "ResembleAI/chatterbox"
_SPEAKER = (("ve.safetensors", "ve.pt"), ("conds.pt",))
_S3GEN = ("s3gen.safetensors", "s3gen.pt")
_MANY = ("ar", "da", "de", "el", "en", "es", "fi", "fr", "he", "hi", "it", "ja", "ko", "ms", "nl", "no", "pl", "pt",
         "ru", "sv", "sw", "tr", "zh")
_GRAPHEMES, _CANGJIE = ("grapheme_mtl_merged_expanded_v1.json",), ("Cangjie5_TC.json",)


def _chatterbox(name: str, title: str, codes: tuple[str, ...], *own: tuple[str, ...]) -> Variant:
    """A checkpoint of the main repository: its own files, and those that all of them share.

    The published loader pairs v3 with `s3gen`, not with the `s3gen_v3` that lies beside it
    (resemble-ai/chatterbox, `mtl_tts.py`, commit 5de7a54).
    """
    languages = f"{len(codes)} languages" if len(codes) > 1 else "English"
    return Variant(name, title, languages, (Part(_CHATTERBOX, (*own, _S3GEN, *_SPEAKER)),), codes)


def _pack(name: str, title: str) -> Variant:
    """A single-language pack: T3, tokenizer and its own S3Gen from its repository, the rest from the main one."""
    own = Part(f"ResembleAI/Chatterbox-Multilingual-{name}", (
        (f"t3_{name.replace('-', '_')}.safetensors",), _GRAPHEMES, ("s3gen_v3.safetensors", "s3gen_v3.pt")))
    return Variant(name, f"{title} pack", title, (own, Part(_CHATTERBOX, (*_SPEAKER, _CANGJIE))), (name[:2],))


_CHATTERBOX_VARIANTS = (
    _chatterbox("multilingual-v3", "Multilingual v3 (recommended)", _MANY,
                ("t3_mtl23ls_v3.safetensors",), _GRAPHEMES, _CANGJIE),
    _chatterbox("multilingual-v2", "Multilingual v2", _MANY,
                ("t3_mtl23ls_v2.safetensors",), _GRAPHEMES, _CANGJIE),
    _chatterbox("multilingual-v1", "The first multilingual", _MANY,
                ("t3_23lang.safetensors",), ("mtl_tokenizer.json",), _CANGJIE),
    _chatterbox("english", "English", ("en",), ("t3_cfg.safetensors",), ("tokenizer.json",)),
    _pack("zh-cmn", "Mandarin Chinese"),
    _pack("es-mx-latam", "Latin American Spanish"),
    _pack("es-es", "Spanish of Spain"),
    _pack("pt-br", "Brazilian Portuguese"),
    _pack("pt-pt", "Portuguese of Portugal"),
    _pack("hi", "Hindi"),
)

FAMILIES: tuple[Family, ...] = (
    Family(
        "tiny", "Built-in tiny model",
        "A small model that ships with Lisan and does the whole job on a CPU in minutes; made from synthetic speech, "
        "so it sounds like a machine.",
        "English, French", "Apache-2.0", "24 MB", True, "Ships with the app; needs no network.",
        sampling={"temperature": 0.2, "top_p": 1.0, "min_p": 0.05, "repetition_penalty": 1.0, "guidance": 0.5},
    ),
    Family(
        "chatterbox", "Chatterbox Multilingual",
        "Resemble AI's multilingual speech model with voice cloning: a Llama of 30 layers over 25 codes a second.",
        "23 languages", "MIT", "about 3.2 GB", True,
        "From huggingface.co, or from a folder that is on disk already. A download that breaks off goes on where it "
        "stopped.", _CHATTERBOX_VARIANTS,
        sampling={"temperature": 0.8, "top_p": 1.0, "min_p": 0.05, "repetition_penalty": 2.0, "guidance": 0.5},
        sound_controls=("exaggeration", "flow_steps", "flow_prompt_s", "watermark"), preset="chatterbox",
        own_voice=("conds.pt", "built-in"),
    ),
    Family(
        "indextts2", "IndexTTS2",
        "Bilibili's speech model with control of emotion: 24 layers, 866 M parameters, over 50 codes a second.",
        "Chinese, English", "bilibili model licence (weights and finetunes; not an open-source licence)",
        "about 5.9 GB", False, "Comes in a later version; it cannot be downloaded yet.",
    ),
)


def family(name: str) -> Family:
    """The family `name`; `UserError` when there is none."""
    for candidate in FAMILIES:
        if candidate.name == name:
            return candidate
    raise UserError(
        f"There is no model family named {name!r}.",
        f"Those that can be had: {', '.join(candidate.name for candidate in FAMILIES if candidate.available)}.",
    )


def variant(of: Family, name: str) -> Variant:
    """The variant `name` of a family that has some, the default for an empty name; `UserError` when there is none."""
    for candidate in of.variants:
        if name in ("", candidate.name):
            return candidate
    raise UserError(
        f"{of.title} has no variant named {name!r}.",
        f"Known: {', '.join(candidate.name for candidate in of.variants) or 'none; leave --variant out'}.",
    )


def model_name(of: Family, chosen: Variant) -> str:
    """The name that a variant gets in the workspace when none is asked for."""
    return of.name if chosen == of.variants[0] else f"{of.name}-{chosen.name}"


def family_of(workspace: Workspace, name: str) -> str:
    """The name of the family that the base model `name` belongs to: from its `model.json`.

    The built-in model has none, and is called what its family is called.
    """
    record = read_record(workspace.model(name))
    return record.family if record else name


@dataclass(frozen=True)
class VoiceModel:
    """A model that can speak: `reference` as given, and the folder that holds it."""

    reference: str
    kind: str  # "base", "run" or "export"
    name: str
    folder: Path  # models/NAME, a checkpoint's folder, or exports/NAME
    step: int | None = None  # of a run's checkpoint

    @property
    def label(self) -> str:
        """How the page names it."""
        if self.kind == "run":
            return f"{self.name}, step {self.step}"
        return f"{self.name} ({self.kind})"


def resolve(workspace: Workspace, reference: str) -> VoiceModel:
    """The model behind `base:NAME`, `run:ID` (its best checkpoint), `run:ID@STEP` (or `@NAME`) or `export:NAME`."""
    kind, _, name = reference.partition(":")
    match kind:
        case "base":
            return VoiceModel(reference, kind, name, workspace.model(name))
        case "export":
            return VoiceModel(reference, kind, name, workspace.export(name))
        case "run":
            return _checkpoint(workspace, reference, name)
    raise UserError(
        f"{reference!r} names no model.",
        "Write base:NAME, run:ID (its best checkpoint), run:ID@STEP or export:NAME.",
    )


def run_to_export(reference: str) -> str:
    """`reference` where it is one to a run; bases and exports are not exported."""
    if not reference.startswith("run:"):
        raise UserError(f"{reference!r} is not a run to export.", "Give run:ID (its best checkpoint) or run:ID@STEP.")
    return reference


def voice_models(workspace: Workspace, runs: Sequence[JobState]) -> list[VoiceModel]:
    """Everything that can speak now: bases, exports, and the best checkpoint of each of `runs` that has one."""
    found = [resolve(workspace, f"base:{name}") for name in workspace.list_models()]
    found += [resolve(workspace, f"export:{name}") for name in workspace.list_exports()]
    for state in runs:
        if state.verb == "train" and (best := _best(_kept(state))) is not None:
            found.append(VoiceModel(f"run:{state.id}", "run", state.id, *best))
    return found


def _checkpoint(workspace: Workspace, reference: str, name: str) -> VoiceModel:
    run, _, wanted = name.partition("@")
    state = JobReader(load_job(workspace, run)).state()
    kept = _kept(state)
    if not kept:
        raise UserError(
            f"The run {run!r} has no checkpoint ({state.status}).",
            "Let it train to its first checkpoint, or choose another run.",
        )
    if not wanted:
        best = _best(kept)
        assert best is not None
        return VoiceModel(reference, "run", run, *best)
    named = pinned_names(state.job.directory)
    for folder, step in kept:
        if step == named.get(wanted) or str(step) == wanted:
            return VoiceModel(reference, "run", run, folder, step)
    raise UserError(
        f"The run {run!r} has no checkpoint of step {wanted!r}, nor one of that name.",
        f"There are checkpoints of steps {', '.join(str(step) for _, step in kept)}"
        f"{'; names: ' + ', '.join(named) if named else ''}.",
    )


def _kept(state: JobState) -> list[tuple[Path, int]]:
    """Checkpoints whose folder is still there, the best last."""
    there = [saved for saved in state.checkpoints if (state.job.directory / saved.path).is_dir()]
    there.sort(key=lambda saved: (saved.best, saved.step))
    return [(state.job.directory / saved.path, saved.step) for saved in there]


def _best(kept: Sequence[tuple[Path, int]]) -> tuple[Path, int] | None:
    """The last one said to be best, else the latest."""
    return kept[-1] if kept else None
