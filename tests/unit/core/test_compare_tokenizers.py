"""The tokenizer lab: what it measures is what the tokenizer would be, and what it recommends follows from numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config.arguments import given_values, to_arguments
from config.errors import UserError
from config.loading import parse_options
from config.schema import CompareTokenizersOptions, TokenizerOptions
from core import compare_tokenizers, tokenizer
from core.model import loading
from core.submission.jobs import check_requirements
from core.text import script_coverage, text_rules
from core.text.script_coverage import MIN_OCCURRENCES
from core.text.tokenizer_comparison import (
    BASE,
    CHARACTERS,
    WITH_BYTES,
    ComparedTexts,
    TokenizerCandidate,
    TokenizerComparison,
    build_candidates,
    recommend,
)
from core.text.tokenizer_report import prove
from core.workspace import Workspace
from data import manifest
from data.front_end import FrontEnd
from data.manifest import ManifestClip
from scripts import command
from tests.unit.chatterbox_text import multilingual, paragraphs
from tests.unit.small_data import AMHARIC, SOMALI, Recorder, SmallFamily, base

NUMBERS = TokenizerCandidate("characters", "bpe", 0, 0, 40, 39, 39, 0.0, None, 1.0, 12.0, 90, 0, 5, ())


@pytest.fixture
def ready(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace with a model, a Somali and an Amharic dataset of two seconds a clip."""
    monkeypatch.setattr(compare_tokenizers, "family", lambda name: SmallFamily())
    monkeypatch.setattr(loading, "family_named", lambda name: SmallFamily())
    base().save(workspace.models / "tiny")
    write(workspace, "somali", "so", SOMALI * 4)
    write(workspace, "amharic", "am", AMHARIC)
    return workspace


def write(workspace: Workspace, name: str, language: str, texts: tuple[str, ...]) -> None:
    clips = [ManifestClip(str(n), f"audio/{n}.wav", text, language, "train", 2.0, "one", str(n))
             for n, text in enumerate(texts)]
    clips[-1] = replace(clips[-1], split="held_out")
    folder = workspace.datasets / name
    folder.mkdir()
    manifest.save(folder, manifest.make_card(name, language, "test", clips), clips)


def compared(workspace: Workspace, tmp_path: Path, **options: object) -> TokenizerComparison:
    reporter = Recorder(tmp_path)
    compare_tokenizers.run(CompareTokenizersOptions.model_validate({"dataset": "somali", "sizes": (5, 40), **options}),
                           workspace,
                           reporter)
    return TokenizerComparison.load(tmp_path)


@pytest.mark.parametrize("name", [CHARACTERS, "bpe-5", "bpe-40", "sentencepiece-40"])
def test_what_is_measured_is_what_the_tokenizer_will_be(ready: Workspace, tmp_path: Path, name: str) -> None:
    report = compared(ready, tmp_path)
    one = report.candidate(name)
    assert one is not None
    made = tokenizer.run(TokenizerOptions(dataset="somali", tokenizer="x", merges=one.merges_asked,
                                           algorithm=one.algorithm), ready, Recorder(tmp_path))
    assert made["tokens_added"] == one.tokens_added
    assert made["tokens_per_character"] == round(one.tokens_per_character, 4)
    front_end = FrontEnd.load(ready.tokenizer("x"))
    clips = manifest.load(ready.dataset("somali")).clips
    whole = [len(front_end.encode(clip.text, "so")) for clip in clips]
    assert (one.longest, one.over_limit) == (max(whole), sum(length > 60 for length in whole))
    assert one.tokens_per_second == sum(length - 3 for length in whole) / (2.0 * len(clips))
    uses = Counter(int(token) for clip in clips if clip.split == "train" for token in front_end.encode(clip.text, "so"))
    rare = {token.text: uses[token.id] for token in front_end.added_tokens()
            if token.kind != "tag" and uses[token.id] < 10}
    assert dict(one.rare_pieces) == rare
    assert one.rare == len(rare)


def test_the_base_stands_beside_them_and_leaves_ethiopic_unknown(ready: Workspace, tmp_path: Path) -> None:
    report = compared(ready, tmp_path, dataset="amharic")
    before, plain = report.candidate(BASE), report.candidate(CHARACTERS)
    assert before is not None
    assert plain is not None
    assert (before.characters_covered, before.tokens_added) == (0, 0)
    assert before.unknown_rate > 0.7
    assert (plain.characters_covered, plain.unknown_rate) == (plain.characters, 0)
    assert report.proven == ("en", "fr")
    needed = {byte for text in AMHARIC for byte in text.replace(" ", "").encode()}
    assert any(f"it would be {len(needed)} more rows for the bytes" in line for line in report.left_out)
    assert report.recommendation.name == CHARACTERS  # no piece is seen ten times in six sentences


def test_byte_fallback_is_compared_where_it_is_asked_for_and_told_with_its_cost(
        ready: Workspace, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("ጳጳስ", encoding="utf-8")
    report = compared(ready, tmp_path, dataset="amharic", text=str(text), byte_fallback=True)
    plain, spelled = report.candidate(CHARACTERS), report.candidate(WITH_BYTES)
    assert plain is not None
    assert spelled is not None
    assert (spelled.tokens_added, spelled.rare) == (plain.tokens_added + 256, plain.rare + 256)
    assert plain.given_unknown_rate is not None
    assert plain.given_unknown_rate > 0
    assert (spelled.given_unknown_rate, spelled.tokens_per_character) == (0, plain.tokens_per_character)
    assert not [line for line in report.left_out if "byte" in line]
    assert report.recommendation.name == CHARACTERS
    made = tokenizer.run(TokenizerOptions(dataset="amharic", tokenizer="b", byte_fallback=True), ready,
                          Recorder(tmp_path))
    assert (made["tokens_added"], made["base_unchanged"]) == (spelled.tokens_added, True)


def test_bytes_spell_what_is_new_and_leave_all_else_its_ids(ready: Workspace) -> None:
    before = base()
    without, spelled = (before.extended("am", "ethiopic", list("ሰላም"), [], None, one) for one in (False, True))
    assert spelled.size == without.size + 256
    assert [token.id for token in spelled.added_tokens() if token.kind == "byte"] == list(
        range(without.size, spelled.size))
    assert list(spelled.encode("ሰላም", "am")) == list(without.encode("ሰላም", "am"))
    with pytest.raises(UserError, match="outside the vocabulary"):
        without.encode("ሰላምታ", "am")
    kinds = {token.id: token.text for token in spelled.added_tokens()}
    bytes_of = [kinds[int(one)] for one in spelled.encode("ታ", "am") if int(one) in kinds][1:]
    assert bytes_of == [f"<0x{byte:02X}>" for byte in "ታ".encode()]
    for language in before.base_languages:
        for text in (*paragraphs()["en"][:3], "<0xE1>", "ሰ"):
            assert spelled.comparable(text, language) == before.comparable(text, language)


def test_given_text_shows_what_the_data_lacks_and_what_to_record(ready: Workspace, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("ሰላም ለሁሉም ሰው።\nጳጳሱ ጳጳስ ነው።\nቐ\n", encoding="utf-8-sig")
    report = compared(ready, tmp_path, dataset="amharic", text=str(text), sentences=2)
    plain = report.candidate(CHARACTERS)
    assert plain is not None
    assert plain.given_unknown_rate is not None
    assert plain.given_unknown_rate > 0
    cells = {cell.character: cell for block in report.script for cell in block.cells}
    assert (cells["ጳ"].train, cells["ጳ"].given) == (0, 4)
    assert report.script[0].name == "Ethiopic"
    assert report.script[0].whole
    assert cells["ሿ"].train == cells["ሿ"].given == 0  # a letter of the block that no text has
    assert "ጳጳሱ ጳጳስ ነው።" in [one.text for one in report.sentences]
    assert len(report.sentences) == 2
    assert set(report.still_rare) <= set(report.gaps)


def test_texts_are_read_by_the_rules_of_the_newest_tokenizer_unless_others_are_named(ready: Workspace,
                                                                                     tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("ሰላም ለ5 ሰው።\n<b>ሰላም</b> ነው።\n", encoding="utf-8")
    asked = {"dataset": "amharic", "text": str(text)}
    assert compared(ready, tmp_path, **asked).rules == ""
    tokenizer.run(TokenizerOptions(dataset="amharic", tokenizer="new", rules="am"), ready, Recorder(tmp_path))
    report = compared(ready, tmp_path, **asked)
    assert report.rules == "am"
    assert not {"5", "<", ">"} & set(report.gaps)
    assert not {mark for one in report.sentences for mark in one.characters} & {"5", "<", ">"}
    bare = compared(ready, tmp_path, rules="none", **asked)
    assert (bare.rules, "5" in bare.gaps) == ("", True)
    assert compared(ready, tmp_path, dataset="somali").rules == ""  # of another language


def test_texts_are_read_by_the_rules_that_the_tokenizer_has_not_by_others_of_their_name(ready: Workspace,
                                                                                        tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("ሰላም ለ50 ሰው።\n", encoding="utf-8")
    asked = {"dataset": "amharic", "text": str(text)}
    text_rules.save(ready, "mine", text_rules.read(ready, "am"))
    made = text_rules.content_hash(text_rules.load(ready, "mine"))
    tokenizer.run(TokenizerOptions(dataset="amharic", tokenizer="new", rules="mine"), ready, Recorder(tmp_path))
    first = compared(ready, tmp_path, **asked)
    assert (first.rules, first.rules_from, first.rules_hash) == ("mine", "new", made)
    path = ready.rules / "mine.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("ሃምሳ", "አምሳ"), encoding="utf-8")
    assert compared(ready, tmp_path, **asked) == first
    named = compared(ready, tmp_path, rules="mine", **asked)
    assert (named.rules_from, "አ" in named.gaps, "አ" in first.gaps) == ("", True, False)
    path.unlink()
    assert compared(ready, tmp_path, **asked) == first
    saved = ready.tokenizer("new") / "rules-am.json"
    saved.write_text(saved.read_text(encoding="utf-8").replace('"name": "mine"', '"name": ""'), encoding="utf-8")
    unnamed = compared(ready, tmp_path, **asked)
    assert (unnamed.rules, unnamed.rules_from, "5" in unnamed.gaps) == ("", "new", False)


def test_refusals_name_what_is_wrong(ready: Workspace, tmp_path: Path) -> None:
    wrong = tmp_path / "latin.txt"
    wrong.write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match="not UTF-8"):
        compared(ready, tmp_path, text=str(wrong))
    with pytest.raises(UserError, match="could not be read"):
        compared(ready, tmp_path, text=str(tmp_path / "none.txt"))
    with pytest.raises(UserError, match="There is no text"):
        check_requirements(ready, "compare_tokenizers",
                                        CompareTokenizersOptions(dataset="somali", text=str(tmp_path / "none.txt")))
    with pytest.raises(UserError, match="There is no dataset named 'nosuch'"):
        check_requirements(ready, "compare_tokenizers", CompareTokenizersOptions(dataset="nosuch"))
    (tmp_path / "lab.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match=r"lab\.json could not be read"):
        TokenizerComparison.load(tmp_path)


@pytest.mark.parametrize(("changes", "chosen", "said"), [
    ({}, "bpe-50", "40% fewer tokens"),
    ({"rare": 6}, "characters", "6 of the 40 of bpe-50 are seen fewer than 10 times, 5 of the 40 of the characters"),
    ({"tokens_per_character": 0.95}, "characters", "save too little"),
    ({"unknown_rate": 0.1}, "characters", "leaves text unknown (bpe-50: 10.0%)"),
    ({"over_limit": 3}, "bpe-50", "3 texts are longer than the model's 60 tokens"),
])
def test_the_recommendation_follows_from_the_numbers(changes: dict[str, float], chosen: str, said: str) -> None:
    other = replace(NUMBERS, **{"name": "bpe-50", "tokens_per_character": 0.6, "merges": 50, **changes})
    found = recommend([replace(NUMBERS, name=BASE, algorithm=""), NUMBERS, other], 60)
    assert found.name == chosen
    assert said in found.reason


@pytest.mark.parametrize(("rare", "chosen"), [(2, "bpe-50"), (3, "characters")])
def test_one_row_in_twenty_may_be_rare_where_the_characters_are_all_seen(rare: int, chosen: str) -> None:
    longer = replace(NUMBERS, name="bpe-50", tokens_per_character=0.6, rare=rare)
    assert recommend([replace(NUMBERS, rare=0), longer], 60).name == chosen


def test_the_command_line_gives_the_options_back() -> None:
    options = CompareTokenizersOptions(sizes=(7, 90), tokenizer_file="/x.json", text="/y.txt", sentences=3)
    given = command.build_parser("compare_tokenizers").parse_args(to_arguments(options))
    assert parse_options(CompareTokenizersOptions, given_values(given, CompareTokenizersOptions)) == options
    with pytest.raises(UserError, match="0 pieces cannot be learned"):
        parse_options(CompareTokenizersOptions, {"sizes": ("0",)})


def test_the_shortest_of_the_learnable_is_chosen_and_fewer_lost_texts_come_first() -> None:
    short = replace(NUMBERS, name="bpe-200", tokens_per_character=0.5, over_limit=2)
    fits = replace(NUMBERS, name="bpe-100", tokens_per_character=0.7)
    assert recommend([NUMBERS, short, fits], 60).name == "bpe-100"
    assert recommend([NUMBERS, replace(short, over_limit=0), fits], 60).name == "bpe-200"
    assert "no pieces longer" in recommend([NUMBERS], 60).reason


@given(st.lists(st.text("abcdeሀለ ", min_size=1, max_size=30), max_size=12), st.integers(0, 12))
@settings(max_examples=60, deadline=None)
def test_a_cover_brings_only_what_is_needed_and_never_repeats(texts: list[str], most: int) -> None:
    train = {"a": MIN_OCCURRENCES, "b": MIN_OCCURRENCES - 1}
    chosen, left = script_coverage.choose_prompts([(text, text) for text in texts], train, most)
    assert len(chosen) <= most
    assert len({one.text for one in chosen}) == len(chosen)
    assert all(one.characters and set(one.characters) <= set(one.text) - {"a", " "} for one in chosen)
    have = Counter(train) + script_coverage.count_characters([one.text for one in chosen])
    assert set(left) == {one for one in script_coverage.count_characters(texts) if have[one] < MIN_OCCURRENCES}


def test_a_cover_takes_the_sentence_that_brings_most_first() -> None:
    texts = ["aaaa", "abcd", "bcbc", "abcdeeee"]
    chosen, left = script_coverage.choose_prompts([(text, text) for text in texts], {"a": 10, "d": 10}, 10)
    assert [one.text for one in chosen][:2] == ["abcdeeee", "bcbc"]  # three letters that are missing, then two
    assert "aaaa" not in [one.text for one in chosen]
    assert left == ("b", "c", "e")


def test_blocks_and_their_letters() -> None:
    assert (script_coverage.block_of("ሀ"), script_coverage.block_of("ß"), script_coverage.block_of("☃")) == (
        "Ethiopic", "Latin-1 Supplement", script_coverage.OTHER)
    assert {"ሀ", "ፚ"} <= set(script_coverage.block_letters("Ethiopic"))
    assert "፩" not in script_coverage.block_letters("Ethiopic")  # a numeral
    assert script_coverage.block_letters("Hangul Syllables") == ()


def test_letters_that_never_reach_the_model_are_not_missing() -> None:
    drawn = script_coverage.map_script({"a": 5, "é": 1}, {}, {}, str.islower)
    cells = {cell.character for block in drawn for cell in block.cells}
    assert "z" in cells
    assert "Z" not in cells
    assert [block.name for block in drawn] == ["Basic Latin", "Latin-1 Supplement"]


@pytest.mark.parametrize("language", ["am", "yo"])  # a separate script, and one that the base languages have too
def test_every_base_language_keeps_its_ids_on_real_text(tmp_path: Path, language: str) -> None:
    spoken = paragraphs()
    before = multilingual(tmp_path)
    reader = before.extended(language, before.normaliser_for(language), [], [])
    normal = tuple(reader.normalise(text, language) for text in spoken[language])
    texts = ComparedTexts(language, normal[5:], normal[:5], (), 60.0)
    sentences = [(code, text) for code in before.base_languages for text in spoken[code]]
    for made in build_candidates(before, texts, (200,), 2000, None, []):
        if made.candidate.name == BASE:
            continue
        proofs = prove(before, made.front_end, sentences)
        assert [proof.language for proof in proofs if proof.same] == list(before.base_languages)
        assert len(proofs) == 23
        assert made.candidate.unknown_rate == 0
