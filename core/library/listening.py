"""Listening tests: their design, the answers of listeners, and what they say. Never loads torch.

A test is the folder of the job that made it: `listening_test.json` says which clip is of which model,
`listening-test.html` is what listeners get, and `answers.jsonl` has a line for each answer, which is never changed. An
answer arrives from the page or in a file that a listener sent; both are foreign, and are added once, however often they
arrive.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations, product
from pathlib import Path
from typing import Any, Literal, TypeGuard

import numpy as np

from config import foreign, loading
from config.errors import UserError
from config.languages import language_name
from config.schema import ListeningTestOptions
from core.jobs.locks import locked
from core.jobs.reporter import pluralize
from core.library import evaluation_report
from core.library.evaluation_report import (
    ANCHOR,
    QUESTIONS,
    REFERENCE,
    EvaluatedClip,
    EvaluationReport,
    ListenerResult,
    ListeningResult,
    ListeningScore,
)
from core.workspace import Workspace, resolve_inside
from data.durable_files import append_text

TEST, PAGE, ANSWERS = "listening_test.json", "listening-test.html", "answers.jsonl"
FORMAT = "lisan-listening-test-1"
FILE_BYTES, PAGE_BYTES = 1 << 20, 64 << 20
_TEMPLATE = Path(__file__).parents[1] / "listening_test.html"
_DATA_PLACE = "/*DATA*/"
_DATA = re.compile('<script type="application/json" id="data">([^<]*)</script>')
_MOST_SESSIONS, _NAME_LENGTH, _LONGEST_S = 1000, 60, 86_400.0
_FROM_TEST = "Ask for the file that the test page saved."
SAME = "same"
_TURNS = {"rating": 1, "preference": 2, "abx": 4}  # A and B exchanged; and X the one or the other
_CHOICES: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "rating": {"naturalness": (1, 2, 3, 4, 5), "intelligibility": (1, 2, 3, 4, 5)},
    "preference": {"preference": ("A", "B", SAME)}, "abx": {"abx": ("A", "B")},
}


@dataclass(frozen=True)
class ListeningClip:
    """A sound of the test; its id says nothing. `copy`: X of ABX, which is another file than A or B."""

    id: str
    model: str
    sentence: int
    copy: bool = False


@dataclass(frozen=True)
class Trial:
    """One page of the test: one clip to rate, A and B, or A, B and X."""

    id: str
    sentence: int
    clips: tuple[str, ...]


@dataclass(frozen=True)
class ListeningTest:
    """A test as it was made. `models` are compared, with the reference and the anchor behind them; a listener does one
    of the `rows`, ids of trials, in random order."""

    id: str
    evaluation: str
    kind: Literal["rating", "preference", "abx"]
    language: str
    about: str
    models: tuple[str, ...]
    clips: tuple[ListeningClip, ...]
    trials: tuple[Trial, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ListeningPlan:
    """What a test compares: groups of models that are heard together, and the clip of each model and sentence."""

    language: str
    # The models compared; the reference and the anchor follow if recordings exist.
    models: tuple[str, ...]
    conditions: tuple[tuple[str, ...], ...]
    sentences: tuple[int, ...]
    clips: Mapping[tuple[str, int], EvaluatedClip]


def plan(report: EvaluationReport, options: ListeningTestOptions) -> ListeningPlan:
    """What the test of `options` compares; `UserError` where the evaluation has too little for it."""
    language = options.language or report.languages()[0]
    clips: dict[tuple[str, int], EvaluatedClip] = {}
    for clip in report.clips:
        if clip.language == language:
            # Only the first voice and seed of a sentence are heard.
            clips.setdefault((clip.model, clip.sentence), clip)
    known_models = list(dict.fromkeys(model for model, _ in clips))
    if not known_models:
        raise UserError(f"The evaluation has no clips in {language_name(language)}.",
                        f"Choose one of its languages: {', '.join(report.languages())}.")

    unknown = [name for name in options.models if name not in known_models]
    if unknown:
        raise UserError(f"The evaluation has no clips of {unknown[0]} in {language_name(language)}.",
                        f"Choose among its models: {', '.join(known_models)}.")
    compared = tuple(options.models or (name for name in known_models if name != REFERENCE))
    if options.kind == "rating":
        # The reference is part of every rating anyway.
        compared = tuple(name for name in compared if name != REFERENCE)
    least = 1 if options.kind == "rating" else 2
    if len(compared) < least:
        raise UserError(f"The test compares {len(compared)} models; at least {least} are wanted.",
                        "Evaluate more models together, or choose the kind `rating`.")

    controls = (REFERENCE, ANCHOR) if REFERENCE in known_models else ()
    models = tuple(dict.fromkeys((*compared, *controls)))
    conditions = [(name,) for name in models] if options.kind == "rating" else [
        *combinations(compared, 2), *([controls] if controls else [])]

    # The anchor is made from the recordings, so no clips of it exist yet.
    needed = [name for name in models if name != ANCHOR]
    shared = [number for number in dict.fromkeys(number for _, number in clips)
              if all((name, number) in clips for name in needed)]
    # Each condition gets the same number of sentences.
    count = min(options.count, len(shared)) // len(conditions) * len(conditions)
    if not count:
        raise UserError(f"{len(shared)} sentences are spoken by all of {', '.join(needed)}, and {options.count} are "
                        f"asked for; a listener hears a sentence in each of {len(conditions)} conditions.",
                        "Evaluate more sentences, ask for more, or choose fewer models.")
    chosen = tuple(shared[place * len(shared) // count] for place in range(count))
    return ListeningPlan(language, models, tuple(conditions), chosen, clips)


def design(conditions: int, turns: int, sentences: int) -> list[list[tuple[int, int, int]]]:
    """Sentence, condition and turn of each trial, a row a listener: a cyclic Latin square.

    A listener hears each sentence once and each condition equally often, where `sentences` is a multiple of
    `conditions`. Over all rows each sentence meets each condition in each turn exactly once.
    """
    rows = []
    for row in range(conditions * turns):
        rows.append([(place, (place + row) % conditions, (place // conditions + row // conditions) % turns)
                     for place in range(sentences)])
    return rows


def lay_out(test_plan: ListeningPlan, kind: str) -> tuple[tuple[ListeningClip, ...], tuple[Trial, ...],
                                                   tuple[tuple[str, ...], ...]]:
    """Clips, trials and rows under random ids, in the order of the ids: neither tells which model is which."""
    clips: dict[tuple[str, int, bool], ListeningClip] = {}
    trials: dict[tuple[int, int, int], Trial] = {}
    rows, ids = [], _fresh_ids()

    def clip_of(model: str, sentence: int, copy: bool = False) -> str:
        key = model, sentence, copy
        if key not in clips:
            clips[key] = ListeningClip(next(ids), *key)
        return clips[key].id

    # A row is what one listener hears, with conditions and turns in balance.
    for row in design(len(test_plan.conditions), _TURNS[kind], len(test_plan.sentences)):
        for place, condition, turn in row:
            sentence, group = test_plan.sentences[place], test_plan.conditions[condition]
            models = group[::-1] if turn % 2 else group
            clip_ids = [clip_of(model, sentence) for model in models]
            if kind == "abx":
                clip_ids.append(clip_of(models[turn // 2], sentence, True))
            trials.setdefault((place, condition, turn), Trial(next(ids), sentence, tuple(clip_ids)))
        rows.append(tuple(sorted(trials[trial].id for trial in row)))
    return (tuple(sorted(clips.values(), key=lambda clip: clip.id)),
            tuple(sorted(trials.values(), key=lambda trial: trial.id)), tuple(rows))


def _fresh_ids() -> Iterator[str]:
    used = set[str]()
    while True:
        fresh_id = secrets.token_hex(4)
        if fresh_id not in used:
            used.add(fresh_id)
            yield fresh_id


def read_test(folder: Path) -> ListeningTest:
    """The test in `folder`; `UserError` when it is missing or damaged."""
    if not (folder / TEST).is_file():
        raise UserError(f"{folder.name} is no listening test.", "Make one: python -m scripts listening_test.")
    return _read_test(folder / TEST)


@foreign.cached_by_file(32)
def _read_test(path: Path) -> ListeningTest:
    hint = "Make the test again: python -m scripts listening_test."
    test = loading.read_record(path, ListeningTest, hint)
    if not test.rows or not all(test.rows):
        raise UserError(f"{path} is damaged: it has no rows of trials.", hint)
    clips, trials = {item.id for item in test.clips}, {item.id for item in test.trials}
    clips_per_trial = {"rating": 1, "preference": 2, "abx": 3}[test.kind]
    if any(len(trial.clips) != clips_per_trial or not clips.issuperset(trial.clips) for trial in test.trials):
        raise UserError(f"{path} is damaged: a trial has other clips than it can have.", hint)
    if len(set(map(len, test.rows))) > 1 or any(not trials.issuperset(row) for row in test.rows):
        raise UserError(f"{path} is damaged: its rows have other trials than it has.", hint)
    return test


def fill_page(values: Mapping[str, Any]) -> str:
    """The HTML page of a test; `values` is what its script reads."""
    data = json.dumps(values, ensure_ascii=False).replace("<", "\\u003c")
    return _TEMPLATE.read_text(encoding="utf-8").replace(_DATA_PLACE, data)


def read_page(folder: Path) -> str:
    """The page of the test in `folder`: our template with the data of its file, so no foreign script is served."""
    path, hint = folder / PAGE, "Make the test again: python -m scripts listening_test."
    with foreign.reading(path, hint):
        data_match = _DATA.search(foreign.read_bytes(path, PAGE_BYTES).decode("utf-8"))
        values = foreign.loads(data_match[1]) if data_match else None
        if not isinstance(values, dict):
            raise ValueError("it has no data of a test")
        return fill_page(values)


def list_tests(workspace: Workspace, evaluation: str = "") -> list[tuple[Path, ListeningTest]]:
    """Folder and test of every listening test, or of those of one evaluation."""
    tests = []
    for folder in (workspace.runs / name for name in workspace.list_runs()):
        if (folder / TEST).is_file():
            # The Listen tab reports a damaged test; it must not end the evaluation of others.
            with suppress(UserError):
                tests.append((folder, read_test(folder)))
    return [(folder, test) for folder, test in tests if evaluation in ("", test.evaluation)]


@dataclass
class Session:
    """One listener's way through a test: the row, and the answers by trial."""

    listener: str
    row: int
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class AddedAnswers:
    """What came of some foreign answers. `rows`: the row of each session that was sent, in order."""

    folder: Path
    test: ListeningTest
    answers: int
    rows: tuple[int, ...]
    # True once a session has answered its whole row.
    complete: bool


def add_answers(workspace: Workspace, content: bytes, origin: object, folder: Path | None = None) -> AddedAnswers:
    """Add the answers in `content`, the JSON of a test page, to their test, or to the one in `folder`.

    What is there already is not added again. `UserError`, and nothing is added, for what no test page writes. A session
    without a row gets the one that the fewest have.
    """
    if len(content) > FILE_BYTES:
        raise UserError(f"{origin} has {len(content)} bytes; answers have at most {FILE_BYTES}.", _FROM_TEST)
    with foreign.reading(origin, _FROM_TEST):
        sheet = foreign.loads(content)

    # The sheet names its test, which must be in this workspace.
    if not isinstance(sheet, dict) or sheet.get("format") != FORMAT or \
            not isinstance(sheet.get("sessions"), list):
        raise UserError(f"{origin} holds no answers of a listening test.", _FROM_TEST)
    if folder is None:
        folders = [test_folder for test_folder, test in list_tests(workspace) if test.id == sheet.get("test")]
        if not folders:
            raise UserError(f"{origin} belongs to the listening test {_shown(sheet.get('test'))}, which is not in this "
                            "workspace.", "Import it where the test was made.")
        folder = folders[0]
    test = read_test(folder)
    if sheet.get("test") != test.id:
        raise UserError(f"{origin} belongs to the listening test {_shown(sheet.get('test'))}, not to {test.id}.",
                        _FROM_TEST)
    # Two imports at once must not write the same answer twice.
    with locked(folder / "answers.lock", 10.0, f"The answers of {folder.name} are being written by another program.",
                "Try again in a moment; nothing is lost."):
        sessions, _ = read_sessions(folder, test)
        lines, rows, complete = list[str](), list[int](), False
        for sent_session in sheet["sessions"]:
            name, sent = _checked_session(test, sent_session, origin)
            session = sessions.get(name)
            if session is None:
                if len(sessions) >= _MOST_SESSIONS:
                    raise UserError(f"{folder.name} has {_MOST_SESSIONS} sessions, which is the most.",
                                    "Make another test.")
                if sent.row < 0:
                    rows_taken = [other.row for other in sessions.values()]
                    sent.row = min(range(len(test.rows)), key=rows_taken.count)
                session = sessions[name] = Session(sent.listener, sent.row)
                lines.append(_line(name, session))
            elif sent.row not in (-1, session.row) or sent.listener != session.listener:
                raise UserError(f"{origin}: session {name[:8]} is known with another name or row.", _FROM_TEST)

            foreign_trials = set(sent.answers) - set(test.rows[session.row])
            if foreign_trials:
                raise UserError(f"{origin}: trial {_shown(min(foreign_trials))} is not one of row {session.row}.",
                                _FROM_TEST)
            # An answer that is stored already is kept; another answer to the same trial is refused.
            for trial, answer in sent.answers.items():
                if trial not in session.answers:
                    session.answers[trial] = answer
                    lines.append(_line(name, session, trial))
                elif session.answers[trial] != answer:
                    raise UserError(f"{origin}: session {name[:8]} has another answer to trial {trial}, which stands.",
                                    "An answer cannot be changed.")
            rows.append(session.row)
            complete |= len(session.answers) == len(test.rows[session.row])
        if lines:
            append_text(folder / ANSWERS, "".join(lines))
    return AddedAnswers(folder, test, sum('"trial"' in line for line in lines), tuple(rows), complete)


def _line(name: str, session: Session, trial: str = "") -> str:
    answer = {"trial": trial, **session.answers[trial]} if trial else {}
    return json.dumps({"session": name, "listener": session.listener, "row": session.row,
                       "added": round(time.time(), 1), **answer}, ensure_ascii=False) + "\n"


def _checked_session(test: ListeningTest, value: object, origin: object) -> tuple[str, Session]:
    """Name and session of foreign JSON; row -1 where it has none yet."""
    if not isinstance(value, dict):
        raise UserError(f"{origin}: a session is {_shown(value)}, not an object.", _FROM_TEST)
    name, listener, row, answers = (value.get(key) for key in ("session", "listener", "row", "answers"))
    if not isinstance(name, str) or len(name) != 32 or set(name) - set("0123456789abcdef"):
        raise UserError(f"{origin}: a session is named {_shown(name)}, not by 32 hexadecimal digits.", _FROM_TEST)
    if not isinstance(listener, str) or not 0 < len(listener) <= _NAME_LENGTH or not listener.isprintable() or \
            listener != listener.strip():
        raise UserError(f"{origin}: the listener's name {_shown(listener)} is not 1 to {_NAME_LENGTH} printable "
                        "characters.", _FROM_TEST)
    if row is not None and not (_is_integer(row) and 0 <= row < len(test.rows)):
        raise UserError(f"{origin}: the row {_shown(row)} is not one of 0 to {len(test.rows) - 1}.", _FROM_TEST)
    if not isinstance(answers, list) or len(answers) > len(test.rows[0]):
        raise UserError(f"{origin}: a session has no list of at most {len(test.rows[0])} answers.", _FROM_TEST)
    session = Session(listener, -1 if row is None else row)
    for answer in answers:
        trial, checked = _checked_answer(test, answer, origin)
        if trial in session.answers:
            # A session answers a trial once.
            raise UserError(f"{origin}: trial {trial} is answered twice.", _FROM_TEST)
        session.answers[trial] = checked
    return name, session


def _checked_answer(test: ListeningTest, value: object, origin: object) -> tuple[str, dict[str, Any]]:
    """Trial, and what was answered to each question, in which place and after how many seconds."""
    if not isinstance(value, dict) or not isinstance(value.get("trial"), str):
        raise UserError(f"{origin}: the answer {_shown(value)} names no trial.", _FROM_TEST)
    trial, place, seconds = value["trial"], value.get("place"), value.get("seconds")
    if trial not in {test_trial.id for test_trial in test.trials}:
        raise UserError(f"{origin}: the test has no trial {_shown(trial)}.", _FROM_TEST)
    if not _is_integer(place) or not 0 <= place < len(test.rows[0]):
        raise UserError(f"{origin}: the place {_shown(place)} of trial {trial} is not one of 0 to "
                        f"{len(test.rows[0]) - 1}.", _FROM_TEST)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= _LONGEST_S:
        raise UserError(f"{origin}: the time {_shown(seconds)} of trial {trial} is not 0 to {_LONGEST_S:.0f} s.",
                        _FROM_TEST)
    chosen_answers: dict[str, Any] = {}
    for question, choices in _CHOICES[test.kind].items():
        chosen = value.get(question)
        if isinstance(chosen, bool) or not isinstance(chosen, int | str) or chosen not in choices:
            raise UserError(f"{origin}: {_shown(chosen)} is no answer to {question} of trial {trial}; wanted one of "
                            f"{', '.join(map(str, choices))}.", _FROM_TEST)
        chosen_answers[question] = chosen
    return trial, {**chosen_answers, "place": place, "seconds": round(float(seconds), 2)}


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def read_sessions(folder: Path, test: ListeningTest) -> tuple[dict[str, Session], int]:
    """The sessions by name, and the number of lines that could not be read, such as one that a power cut ended."""
    if not (folder / ANSWERS).is_file():
        return {}, 0
    sessions: dict[str, Session] = {}
    damaged = 0
    for line in foreign.read_bytes(folder / ANSWERS).decode("utf-8", "replace").splitlines():
        try:
            value = foreign.loads(line)
            has_answer = isinstance(value, dict) and "trial" in value
            name, sent = _checked_session(test, {**value, "answers": [value] if has_answer else []}, ANSWERS)
            session = sessions.setdefault(name, Session(sent.listener, sent.row))
            for trial, answer in sent.answers.items():
                session.answers.setdefault(trial, answer)
        except (UserError, ValueError, TypeError):
            damaged += bool(line.strip())
    return sessions, damaged


def results(workspace: Workspace, evaluation: str) -> tuple[ListeningResult, ...]:
    """What the listening tests of an evaluation found; those without an answer are left out."""
    tests = [(folder, test) for folder, test in list_tests(workspace, evaluation) if (folder / ANSWERS).is_file()]
    outcomes = [result_of(folder) for folder, _ in sorted(tests)]
    return tuple(outcome for outcome in outcomes if outcome.listeners)


def result_of(folder: Path) -> ListeningResult:
    """What the test in `folder` found so far."""
    return _result_of(folder, read_test(folder), foreign.file_stamp(folder / ANSWERS))


@dataclass(frozen=True)
class _Answer:
    """An answer whose models are known: those of A and B, and of X behind them in ABX."""

    listener: str
    sentence: int
    models: tuple[str, ...]
    given: Mapping[str, Any]

    @property
    def chosen(self) -> str:
        """The model that was preferred; empty for none."""
        return {"A": self.models[0], "B": self.models[1]}.get(self.given["preference"], "")

    @property
    def right(self) -> bool:
        """Whether X was told."""
        return {"A": self.models[0], "B": self.models[1]}[self.given["abx"]] == self.models[2]


def _listener_names(sessions: Mapping[str, Session]) -> dict[str, str]:
    """By session, the name of its listener; of several sessions under one name the later ones get a number.

    Two people may have one name, and nobody is asked for more than a name.
    """
    names = dict[str, str]()
    for key, session in sessions.items():
        name, number = session.listener, 1
        while name in names.values():
            number += 1
            name = f"{session.listener} ({number})"
        names[key] = name
    return names


@lru_cache(maxsize=32)
def _result_of(folder: Path, test: ListeningTest, _changed: tuple[int, int]) -> ListeningResult:
    sessions, damaged = read_sessions(folder, test)
    models = {clip.id: clip.model for clip in test.clips}
    trials = {trial.id: trial for trial in test.trials}
    names = _listener_names(sessions)
    answers = []
    for key, session in sessions.items():
        for name, value in session.answers.items():
            clip_models = tuple(models[clip] for clip in trials[name].clips)
            answers.append(_Answer(names[key], trials[name].sentence, clip_models, value))

    listeners = []
    for name in dict.fromkeys(answer.listener for answer in answers):
        own_answers = [answer for answer in answers if answer.listener == name]
        listeners.append(ListenerResult(name, len(own_answers), *_checks(test, own_answers),
                                        tuple(_scores(test, own_answers))))
    flagged = {listener.name for listener in listeners if listener.flagged}
    finished = sum(len(session.answers) == len(test.rows[session.row]) for session in sessions.values())

    # The report names the method of the intervals beside them.
    about = (f"{test.about} {pluralize(len(answers), 'answer')} of {pluralize(len(listeners), 'listener')}, "
             f"{finished} of {pluralize(len(sessions), 'session')} complete, {len(flagged)} flagged (the anchor not "
             f"below the recording in more than {evaluation_report.MISSED_CHECKS:.0%} of their pairs). Intervals: 95%, "
             "bootstrap over listeners and sentences; exact: Clopper and Pearson, with the p-value of a binomial test, "
             "as if all answers were independent.")
    if any(names[key] != session.listener for key, session in sessions.items()):
        about += " Sessions under one name count as different listeners; the later ones have a number."
    if damaged:
        about += f" {pluralize(damaged, 'line')} of {ANSWERS} could not be read."

    reliable_answers = [answer for answer in answers if answer.listener not in flagged]
    return ListeningResult(folder.name, test.kind, test.language, about, tuple(_scores(test, answers)),
                           tuple(_scores(test, reliable_answers)) if flagged else (), tuple(listeners))


def _checks(test: ListeningTest, answers: Sequence[_Answer]) -> tuple[int, int]:
    """Pairs of reference and anchor that a listener met, and those in which the anchor was not below."""
    if test.kind == "rating":
        references = [answer.given["naturalness"] for answer in answers if answer.models == (REFERENCE,)]
        anchors = [answer.given["naturalness"] for answer in answers if answer.models == (ANCHOR,)]
        pairs = [high > low for high, low in product(references, anchors)]
    elif test.kind == "preference":
        pairs = [answer.chosen == REFERENCE for answer in answers if ANCHOR in answer.models]
    else:
        pairs = [answer.right for answer in answers if ANCHOR in answer.models]
    return len(pairs), pairs.count(False)


def _scores(test: ListeningTest, answers: Sequence[_Answer]) -> Iterator[ListeningScore]:
    """The scores of all that was asked, in the order of the models; what nobody answered is left out."""

    def ratio(scored: Sequence[_Answer], numerators: Sequence[float], denominators: Sequence[float]
              ) -> tuple[float, float, float]:
        above, below = np.array(numerators, float), np.array(denominators, float)
        return (evaluation_report.ratio(above, below), *evaluation_report.crossed_interval(
            above, below, [answer.listener for answer in scored], [answer.sentence for answer in scored]))

    for question in _CHOICES[test.kind]:
        assert question in QUESTIONS
        if test.kind == "rating":
            for model in test.models:
                compared = [answer for answer in answers if answer.models == (model,)]
                if compared:
                    yield ListeningScore(question, model, "", *ratio(
                        compared, [answer.given[question] for answer in compared], [1.0] * len(compared)),
                        len(compared))
            continue
        for first, second in combinations(test.models, 2):
            compared = [answer for answer in answers if set(answer.models) == {first, second}]
            if not compared:
                continue
            if test.kind == "abx":
                right = [answer.right for answer in compared]
                *exact, p_value = evaluation_report.exact_binomial(sum(right), len(right), "greater")
                yield ListeningScore(question, first, second, *ratio(compared, right, [1.0] * len(compared)),
                                     len(compared), 0, (exact[0], exact[1]), p_value)
                continue
            # An answer without preference counts in the number of answers, not in the share.
            chosen = [answer for answer in compared if answer.chosen]
            wins = [answer.chosen == second for answer in chosen]
            *exact, p_value = evaluation_report.exact_binomial(sum(wins), len(wins))
            shares = ratio(chosen, wins, [1.0] * len(chosen)) if chosen else (0.5, 0.0, 1.0)
            yield ListeningScore(question, first, second, *shares, len(compared), len(compared) - len(chosen),
                                 (exact[0], exact[1]), p_value)


def update_report(workspace: Workspace, evaluation: str) -> tuple[ListeningResult, ...]:
    """Write the results into the reports of their evaluation, where it is still there; the results."""
    listening_results = results(workspace, evaluation)
    # The test may be foreign, so its evaluation's name is not trusted.
    folder = resolve_inside(workspace.runs, evaluation)
    if (folder / evaluation_report.JSON).is_file():
        with locked(folder / "listening.lock", 30.0,
                    f"The report of {evaluation} is being written by another program.",
                    "Show the results again: python -m scripts listening_test results; on the page: the Listen tab."):
            evaluation_report.replace_listening(folder, listening_results)
    return listening_results
