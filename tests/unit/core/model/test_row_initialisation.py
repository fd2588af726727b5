"""New rows: from the right old rows, all different, the same each time."""

import re
import unicodedata

import pytest
import torch

from config.errors import UserError
from config.schema import Initialisation
from core.model.row_initialisation import initial_rows
from core.text import row_sources
from data.front_end import FrontEnd
from data.languages.latin import romanise_by_order
from tests.unit.small_data import AMHARIC, base

STRATEGIES = ("random", "mean", "neighbours", "romanised", "factored")
CHARACTERS = sorted(set("".join(AMHARIC)) - {" "} | set("ሀሐኀ"))
SIZE = 32


def tables(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(base().prefix_size, SIZE, generator=generator).to(dtype) * scale + 1
            for name, scale in (("text_emb", 0.1), ("text_head", 2.0))}


def amharic() -> FrontEnd:
    return base().extended("am", "ethiopic", CHARACTERS, [("ሰ", "ላ")])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rows_have_the_right_shape_and_differ(strategy: str, dtype: torch.dtype) -> None:
    extended = amharic()
    made = initial_rows(tables(dtype), base(), extended, strategy, seed=0)
    for name, old in tables(dtype).items():
        rows = made.rows[name]
        assert rows.shape == (extended.size - extended.prefix_size, SIZE)
        assert rows.dtype == dtype
        assert len(torch.cat([old, rows]).unique(dim=0)) == len(old) + len(rows)
        assert rows.isfinite().all()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rows_are_decided_by_the_seed(strategy: str) -> None:
    first, again, other = (initial_rows(tables(), base(), amharic(), strategy, seed).rows for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_random_state_of_the_process_is_left_alone() -> None:
    before = torch.get_rng_state()
    initial_rows(tables(), base(), amharic(), "mean", 0)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(("strategy", "share"), [("mean", 0.1), ("random", 1.0)])
def test_rows_around_the_mean_of_all_have_their_share_of_noise(strategy: Initialisation, share: float) -> None:
    old = tables()["text_head"]
    made = initial_rows({"text_head": old}, base(), amharic(), strategy, 0)
    spread = (made.rows["text_head"][1:] - old.mean(0)).std(0, correction=0) / old.std(0, correction=0)
    assert 0.7 * share < spread.mean() < 1.3 * share
    assert made.fallen_back == ()


def test_romanised_is_the_mean_of_the_latin_letters() -> None:
    front_end = amharic()
    made = initial_rows(tables(), base(), front_end, "romanised", 0)
    index = next(token.id for token in front_end.added_tokens() if token.text == "ላ") - front_end.prefix_size
    for name, old in tables().items():
        wanted = old[[base().base_vocabulary["l"], base().base_vocabulary["a"]]].mean(0)
        assert torch.allclose(made.rows[name][index], wanted, atol=0.1 * float(old.std()))
    assert made.fallen_back == ()
    assert made.tags == ("[am]",)


def test_the_orders_of_a_consonant_are_spelled_apart() -> None:
    """Consonant and order by Unicode's names. Some orders 1 and 4 sound alike (ሀ, ሃ), and 3 and 6 of a vowel (ኢ, እ)."""
    spelled: dict[str, dict[str, str]] = {}
    for character in map(chr, (*range(0x1200, 0x1380), *range(0x2D80, 0x2DE0), *range(0xAB00, 0xAB30))):
        if name := re.fullmatch("ETHIOPIC SYLLABLE (.*?)(EE|AA|A|U|I|E|O)", unicodedata.name(character, "")):
            spelled.setdefault(name[1], {})[name[2]] = romanise_by_order(character)
    series = {consonant: found for consonant, found in spelled.items() if len(found) == 7}
    assert len(series) > 40
    for consonant, found in series.items():
        is_vowel = consonant in ("GLOTTAL ", "PHARYNGEAL ")
        assert len({value for order, value in found.items() if order != "AA"}) == (5 if is_vowel else 6), consonant
        assert all(re.search("[a-z]", value) for value in found.values())
    assert [romanise_by_order(one) for one in ("ለ", "ሌ", "ል", "እ", "ዕ", "ኧ")] == ["le", "lie", "l", "'i", "'i", "'e"]


def test_factored_rows_are_consonant_plus_vowel() -> None:
    front_end = base().extended("am", "ethiopic", list("ላልሉበቡ"), [])
    by_text = {token.text: token.id - front_end.prefix_size for token in front_end.added_tokens()}
    for name, old in tables().items():
        rows = initial_rows(tables(), base(), front_end, "factored", 0).rows[name]
        one = {letter: old[base().base_vocabulary[letter]] for letter in "labu"}
        torch.testing.assert_close(rows[by_text["ላ"]], one["l"] + one["a"] - old.mean(0))
        torch.testing.assert_close(rows[by_text["ል"]], one["l"], rtol=0, atol=0.2 * float(old.std()))  # it has no vowel
        torch.testing.assert_close(rows[by_text["ሉ"]] - rows[by_text["ል"]], one["u"] - old.mean(0), rtol=0,
                                   atol=0.2 * float(old.std()))


def test_homophones_start_close_but_apart() -> None:
    front_end = amharic()
    rows = initial_rows(tables(), base(), front_end, "romanised", 0).rows["text_emb"]
    by_text = {token.text: rows[token.id - front_end.prefix_size] for token in front_end.added_tokens()}
    distances = [float((by_text["ሀ"] - by_text[other]).norm()) for other in ("ሐ", "ኀ", "ላ")]
    assert 0 < distances[0] < distances[2] / 3
    assert 0 < distances[1] < distances[2] / 3


def test_neighbours_spell_merges_and_fall_back_where_the_base_cannot() -> None:
    front_end = base().extended("so", "latin", list("salñ"), [("s", "a"), ("l", "a"), ("sa", "la"), ("a", "ñ")])
    made = initial_rows(tables(), base(), front_end, "neighbours", 0)
    old = tables()["text_emb"]
    index = next(token.id for token in front_end.added_tokens() if token.text == "sala") - front_end.prefix_size
    assert torch.allclose(made.rows["text_emb"][index], old[[base().base_vocabulary[c] for c in "sala"]].mean(0))
    assert made.spelled == ("sa", "la", "sala")
    assert made.fallen_back == ("ñ", "añ")


@pytest.mark.parametrize("strategy", ["neighbours", "romanised", "factored", "fitted"])
def test_what_the_base_can_spell_is_counted_without_the_model(strategy: Initialisation) -> None:
    for extended in (amharic(), base().extended("so", "latin", list("salñ"), [("s", "a"), ("a", "ñ")])):
        made, found = initial_rows(tables(), base(), extended, strategy, 0), row_sources.count_spelled_rows(extended)
        assert found.spelled[strategy] == len(made.spelled)
        assert found.rows == len(made.spelled) + len(made.fallen_back)


def test_where_no_neighbour_is_found_they_are_the_same_start_as_the_mean() -> None:
    found = row_sources.count_spelled_rows(amharic()).spelled
    assert found["neighbours"] == 0 < found["romanised"]
    mean, neighbours, romanised = (initial_rows(tables(), base(), amharic(), strategy, 0).rows["text_emb"]
                                   for strategy in ("mean", "neighbours", "romanised"))
    assert torch.equal(mean, neighbours)
    assert not torch.equal(mean, romanised)


def test_anagrams_are_parted() -> None:
    front_end = base().extended("so", "latin", [], [("s", "a"), ("a", "s")])
    rows = initial_rows(tables(), base(), front_end, "neighbours", 0).rows["text_emb"]
    assert not torch.equal(rows[1], rows[2])
    assert torch.allclose(rows[1], rows[2], atol=0.02)


def test_table_of_another_model_is_refused_with_both_sizes() -> None:
    with pytest.raises(UserError, match=r"text_emb has 48 rows, the base tokenizer 49 ids"):
        initial_rows({"text_emb": tables()["text_emb"][:-1]}, base(), amharic(), "mean", 0)


def test_tokenizer_of_another_model_is_refused() -> None:
    other = FrontEnd.base({"en": "latin"}, "abc").extended("am", "ethiopic", ["ሀ"], [])
    with pytest.raises(UserError, match=r"base of 8 ids .* the model has 49"):
        initial_rows(tables(), base(), other, "mean", 0)


def test_old_rows_that_are_all_equal_still_give_different_ones() -> None:
    rows = initial_rows({"text_emb": torch.zeros(49, SIZE)}, base(), amharic(), "romanised", 0).rows["text_emb"]
    assert len(rows.unique(dim=0)) == len(rows)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_bias_starts_where_its_rows_do_and_changes_no_other_table(strategy: Initialisation) -> None:
    bias = torch.linspace(-1, 1, base().prefix_size)
    alone, made = initial_rows(tables(), base(), amharic(), strategy, 0), initial_rows(
        {**tables(), "text_head.bias": bias}, base(), amharic(), strategy, 0)
    assert all(torch.equal(alone.rows[name], made.rows[name]) for name in alone.rows)
    new = made.rows["text_head.bias"]
    assert new.shape == (len(alone.rows["text_head"]),)
    for value, ids in zip(new, made.spellings, strict=True):
        if not ids:  # a tag, or what the base cannot spell
            assert bias.min() <= value <= bias.max()
        elif strategy != "factored":
            torch.testing.assert_close(value, bias[list(ids)].mean())
    if strategy in ("mean", "random"):
        torch.testing.assert_close(new[-2:], bias.mean().expand(2))
