"""Review a dataset: its clips with findings, the worst first; exclude some, edit transcripts, save a new version.

    python -m scripts.review mine                                    what was found, and the 20 worst clips
    python -m scripts.review mine --kind pace --most 100             those with one kind of finding
    python -m scripts.review mine --exclude clip7 --exclude clip9    decide; nothing is changed yet
    python -m scripts.review mine --exclude-kind "same sound"        (--exclude-errors KIND: only where it is an error)
    python -m scripts.review mine --undo-kind "same sound"           undo what was decided about all of a kind
    python -m scripts.review mine --include clip9 --text clip3 "what is said"
    python -m scripts.review mine --fix-kind edges                   cut the silence at the ends of all that have some
    python -m scripts.review mine --save-as mine-2                   the dataset with what was decided
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from core.dataset import review
from core.dataset.clip_index import IndexedClip, SpeakerSummary
from core.dataset.review import ReviewDecision
from core.jobs.reporter import duration_text
from core.workspace import Workspace
from scripts.command import exit_with, run_in_workspace, run_verb, script_parser

_SPEAKERS, _SPEAKERS_SHOWN = 1_000_000, 12  # in the JSON; in print


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit code."""
    return run_in_workspace(build_parser(), arguments, _save_or_show)


def _save_or_show(workspace: Workspace, given: argparse.Namespace) -> dict[str, Any] | int:
    """Write the decided dataset in a job, or show what was found."""
    if not given.save_as:
        return _do(workspace, given)
    _decide(workspace, given)
    return run_verb("revise", ["--dataset", given.dataset, "--save-as", given.save_as, "--model", given.model,
                               "--workspace", given.workspace, *(["--json"] if given.json else [])])


def build_parser() -> argparse.ArgumentParser:
    parser = script_parser("review", __doc__, "end with the outcome as one line of JSON")
    parser.add_argument("dataset", help="a prepared dataset")
    parser.add_argument("--kind", default="", help="show clips with this kind of finding alone")
    parser.add_argument("--start", type=int, default=0, help="number of the first clip to show (default: %(default)s)")
    parser.add_argument("--most", type=int, default=20, help="number of clips to show (default: %(default)s)")
    for flag, metavar, words in (
        ("--exclude", "ID", "exclude a clip; repeatable"),
        ("--exclude-kind", "KIND", "exclude all clips with this kind of finding"),
        ("--exclude-errors", "KIND", "exclude the clips of which this kind of finding is an error"),
        ("--undo-kind", "KIND", "undo the decision about all clips with this kind of finding (excluded or repaired); "
                                "done before the other options"),
        ("--include", "ID", "include a clip again"),
        ("--fix-kind", "KIND", f"repair the recordings with this kind of finding: {', '.join(review.FIXES)}"),
    ):
        parser.add_argument(flag, action="append", default=[], metavar=metavar, help=words)
    parser.add_argument("--text", action="append", default=[], nargs=2, metavar=("ID", "TEXT"),
                        help="edit the transcript of a clip")
    parser.add_argument("--save-as", metavar="NAME",
                        help="write the dataset with these decisions under this name (the verb revise)")
    parser.add_argument("--model", default="tiny",
                        help="model whose extractor computes the features of repaired clips (default: %(default)s)")
    return parser


def _do(workspace: Workspace, given: argparse.Namespace) -> dict[str, Any]:
    index = review.index_of(workspace, given.dataset)
    decided = _decide(workspace, given)
    shown = index.page(given.start, given.most, given.kind)
    match = review.text_match_of(workspace, given.dataset)
    if match is not None:
        print(f"{match.message} {match.hint}" if match.is_finding else
              f"Texts and clips: {match.kind}, correlation of text length and duration {match.measured}.")
    print(f"{index.count_with_findings()} of {index.count()} clips have findings.")
    for kind in index.kinds():
        print(f"    {kind.level:8} {kind.kind}: {kind.count}{f' ({kind.parts})' if kind.parts else ''}")
        if note := review.BEFORE_EXCLUDING.get(kind.kind):
            print(f"             {note}")
    speakers = index.speakers(_SPEAKERS)
    _print_speakers(speakers)
    made = review.read_decisions(workspace, given.dataset)
    for one in shown:
        _print_clip(one, made.get(one.clip.id))
    return {"decided": decided, "texts_match": match.to_json() if match else None,
            "clips": index.count(), "with_findings": index.count_with_findings(),
            "kinds": [asdict(kind) for kind in index.kinds()], "speakers": asdict(speakers),
            "spread": asdict(index.plots()), "worst": [asdict(one) for one in shown]}


def _print_speakers(found: SpeakerSummary) -> None:
    print(f"{found.count} speakers, {found.alone} of them with one clip, which has no other to be its prompt.")
    for one in (*found.largest, *found.some_alone)[:_SPEAKERS_SHOWN]:
        print(f"    {duration_text(one.seconds):>10}  {one.clips:>6}  {one.name}")
    if (more := found.count - _SPEAKERS_SHOWN) > 0:
        print(f"    and {more} more")


def _decide(workspace: Workspace, given: argparse.Namespace) -> int:
    """Note what the command line decides; about how many clips."""
    named = [*given.exclude, *given.include, *(one for one, _ in given.text)]
    included_before = {one: review.is_in(workspace, given.dataset, one) for one in named}
    count = sum(review.undo_kind(workspace, given.dataset, kind) for kind in given.undo_kind)
    count += review.exclude(workspace, given.dataset, given.exclude, "by hand")
    count += sum(review.exclude_kind(workspace, given.dataset, kind) for kind in given.exclude_kind)
    count += sum(review.exclude_kind(workspace, given.dataset, kind, errors_only=True) for kind in given.exclude_errors)
    count += sum(review.fix_kind(workspace, given.dataset, kind) for kind in given.fix_kind)

    def first(one: str) -> ReviewDecision:
        return ReviewDecision(one, included=included_before[one])

    count += review.update_decisions(workspace, given.dataset, given.include,
                                     lambda one: replace(one, included=True, reason=""), first)
    texts = dict(given.text)
    return count + review.update_decisions(workspace, given.dataset, texts,
                                           lambda one: replace(one, text=texts[one.id]), first)


def _print_clip(one: IndexedClip, made: ReviewDecision | None) -> None:
    marks = [] if made is None else [word for word, holds in (
        ("excluded", not made.included), ("edited transcript", made.text), ("mended", made.fixes)) if holds]
    state = f" [{', '.join(marks)}]" if marks else ""
    print(f"{one.rank + 1:>6} {one.clip.id}{state}: {(made.text if made and made.text else one.clip.text)[:100]}")
    for finding in one.findings:
        print(f"           {finding.level}: {finding.message} ({finding.kind})")


if __name__ == "__main__":
    exit_with(main)
