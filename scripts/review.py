"""Review a dataset: its clips with findings, the worst first; exclude some, edit transcripts, save a new version.

    python -m scripts review mine                                    what was found, and the 20 worst clips
    python -m scripts review mine --kind pace --most 100             those with one kind of finding
    python -m scripts review mine --exclude clip7 --exclude clip9    decide; nothing is changed yet
    python -m scripts review mine --exclude-kind "same sound"        (--exclude-errors KIND: only where it is an error)
    python -m scripts review mine --undo-kind "same sound"           undo what was decided about all of a kind
    python -m scripts review mine --include clip9 --text clip3 "what is said"
    python -m scripts review mine --fix-kind edges                   cut the silence at the ends of all that have some
    python -m scripts review mine --save-as mine-2                   the dataset with what was decided
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import scripts  # noqa: F401  so that this file can be run directly, see scripts/scripts.py
from core.dataset import review
from core.dataset.clip_index import IndexedClip, SpeakerSummary
from core.dataset.review import ReviewDecision
from core.jobs.reporter import duration_text
from core.workspace import Workspace
from scripts.command import exit_with, run_in_workspace, run_verb, script_parser

_SPEAKERS, _SPEAKERS_SHOWN = 1_000_000, 12  # speakers in the JSON, and speakers in print


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit code."""
    return run_in_workspace(build_parser(), arguments, _save_or_show)


def _save_or_show(workspace: Workspace, args: argparse.Namespace) -> dict[str, Any] | int:
    """Write the decided dataset in a job, or show what was found."""
    if not args.save_as:
        return _do(workspace, args)
    _decide(workspace, args)
    return run_verb("revise", ["--dataset", args.dataset, "--save-as", args.save_as, "--model", args.model,
                               "--workspace", args.workspace, *(["--json"] if args.json else [])])


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


def _do(workspace: Workspace, args: argparse.Namespace) -> dict[str, Any]:
    index = review.index_of(workspace, args.dataset)
    decided = _decide(workspace, args)
    page = index.page(args.start, args.most, args.kind)

    match = review.text_match_of(workspace, args.dataset)
    if match is not None:
        print(f"{match.message} {match.hint}" if match.is_finding else
              f"Texts and clips: {match.kind}, correlation of text length and duration {match.measured}.")
    print(f"{index.count_with_findings()} of {index.count()} clips have findings.")
    for kind in index.kinds():
        print(f"    {kind.level:8} {kind.kind}: {kind.count}{f' ({kind.parts})' if kind.parts else ''}")
        note = review.BEFORE_EXCLUDING.get(kind.kind)
        if note:
            print(f"             {note}")

    speakers = index.speakers(_SPEAKERS)
    _print_speakers(speakers)
    decisions = review.read_decisions(workspace, args.dataset)
    for indexed in page:
        _print_clip(indexed, decisions.get(indexed.clip.id))

    return {"decided": decided, "texts_match": match.to_json() if match else None,
            "clips": index.count(), "with_findings": index.count_with_findings(),
            "kinds": [asdict(kind) for kind in index.kinds()], "speakers": asdict(speakers),
            "spread": asdict(index.plots()), "worst": [asdict(row) for row in page]}


def _print_speakers(speakers: SpeakerSummary) -> None:
    print(f"{speakers.count} speakers, {speakers.alone} of them with one clip, which has no other to be its prompt.")
    for speaker in (*speakers.largest, *speakers.some_alone)[:_SPEAKERS_SHOWN]:
        print(f"    {duration_text(speaker.seconds):>10}  {speaker.clips:>6}  {speaker.name}")
    remaining = speakers.count - _SPEAKERS_SHOWN
    if remaining > 0:
        print(f"    and {remaining} more")


def _decide(workspace: Workspace, args: argparse.Namespace) -> int:
    """Note what the command line decides; about how many clips."""
    named = [*args.exclude, *args.include, *(clip_id for clip_id, _ in args.text)]
    # A new decision begins with the state that the clip has now.
    included_before = {clip_id: review.is_in(workspace, args.dataset, clip_id) for clip_id in named}

    # What is undone comes first, so that the other flags decide anew.
    count = sum(review.undo_kind(workspace, args.dataset, kind) for kind in args.undo_kind)
    count += review.exclude(workspace, args.dataset, args.exclude, "by hand")
    count += sum(review.exclude_kind(workspace, args.dataset, kind) for kind in args.exclude_kind)
    count += sum(review.exclude_kind(workspace, args.dataset, kind, errors_only=True) for kind in args.exclude_errors)
    count += sum(review.fix_kind(workspace, args.dataset, kind) for kind in args.fix_kind)

    def first(clip_id: str) -> ReviewDecision:
        return ReviewDecision(clip_id, included=included_before[clip_id])

    count += review.update_decisions(workspace, args.dataset, args.include,
                                     lambda decision: replace(decision, included=True, reason=""), first)
    texts = dict(args.text)
    return count + review.update_decisions(workspace, args.dataset, texts,
                                           lambda decision: replace(decision, text=texts[decision.id]), first)


def _print_clip(entry: IndexedClip, decision: ReviewDecision | None) -> None:
    marks = [] if decision is None else [word for word, holds in (
        ("excluded", not decision.included), ("edited transcript", decision.text), ("mended", decision.fixes)) if holds]
    state = f" [{', '.join(marks)}]" if marks else ""
    print(f"{entry.rank + 1:>6} {entry.clip.id}{state}: "
          f"{(decision.text if decision and decision.text else entry.clip.text)[:100]}")
    for finding in entry.findings:
        print(f"           {finding.level}: {finding.message} ({finding.kind})")


if __name__ == "__main__":
    exit_with(main)
