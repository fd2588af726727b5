"""Texts, records and disks that cost more than their size: each is read in linear time, refused, or told of."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import signal
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config import foreign
from config.errors import UserError
from config.loading import parse_options
from config.schema import (
    CompareOptions,
    EmotionOptions,
    EvaluateOptions,
    Options,
    PackOptions,
    PrepareOptions,
    SoundOptions,
    SynthesizeOptions,
    TrainOptions,
)
from core import machine, pack
from core.dataset import reference_text
from core.jobs import locks, worker
from core.jobs.events import Finished, Queued, Started, append_event
from core.jobs.job import create_job, load_job, public_name, rewrite_options
from core.jobs.state import JobBoard
from core.library import certificate
from core.library.records import EXPORT_SUMS
from core.sources import prompt_lists
from core.workspace import Workspace
from data import durable_files, normalisers, text_chunking, unspoken_text
from data.importers.tables import given_cell, safe_cell
from data.languages import chatterbox_normaliser, indextts2_normaliser, latin, number_reader, verbalizer, words
from tests.hostile import foreign_workspace
from tests.unit.hub_model import Recorder


def as_it_is(text: str, _chinese: bool) -> str:
    return text


TEXT_FUNCTIONS: dict[str, Callable[[str], object]] = {
    "words": lambda text: words.words(text, "latin"),
    "punctuated": lambda text: words.punctuated(text, "generic"),
    "punctuated, Ethiopic": lambda text: words.punctuated(text, "ethiopic"),
    "IndexTTS2": lambda text: indextts2_normaliser.normalise(text, as_it_is),
    "IndexTTS2, Chinese": lambda text: indextts2_normaliser.marked(text, as_it_is, True),
    "IndexTTS 2.5, English": lambda text: indextts2_normaliser.normalise_for_2_5(text, "en", as_it_is),
    "IndexTTS 2.5, Spanish": lambda text: indextts2_normaliser.normalise_for_2_5(text, "es", as_it_is),
    "Chatterbox": chatterbox_normaliser.normalise_english, "romanised": latin.romanise,
    "numerals": number_reader.is_geez_numeral, "a cell": safe_cell, "a cell read": given_cell,
    "JSON": lambda text: foreign.loads(json.dumps(text)),
    "signs of what is not spoken": unspoken_text.signs, "without these signs": unspoken_text.without_signs,
    "case": lambda text: normalisers.measure_case([text]),
    "a cased language": lambda text: normalisers.normalise(text, "indextts2-new-latin-cased"),
    "what is dropped": lambda text: normalisers.dropped(text, "chatterbox-new-latin"),
    "chunks": lambda text: text_chunking.split_text(text, 200, len, LONG),
    "words of a reference": reference_text.split_words, "scored letters": words.scored_letters,
    "rules, Amharic": lambda text: verbalizer.load_verbalizer(verbalizer.rules_text("am").encode()).verbalize(text),
    "sentences": text_chunking.split_sentences,
    "sentences, Amharic": lambda text: text_chunking.split_sentences(text, "", "am"),
}
UNITS = {
    "quotations": '" \'a"', "apostrophes": "'", "opening": " 'a", "letters": "a", "capitals": "Ab",
    "Han": "\u6f22", "names": "\u6f22\u00b7", "hyphens": "a-", "digits and letters": "1a", "spaces": " ", "lesser": "<",
    "readings": "<a|b>",
    "half readings": "<a|", "bars": "|", "Geez ten thousands": "\u137c", "Geez digits": "\u1369", "stops": ".",
    "Ethiopic stops": "\u1362", "tabs": "\t", "semicolons": ";", "quotes": '"', "digits": "7", "dots": "a.",
    "combining": "\u0301", "lines": "a\n", "tags": "<i>", "round brackets": "(a", "square brackets": "[",
    "times": "10:30 ", "labels": "A: ", "stars": "*a ",
}
QUICK_UNITS = ("quotations", "letters", "Han", "half readings", "Geez ten thousands", "tabs")
LONG = 1 << 20


def seconds(run: Callable[[str], object], text: str) -> float:
    """Processor time of one call, which other processes do not change."""
    begun = time.process_time()
    run(text)
    return time.process_time() - begun


@pytest.mark.parametrize("sign", ["\u1208\u1362", "`", "\u4f60\u3002"])
def test_twice_the_prompts_take_twice_the_time(sign: str) -> None:
    def parse(text: str) -> None:
        with suppress(UserError):  # a list has at most 5,000 sentences
            prompt_lists.parse_prompts(text, "am")

    parse(sign)
    # By the square of the text it would be 16 times.
    assert seconds(parse, sign * (1 << 16)) < 8 * max(0.02, seconds(parse, sign * (1 << 14)))


def test_a_long_paragraph_has_the_sentences_of_its_parts() -> None:
    sentence = "This is a sentence, as Dr. Smith says. It has 3.5 parts! "
    assert text_chunking.split_sentences(sentence * 500, language="en") == [
        "This is a sentence, as Dr. Smith says.", "It has 3.5 parts!"] * 500


@pytest.mark.parametrize("unit", [unit if unit in QUICK_UNITS else pytest.param(unit, marks=pytest.mark.slow)
                                  for unit in UNITS])
@pytest.mark.parametrize("function", TEXT_FUNCTIONS)
def test_twice_the_text_takes_twice_the_time(function: str, unit: str) -> None:
    run, text = TEXT_FUNCTIONS[function], UNITS[unit] * (1 << 14)
    once, twice = (min(seconds(run, text[:size]) for _ in range(2)) for size in (1 << 13, 1 << 14))
    assert twice < max(3.2 * once, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["quotations", "letters", "Han", "half readings", "Geez ten thousands", "tabs"])
@pytest.mark.parametrize("function", ["words", "IndexTTS2", "IndexTTS2, Chinese", "IndexTTS 2.5, English", "a cell"])
def test_a_megabyte_takes_seconds(function: str, unit: str) -> None:
    run, text = TEXT_FUNCTIONS[function], (UNITS[unit] * LONG)[:LONG]
    assert seconds(run, text) < 20


QUOTED = re.compile(r"(?<!\w)'(.+?)'(?!\w)")
READING = re.compile(r"<([^|>\n]+)\|([^>\n]+)>")


@settings(max_examples=300, deadline=None)
@given(st.text("'' a.\n\"b", max_size=24), st.text("<<||>>ab\n", max_size=24))
def test_linear_replacements_are_those_of_the_patterns(quoted: str, readings: str) -> None:
    assert words.without_quotes(quoted) == QUOTED.sub(r"\1", quoted)
    assert indextts2_normaliser._replace_readings(readings, lambda word, reading: f"[{word}/{reading}]") == READING.sub(
        r"[\1/\2]", readings)


def test_a_run_of_ten_thousands_is_read_digit_by_digit() -> None:
    read = verbalizer.load_verbalizer(verbalizer.rules_text("am").encode()).verbalize
    assert read("\u137c" * 5000)
    assert number_reader.is_geez_numeral("\u136b\u137c")


def merged(levels: int, keys: int) -> str:
    lines = ["a0: &a0 {" + ", ".join(f"k{number}: v" for number in range(keys)) + "}"]
    lines += [f"a{level}: &a{level}\n  <<: [*a{level - 1}, *a{level - 1}, *a{level - 1}, *a{level - 1}]"
              for level in range(1, levels + 1)]
    return "\n".join(lines)


YAMLS = {
    "209 kB of merge keys": merged(5, 20_000), "one merge key": "a: &a {b: 1}\nc:\n  <<: *a",
    "a merge key in a list": "- &a {b: 1}\n- {<<: *a}", "a merge of itself": "a: &a\n  <<: *a",
    "an explicit tag": "a: &a {b: 1}\nc: {!!merge <<: *a}", "a quoted key in a merge": "a: &a {b: 1}\n? <<\n: *a",
    "aliases of a large list": "a: &a [" + "x, " * 30_000 + "x]\n" + "b: [" + ", ".join(["*a"] * 15) + "]",
    "aliases of aliases": "\n".join(["a0: &a0 [x, x, x, x, x, x, x, x]"] + [
        f"a{level}: &a{level} [*a{level - 1}, *a{level - 1}, *a{level - 1}]" for level in range(1, 7)]) + "\n",
    "itself": "a: &a [*a]", "itself in a mapping": "&a {b: *a}",
}


@pytest.mark.parametrize("name", YAMLS)
def test_yaml_that_multiplies_is_refused_at_once(name: str) -> None:
    if name == "aliases of aliases":  # 3**6 * 8 values are few enough
        assert foreign.parse_yaml(YAMLS[name], "it")
        return
    with pytest.raises(UserError, match="it is damaged"):
        foreign.parse_yaml(YAMLS[name], "it")


@pytest.mark.parametrize(("text", "value"), [
    ("a: [1, 2]", {"a": [1, 2]}), ("a: &x [1]\nb: *x", {"a": [1], "b": [1]}), ('a: "<<"', {"a": "<<"}),
    ("a: '*'\nb: 'c * d'", {"a": "*", "b": "c * d"}), ("'<<': 1", {"<<": 1}),
])
def test_other_yaml_is_read_as_before(text: str, value: object) -> None:
    assert foreign.parse_yaml(text, "it") == value


@pytest.mark.parametrize("field", ["checks", "errors"])
@pytest.mark.parametrize("count", [3000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_certificate_of_thousands_of_rows_is_refused(field: str, count: int, tmp_path: Path) -> None:
    workspace = foreign_workspace.build(tmp_path / "workspace")
    path = workspace.runs / foreign_workspace.RUN / "certificate.json"
    assert certificate.read(path).checks
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, field: values[field] * count}))
    with pytest.raises(UserError, match="a certificate has at most"):
        certificate.read(path)


CELLS = ["a;=1+1", "a; =1", "a\t=1", "a;\t@x", 'a;"=1"', "a\n=cmd", ";=1", "=1;=2", "a;'=1", "a;''-1", "a\r\n+1",
         "x;\uff1d1", "; ; =1", "'=1;+2"]


@pytest.mark.parametrize("cell", CELLS)
def test_no_cell_is_a_formula_for_a_spreadsheet_with_another_separator(cell: str) -> None:
    written = safe_cell(cell)
    for part in re.split("[;\t\r\n]", written):
        assert part.strip(' "')[:1] not in ("=", "+", "-", "@", "\uff1d")
    assert given_cell(written) == cell


@settings(max_examples=300, deadline=None)
@given(st.text("a;='\t\n\"+ -@", max_size=12))
def test_a_cell_is_read_as_it_was_written(cell: str) -> None:
    assert given_cell(safe_cell(cell)) == cell


ADDRESSES = ["http://user:TOPSECRET@127.0.0.1:9/x.zip?sig=TOPSECRET", "https://x.example/a.zip?X-Signature=TOPSECRET",
             "HTTPS://u:TOPSECRET@x.example/a", "https://:TOPSECRET@x.example/a.zip#TOPSECRET"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_password_of_an_address_is_in_the_job_alone(address: str, tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "workspace")
    job = create_job(workspace, "prepare", PrepareOptions(source=address, dataset="a", language="sw"), job_id="one")
    assert stat.S_IMODE((job.directory / "config.yaml").stat().st_mode) == 0o600
    assert load_job(workspace, "one").settings["source"] == address  # a resume needs it
    for event in (Queued(), Started(1, 1), Finished({})):
        append_event(job.journal, event)
    assert JobBoard(workspace).states()[0].status == "finished"
    cache = workspace.cache / "jobs.jsonl"
    assert stat.S_IMODE(cache.stat().st_mode) == 0o600
    holding = {path for path in workspace.path.rglob("*") if path.is_file() and b"TOPSECRET" in path.read_bytes()}
    assert holding == {job.directory / "config.yaml"}
    assert JobBoard(workspace).states()[0].status == "finished"  # from the cache


OPTIONS_WITH_ADDRESSES: dict[str, Callable[[str], tuple[str, Options]]] = {
    "a path": lambda address: ("evaluate", EvaluateOptions(models=("base:tiny",), recogniser=address)),
    "a list": lambda address: ("evaluate", EvaluateOptions(models=("base:tiny", f"folder:{address}"),
                                                           voices=(address,))),
    "a group": lambda address: ("synthesize", SynthesizeOptions(
        text="a", sound=SoundOptions(emotion=EmotionOptions(emotion_clip=address)))),
    "pairs": lambda address: ("compare", CompareOptions(finetuned="run:a", texts=(("en", f"see {address} there"),))),
    "a hub's": lambda address: ("prepare", PrepareOptions(source=f"hub:{address}", dataset="a", language="sw")),
    "words": lambda address: ("prepare", PrepareOptions(dataset="a", language="sw", licence=f"see {address}")),
}


@pytest.mark.parametrize("option", OPTIONS_WITH_ADDRESSES)
@pytest.mark.parametrize("address", ["https://u:TOPSECRET@x.example/a?sig=TOPSECRET", "s3://AKIA:TOPSECRET@x/a",
                                     "https:\\\\u:TOPSECRET@x/a", "https://x.example/a.zip#TOPSECRET"])
def test_a_password_in_any_option_is_in_the_job_alone(address: str, option: str, tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "workspace")
    job = create_job(workspace, *OPTIONS_WITH_ADDRESSES[option](address), job_id="one")
    assert stat.S_IMODE((job.directory / "config.yaml").stat().st_mode) == 0o600
    for event in (Queued(), Started(1, 1), Finished({})):
        append_event(job.journal, event)
    assert JobBoard(workspace).states()[0].status == "finished"
    holding = {path for path in workspace.path.rglob("*") if path.is_file() and b"TOPSECRET" in path.read_bytes()}
    assert holding == {job.directory / "config.yaml"}


def test_a_job_with_a_password_stays_its_owners_if_its_options_change(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "workspace")
    options = parse_options(TrainOptions, {"recogniser": "/a/https:/u:TOPSECRET@x/a", "extension": "a", "dataset": "b"})
    job = create_job(workspace, "train", options, job_id="one")
    rewrite_options(job, {"keep_last": 5})
    assert stat.S_IMODE((job.directory / "config.yaml").stat().st_mode) == 0o600
    assert load_job(workspace, "one").settings["keep_last"] == 5


@pytest.mark.parametrize(("text", "public"), [
    ("/data/what? a file#1", "/data/what? a file#1"), ("C:/a@b?c", "C:/a@b?c"), ("hub:owner/name@main",) * 2,
    ("a@b.c",) * 2, ("demo",) * 2, ("12:30/5 @ noon?",) * 2,
    ("see https://u:p@h/x?s=1 and ftp://u:p@h/y", "see https://h/x and ftp://h/y"),
    ("https://u:p@h/x\n?s=1", "https://h/x\n"), ("/cwd/https:/u:p@h/x?s=1", "/cwd/https:/h/x"),
    ("folder:/a/s3:/u:p@h/x", "folder:/a/s3:/h/x"), ("https://h/https://u:p@h/x", "https://h/https://h/x")])
def test_addresses_alone_lose_their_passwords(text: str, public: str) -> None:
    assert public_name(text) == public


def test_passwords_in_a_cache_of_before_are_taken_out(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "workspace")
    options = PrepareOptions(source="https://x/a", dataset="a", language="sw")
    job = create_job(workspace, "prepare", options, job_id="one")
    for event in (Queued(), Started(1, 1), Finished({})):
        append_event(job.journal, event)
    JobBoard(workspace).states()
    cache = workspace.cache / "jobs.jsonl"
    cache.write_text(cache.read_text().replace("https://x/a", "https://u:TOPSECRET@x/a?TOPSECRET"))
    JobBoard(workspace).states()
    assert "TOPSECRET" not in cache.read_text()


def test_a_job_without_secrets_stays_readable_for_a_group(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "workspace")
    job = create_job(workspace, "prepare", PrepareOptions(), job_id="one")
    assert stat.S_IMODE((job.directory / "config.yaml").stat().st_mode) & 0o600 == 0o600


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EIO])
def test_a_disk_without_locks_is_named(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    Workspace.open(tmp_path / "workspace")
    (tmp_path / "lock").touch()
    monkeypatch.setattr(fcntl, "flock", refuse)
    for use in (lambda: Workspace.open(tmp_path / "workspace"), lambda: locks.FileLock.acquire(tmp_path / "lock"),
                lambda: locks.is_held(tmp_path / "lock")):
        with pytest.raises(UserError, match="can be locked") as refusal:
            use()
        assert str(tmp_path) in refusal.value.message
        assert "local disk" in refusal.value.hint


@pytest.mark.parametrize(("code", "said"), [(errno.EINVAL, "local disk"), (errno.ENOTSUP, "local disk"),
                                            (errno.ENOSPC, "Free"), (errno.EDQUOT, "Free"),
                                            (errno.EACCES, "permissions")])
def test_a_disk_that_cannot_sync_is_not_called_full(code: int, said: str, tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(UserError) as refusal, durable_files.atomic_directory(tmp_path / "made") as folder:
        (folder / "a").write_text("x")
    assert said in refusal.value.hint
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_of_an_export_is_removed_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    left, other = tmp_path / ".made-0123abcd", tmp_path / ".made-more-0123abcd"
    for folder in (left, other):
        folder.mkdir()
        (folder / "weights").write_bytes(b"x" * 1000)
    with durable_files.atomic_directory(tmp_path / "made") as living:
        assert not left.exists()
        with durable_files.atomic_directory(tmp_path / "made-more"):
            assert not other.exists()
        durable_files._remove_leftovers(tmp_path / "made")
        assert living.is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "made-more"]


def test_a_leftover_that_is_a_link_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / ".made-0123abcd").symlink_to(tmp_path / "kept")
    with durable_files.atomic_directory(tmp_path / "made"):
        pass
    assert (tmp_path / "kept").is_dir()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "one bit": lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-1]), "empty": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(), "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_export_is_not_packed(damage: str, tmp_path: Path) -> None:
    workspace = foreign_workspace.build(tmp_path / "workspace")
    folder = workspace.exports / foreign_workspace.EXPORT
    (folder / "t3.safetensors").write_bytes(b"weights")
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    (folder / EXPORT_SUMS).write_text(json.dumps({name: durable_files.hash_file(folder / name) for name in names}))
    reporter = Recorder(tmp_path)
    assert pack.run(PackOptions(item=f"export:{foreign_workspace.EXPORT}", data=False), workspace, reporter)
    DAMAGES[damage](folder / "t3.safetensors")
    with pytest.raises(UserError, match="is damaged") as refusal:
        pack.run(PackOptions(item=f"export:{foreign_workspace.EXPORT}", data=False), workspace, reporter)
    assert "t3.safetensors" in refusal.value.message


@pytest.mark.parametrize("layout", ["own group", "container", "version 1"])
def test_processes_killed_for_memory_are_counted(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_OWN_GROUP", tmp_path / "own")
    assert machine.count_oom_kills() == 0
    places = {"own group": "user/one/memory.events", "container": "memory.events",
              "version 1": "memory/memory.oom_control"}
    (tmp_path / "own").write_text("0::/user/one\n" if layout == "own group" else "1:name=x:/\n")
    path = tmp_path / "cgroup" / places[layout]
    path.parent.mkdir(parents=True)
    path.write_text("low 0\noom 5\noom_kill 3\n")
    assert machine.count_oom_kills() == 3


def test_a_worker_that_was_killed_for_memory_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace.open(tmp_path / "workspace")
    counts = [2, 3, 3, 3]
    monkeypatch.setattr(worker, "count_oom_kills", lambda: counts.pop(0))

    def attempt() -> Any:
        job = create_job(workspace, "prepare", PrepareOptions())
        append_event(job.journal, Queued())
        append_event(job.journal, Started(1, 1))

        def killed() -> int:
            os.kill(os.getpid(), signal.SIGKILL)
            return 0

        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        worker.run_attempt(job, killed)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        return JobBoard(workspace).state(job.id)

    assert "was full" in attempt().message
    assert "SIGKILL" in attempt().message
