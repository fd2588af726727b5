"""The base models that Lisan knows, and references to models of the workspace. Never loads torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from config.errors import UserError
from core.jobs.checkpoint_names import pinned_names
from core.jobs.directory import load_job
from core.jobs.state import JobReader, JobState
from core.library.records import read_model_record
from core.workspace import Workspace


@dataclass(frozen=True)
class RepositoryPart:
    """Files from one repository of the hub. Each is a choice of names, of which the first that exists is taken."""

    repository: str
    files: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ModelVariant:
    """One published checkpoint of a family; its first part is its own repository."""

    name: str
    title: str
    languages: str
    parts: tuple[RepositoryPart, ...]
    codes: tuple[str, ...]  # of the languages

    @property
    def repository(self) -> str:
        return self.parts[0].repository


@dataclass(frozen=True)
class CatalogEntry:
    """What the catalog says of one family of base models."""

    name: str
    title: str
    what: str
    languages: str
    licence: str
    size: str
    note: str
    variants: tuple[ModelVariant, ...] = ()  # on the hub, the default first; none: it ships with the app
    sampling: Mapping[str, float] = field(default_factory=dict)  # the published defaults
    sound_options: tuple[str, ...] = ()  # fields of `config.schema.SoundOptions` that have an effect
    preset: str = "demo"  # the file in `config/presets` that suits it
    own_voice: tuple[str, str] | None = None  # a file of the model, and the name of the voice in it


_CHATTERBOX = "ResembleAI/chatterbox"
_SPEAKER = (("ve.safetensors", "ve.pt"), ("conds.pt",))
_S3GEN = ("s3gen.safetensors", "s3gen.pt")
_MANY = ("ar", "da", "de", "el", "en", "es", "fi", "fr", "he", "hi", "it", "ja", "ko", "ms", "nl", "no", "pl", "pt",
         "ru", "sv", "sw", "tr", "zh")
_GRAPHEMES, _CANGJIE = ("grapheme_mtl_merged_expanded_v1.json",), ("Cangjie5_TC.json",)


def _main_variant(name: str, title: str, codes: tuple[str, ...], *own: tuple[str, ...]) -> ModelVariant:
    """A checkpoint of the main repository: its own files, and those that all of them share.

    The published loader pairs v3 with `s3gen`, not with the `s3gen_v3` that lies beside it
    (resemble-ai/chatterbox, `mtl_tts.py`, commit 5de7a54).
    """
    languages = f"{len(codes)} languages" if len(codes) > 1 else "English"
    return ModelVariant(name, title, languages, (RepositoryPart(_CHATTERBOX, (*own, _S3GEN, *_SPEAKER)),), codes)


def _language_pack(name: str, title: str) -> ModelVariant:
    """A single-language pack: T3, tokenizer and its own S3Gen from its repository, the rest from the main one."""
    own = RepositoryPart(f"ResembleAI/Chatterbox-Multilingual-{name}", (
        (f"t3_{name.replace('-', '_')}.safetensors",), _GRAPHEMES, ("s3gen_v3.safetensors", "s3gen_v3.pt")))
    return ModelVariant(name, f"{title} pack", title, (own, RepositoryPart(_CHATTERBOX, (*_SPEAKER, _CANGJIE))),
                        (name[:2],))


_CHATTERBOX_VARIANTS = (
    _main_variant("multilingual-v3", "Multilingual v3 (recommended)", _MANY,
                  ("t3_mtl23ls_v3.safetensors",), _GRAPHEMES, _CANGJIE),
    _main_variant("multilingual-v2", "Multilingual v2", _MANY,
                  ("t3_mtl23ls_v2.safetensors",), _GRAPHEMES, _CANGJIE),
    _main_variant("multilingual-v1", "The first multilingual", _MANY,
                  ("t3_23lang.safetensors",), ("mtl_tokenizer.json",), _CANGJIE),
    _main_variant("english", "English", ("en",), ("t3_cfg.safetensors",), ("tokenizer.json",)),
    _language_pack("zh-cmn", "Mandarin Chinese"),
    _language_pack("es-mx-latam", "Latin American Spanish"),
    _language_pack("es-es", "Spanish of Spain"),
    _language_pack("pt-br", "Brazilian Portuguese"),
    _language_pack("pt-pt", "Portuguese of Portugal"),
    _language_pack("hi", "Hindi"),
)

CATALOG: tuple[CatalogEntry, ...] = (
    CatalogEntry(
        "tiny", "Built-in tiny model",
        "A small model that ships with Lisan and does the whole job on a CPU in minutes; made from synthetic speech, "
        "so it sounds like a machine.",
        "English, French", "Apache-2.0", "24 MB", "Ships with the app; needs no network.",
        sampling={"temperature": 0.2, "top_p": 1.0, "min_p": 0.05, "repetition_penalty": 1.0, "guidance": 0.5},
    ),
    CatalogEntry(
        "chatterbox", "Chatterbox Multilingual",
        "Resemble AI's multilingual speech model with voice cloning: a Llama of 30 layers over 25 codes a second.",
        "23 languages", "MIT", "about 3.2 GB",
        "From huggingface.co, or from a folder that is on disk already. A download that breaks off is resumed.",
        _CHATTERBOX_VARIANTS,
        sampling={"temperature": 0.8, "top_p": 1.0, "min_p": 0.05, "repetition_penalty": 2.0, "guidance": 0.5},
        sound_options=("exaggeration", "flow_steps", "flow_prompt_s", "watermark"), preset="chatterbox",
        own_voice=("conds.pt", "built-in"),
    ),
)


def find_entry(name: str) -> CatalogEntry:
    """The entry of the family `name`; `UserError` when there is none."""
    for candidate in CATALOG:
        if candidate.name == name:
            return candidate
    raise UserError(
        f"There is no model family named {name!r}.",
        f"There are: {', '.join(candidate.name for candidate in CATALOG)}.",
    )


def variant(of: CatalogEntry, name: str) -> ModelVariant:
    """The variant `name` of a family that has some, the default for an empty name; `UserError` when there is none."""
    for candidate in of.variants:
        if name in ("", candidate.name):
            return candidate
    raise UserError(
        f"{of.title} has no variant named {name!r}.",
        f"Known: {', '.join(candidate.name for candidate in of.variants) or 'none; leave --variant out'}.",
    )


def model_name(of: CatalogEntry, chosen: ModelVariant) -> str:
    """The default name of a variant in the workspace."""
    return of.name if chosen == of.variants[0] else f"{of.name}-{chosen.name}"


def family_of(workspace: Workspace, name: str) -> str:
    """The name of the family that the base model `name` belongs to: from its `model.json`.

    The built-in model has none, and is called what its family is called.
    """
    record = read_model_record(workspace.model(name))
    return record.family if record else name


@dataclass(frozen=True)
class ModelReference:
    """A model for synthesis: `reference` as given, and the folder that it resolves to."""

    reference: str
    kind: str  # "base", "run" or "export"
    name: str
    folder: Path  # models/NAME, a checkpoint's folder, or exports/NAME
    step: int | None = None  # of a run's checkpoint

    @property
    def label(self) -> str:
        """The name on the page."""
        if self.kind == "run":
            return f"{self.name}, step {self.step}"
        return f"{self.name} ({self.kind})"


def resolve(workspace: Workspace, reference: str) -> ModelReference:
    """The model behind `base:NAME`, `run:ID` (its best checkpoint), `run:ID@STEP` (or `@NAME`) or `export:NAME`."""
    kind, _, name = reference.partition(":")
    match kind:
        case "base":
            return ModelReference(reference, kind, name, workspace.model(name))
        case "export":
            return ModelReference(reference, kind, name, workspace.export(name))
        case "run":
            return _checkpoint(workspace, reference, name)
    raise UserError(
        f"{reference!r} is no reference to a model.",
        "Write base:NAME, run:ID (its best checkpoint), run:ID@STEP or export:NAME.",
    )


def require_run(reference: str) -> str:
    """`reference` where it names a run; bases and exports cannot be exported."""
    if not reference.startswith("run:"):
        raise UserError(f"{reference!r} is not a run to export.", "Give run:ID (its best checkpoint) or run:ID@STEP.")
    return reference


def list_references(workspace: Workspace, runs: Sequence[JobState]) -> list[ModelReference]:
    """All models for synthesis: bases, exports, and the best checkpoint of each of `runs` that has one."""
    found = [resolve(workspace, f"base:{name}") for name in workspace.list_models()]
    found += [resolve(workspace, f"export:{name}") for name in workspace.list_exports()]
    for state in runs:
        if state.verb == "train" and (best := _best(_checkpoints(state))) is not None:
            found.append(ModelReference(f"run:{state.id}", "run", state.id, *best))
    return found


def _checkpoint(workspace: Workspace, reference: str, name: str) -> ModelReference:
    run, _, wanted = name.partition("@")
    state = JobReader(load_job(workspace, run)).state()
    saved = _checkpoints(state)
    if not saved:
        raise UserError(
            f"The run {run!r} has no checkpoint ({state.status}).",
            "Let it train to its first checkpoint, or choose another run.",
        )
    if not wanted:
        best = _best(saved)
        assert best is not None
        return ModelReference(reference, "run", run, *best)
    pinned = pinned_names(state.job.directory)
    for folder, step in saved:
        if step == pinned.get(wanted) or str(step) == wanted:
            return ModelReference(reference, "run", run, folder, step)
    raise UserError(
        f"The run {run!r} has no checkpoint of step {wanted!r}, nor one of that name.",
        f"There are checkpoints of steps {', '.join(str(step) for _, step in saved)}"
        f"{'; names: ' + ', '.join(pinned) if pinned else ''}.",
    )


def _checkpoints(state: JobState) -> list[tuple[Path, int]]:
    """Folder and step of each checkpoint that is still there, the best last."""
    found = [one for one in state.checkpoints if (state.job.directory / one.path).is_dir()]
    found.sort(key=lambda one: (one.best, one.step))
    return [(state.job.directory / one.path, one.step) for one in found]


def _best(saved: Sequence[tuple[Path, int]]) -> tuple[Path, int] | None:
    """The last one marked as best, else the latest."""
    return saved[-1] if saved else None
