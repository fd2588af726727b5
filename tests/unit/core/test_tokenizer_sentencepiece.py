"""SentencePiece models as a base: what was there stays, to the id, and new languages come after it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from config.errors import UserError
from config.schema import CompareTokenizersOptions, TokenizerOptions
from core import compare_tokenizers, tokenizer
from core.model import loading
from core.text.pieces import import_pieces, train_pieces, with_all_characters
from core.text.row_sources import source_ids
from core.text.tokenizer_report import TokenizerReport, prove, prove_shared_file
from core.workspace import Workspace
from data import normalisers
from data.front_end import FrontEnd, read_segmenter
from data.segmenters import SentencePieceModel
from models.indextts2.family import base_front_end
from tests.unit.core.test_tokenizer import write
from tests.unit.small_data import AMHARIC, SOMALI, Recorder, SmallFamily

MODEL = Path(__file__).parents[2] / "reference" / "indextts2" / "bpe.model"
ROWS = sentencepiece.SentencePieceProcessor(model_file=str(MODEL)).get_piece_size() + 1
TEXTS = {row["language"]: row["paragraphs"] for row in map(json.loads, (
    Path(__file__).parents[3] / "scripts" / "dev" / "tiny" / "udhr.jsonl").read_text("utf-8").splitlines())}
ALGORITHMS = ("bpe", "sentencepiece")
PROPERTY = settings(max_examples=150, deadline=None)


@cache
def base() -> FrontEnd:
    return base_front_end(MODEL.parent, ROWS)


@cache
def extended(*languages: str, algorithm: str = "bpe", byte_fallback: bool = False) -> FrontEnd:
    front_end = base()
    for language in languages:
        texts = written(language)
        bare = [normalisers.without_marks(text) for text in texts]
        pieces = with_all_characters(train_pieces(bare, algorithm, 200, front_end.split_word), texts)
        front_end = front_end.extended(language, front_end.normaliser_for(language), pieces.characters, pieces.merges,
                                       byte_fallback=byte_fallback)
    return front_end


@cache
def written(language: str) -> tuple[str, ...]:
    reader = base().extended(language, base().normaliser_for(language), [], [])
    return tuple(reader.normalise(text, language) for text in TEXTS[language])


def tokens(front_end: FrontEnd, normal: str, language: str) -> list[str]:
    return SentencePieceModel(front_end.files[f"language-{language}.model"], "it").tokens(normal)


def rows(content: bytes) -> list[tuple[str, float, int]]:
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(content)
    return [(piece.piece, piece.score, piece.type) for piece in model.pieces]


def test_old_pieces_stay_and_new_ones_score_below_them_at_their_rows() -> None:
    front_end = extended("am", "so")
    before = rows(front_end.files["bpe.model"])
    assert front_end.files["bpe.model"] == MODEL.read_bytes()
    lowest = min(score for _, score, _ in before)
    for language in ("am", "so"):
        after = rows(front_end.files[f"language-{language}.model"])
        assert after[:len(before)] == before
        assert after[len(before)][2] == sentencepiece_model_pb2.ModelProto.SentencePiece.CONTROL  # the spare row
        assert all(score < lowest for _, score, kind in after[len(before):] if kind == 1)
        ids = {piece: number for number, (piece, _, _) in enumerate(after)}
        for token in front_end.added_tokens():
            if token.id < len(after):
                assert ids[token.text] == token.id
    assert [token.id for token in front_end.added_tokens()] == list(range(ROWS, front_end.size))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("language", ["am", "so", "th", "tr", "ko", "hi", "vi"])
def test_text_of_a_new_language_is_known_and_comes_back(language: str, algorithm: str) -> None:
    front_end = extended(language, algorithm=algorithm)
    plain = base().extended(language, base().normaliser_for(language), [*"".join(written(language))], [])
    for text, normal in zip(TEXTS[language], written(language), strict=True):
        ids = front_end.encode(text, language)
        assert (ids[0], ids[1], ids[-1]) == (0, front_end.tag_id(language), 1)
        assert "".join(tokens(front_end, normal, language)).replace("\u2581", " ").strip() == normal
    long, short = (sum(len(one.spell(text, language)[0]) for text in written(language))
                   for one in (plain, front_end))
    assert short < 0.75 * long


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_merges_of_an_old_script_begin_with_the_pieces_of_the_base(algorithm: str) -> None:
    """The base's merges come first in every text, so a merge of other parts could never fire."""
    front_end = extended("so", algorithm=algorithm)
    merges = [token for token in front_end.added_tokens() if token.kind == "merge"]
    used = {token for text in written("so") for token in front_end.spell(text, "so")[0]}
    assert sum(token.id in used for token in merges) > 0.8 * len(merges)


def test_merges_fire_in_rank_order() -> None:
    front_end = base().extended("am", "indextts2-new-ethiopic", [*"ሀለመ"], [("ሀ", "ለ"), ("ለ", "መ"), ("ሀለ", "መ")])
    assert tokens(front_end, "ሀለመ", "am") == ["\u2581", "ሀለመ"]
    front_end = base().extended("am", "indextts2-new-ethiopic", [*"ሀለመ"], [("ለ", "መ"), ("ሀ", "ለ")])
    assert tokens(front_end, "ሀለመ", "am") == ["\u2581", "ሀ", "ለመ"]


@given(st.text(max_size=60) | st.lists(st.sampled_from(TEXTS["en"] + TEXTS["zh"] + TEXTS["am"])).map(" ".join))
@PROPERTY
def test_base_languages_keep_the_ids_of_any_text(text: str) -> None:
    front_end = extended("am", "so", byte_fallback=True)
    assert front_end.spell(text) == base().spell(text)
    assert front_end.base_languages == ("zh", "en")


def test_every_sentence_and_piece_of_the_base_is_proven() -> None:
    sentences = [(code, text) for code in ("zh", "en") for text in TEXTS[code]]
    proofs = prove(base(), extended("am", "so"), sentences, every_piece=True)
    assert [proof.language for proof in proofs] == ["zh", "en"]
    assert all(proof.same and len(proof.sentences) > 50 and proof.pieces > ROWS for proof in proofs)


@given(st.text(alphabet=sorted({c for text in AMHARIC for c in text}) + list("THE ,.X‌  ﷺ"), max_size=40))
@PROPERTY
def test_normalised_text_of_a_new_language_is_what_the_file_reads(text: str) -> None:
    front_end = extended("am")
    normal = front_end.normalise(text, "am")
    assert front_end._base.normalise(normal) == normal
    ids, unknown = front_end.spell(normal, "am")
    assert bool(unknown) == (front_end.unknown_id in ids)
    assert set(unknown) <= set(normal)


def test_spare_row_and_tag_cannot_be_written_in_a_text() -> None:
    front_end = extended("am")
    marks = {front_end.tag_id("am"), ROWS - 1, 0, 1}
    for text in (f"<row {ROWS - 1}>", "[am]", "[AM]", "<s> </s>"):
        assert not marks & set(front_end.spell(text, "am")[0])


def test_unknown_characters_are_named_and_counted_one_by_one() -> None:
    front_end = extended("am")
    assert front_end.unknown_characters("ሰላም ђћ ђ", "am") == ("Ђ", "Ћ")
    assert front_end.spell("ђћ ђ", "am")[1] == "ђћђ"
    with pytest.raises(UserError, match=r"outside the vocabulary of 'am': Ђ \(U\+0402\)"):
        front_end.encode("ሰላም ђ", "am")


def test_byte_fallback_spells_what_has_no_piece() -> None:
    front_end = extended("am", byte_fallback=True)
    assert front_end.unknown_characters("ሰላም ђ 🙂", "am") == ()
    new = front_end.spell("ђ", "am")[0][1:]
    by_id = {token.id: token.text for token in front_end.added_tokens()}
    assert [by_id[one] for one in new] == [f"<0x{byte:02X}>" for byte in "ђ".encode()]
    assert front_end.spell("ђ") == base().spell("ђ")


def test_second_language_keeps_its_pieces_out_of_the_first() -> None:
    first, both = extended("am"), extended("am", "ti")
    assert both.files["language-am.model"] == first.files["language-am.model"]
    shared = [token.text for token in first.added_tokens() if token.kind == "merge"]
    known = {token.text for token in both.added_tokens() if token.language == "ti"}
    used = {one for text in written("ti") for one in tokens(both, text, "ti")}
    assert used & set(shared)  # a piece that both learned has one id
    assert not known & set(shared)
    alone = extended("ti")
    assert [tokens(both, text, "ti") for text in written("ti")] == [tokens(alone, text, "ti") for text in written("ti")]


def test_saved_front_end_is_the_same(tmp_path: Path) -> None:
    front_end = extended("am", "so")
    front_end.save(tmp_path)
    loaded = FrontEnd.load(tmp_path)
    assert loaded == front_end
    assert loaded.fingerprint == front_end.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bpe.model", "front_end.json", "language-am.model", "language-so.model"]
    loaded.check_extends(base())


def test_damaged_or_foreign_files_are_named(tmp_path: Path) -> None:
    extended("am").save(tmp_path)
    (tmp_path / "language-am.model").write_bytes(b"{}")
    with pytest.raises(UserError, match=r"language-am\.model is not a whole SentencePiece model"):
        FrontEnd.load(tmp_path)
    settings_file = tmp_path / "front_end.json"
    settings_file.write_text(settings_file.read_text().replace("language-am.model", "language-am.json"))
    with pytest.raises(UserError, match=r"front_end\.json is damaged"):
        FrontEnd.load(tmp_path)


def test_shared_file_has_every_language_and_keeps_base_text_of_another_script() -> None:
    front_end = extended("am")
    shared = front_end.shared_file()
    assert shared is not None
    assert len(shared.ids) == front_end.size
    for text in written("am"):
        assert shared.encode(text) == front_end.spell(text, "am")
    sentences = [("en", text) for text in TEXTS["en"]]
    assert all(proof.same for proof in prove_shared_file(base(), front_end, sentences))


def test_shared_file_tells_which_base_sentences_change() -> None:
    sentences = [("en", text) for text in TEXTS["en"]] + [("zh", text) for text in TEXTS["zh"]]
    chinese, english = prove_shared_file(base(), extended("so"), sentences)
    changed = [sentence for sentence in english.sentences if not sentence.same]
    assert changed
    assert not english.same
    assert all(sentence.tokens_after < sentence.tokens_before for sentence in changed)
    assert all(sentence.same for sentence in chinese.sentences)


def test_new_rows_start_from_the_base_pieces_that_spell_them_in_capitals() -> None:
    front_end = extended("am")
    spelled = {token.text: "".join(list(base().base_vocabulary)[one] for one in source_ids(token, base(), "romanised"))
               for token in front_end.added_tokens() if token.kind != "tag"}
    assert spelled["ሰ"] == "SE"
    assert spelled["\u2581የ"] == "\u2581YE"
    assert sum(map(bool, spelled.values())) > 0.95 * len(spelled)


@pytest.fixture
def ready(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace with a model of this tokenizer, and datasets of an old and a new script."""
    for module, name in ((compare_tokenizers, "family"), (loading, "family_named")):
        monkeypatch.setattr(module, name, lambda name: SmallFamily())
    base().save(workspace.models / "tiny")
    write(workspace, "somali", "so", SOMALI)
    write(workspace, "amharic", "am", (*AMHARIC, "ጨረቃ። 12"))
    return workspace


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("dataset", "language"), [("somali", "so"), ("amharic", "am")])
def test_tokenizer_verb_makes_a_language_on_such_a_base(ready: Workspace, dataset: str, language: str,
                                                        algorithm: str) -> None:
    recorder = Recorder()
    options = TokenizerOptions(model="tiny", dataset=dataset, tokenizer="new", algorithm=algorithm, merges=20)
    result = tokenizer.run(options, ready, recorder)
    front_end = FrontEnd.load(ready.tokenizer("new"))
    report = TokenizerReport.load(ready.tokenizer("new"))
    assert (result["state"], report.unknown_rate, report.prefix_size) == ("written", 0, ROWS)
    assert report.base_unchanged
    assert len(report.shared_file) == 2
    assert front_end.is_new(language)
    assert ("will read" in recorder.warnings and "shares their script" in recorder.warnings) == (
        not all(sentence.same for proof in report.shared_file for sentence in proof.sentences))


def test_candidates_are_compared_on_such_a_base(ready: Workspace) -> None:
    options = CompareTokenizersOptions(model="tiny", dataset="amharic", sizes=(10, 20), byte_fallback=True)
    result = compare_tokenizers.run(options, ready, Recorder(ready.path))
    assert result["candidates"] >= 4
    assert result["languages_proven"] == 2


def test_tokenizer_of_the_user_keeps_its_word_starts(tmp_path: Path) -> None:
    (tmp_path / "own.model").write_bytes(extended("am").files["language-am.model"])
    pieces = import_pieces(base(), str(tmp_path / "own.model"))
    assert any(left == "\u2581" for left, _ in pieces.merges)
    assert "\u2581" not in pieces.characters


def test_base_of_equal_size_and_other_pieces_is_refused_as_the_users_tokenizer(tmp_path: Path) -> None:
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(MODEL.read_bytes())
    model.pieces[500].piece = "ZZZZ"
    (tmp_path / "own.model").write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match="ids as the base has, and is another tokenizer"):
        import_pieces(base(), str(tmp_path / "own.model"))


def test_a_file_of_either_kind_is_read() -> None:
    assert isinstance(read_segmenter(MODEL.read_bytes(), "it"), SentencePieceModel)
    with pytest.raises(UserError, match="it is not a whole"):
        read_segmenter(b"neither", "it")


@given(st.lists(st.text("ሀለTHEAN\u2581", min_size=1, max_size=4), max_size=8, unique=True))
@settings(max_examples=40, deadline=None)
def test_any_merges_leave_the_old_pieces_and_the_ids_of_the_base(parts: list[str]) -> None:
    merges = [(part[:1], part[1:]) for part in parts if len(part) > 1 and "\u2581" not in part[1:]]
    assume(merges)
    front_end = base().extended("am", "indextts2-new-ethiopic", [*"ሀለ"], merges)
    content = front_end.files["language-am.model"]
    assert rows(content)[:ROWS - 1] == rows(MODEL.read_bytes())
    for text in TEXTS["en"][:3]:
        assert front_end.spell(text.upper()) == base().spell(text.upper())
    assert "".join(tokens(front_end, "ሀለ THE", "am")) == "\u2581ሀለ\u2581THE"
