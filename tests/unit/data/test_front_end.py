"""One front-end: base ids never move, new merges stay in their language, and faults are named."""

import json
from pathlib import Path

import numpy as np
import pytest

from config.errors import UserError
from data.front_end import FrontEnd
from tests.unit.small_data import AMHARIC, SOMALI, base

CHATTERBOX_TOKENS = {"[STOP]": 0, "[UNK]": 1, "[SPACE]": 2, "a": 14, "b": 15, "e": 18, "h": 21, "t": 33, "th": 40,
                     "[START]": 255, "[en]": 300, "[PLACEHOLDER1]": 301}


def chatterbox() -> bytes:
    """A file in the published form: ids with gaps, merges, special tokens among the others."""
    content = json.loads(base().files["tokenizer.json"])
    content["model"]["vocab"] = CHATTERBOX_TOKENS
    content["model"]["merges"] = ["t h"]
    special = [token for token in CHATTERBOX_TOKENS if token.startswith("[")]
    content["added_tokens"] = [
        {"id": CHATTERBOX_TOKENS[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True} for token in special
    ]
    return json.dumps(content).encode()


def test_text_is_start_tag_text_stop() -> None:
    front_end = base()
    ids = front_end.encode("A bé!", "fr")
    wanted = ["[START]", "[fr]", "a", "[SPACE]", "b", "é", "[STOP]"]
    assert ids.dtype == np.int64
    assert ids.tolist() == [front_end.base_vocabulary[token] for token in wanted]


def test_special_ids_are_read_from_the_file() -> None:
    front_end = FrontEnd.wrap(chatterbox(), {"en": "latin"})
    assert front_end.encode("The bath", "en").tolist() == [255, 300, 40, 18, 2, 15, 14, 40, 0]
    assert front_end.prefix_size == front_end.size == 302


def test_spare_rows_of_a_checkpoint_are_part_of_the_prefix() -> None:
    extended = FrontEnd.wrap(chatterbox(), {"en": "latin"}, prefix_size=304).extended("am", "ethiopic", ["ሀ"], [])
    assert [token.id for token in extended.added_tokens()] == [304, 305]


def test_checkpoint_with_too_few_rows_is_refused_with_both_sizes() -> None:
    with pytest.raises(UserError, match=r"302 ids, the checkpoint 300 text rows"):
        FrontEnd.wrap(chatterbox(), {"en": "latin"}, prefix_size=300)


def test_tokenizer_without_special_tokens_is_refused() -> None:
    with pytest.raises(UserError, match=r"lacks \[de\]"):
        FrontEnd.wrap(chatterbox(), {"de": "latin"})


def test_damaged_tokenizer_file_is_named() -> None:
    with pytest.raises(UserError, match=r"tokenizer\.json is not a whole BPE tokenizer file"):
        FrontEnd.wrap(chatterbox()[:-40], {"en": "latin"})


def test_new_tokens_are_appended_and_base_ids_stay() -> None:
    old = base()
    new = old.extended("am", "ethiopic", list("ሀለሐ"), [("ሀ", "ለ")])
    added = new.added_tokens()
    assert [(token.text, token.kind) for token in added] == [
        ("[am]", "tag"), ("ሀ", "character"), ("ለ", "character"), ("ሐ", "character"), ("ሀለ", "merge")]
    assert [token.id for token in added] == list(range(old.size, new.size))
    assert new.prefix_size == old.size
    assert new.files["tokenizer.json"] == old.files["tokenizer.json"]
    assert new.encode("ሀለ ሐ", "am").tolist()[2:-1] == [added[4].id, 2, added[3].id]
    assert new.base_languages == ("en", "fr")
    assert new.is_new("am")
    assert not new.is_new("en")


def test_merges_in_the_same_script_never_fire_in_a_base_language() -> None:
    old = base()
    new = old.extended("so", "latin", list("abdhnx"), [("d", "h"), ("a", "a"), ("dh", "a")])
    for text in ("dhaan dhaa", "adhere", "L'adhésion"):
        assert new.encode(text, "en").tolist() == old.encode(text, "en").tolist()
        assert new.encode(text, "fr").tolist() == old.encode(text, "fr").tolist()
    assert len(new.encode("dhaa", "so")) < len(old.encode("dhaa", "en"))


def test_characters_with_a_base_id_keep_it() -> None:
    new = base().extended("so", "latin", sorted(set("".join(SOMALI).lower()) - set(" .")), [])
    assert [token.text for token in new.added_tokens()] == ["[so]"]


def test_a_second_language_does_not_touch_the_first() -> None:
    first = base().extended("so", "latin", [], [("d", "h")])
    second = first.extended("am", "ethiopic", ["ሀ"], [])
    assert second.files["language-so.json"] == first.files["language-so.json"]
    assert second.encode("dhaqan", "so").tolist() == first.encode("dhaqan", "so").tolist()
    assert len({token.id for token in second.added_tokens()}) == 4


def test_saved_front_end_is_the_same(tmp_path: Path) -> None:
    front_end = base().extended("am", "ethiopic", sorted(set("".join(AMHARIC)) - {" "}), [("ሰ", "ላ")])
    front_end.save(tmp_path)
    loaded = FrontEnd.load(tmp_path)
    assert loaded == front_end
    assert loaded.fingerprint == front_end.fingerprint
    assert [loaded.encode(text, "am").tolist() for text in AMHARIC] == [
        front_end.encode(text, "am").tolist() for text in AMHARIC]


def test_fingerprint_follows_every_file() -> None:
    prints = [base().fingerprint]
    for normaliser, character in (("ethiopic", "ሀ"), ("generic", "ሀ"), ("ethiopic", "ለ")):
        prints.append(base().extended("am", normaliser, [character], []).fingerprint)
    assert len(set(prints)) == 4


@pytest.mark.parametrize(("text", "language", "message"), [
    ("", "en", "The text is empty"),
    (" … ! ", "en", "The text is empty"),
    ("room 12", "en", r"characters outside the vocabulary of 'en': 1 \(U\+0031\), 2 \(U\+0032\)"),
    ("ሰላም", "en", r"outside the vocabulary of 'en': ሰ \(U\+1230\)"),
    ("hello", "am", "'am' is not one of: en, fr"),
])
def test_text_that_cannot_be_spoken_is_named(text: str, language: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        base().encode(text, language)
    assert caught.value.hint


def test_markup_in_a_text_is_text() -> None:
    assert base().encode("[STOP] a", "en").tolist() == base().encode("stop a", "en").tolist()


def test_language_that_is_there_is_refused() -> None:
    with pytest.raises(UserError, match="already knows the language 'fr'"):
        base().extended("fr", "latin", [], [])


def test_extension_of_another_base_is_refused_with_both_sizes() -> None:
    other = FrontEnd.base({"en": "latin"}, "abc")
    with pytest.raises(UserError, match=r"base of 8 ids .* the model has 49 "):
        other.extended("am", "ethiopic", ["ሀ"], []).check_extends(base())


def test_same_size_is_not_the_same_vocabulary() -> None:
    one, other = FrontEnd.base({"en": "latin"}, "abc"), FrontEnd.base({"en": "latin"}, "abd")
    with pytest.raises(UserError, match="do not belong together"):
        one.check_extends(other)


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"lacks front_end\.json"):
        FrontEnd.load(tmp_path)
    base().extended("am", "ethiopic", ["ሀ"], []).save(tmp_path)
    (tmp_path / "language-am.json").write_text("{")
    with pytest.raises(UserError, match=r"language-am\.json is not a whole BPE tokenizer file"):
        FrontEnd.load(tmp_path)
    (tmp_path / "language-am.json").unlink()
    with pytest.raises(UserError, match=r"lacks language-am\.json"):
        FrontEnd.load(tmp_path)


def test_settings_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    base().save(tmp_path)
    settings = tmp_path / "front_end.json"
    settings.write_text(settings.read_text().replace('"tokenizer": "tokenizer.json"', '"tokenizer": "../x.json"', 1))
    with pytest.raises(UserError, match=r"front_end\.json is damaged"):
        FrontEnd.load(tmp_path)


def test_fingerprints_of_what_was_saved_before_stand() -> None:
    """Runs and exports name them: what is made of the shipped model today must be what was made of it then."""
    shipped = FrontEnd.load(Path(__file__).parents[3] / "models" / "tiny" / "pack")
    assert shipped.fingerprint.startswith("c528270337e1")
    extended = shipped.extended("am", "ethiopic", list("ሀለ"), [("ሀ", "ለ")]).extended("so", "latin", [], [("d", "h")])
    assert extended.fingerprint.startswith("9bbf7b1253a6")


def test_tag_that_the_base_has_to_spare_gets_a_row_that_can_learn() -> None:
    """Chatterbox's file has tags of languages that it was not published with; their rows are frozen."""
    content = json.loads(chatterbox())
    content["model"]["vocab"]["[vi]"] = 302
    content["added_tokens"].append({**content["added_tokens"][-1], "id": 302, "content": "[vi]"})
    base_front_end = FrontEnd.wrap(json.dumps(content).encode(), {"en": "latin"})
    extended = base_front_end.extended("vi", "latin", ["e", "h"], [])
    assert [(token.text, token.id) for token in extended.added_tokens()] == [("[vi]", 303)]
    assert extended.encode("he", "vi").tolist() == [255, 303, 21, 18, 0]
    merged = json.loads(extended.files["language-vi.json"])
    assert merged["model"]["vocab"]["[vi]"] == 303
    assert [token["id"] for token in merged["added_tokens"] if token["content"] == "[vi]"] == [303]
    assert extended.encode("the", "en").tolist() == base_front_end.encode("the", "en").tolist()


def test_style_of_the_base_decides_how_a_new_language_is_written() -> None:
    words = FrontEnd.wrap(chatterbox(), {"en": "latin"})
    marks = FrontEnd.wrap(chatterbox(), {"en": "chatterbox"}, style="chatterbox")
    assert (words.normaliser_for("am"), marks.normaliser_for("am")) == ("ethiopic", "chatterbox-new-ethiopic")
    assert (words.normaliser_for("en"), marks.normaliser_for("en")) == ("latin", "chatterbox")
    assert words.fingerprint != marks.fingerprint
