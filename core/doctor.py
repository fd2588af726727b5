"""The model doctor: what a finetune from elsewhere changed against its base, tensor by tensor.

One pair of tensors is in memory at a time. Nothing is loaded as a model but to measure the base languages, and nothing
of the checkpoint is executed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F

from config import confinement
from config.errors import ErrorKind, UserError
from config.schema import DoctorOptions
from core.jobs.events import Plan, Progress, Result
from core.jobs.job import load_job
from core.jobs.reporter import Reporter, check_stop, pluralize, stage
from core.library import diagnosis
from core.library.diagnosis import (
    NEW_ROWS,
    OLD_ROWS,
    UNUSED,
    Assessment,
    Diagnosis,
    LanguageDrift,
    Languages,
    Level,
    ProbeDrift,
    TensorFinding,
    TokenizerFit,
)
from core.library.lineage import Model
from core.model import peft_folder
from core.model.loading import TTSModel, load_base
from core.proof import tokenizer_fit
from core.proof.certification import base_probes, equal_logits
from core.proof.restore import RestoreRequest, restore_base_rows
from core.proof.tensor_comparison import (
    TensorMatching,
    compare_new_rows,
    compare_tensors,
    dtype_name,
    is_transposed,
    is_turned,
    match_tensors,
)
from core.training.replay import ProbeSample
from core.workspace import Workspace
from models.base import Family, SampleLogits, WeightsFile
from models.registry import FAMILIES
from models.registry import family as family_named

_MAX_LISTED = 12  # tensors in the plan; all are in the diagnosis
_UNREADABLE = ("missing", "misshapen", "broken", "transposed")


@dataclass(frozen=True)
class DoctorCase:
    """Base and checkpoint, opened. `name` is the base's in the workspace, empty for one that is not there."""

    family: Family
    name: str
    base: WeightsFile
    other: WeightsFile
    matching: TensorMatching
    # The pieces of the base's tokenizer; empty if it is not available.
    pieces: Mapping[str, int]


def run(options: DoctorOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Examine a checkpoint, and restore the base's rows where that is asked for and possible."""
    if options.part != "model":
        raise UserError("As a job the doctor examines models only.",
                        "For the machine: python -m scripts doctor. For a model: python -m scripts doctor model "
                        "BASE CHECKPOINT; on the page: System, Doctor.")
    options = of_imported_run(workspace, options)
    case = open_case(workspace, options)
    tokenizer = fit_tokenizer(case, options, checkpoint_path(workspace, options))
    ids = tokenizer_fit.read_pieces(Path(tokenizer.path)) if tokenizer else {}
    # What cannot be done is refused before anything is compared.
    if options.restore:
        workspace.new_export(options.restore)
        if not case.name:
            raise UserError(f"{case.base.path} is not in the workspace, and the restored model needs all of its files.",
                            "Get it first (python -m scripts download --folder), and give its name as the base.")
        if tokenizer is None or not options.language:
            raise UserError("To restore, the tokenizer and the language of the new rows must be known.",
                            "Give --tokenizer FILE and --language CODE.")
        new = tokenizer.rows - tokenizer.base_size
        if new > 0 and not tokenizer.added:
            raise UserError(f"The tokenizer {tokenizer.path} has no piece for the {pluralize(new, 'new row')} of the "
                            "checkpoint: no text of the new language could be spoken.",
                            "Give the tokenizer it was trained with; an export of Lisan has it as "
                            "front_end/language-CODE.json.")

    with stage(reporter, "compare"):
        findings = compare(case, reporter, frozenset(ids.values()) if tokenizer else None)
    readable = not any(finding.state in _UNREADABLE for finding in findings if finding.part != diagnosis.NEW_ROWS)
    differs = any(finding.touched or finding.state == "rounded" for finding in findings) or (
        tokenizer is not None and tokenizer.moved_count > 0)

    # The drift is measured only if something can have changed it.
    drift = None
    if options.measure and case.name and readable and differs:
        moved = {} if tokenizer is None or tokenizer.base_ids_unchanged else {
            old: ids[piece] for piece, old in case.pieces.items() if piece in ids and ids[piece] < tokenizer.rows}
        with stage(reporter, "measure"):
            drift = _measure_drift(workspace, case, moved, reporter)

    summary = assess(findings, tokenizer, drift, notes(case, tokenizer),
                     case.family.tensor_layout.text_tables[0])

    # The worst findings are printed; the file has all of them.
    types = tuple(sorted({dtype_name(case.other.dtype(name)) for name in case.other.names}))
    diagnosis.write(reporter.directory, Diagnosis(
        case.name or str(case.base.path), str(case.other.path), case.family.name, case.matching.prefix, types,
        worst_first(findings), tokenizer, drift, summary))
    worst = [finding for finding in worst_first(findings) if finding.state not in ("equal", "rounded", "new")]
    table = [f"  {finding.state:10}  {finding.part:12}  {finding.name}: {finding.words}"
             for finding in worst[:_MAX_LISTED]]

    lines = [summary.headline, *summary.sentences, *(["The worst first:", *table] if table else []), summary.advice]
    if summary.restorable and not options.restore:
        lines.append("To restore them, the same command again with: --restore NAME --language CODE"
                     + ("" if tokenizer else " --tokenizer FILE"))
    reporter.emit(Plan(tuple(lines)))

    restored: Result = {}
    if options.restore:
        if not summary.restorable or tokenizer is None:
            raise UserError(f"No rows were restored, and {options.restore} was not made. {summary.advice}",
                            "The findings are above and in the job's diagnosis.json.")
        with stage(reporter, "restore"):
            base = load_base(workspace, case.name, torch.device("cpu"))
            request = RestoreRequest(options.restore, options.language, Path(tokenizer.path), reporter.directory.name)
            restored = restore_base_rows(workspace, base, case.other, case.matching, request)
    return {"assessment": summary.level, "headline": summary.headline, "base_languages": summary.base_languages,
            "tensors": len(case.base.names), "changed": sum(finding.touched for finding in findings),
            "restorable": summary.restorable, **restored}


def open_case(workspace: Workspace, options: DoctorOptions) -> DoctorCase:
    """Open base and checkpoint and match their tensors; `UserError` when they have nothing in common."""
    if not options.base or not options.checkpoint:
        raise UserError("A base and a checkpoint are needed.",
                        "Give both: python -m scripts doctor model tiny it.pt; on the page: Base and Checkpoint.")

    family, name, base, folder = _open_base(workspace, options.base)
    other = _open_checkpoint(family, checkpoint_path(workspace, options), base)
    matching = match_tensors(base, other, family.tensor_layout.text_tables, options.weights)
    if not matching.found and options.weights != "auto" and match_tensors(
            base, other, family.tensor_layout.text_tables).found:
        raise UserError(f"{other.path} holds no {'averaged (EMA)' if options.weights == 'ema' else 'raw'} weights.",
                        "Leave --weights at auto (on the page: Weights).")

    if not matching.found:
        adapters = " It holds adapters that were not merged into a model." if matching.adapters else ""
        raise UserError(
            f"{other.path} has none of the {len(base.names)} tensors of {options.base}; it has {len(other.names)}, "
            f"such as {', '.join(other.names[:3])}.{adapters}",
            "Merge them with the program that trained them, or take the base as it is." if adapters
            else "It belongs to another kind of model; give the base it was made from.",
        )
    pieces: Mapping[str, int] = {}
    # A bare file may lie without its tokenizer.
    with suppress(UserError):
        pieces = family.load_front_end(folder).base_vocabulary
    return DoctorCase(family, name, base, other, matching, pieces)


def of_imported_run(workspace: Workspace, options: DoctorOptions) -> DoctorOptions:
    """`options` with the file that an imported `run:ID` was made of; what is given beside it stays."""
    kind, _, name = options.checkpoint.partition(":")
    if kind != "run":
        return options
    job = load_job(workspace, workspace.whole_id(name, "import_model"))
    if job.verb != "import_model":
        raise UserError(f"{options.checkpoint} was trained here, so no old row of it can have changed.",
                        "Compute its certificate: python -m scripts certify. Only an imported finetune is examined by "
                        "its run.")
    fields = ("base", "tokenizer", "language")
    return options.model_copy(update={
        "checkpoint": str(job.settings["checkpoint"]), "weights": job.settings["weights"],
        **{field: getattr(options, field) or job.settings[field] for field in fields}})


def checkpoint_path(workspace: Workspace, options: DoctorOptions) -> Path:
    """The file or folder of the checkpoint; of `export:NAME` its folder in the workspace."""
    kind, _, name = options.checkpoint.partition(":")
    return workspace.export(name) if kind == "export" else confinement.open_path(options.checkpoint, in_place=True)


def compare(case: DoctorCase, reporter: Reporter, used: Collection[int] | None = None) -> list[TensorFinding]:
    """A finding for each tensor, and two for a table that may have new rows; `used` are the ids that have a piece."""
    findings: list[TensorFinding] = []
    names, part, prefix = case.base.names, case.family.tensor_layout.part, case.matching.prefix
    for done_count, name in enumerate(names, 1):
        findings += _compare_tensor(case, name, used)
        reporter.emit(Progress(done_count, len(names), "tensors", name))
        check_stop(reporter)
    return findings + [TensorFinding(name, part(name.removeprefix(prefix)), "extra", "the base has none of this name",
                                     case.other.shape(name), dtype_name(case.other.dtype(name)))
                    for name in case.matching.extra]


def _compare_tensor(case: DoctorCase, name: str, used: Collection[int] | None) -> list[TensorFinding]:
    """The findings of the base tensor `name`."""
    layout = case.family.tensor_layout
    of_languages = name == layout.language_table
    table = of_languages or name in layout.text_tables
    part = diagnosis.OLD_ROWS if table else layout.part(name)
    other_name = case.matching.found.get(name)
    if other_name is None:
        return [TensorFinding(name, part, "missing", "the checkpoint has none of this name or of these values",
                              case.base.shape(name))]

    base_shape, shape, kind = (case.base.shape(name), case.other.shape(other_name),
                               dtype_name(case.other.dtype(other_name)))
    base_tensor, tensor = case.base.tensor(name), case.other.tensor(other_name)

    if is_transposed(base_tensor, tensor):
        return [TensorFinding(name, part, "transposed", f"it is {shape}, the base's with rows for columns", shape,
                              kind)]
    if shape != base_shape and not (table and shape[1:] == base_shape[1:] and shape[0] > base_shape[0]):
        return [TensorFinding(name, part, "misshapen", f"it is {shape}, the base's {base_shape}", shape, kind,
                              rows=base_shape[0] if table else 0)]

    # The first rows are the base's; what follows them is new.
    count = base_shape[0] if base_shape else 1
    # Biases have no direction by which a row is found.
    among = tensor if table and tensor.ndim > 1 else None
    change = compare_tensors(base_tensor, tensor[:count] if table else tensor, among)
    words = f"{change.words} (named {other_name} there)" if name in case.matching.renamed else change.words
    finding = TensorFinding(name, part, change.state, words, shape, kind, change.change, count, change.rows_moved,
                            change.largest, change.median, change.rank, change.rows_behind)
    return [finding, *compare_new_rows(name, base_tensor, tensor,
                                       None if of_languages else used)] if table else [finding]


def _open_base(workspace: Workspace, base_name: str) -> tuple[Family, str, WeightsFile, Path]:
    """The base's family, its name in the workspace, its weights and its folder."""
    path = Path(base_name)
    if not path.is_absolute():
        base = Model.open(workspace, f"base:{base_name}")
        family = family_named(base.family_name)
        return family, base_name, family.open_weights(family.language_model_file(base.folder)), base.folder

    path = confinement.open_path(base_name, in_place=True)
    if not path.exists():
        raise UserError(f"There is no base {path}.", "Give the name of a model in the workspace, a file or a folder.")
    folder = path if path.is_dir() else path.parent

    for name in FAMILIES:
        family = family_named(name)
        with suppress(UserError):
            file = family.language_model_file(folder)
            if path in (folder, file):
                return family, "", family.open_weights(file), folder
    # Families that share tensor names share their meaning, so a bare file may be of either.
    for name in FAMILIES:
        family = family_named(name)
        weights = family.open_weights(path)
        if set(family.tensor_layout.text_tables) <= set(weights.names):
            return family, "", weights, folder
    raise UserError(f"{path} is the language model of no family that Lisan knows.",
                    "Give the base as it was published, or the name of a model in the workspace.")


def _open_checkpoint(family: Family, path: Path, base: WeightsFile) -> WeightsFile:
    """The weights at `path`; adapters of peft are merged into those of the base as they are read."""
    if not path.exists():
        raise UserError(f"There is no checkpoint {path}.", "Give a .safetensors or .pt file, or the folder of one.")
    if path.name in peft_folder.WEIGHTS and peft_folder.is_peft_folder(path.parent):
        path = path.parent
    if peft_folder.is_peft_folder(path):
        return peft_folder.open_merged(path, base, family)
    if path.is_dir():
        with suppress(UserError):
            return family.open_weights(family.language_model_file(path))
    try:
        return family.open_weights(path)
    except UserError as error:
        if error.kind != ErrorKind.TRUNCATED_FILE:
            raise
        raise UserError(error.message, "It was probably cut off while it was saved or copied. Copy it again, or take "
                        "an earlier checkpoint of the same training.") from error


def fit_tokenizer(case: DoctorCase, options: DoctorOptions, checkpoint: Path) -> TokenizerFit | None:
    """How the checkpoint's tokenizer fits; None where there is none to examine."""
    table = case.family.tensor_layout.text_tables[0]
    checkpoint_name = case.matching.found.get(table)
    if checkpoint_name is None:
        return None
    path = tokenizer_fit.find_tokenizer(options.tokenizer, checkpoint, case.other.shape(checkpoint_name)[0])
    if path is None or not case.pieces:
        return None
    return tokenizer_fit.fit_tokenizer(path, case.pieces, case.base.tensor(table), case.other.tensor(checkpoint_name))


def notes(case: DoctorCase, tokenizer: TokenizerFit | None) -> list[str]:
    """What else a reader of the file should know."""
    notes = list[str]()
    if tokenizer is None:
        reason = "none was given, and none lies in a separate folder with it" if case.pieces else \
            "the base's own, which it would be compared with, is not available"
        notes.append(f"Whether its tokenizer fits was not examined: {reason}.")
    if case.matching.prefix:
        notes.append(f"Every name begins with {case.matching.prefix!r}; programs that read the published names need "
                     "it removed.")

    # Other names of tensors matter to programs that read the published ones.
    renamed = case.matching.renamed
    if renamed:
        name, other_name = next(iter(renamed.items()))
        notes.append(f"{len(renamed)} tensors have other names there and were matched by their values "
                     f"({name} is {other_name}).")

    # A file may hold more than the weights that were examined.
    if case.matching.adapters:
        notes.append("It holds adapters beside the weights, which were not merged and were not examined.")
    other_sets = case.matching.others
    if other_sets:
        kind, other = ("average (EMA)", "raw") if case.matching.averaged else ("raw", "ema")
        notes.append(f"It holds the model {len(other_sets) + 1} times. Examined is the {kind} set, "
                     f"{case.matching.prefix!r}; the other is {', '.join(map(repr, other_sets))} (--weights {other}).")
    if case.matching.state:
        notes.append(f"Left out: {pluralize(case.matching.state, 'tensor')} of an optimizer, a schedule or a random "
                     "generator.")

    if isinstance(case.other, peft_folder.MergedAdapters):
        notes.append(f"A folder of peft: {pluralize(len(case.other.factors), 'tensor')} of the base with low-rank "
                     f"adapters merged in, {len(case.other.whole)} trained as a whole.")
    return notes


def _measure_drift(workspace: Workspace, case: DoctorCase, moved_ids: Mapping[int, int],
                   reporter: Reporter) -> ProbeDrift | None:
    """Run base-language samples through the base, then with the checkpoint's values; None without samples.

    Only one model is in memory. `moved_ids` gives the checkpoint's id of each base id that its tokenizer moved.
    """
    base = load_base(workspace, case.name, torch.device("cpu"))
    samples = base_probes(base)
    if not samples:
        return None
    base_logits = _probe(base, samples, reporter, "by the base")

    values = base.lm.module.state_dict()
    tables = base.lm.text_tables
    with torch.no_grad():
        for name, checkpoint_name in case.matching.found.items():
            # Of the text tables only the old rows are compared.
            if name in values:
                rows = [moved_ids.get(row, row) if name != base.lm.language_table else row
                        for row in range(len(values[name]))] if name in tables else slice(None)
                value = case.other.tensor(checkpoint_name)[rows]
                values[name].copy_(value.T if is_turned(case.base.tensor(name), values[name]) else value)

    logits = _probe(base, samples, reporter, "by the checkpoint")
    return compare_probes([item.language for item in samples], base_logits, logits)


def compare_probes(languages: Sequence[str], base_logits: Sequence[SampleLogits],
                   after: Sequence[SampleLogits]) -> ProbeDrift:
    """The drift of samples of these `languages`, over all of them and by language."""
    # Sums over codes, so that a long sample weighs more than a short one.
    same, codes, divergence, samples = Counter[str](), Counter[str](), Counter[str](), Counter(languages)
    for language, base_sample, sample in zip(languages, base_logits, after, strict=True):
        same[language] += int((base_sample.speech_logits.argmax(-1) == sample.speech_logits.argmax(-1)).sum())
        codes[language] += len(base_sample.speech_logits)
        nats = F.kl_div(sample.speech_logits.float().log_softmax(-1), base_sample.speech_logits.float().log_softmax(-1),
                        log_target=True, reduction="sum")
        divergence[language] += nats.item()  # type: ignore[assignment]  # a sum of nats
    by_language = tuple(LanguageDrift(code, samples[code], same[code] / codes[code], divergence[code] / codes[code])
                        for code in sorted(samples))
    equal = sum(equal_logits(base_sample, sample) for base_sample, sample in zip(base_logits, after, strict=True))
    return ProbeDrift(len(languages), equal, same.total() / codes.total(), divergence.total() / codes.total(),
                      tuple(sorted(samples)), by_language)


@torch.inference_mode()
def _probe(model: TTSModel, samples: Sequence[ProbeSample], reporter: Reporter, by: str) -> list[SampleLogits]:
    logits = []
    for done_count, item in enumerate(samples, 1):
        with model.adapters_for(item.language):
            logits.append(model.lm.probe(item.sample))
        reporter.emit(Progress(done_count, len(samples), "samples", by))
        check_stop(reporter)
    return logits


_SEVERITY = {"broken": 0, "misshapen": 1, "missing": 2, "transposed": 3, "noise": 4, "replaced": 5, "permuted": 6,
             "trained": 7, "low rank": 8, "shrunk": 9, "untrained": 10, "extra": 11, "rounded": 12, "new": 13,
             "equal": 14}
_LOST = ("broken", "misshapen", "missing", "transposed")
_REPLACED = ("noise", "replaced")
# For the other states, the length of the difference says nothing.
_MEASURED = ("shrunk", "trained", "low rank")
_MOSTLY, _FEW = 0.8, 0.5  # share of codes with the same top-1 prediction
# A language no longer works below this share of equal top-1 predictions, or from this divergence on, nats a code: noise
# of 30% of each tensor's length leaves the built-in model 48% and 1.15 nats, 50% leaves 6% and 6.3, 80% 0.1% and 12.5.
_WORKS_FROM_AGREEMENT, _WORKS_BELOW_DIVERGENCE = 0.1, 3.0
_DAMAGED_FROM_DIVERGENCE = 1.0

# Problem: its level and its sentence in the headline. `{}` is what the check found.
_PROBLEMS: dict[str, tuple[Level, str]] = {
    "kept": ("good", "The base model is unchanged: its languages work exactly as before."),
    "kept, vocabulary reordered": (
        "good", "The base model is unchanged: its languages work exactly as before. With its own tokenizer alone: the "
                "vocabulary was reordered."),
    "kept, tokenizer unfit": (
        "bad", "The base model is unchanged: its languages work exactly as before. But its tokenizer does not fit it."),
    "rounded": ("good", "The base model is unchanged but for rounding: its languages should sound the same."),
    "changed": ("changed", "The base model was changed, and its languages were not measured: listen to them to know "
                           "whether they still work."),
    "changed, measured": ("changed", "The base model was changed. {}"),
    "much changed": ("bad", "The base model was damaged. {}"),
    "no longer works": ("bad", "Broken: {}"),
    "noise": ("bad", "Broken: noise. {}"),
    "fewer rows": ("bad", "The base languages cannot work: it has fewer rows than the base, so some of their pieces "
                          "have none."),
    "pieces lost": ("bad", "The base languages cannot work: the tokenizer lacks {} of their pieces."),
    "pieces moved": ("bad", "The base languages cannot work: the tokenizer gives their pieces the ids of others."),
    "damaged": ("bad", "The base languages cannot work as they did. Damaged: {}."),
    "new rows broken": ("bad", "Its new rows hold values that are no numbers: the new language cannot work."),
    "new rows unequal": ("bad", "Its tables have different numbers of new rows ({}): no program can load it."),
    "new rows untrained": ("bad", "{}: the new language cannot work."),
    "new rows untrained, not read by speech": (
        "changed", "{}: it cannot predict the new text, which speech can do without."),
}
# What to do, by the first that applies. `{}` is why the base's rows cannot be restored.
_ADVICE = {
    "restore": "Only rows were damaged. The base's rows can be restored and the new ones kept: the base languages will "
               "then work exactly as before.",
    "nothing": "Nothing needs to be restored. To use it here: Import a finetune on the Model tab, or "
               "python -m scripts import_model.",
    "new rows broken": "It cannot be used as it is. Get the file again, or take an earlier checkpoint of the same "
                       "training.",
    "new rows unequal": "Extend every text table by the same rows, and train again; the base's rows are unchanged.",
    "new rows untrained, not read by speech": "The base needs nothing. Listen to the new language before you use it; "
                                              "continue the training with this table trainable.",
    "new rows untrained": "The base's rows are unchanged; no training reached the new ones. Take a later checkpoint or "
                          "train again with these rows trainable: they need a far higher learning rate than adapters.",
    "fewer rows": "It has fewer rows than this base, so most likely it was made from another one, such as the English "
                  "model where the multilingual one was given. Give the base it was made from.",
    "unreadable": "It cannot be used as it is. Get the file again, or take an earlier checkpoint of the same training. "
                  "{}",
    "merged adapters": "Adapters were merged, so they act on every language. Keep them separate and let them act on "
                       "the new language alone (the scope `gated`). {}",
    "other tokenizer": "The values of the base are unchanged, but the tokenizer is not theirs. Give the one that it "
                       "was trained with; if this is the one, train again with a tokenizer that keeps every base id.",
    "broken": "Take an earlier checkpoint of the same training, or train the new language with Lisan, where the base "
              "languages cannot change. {}",
    "listen": "{} Listen to the base languages, or train the new language with Lisan, where they cannot change.",
}


def worst_first(findings: Sequence[TensorFinding]) -> tuple[TensorFinding, ...]:
    """The findings by severity, then by how far the tensor moved."""
    return tuple(sorted(findings,
                        key=lambda finding: (_SEVERITY[finding.state], -finding.change, finding.name, finding.part)))


def assess(findings: Sequence[TensorFinding], tokenizer: TokenizerFit | None, drift: ProbeDrift | None,
           notes: Sequence[str] = (), embedding: str = "") -> Assessment:
    """What the findings mean; `notes` are added to the sentences. `embedding` names the table that speech reads."""
    languages = base_languages(findings, tokenizer, drift)
    restorable, obstacle = can_restore(findings, tokenizer, embedding)
    problem, facts = _base_problem(languages, findings, tokenizer, drift)

    # The level is the worse one of the base's and the new rows'.
    level, headline = _PROBLEMS[problem]
    headline = headline.format(facts)
    new_problem, new_facts = _new_rows_problem(findings, embedding)
    if new_problem:
        new_level, sentence = _PROBLEMS[new_problem]
        headline = f"{headline} {sentence.format(new_facts)}"
        level = "bad" if "bad" in (level, new_level) else level if level != "good" else new_level
    if tokenizer is not None and not tokenizer.fits:
        level = "bad"

    # The advice is the first that applies, from a full remedy to none.
    unreadable = any(finding.state in ("broken", "missing", "misshapen") for finding in findings)
    if restorable:
        advice = "restore"
    elif languages in ("kept", "rounded") and not obstacle:
        advice = "new rows broken" if new_problem and any(finding.state == "broken" for finding in findings) else (
            new_problem or "nothing")
    elif _fewer_rows(findings):
        advice = "fewer rows"
    elif unreadable:
        advice = "unreadable"
    elif any(finding.rank is not None for finding in findings):
        advice = "merged adapters"
    elif not any(finding.touched for finding in findings):
        # The languages are lost by the tokenizer alone.
        advice = "other tokenizer"
    else:
        advice = "broken" if drift is not None and broken_languages(drift) else "listen"
        obstacle = f"The base's rows are not restored. {obstacle}" if obstacle else ""

    sentences = (*_table_sentences(findings), *_part_sentences(findings), *_new_row_sentences(findings),
                 *([tokenizer_sentence(tokenizer)] if tokenizer else []), *([drift_sentence(drift)] if drift else []),
                 *notes)
    return Assessment(level, headline, languages, sentences, _ADVICE[advice].format(obstacle).strip(), restorable)


def base_languages(findings: Sequence[TensorFinding], tokenizer: TokenizerFit | None,
                   drift: ProbeDrift | None = None) -> Languages:
    """Whether the base languages still work, by their tensors, their tokenizer and the measured drift."""
    old = [finding for finding in findings if finding.part not in (NEW_ROWS, UNUSED)]
    followed = tokenizer is not None and tokenizer.rows_follow
    lost = any(finding.state in (*_LOST, *_REPLACED) or (finding.state == "permuted" and not followed)
               for finding in old)
    if lost or (tokenizer is not None and not (tokenizer.base_ids_unchanged or followed)):
        return "lost"
    states = {finding.state for finding in old if finding.state != "permuted"}
    if states <= {"equal", "extra"}:
        return "kept"
    if states <= {"equal", "rounded", "extra"}:
        return "rounded"
    return "lost" if drift is not None and broken_languages(drift) else "changed"


def broken_languages(drift: ProbeDrift) -> tuple[str, ...]:
    """The languages that no longer work by what was measured: few predictions are the base's, or all are far away."""
    return tuple(measured.language for measured in drift.by_language
                 if measured.agreement < _WORKS_FROM_AGREEMENT or measured.divergence >= _WORKS_BELOW_DIVERGENCE)


def can_restore(findings: Sequence[TensorFinding], tokenizer: TokenizerFit | None, embedding: str = "") -> tuple[bool,
                                                                                                                 str]:
    """Whether only rows were damaged and the new ones can be kept; else why not, as a sentence."""
    old = [finding for finding in findings if finding.part == OLD_ROWS]
    new = [finding for finding in findings if finding.part == NEW_ROWS]
    other_changed = [finding
                     for finding in findings if finding.part not in (OLD_ROWS, NEW_ROWS, UNUSED) and finding.touched]

    if not any(finding.touched for finding in old):
        return False, ""
    if not new:
        return False, "It has no new rows, so there is nothing to keep: the base itself is the restored model."
    if len(new) < len(old):
        tables = ", ".join(sorted({finding.name for finding in old} - {finding.name for finding in new}))
        return False, f"{tables} has no new rows, so the new pieces are incomplete."
    if other_changed:
        return False, (f"{len(other_changed)} other tensors changed as well ({other_changed[0].name}, ...). The new "
                       "rows learned beside them and would not work with those of the base.")

    # New rows are worth keeping only if they are complete and were trained.
    broken = [finding for finding in new if finding.state == "broken"]
    if broken:
        return False, f"The new rows of {broken[0].name} hold values that are no numbers."
    if len(set(_new_row_counts(findings).values())) > 1:
        return False, "Its tables have different numbers of new rows."
    untrained = _untrained(findings, embedding)
    if untrained:
        return False, (f"The new rows of {untrained[0].name} are {_alike(untrained)}, so there is nothing to keep: the "
                       "base itself is the restored model.")

    # Rows in another order say nothing about which of them are new.
    if any(finding.state == "permuted" for finding in old):
        behind = max(finding.rows_behind for finding in old)
        if behind:
            return False, f"{behind} of the base's rows stand among the new ones, so it is unknown which rows are new."
        if tokenizer is None:
            return False, ("Rows stand in another order, and only its vocabulary says which of them are new: give its "
                           "tokenizer.")
        if not tokenizer.base_ids_unchanged:
            return False, "The rows were reordered, so which of them are new depends on the other vocabulary."

    if tokenizer is not None and not tokenizer.fits:
        return False, "The tokenizer does not fit, so it is unknown which letters the new rows are for."
    return True, ""


def _base_problem(languages: Languages, findings: Sequence[TensorFinding], tokenizer: TokenizerFit | None,
                  drift: ProbeDrift | None) -> tuple[str, str]:
    """The entry of `_PROBLEMS` for the base, and what fills it."""
    if languages == "kept" and tokenizer is not None and not tokenizer.fits:
        return "kept, tokenizer unfit", ""
    if languages == "kept" and tokenizer is not None and tokenizer.rows_follow:
        return "kept, vocabulary reordered", ""
    if languages == "changed" and drift is not None:
        damaged = drift.agreement < _FEW or drift.divergence >= _DAMAGED_FROM_DIVERGENCE
        return "much changed" if damaged else "changed, measured", _measured(drift)
    if languages != "lost":
        return languages, ""

    # The base languages are lost; the clearest cause is named.
    if _fewer_rows(findings):
        return "fewer rows", ""
    base = [finding for finding in findings if finding.part not in (NEW_ROWS, UNUSED)]
    broken = _broken(drift) if drift is not None and broken_languages(drift) else ""
    noise = [finding.name for finding in base if finding.state == "noise"]
    if noise:
        facts = [f"All rows of {_join(noise)} are noise."]
        replaced = sum(finding.state == "replaced" for finding in base)
        if replaced:
            facts.append(f"{pluralize(replaced, 'other tensor')} resemble{'s' * (replaced == 1)} the base's no more.")
        if drift is not None:
            facts.append(broken[:1].upper() + broken[1:] if broken else _measured(drift))
        return "noise", " ".join(facts)

    # Without noise, the damaged parts are named.
    damaged_parts = sorted({finding.part for finding in base if finding.state in (*_LOST, *_REPLACED, "permuted")})
    if not damaged_parts and broken:
        return "no longer works", broken
    if not damaged_parts:
        assert tokenizer is not None
        return ("pieces moved", "") if tokenizer.moved_count else ("pieces lost", str(tokenizer.lost_count))
    changed = sorted({finding.part for finding in base if finding.state in _MEASURED} - set(damaged_parts))
    parts = _join(damaged_parts) + (f". Also changed: {_join(changed)}" if changed else "")
    if broken:
        return "no longer works", f"{broken} Damaged: {parts}."
    return "damaged", parts + (f". {_measured(drift).removesuffix('.')}" if drift is not None else "")


def _measured(drift: ProbeDrift) -> str:
    """How far the predictions for each language are from the base's, as a sentence."""
    languages = "; ".join(f"{part.language} {part.agreement:.0%}, {part.divergence:.2g} nats"
                          for part in drift.by_language) or f"{drift.agreement:.0%}, {drift.divergence:.2g} nats"
    return f"Measured, equal top-1 predictions and divergence a code: {languages}."


def _broken(drift: ProbeDrift) -> str:
    """The languages that no longer work, and what was measured of them, as the end of a sentence."""
    codes = broken_languages(drift)
    broken = [part for part in drift.by_language if part.language in codes]
    samples = sum(part.samples for part in broken)
    agreement = sum(part.agreement * part.samples for part in broken) / samples
    divergence = sum(part.divergence * part.samples for part in broken) / samples
    names = f"language {codes[0]} no longer works" if len(codes) == 1 else f"languages {_join(codes)} no longer work"
    return f"{names} ({agreement:.0%} equal top-1 predictions, {divergence:.3g} nats a code apart)."


def _new_rows_problem(findings: Sequence[TensorFinding], embedding: str) -> tuple[str, str]:
    """The entry of `_PROBLEMS` for the new rows, or an empty one; speech reads the rows of `embedding` alone."""
    new = {finding.name: finding for finding in findings if finding.part == NEW_ROWS}
    counts = _new_row_counts(findings)
    if any(finding.state == "broken" for finding in new.values()):
        return "new rows broken", ""
    if new and len(set(counts.values())) > 1:
        return "new rows unequal", _join([f"{name} has {count}" for name, count in counts.items()])
    untrained = [item for item in new.values() if item.state == "untrained"]
    if not untrained:
        return "", ""
    rows = ("Its new rows" if len(untrained) == len(new)
            else f"The new rows of {_join([item.name for item in untrained])}")
    read = _untrained(findings, embedding)
    return "new rows untrained" + ("" if read else ", not read by speech"), f"{rows} are {_alike(untrained)}"


def _new_row_counts(findings: Sequence[TensorFinding]) -> dict[str, int]:
    """New rows by table, for those tables whose old rows could be read."""
    new = {finding.name: finding.rows for finding in findings if finding.part == NEW_ROWS}
    return {finding.name: new.get(finding.name, 0) for finding in findings if finding.part == OLD_ROWS
            and finding.state not in ("missing", "misshapen", "transposed")}


def _untrained(findings: Sequence[TensorFinding], embedding: str) -> list[TensorFinding]:
    """New rows that no training reached, of the table that speech reads."""
    return [finding for finding in findings if finding.state == "untrained" and embedding in ("", finding.name)]


def _alike(untrained: Sequence[TensorFinding]) -> str:
    return "all alike" if all(finding.distinct == 1 for finding in untrained) else "mostly alike"


def _fewer_rows(findings: Sequence[TensorFinding]) -> bool:
    return any(finding.part == OLD_ROWS and finding.state == "misshapen" and finding.shape[:1] < (finding.rows,)
               for finding in findings)


def _join(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _table_sentences(findings: Sequence[TensorFinding]) -> list[str]:
    """A sentence for each table's old rows."""
    return [f"Old rows of {finding.name}: {finding.words}" + (
            f"; {finding.rows_moved} of {finding.rows} moved, by {finding.median:.2%} of their length at the median "
            f"and {finding.largest:.2%} at most." if finding.state in _MEASURED else ".")
            for finding in findings if finding.part == OLD_ROWS]


def _part_sentences(findings: Sequence[TensorFinding]) -> list[str]:
    """A sentence for each other part of the model."""
    listed = [finding for finding in findings if finding.part not in (OLD_ROWS, NEW_ROWS)]
    parts = list(dict.fromkeys(finding.part for finding in listed))
    equal = [part for part in parts if all(finding.state == "equal" for finding in listed if finding.part == part)]
    sentences = []
    if equal:
        sentences.append(f"Bit-identical: {_join(equal)} ({sum(finding.part in equal for finding in listed)} tensors).")
    for part in parts:
        of_part = [finding for finding in listed if finding.part == part and finding.state != "extra"]
        if part in equal or not of_part:
            continue
        counts = sorted(Counter(finding.state for finding in of_part).items(), key=lambda item: _SEVERITY[item[0]])
        line = f"{part.capitalize()}: {', '.join(f'{n} {state}' for state, n in counts)} of {len(of_part)} tensors"
        changes = [finding.change for finding in of_part if finding.state in _MEASURED]
        if changes:
            line += f"; those that changed moved by {median(changes):.2%} of their length at the median"
        ranks = [finding.rank for finding in of_part if finding.rank is not None]
        if ranks:
            line += f"; a LoRA of rank {max(ranks)} was merged into {len(ranks)} of them"
        sentences.append(line + ".")
    extra = [finding.name for finding in listed if finding.state == "extra"]
    if extra:
        sentences.append(f"{len(extra)} tensors that the base does not have: {', '.join(extra[:3])}"
                         f"{' and more' if len(extra) > 3 else ''}.")
    return sentences


def _new_row_sentences(findings: Sequence[TensorFinding]) -> list[str]:
    new = [finding for finding in findings if finding.part == NEW_ROWS]
    if not new and not _fewer_rows(findings):
        return ["No new rows: it has the vocabulary size of the base."]
    return [f"New rows of {finding.name}: {finding.rows}; {finding.words}." for finding in new]


def tokenizer_sentence(fit: TokenizerFit) -> str:
    """How the tokenizer fits the rows, in a sentence or two."""
    counts = f"The tokenizer has {fit.size} ids and the checkpoint {fit.rows} rows"
    if fit.beyond:
        return f"{counts}: {fit.beyond} pieces have no row, and a text with one of them fails. They do not fit."
    # The facts are joined into one sentence.
    facts = [counts + (f" ({fit.spare} rows have no piece{', which is no fault' * bool(fit.added)})"
                       if fit.spare else "")]
    if fit.lost_count:
        facts.append(f"{fit.lost_count} pieces of the base are gone ({', '.join(fit.lost[:3])})")
    if fit.moved_count:
        piece, old, new = fit.moved[0]
        rows = "and their rows moved with them" if fit.rows_follow else (
            f"and of these only {fit.following} find their row there" if fit.following else "and their rows did not")
        facts.append(f"{fit.moved_count} pieces of the base have another id ({piece!r} was {old}, is {new}), {rows}")
    if fit.trespassing_count and not fit.rows_follow:
        piece, row = fit.trespassing[0]
        facts.append(f"{fit.trespassing_count} new pieces stand on rows of the base ({piece!r} on row {row})")
    if fit.fits and fit.base_ids_unchanged:
        facts.append(f"every base piece has the id it had, and {fit.added} pieces were added behind")
    return "; ".join(facts) + "."


def drift_sentence(drift: ProbeDrift) -> str:
    """What both models predicted for base-language samples."""
    languages = ", ".join(drift.languages)
    if drift.equal == drift.samples:
        return f"Measured: the logits of all {drift.samples} base-language samples ({languages}) are bit-identical."
    share = "most" if drift.agreement >= _MOSTLY else "few" if drift.agreement < _FEW else "many"
    return (f"Measured on {drift.samples} base-language samples ({languages}): the top-1 prediction is the same for "
            f"{drift.agreement:.0%} of codes ({share}); the predictions are {drift.divergence:.3g} nats a code apart.")
