"""A new language's tokens: learned the same way each time, covering everything, proven on the base languages."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from config.errors import UserError
from config.schema import TokenizerOptions
from core import tokenizer
from core.model import loading
from core.text.pieces import train_pieces
from core.text.tokenizer_report import TokenizerReport, prove
from core.workspace import Workspace
from data import manifest
from data.front_end import FrontEnd
from data.manifest import ManifestClip
from data.normalisers import normalise
from tests.unit.outside import by_command
from tests.unit.small_data import AMHARIC, SOMALI, Recorder, SmallFamily, base

ALGORITHMS = ("bpe", "sentencepiece")
WORDS = [normalise(text, "latin") for text in SOMALI]


@pytest.fixture
def ready(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace with a model, a Somali and an Amharic dataset."""
    monkeypatch.setattr(loading, "family_named", lambda name: SmallFamily())
    base().save(workspace.models / "tiny")
    write(workspace, "somali", "so", SOMALI)
    write(workspace, "amharic", "am", (*AMHARIC, "ጨረቃ 12"))
    return workspace


def write(workspace: Workspace, name: str, language: str, texts: tuple[str, ...]) -> None:
    """A dataset whose last text is held out; no audio is needed here."""
    clips = [
        ManifestClip(str(n), f"audio/{n}.wav", text, language, "train", 1.0, "one", str(n)) for n,
        text in enumerate(texts)
    ]
    clips[-1] = replace(clips[-1], split="held_out")
    folder = workspace.datasets / name
    folder.mkdir()
    manifest.save(folder, manifest.make_card(name, language, "test", clips), clips)


def options(dataset: str, algorithm: str = "bpe", merges: int = 0, name: str = "new") -> TokenizerOptions:
    return TokenizerOptions(model="tiny", dataset=dataset, tokenizer=name, algorithm=algorithm, merges=merges)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_characters_come_first_and_merges_follow_from_known_pieces(algorithm: str) -> None:
    pieces = train_pieces(WORDS, algorithm, 30)
    assert set(pieces.characters) == set("".join(WORDS)) - {" "}
    known = set(pieces.characters)
    for left, right in pieces.merges:
        assert {left, right} <= known
        known.add(left + right)
    assert len(known) - len(pieces.characters) == 30


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_merges_asked_gives_characters_alone(algorithm: str) -> None:
    assert train_pieces(WORDS, algorithm, 0).merges == ()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_learning_is_the_same_in_every_process(algorithm: str) -> None:
    script = ("import json, sys; from core.text.pieces import train_pieces; "
              "print(json.dumps(train_pieces(json.loads(sys.argv[1]), sys.argv[2], 40).merges))")
    command = [sys.executable, "-c", script, json.dumps(WORDS), algorithm]
    root = Path(tokenizer.__file__).parents[1]
    outputs = {subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stdout for _ in range(3)}
    assert len(outputs) == 1
    assert json.loads(outputs.pop()) == [list(pair) for pair in train_pieces(WORDS, algorithm, 40).merges]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_asking_for_more_than_there_is_ends_well(algorithm: str) -> None:
    assert 0 < len(train_pieces(["aba aba cab cab"], algorithm, 500).merges) < 30


def test_sentencepiece_pieces_are_whole_words_where_it_finds_them() -> None:
    pieces = train_pieces(["salaam salaam salaam"], "sentencepiece", 20)
    front_end = base().extended("so", "latin", pieces.characters, pieces.merges)
    assert len(front_end.body("salaam", "so")) == 1


def test_marks_do_not_end_a_word() -> None:
    merges = train_pieces(["नमस्ते नमस्ते नमस्ते"], "sentencepiece", 20).merges
    assert "नमस्ते" in {left + right for left, right in merges}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_language_in_the_base_script_shares_its_letters(ready: Workspace, algorithm: str) -> None:
    result = tokenizer.run(options("somali", algorithm, 25), ready, Recorder())
    folder = ready.tokenizer("new")
    report = TokenizerReport.load(folder)
    extended = FrontEnd.load(folder)
    assert report.characters_added == ()
    assert set(report.characters_reused) == set("".join(WORDS)) - {" "}
    assert report.tokens_added == 26  # the tag, and the merges
    assert report.tokens_per_character < report.tokens_per_character_before
    assert report.unknown_rate == report.unknown_rate_before == 0
    assert report.base_unchanged
    assert result["base_unchanged"] is True
    for text in SOMALI:
        assert extended.encode(text, "en").tolist() == base().encode(text, "en").tolist()
        assert len(extended.encode(text, "so")) < len(extended.encode(text, "en"))


def test_new_script_is_covered_with_the_held_out_characters_named(ready: Workspace) -> None:
    recorder = Recorder()
    tokenizer.run(options("amharic", merges=5), ready, recorder)
    report = TokenizerReport.load(ready.tokenizer("new"))
    assert report.unknown_rate == 0
    assert report.unknown_rate_before > 0.7
    assert report.characters_covered == report.characters == len(report.characters_added)
    assert set(report.characters_held_out_only) == set("12ረቃጨ")
    assert "5 characters occur in held-out text only" in recorder.warnings
    assert "ጨ (U+1328)" in recorder.warnings
    assert FrontEnd.load(ready.tokenizer("new")).encode("ጨረቃ", "am").size == 6


def test_a_new_piece_that_a_base_language_takes_up_is_found_though_no_sentence_has_it(ready: Workspace) -> None:
    before = base()
    extended = before.extended("so", "latin", [], [("x", "q")])
    leaking = replace(extended, by_code={**extended.by_code, "en": replace(
        extended.by_code["en"], file=extended.by_code["so"].file)})
    sentences = [("en", "the cat sees a dog"), ("fr", "le chat")]
    assert [proof.same for proof in prove(before, leaking, sentences)] == [True, True]
    assert [proof.same for proof in prove(before, leaking, sentences, every_piece=True)] == [False, True]
    assert all(proof.same for proof in prove(before, extended, sentences, every_piece=True))
    assert {proof.pieces for proof in prove(before, extended, sentences, every_piece=True)} == {
        len(before.pieces) + len(extended.added_tokens()) - 1}


def test_sample_sentences_come_from_the_model_when_it_has_some(ready: Workspace) -> None:
    tokenizer.run(options("amharic", name="one"), ready, Recorder())
    (ready.models / "tiny" / "probe_sentences.jsonl").write_text('{"language": "en", "text": "Only this."}\n')
    recorder = Recorder()
    tokenizer.run(options("amharic", name="two"), ready, recorder)
    one, two = TokenizerReport.load(ready.tokenizer("one")), TokenizerReport.load(ready.tokenizer("two"))
    assert (one.probe_source, [len(proof.sentences) for proof in one.proofs]) == ("app", [20, 20])
    assert (two.probe_source, [len(proof.sentences) for proof in two.proofs]) == ("model", [1])
    assert two.unproven == ("fr",)
    assert not two.base_unchanged
    assert "no sample sentences to prove fr" in recorder.warnings


def test_proof_sees_a_change() -> None:
    other = FrontEnd.base({"en": "latin"}, "bacdefghijklmnopqrstuvwxyz")
    same, changed = prove(base(), base(), [("en", "abc"), ("fr", "abc")]), prove(base(), other, [("en", "abc")])
    assert [proof.same for proof in same] == [True, True]
    assert [proof.same for proof in changed] == [False]
    assert changed[0].hash_before != changed[0].hash_after


def test_again_is_the_same_and_another_is_refused(ready: Workspace) -> None:
    first = tokenizer.run(options("amharic"), ready, Recorder())
    again = tokenizer.run(options("amharic"), ready, Recorder())
    assert (first["state"], again["state"]) == ("written", "already there")
    assert first["fingerprint"] == again["fingerprint"]
    with pytest.raises(UserError, match="already is another tokenizer named 'new'"):
        tokenizer.run(options("somali"), ready, Recorder())
    assert FrontEnd.load(ready.tokenizer("new")).fingerprint == first["fingerprint"]


def test_report_survives_json(ready: Workspace) -> None:
    tokenizer.run(options("amharic", merges=3), ready, Recorder())
    report = TokenizerReport.load(ready.tokenizer("new"))
    report.save(ready.path)
    assert TokenizerReport.load(ready.path) == report


def test_base_language_cannot_be_new(ready: Workspace) -> None:
    write(ready, "english", "en", ("hello", "world"))
    with pytest.raises(UserError, match="already knows the language 'en'"):
        tokenizer.run(options("english"), ready, Recorder())


def test_the_parts_one_by_one_make_the_same_tokenizer(ready: Workspace) -> None:
    whole = tokenizer.run(options("somali", merges=20, name="whole"), ready, Recorder())
    chosen = {part: options("somali", merges=merges, name="parts").model_copy(update={"part": part})
              for part, merges in (("train", 20), ("merge", 0), ("report", 0))}
    parts = [tokenizer.run(chosen[part], ready, Recorder()) for part in ("train", "merge", "report")]
    assert [part["state"] for part in parts] == ["learned", "written", "checked"]
    assert parts[1]["fingerprint"] == parts[2]["fingerprint"] == whole["fingerprint"]
    assert ready.list_tokenizers() == ["parts", "whole"]
    assert TokenizerReport.load(ready.tokenizer("parts")) == TokenizerReport.load(ready.tokenizer("whole"))


def test_merging_before_learning_is_refused(ready: Workspace) -> None:
    with pytest.raises(UserError, match=r"new\.pieces\.json") as caught:
        tokenizer.run(options("somali").model_copy(update={"part": "merge"}), ready, Recorder())
    assert "scripts tokenizer train" in caught.value.hint


@pytest.mark.parametrize("code", ["tr-tr", "az-latn", "tur", "crh", "kaa-latn", "azj-latn-az"])
def test_a_dotless_i_is_a_letter_of_its_own_and_no_second_dot_is_one(ready: Workspace, code: str) -> None:
    write(ready, "turkic", code, ("IŞIK İZMİR", "Isparta ırmağı", "ılık İyi", "kırmızı"))
    assert by_command(ready, "tokenizer", "--model", "tiny", "--dataset", "turkic", "--tokenizer", "new")[0] == 0
    report = TokenizerReport.load(ready.tokenizer("new"))
    assert "ı" in report.characters_added
    assert "\u0307" not in (*report.characters_added, *report.characters_reused)
    front_end = FrontEnd.load(ready.tokenizer("new"))
    assert front_end.normalise("IĞDIR İli", code) == "ığdır ili"


@pytest.mark.parametrize("code", ["uz", "uz-uz", "uz-latn", "uzn"])
def test_six_spellings_of_an_apostrophe_are_one_letter(ready: Workspace, code: str) -> None:
    write(ready, "uzbek", code, tuple(f"bo{sign}lim og{sign}ir" for sign in "\u02bb\u02bc\u2018\u2019'`"))
    assert by_command(ready, "tokenizer", "--model", "tiny", "--dataset", "uzbek", "--tokenizer", "new")[0] == 0
    report = TokenizerReport.load(ready.tokenizer("new"))
    assert {*report.characters_added, *report.characters_reused} == set("bo'limgr")


@pytest.mark.parametrize("scheme", ["words", "letters", "bytes", "wordlevel"])
def test_a_tokenizer_of_ones_own_keeps_its_pieces_whatever_their_ids(ready: Workspace, tmp_path: Path,
                                                                   scheme: str) -> None:
    path = tmp_path / "own.json"
    maker = Tokenizer(models.WordLevel(unk_token="?") if scheme == "wordlevel" else models.BPE(unk_token="?"))
    maker.pre_tokenizer = pre_tokenizers.ByteLevel() if scheme == "bytes" else pre_tokenizers.Whitespace()
    trainer = (trainers.WordLevelTrainer if scheme == "wordlevel" else trainers.BpeTrainer)(
        vocab_size=80, show_progress=False, special_tokens=["?", "[start]"])
    maker.train_from_iterator(SOMALI, trainer)
    content = json.loads(maker.to_str())
    if scheme == "letters":  # a gap in the ids, as after pieces were removed
        content["model"]["vocab"] = {piece: 3 * row for piece, row in content["model"]["vocab"].items()}
        for token in content["added_tokens"]:
            token["id"] *= 3
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    code, warnings = by_command(ready, "tokenizer", "--model", "tiny", "--dataset", "somali", "--tokenizer", "new",
                                "--tokenizer-file", str(path))
    if scheme in ("bytes", "wordlevel"):
        assert code == 1
        assert f"{path.name} is a " in warnings
        return
    assert code == 0, warnings
    front_end, report = FrontEnd.load(ready.tokenizer("new")), TokenizerReport.load(ready.tokenizer("new"))
    assert report.base_unchanged
    assert report.merges_learned > 10
    assert min(token.id for token in front_end.added_tokens()) == base().size
