"""A tokenizer that a person brings: its pieces are matched by what they are; one that only seems to fit is refused."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from config.errors import UserError
from config.schema import CompareTokenizersOptions, TokenizerOptions
from core import compare_tokenizers
from core import tokenizer as vocabulary
from core.model import loading
from core.submission.jobs import check_requirements
from core.text import pieces as own_pieces
from core.text.pieces import import_pieces, read_tokenizer
from core.text.tokenizer_comparison import TokenizerComparison
from core.workspace import Workspace
from data import manifest
from data.front_end import FrontEnd
from data.manifest import ManifestClip
from data.segmenters import vocabulary as ids_of
from tests.unit.small_data import AMHARIC, Recorder, SmallFamily, base

TEXTS = AMHARIC * 6


def bpe(path: Path, size: int = 70, pre_tokenizer: object = None) -> Path:
    """A BPE with marks of its own at ids that the base gives to others."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False))
    tokenizer.save(str(path))
    return path


def unigram(path: Path) -> Path:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(TEXTS, trainers.UnigramTrainer(
        vocab_size=60, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False))
    tokenizer.save(str(path))
    return path


def pieces_model(path: Path, kind: str) -> Path:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, model_type=kind, vocab_size=70, hard_vocab_limit=False,
        character_coverage=1.0, num_threads=1, minloglevel=2)
    path.write_bytes(model.getvalue())
    return path


def of_size(path: Path, size: int) -> Path:
    """A BPE of exactly `size` ids with other content than any base."""
    tokens = {f"x{number}": number for number in range(size)}
    path.write_text(json.dumps({"model": {"type": "BPE", "vocab": tokens, "merges": []}, "added_tokens": []}))
    return path


@pytest.fixture
def ready(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    for module, name in ((compare_tokenizers, "family"), (loading, "family_named")):
        monkeypatch.setattr(module, name, lambda name: SmallFamily())
    base().save(workspace.models / "tiny")
    clips = [ManifestClip(str(n), f"{n}.wav", text, "am", "train", 2.0, "one", str(n)) for n, text in enumerate(TEXTS)]
    clips[-1] = replace(clips[-1], split="held_out")
    (workspace.datasets / "am").mkdir()
    manifest.save(workspace.datasets / "am", manifest.make_card("am", "am", "test", clips), clips)
    return workspace


@pytest.mark.parametrize("kind", ["bpe", "unigram", "sentencepiece-bpe", "sentencepiece-unigram"])
def test_pieces_are_appended_and_every_base_piece_keeps_its_id(tmp_path: Path, kind: str) -> None:
    path = {"bpe": bpe, "unigram": unigram}[kind](tmp_path / "own.json") if "-" not in kind else (
        pieces_model(tmp_path / "own.model", kind.partition("-")[2]))
    front_end = base()
    pieces = import_pieces(front_end, str(path))
    assert pieces.merges
    assert not any("\u2581" in part or "<" in part for pair in pieces.merges for part in pair)
    extended = front_end.extended("am", front_end.normaliser_for("am"), pieces.characters, pieces.merges)
    before, after = ids_of(front_end.files["tokenizer.json"], "base"), ids_of(extended.files["language-am.json"], "am")
    assert {piece: after[piece] for piece in before} == before
    assert sorted(set(after.values()) - set(before.values())) == list(range(front_end.size, extended.size))
    assert sum(len(extended.body(text, "am")) for text in AMHARIC) < sum(map(len, AMHARIC))  # longer pieces are in use
    for text in AMHARIC:
        ids = extended.body(text, "am")
        assert extended.base_vocabulary["[UNK]"] not in ids
        assert list(extended.comparable("hello", "en")) == list(front_end.comparable("hello", "en"))


def test_a_tokenizer_of_equal_size_and_other_content_is_refused(tmp_path: Path) -> None:
    front_end = base()
    with pytest.raises(UserError, match=f"has {front_end.size} ids as the base has, and is another tokenizer"):
        import_pieces(front_end, str(of_size(tmp_path / "own.json", front_end.size)))
    assert import_pieces(front_end, str(of_size(tmp_path / "other.json", front_end.size + 1))).merges == ()
    swapped = json.loads(front_end.files["tokenizer.json"])
    vocab = swapped["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (tmp_path / "swapped.json").write_text(json.dumps(swapped))
    with pytest.raises(UserError, match="2 of the base's pieces have another id there and 0 are missing"):
        import_pieces(front_end, str(tmp_path / "swapped.json"))
    (tmp_path / "same.json").write_bytes(front_end.files["tokenizer.json"])
    import_pieces(front_end, str(tmp_path / "same.json"))


def test_spare_rows_of_the_checkpoint_do_not_hide_an_equal_size(tmp_path: Path) -> None:
    plain = base()
    spare = FrontEnd.wrap(plain.files["tokenizer.json"], {"en": "latin", "fr": "latin"}, plain.size + 1)
    for size in (plain.size, plain.size + 1):
        with pytest.raises(UserError, match="is another tokenizer"):
            import_pieces(spare, str(of_size(tmp_path / "own.json", size)))


def test_no_piece_becomes_a_mark_of_the_base(tmp_path: Path) -> None:
    vocab = {piece: number for number, piece in enumerate(["[", "]", "S", "T", "ST", "[ST", "[ST]", "ሀ"])}
    (tmp_path / "own.json").write_text(json.dumps({"added_tokens": [], "model": {
        "type": "BPE", "vocab": vocab, "merges": ["S T", "[ ST", "[ST ]"]}}))
    assert read_tokenizer(tmp_path / "own.json").pairs == (("S", "T"), ("[", "ST"))


@pytest.mark.parametrize(("content", "message"), [
    (b"{}", "no whole tokenizer"), (b'{"model": {"type": "WordPiece"}}', "is a WordPiece tokenizer"),
    (b"\x00\x01nothing", "neither a JSON file nor a SentencePiece model"), (b"", "neither a JSON"),
])
def test_what_cannot_be_read_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "own.json").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_tokenizer(tmp_path / "own.json")


def test_pieces_of_bytes_are_refused(tmp_path: Path) -> None:
    path = bpe(tmp_path / "own.json", 300, pre_tokenizers.ByteLevel())
    with pytest.raises(UserError, match="a tokenizer of bytes"):
        read_tokenizer(path)
    with pytest.raises(UserError, match="holds no tokenizer"):
        read_tokenizer((tmp_path / "empty").mkdir() or tmp_path / "empty")


def test_the_lab_and_the_tokenizer_take_it(ready: Workspace, tmp_path: Path) -> None:
    path = str(bpe(tmp_path / "own.json"))
    compare_tokenizers.run(CompareTokenizersOptions(dataset="am", sizes=(20,), tokenizer_file=path), ready,
                           Recorder(tmp_path))
    report = TokenizerComparison.load(tmp_path)
    candidate = report.candidate(own_pieces.OWN)
    assert candidate is not None
    made = vocabulary.run(TokenizerOptions(dataset="am", tokenizer="own", tokenizer_file=path), ready,
                          Recorder(tmp_path))
    assert made["tokens_added"] == candidate.tokens_added
    assert made["tokens_per_character"] == round(candidate.tokens_per_character, 4)
    assert made["base_unchanged"] is True or report.proven == ("en", "fr")
    with pytest.raises(UserError, match="There is no tokenizer /nope"):
        check_requirements(ready, "tokenizer", TokenizerOptions(
            dataset="am", tokenizer="new", tokenizer_file="/nope"))


def test_new_pieces_that_no_training_text_has_are_counted(ready: Workspace, tmp_path: Path) -> None:
    """A tokenizer that was made from other texts brings rows that nothing trains."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    words = [f"ቀ{one}ቀ{two}ቀ" for one in "ቐቑቒቓቔ" for two in "ሠሡሢሣሤ"]
    tokenizer.train_from_iterator(words * 4, trainers.BpeTrainer(vocab_size=80, special_tokens=["<unk>"],
                                                                 show_progress=False))
    tokenizer.save(str(tmp_path / "other.json"))
    recorder = Recorder()
    result = vocabulary.run(TokenizerOptions(tokenizer="t", dataset="am", tokenizer_file=str(tmp_path / "other.json")),
                            ready, recorder)
    assert result["pieces_unused"] > 20
    assert (f"{result['pieces_unused']} of {result['pieces_added']} new pieces occur in no training text"
            in recorder.warnings)

    recorder = Recorder()
    fitting = vocabulary.run(TokenizerOptions(tokenizer="own", dataset="am", merges=20), ready, recorder)
    assert fitting["pieces_unused"] <= fitting["pieces_added"] / 2
    assert "occur in no training text" not in recorder.warnings
