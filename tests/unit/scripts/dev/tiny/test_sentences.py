"""The texts of the built-in model: what may be trained on and what is held out."""

import pytest

from scripts.dev.tiny.sentences import (
    FORBIDDEN,
    LANGUAGES,
    LENGTHS,
    SentenceSets,
    build,
    coverage,
    demo,
    fragments,
    normalise,
)


@pytest.fixture(scope="module", params=LANGUAGES)
def small(request: pytest.FixtureRequest) -> tuple[str, SentenceSets]:
    return request.param, build(request.param, n_train=300, n_test=10, seed=3)


@pytest.fixture(scope="module")
def demo_texts() -> SentenceSets:
    return demo(seed=0)


def words(texts: tuple[str, ...]) -> set[str]:
    return {word for text in texts for word in text.split()}


def test_the_numbers_asked_for_are_given_without_repeats(small):
    _, texts = small
    assert [len(set(part)) for part in (texts.train, texts.combinations, texts.running)] == [
        300,
        10,
        10,
    ]


def test_train_and_held_out_texts_are_disjoint(small):
    _, texts = small
    everything = (*texts.train, *texts.combinations, *texts.running)
    assert len(set(everything)) == len(everything)


def test_texts_keep_to_the_alphabet_and_length_of_their_language(small):
    language, texts = small
    low, high = LENGTHS[language]
    for text in (*texts.train, *texts.combinations, *texts.running):
        assert text == normalise(text, language)
        assert not FORBIDDEN[language].search(text)
        assert low <= len(text) <= high, text


def test_combinations_are_made_of_known_words(small):
    _, texts = small
    assert words(texts.combinations) <= words(texts.train)


def test_the_same_seed_gives_the_same_texts_and_another_seed_others(small):
    language, texts = small
    assert build(language, n_train=300, n_test=10, seed=3) == texts
    assert build(language, n_train=300, n_test=10, seed=4) != texts


def test_held_out_texts_do_not_depend_on_the_number_of_train_texts():
    few, more = (build("fr", n_train=n, n_test=10, seed=0) for n in (200, 400))
    assert (few.combinations, few.running) == (more.combinations, more.running)


def test_the_demo_shares_held_out_texts_with_the_judge_but_no_train_text(demo_texts):
    recogniser = build("am", n_train=1000, n_test=40, seed=0)
    assert (recogniser.combinations, recogniser.running) == (demo_texts.combinations, demo_texts.running)
    assert set(recogniser.train).isdisjoint(demo_texts.train)


def test_the_demo_covers_the_held_out_syllables_and_words(demo_texts):
    counts = coverage(demo_texts.train)
    held_out = coverage(demo_texts.combinations + demo_texts.running)
    assert {c for c in held_out if counts[c] == 0} == set()
    assert sum(counts[c] >= 3 for c in held_out) >= 0.95 * len(held_out)
    assert words(demo_texts.combinations) <= words(demo_texts.train)


def test_french_contracts_and_agrees():
    train = build("fr", n_train=2000, n_test=10, seed=0).train
    templates = [f" {text} " for text in train if " est " in text]
    assert any("l'" in text for text in templates)
    for wrong in (" le homme", " la école", " de le ", " ma école", " ce homme"):
        assert not any(wrong in text for text in templates), wrong


def test_fragments_are_distinct_and_without_punctuation():
    swahili, chinese = fragments("sw", 20, seed=0), fragments("zh", 20, seed=0)
    assert len(set(swahili)) == len(set(chinese)) == 20
    assert all(1 <= len(text.split()) <= 4 for text in swahili)
    assert all(text.isalpha() and len(text) <= 12 for text in chinese)


@pytest.mark.parametrize("call", [lambda: build("de", 10, 1, 0), lambda: fragments("am", 1, 0)])
def test_a_language_that_is_not_offered_is_refused_by_name(call):
    with pytest.raises(ValueError, match="'de'|'am'"):
        call()


def test_asking_for_more_than_there_is_fails():
    with pytest.raises(ValueError, match="too few"):
        build("en", n_train=5, n_test=40, seed=0)
    with pytest.raises(ValueError, match="candidates"):
        demo(n_train=100_000)
