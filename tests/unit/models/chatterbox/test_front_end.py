"""Chatterbox's text: the published ids, the right tokenizer for a checkpoint, and new languages with punctuation."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.errors import UserError
from data.front_end import FrontEnd
from data.text_chunking import split_for_model
from models.chatterbox.front_end import LANGUAGES, base_front_end
from tests.unit.chatterbox_text import (
    MADE_UP,
    MULTILINGUAL,
    ROWS,
    english_file,
    forget_tools,
    install_stand_ins,
    model_folder,
    multilingual,
    remove_packages,
)

PUBLISHED = json.loads((MADE_UP / "text.json").read_text("utf-8"))
NEEDS = {"zh": "spacy-pkuseg", "ja": "pykakasi", "he-pointed": "dicta-onnx", "ru": "russian-text-stresser"}


@pytest.fixture(autouse=True)
def tools() -> Iterator[None]:
    """No test leaves its stand-ins to the next."""
    yield
    forget_tools()


@pytest.fixture
def base(tmp_path: Path) -> FrontEnd:
    return multilingual(tmp_path)


def reading(front_end: FrontEnd, language: str) -> tuple[FrontEnd, str]:
    """The front-end and the language code of a key of `NEEDS`."""
    return (front_end.with_pointed_hebrew(), "he") if language == "he-pointed" else (front_end, language)


def body(front_end: FrontEnd, text: str, language: str) -> list[int]:
    """Ids as the published tokenizer hands them out: an unknown character as one [UNK], no start and stop."""
    tag = front_end.tag_id(language)
    return [*([] if tag is None else [tag]), *front_end.body(text, language)]


@pytest.mark.parametrize("language", LANGUAGES)
def test_ids_are_the_published_ones(language: str, base: FrontEnd, tmp_path: Path,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    if language == "ja":
        pytest.importorskip("pykakasi", reason="optional, and the comparison is with the real one")
    install_stand_ins(monkeypatch, tmp_path)
    assert len(PUBLISHED[language]) >= 20
    for text, ids in PUBLISHED[language]:
        assert body(base, text, language) == ids, text


def test_hebrew_is_read_as_published_and_with_points_as_it_was_meant(base: FrontEnd, tmp_path: Path,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """The published call fails for want of a path, with or without dicta-onnx; `he-pointed` is with the path given."""
    remove_packages(monkeypatch)
    assert base.unready("he") == ""
    for text, ids in PUBLISHED["he"]:
        assert body(base, text, "he") == ids
    install_stand_ins(monkeypatch, tmp_path)
    pointed = base.with_pointed_hebrew()
    assert PUBLISHED["he"] != PUBLISHED["he-pointed"]
    for text, ids in PUBLISHED["he-pointed"]:
        assert body(pointed, text, "he") == ids
    assert pointed.normaliser_for("en") == base.normaliser_for("en")
    variant = base.with_variant("he-x-own", "he")
    assert variant.with_pointed_hebrew().normaliser_for("he-x-own") == base.normaliser_for("he")  # as it was trained


def test_english_model_keeps_case_and_has_no_tag(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(english_file())
    front_end = base_front_end(tmp_path, ROWS)
    assert front_end.languages == ("en",)
    for text, ids in PUBLISHED["english"]:
        assert body(front_end, text, "en") == ids, text
    assert front_end.encode("Hi", "en").tolist()[0] == 255
    assert front_end.encode("Hi", "en").tolist()[-1] == 0
    assert front_end.overhead("en") == 2


def test_text_stands_between_start_tag_and_stop(base: FrontEnd) -> None:
    ids = base.encode("The hall", "en").tolist()
    assert ids[:2] == [255, base.tag_id("en")]
    assert ids[-1] == base.base_vocabulary["[STOP]"] == 0
    assert len(ids) == base.overhead("en") + len(base.body("The hall", "en"))


@pytest.mark.parametrize("text", ["", " ", "...", "!?", "“”", "\n"])
def test_text_without_words_is_refused(base: FrontEnd, text: str) -> None:
    with pytest.raises(UserError, match="The text is empty"):
        base.encode(text, "de")


def test_unknown_characters_are_named(base: FrontEnd) -> None:
    with pytest.raises(UserError, match=r"outside the vocabulary of 'sv': ሰ \(U\+1230\)"):
        base.encode("hej ሰ", "sv")


def test_unknown_characters_are_spoken_around_or_sent_as_published(base: FrontEnd) -> None:
    """The published package sends [UNK] for each and says nothing."""
    checked = 0
    for language in ("sv", "en", "de", "el", "sw"):
        for text, ids in PUBLISHED[language]:
            if base.unknown_id in ids:
                assert base.encode(text, language, "unk").tolist()[1:-1] == ids
                if base.can_read(text, language):
                    known = [one for one in ids if one != base.unknown_id]
                    assert base.encode(text, language, "leave_out").tolist()[1:-1] == known
                    checked += 1
    assert checked
    assert base.encode("hej ሰ du", "sv", "unk").tolist().count(base.unknown_id) == 1
    with pytest.raises(UserError, match="outside the vocabulary") as caught:
        base.encode("ሰ.", "sv", "leave_out")
    assert "if `--unknown` says so" in caught.value.hint
    for choice, wanted in (("unk", ["Först det.", "ሰላም!", "Sedan ሰ slut."]),
                           ("leave_out", ["Först det.", "Sedan ሰ slut."])):
        found = split_for_model("Först det. ሰላም! Sedan ሰ slut.", "sv", base, 40, 200, choice)
        assert [chunk.text for chunk in found] == wanted


def test_marks_that_steer_the_model_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(english_file())
    with pytest.raises(UserError, match=r"holds the mark \[START\] or \[STOP\]"):
        base_front_end(tmp_path, ROWS).encode("Hi [STOP] there", "en")


@pytest.mark.parametrize(("language", "package"), NEEDS.items())
def test_missing_package_is_named_with_its_command(language: str, package: str, base: FrontEnd,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    remove_packages(monkeypatch)
    front_end, code = reading(base, language)
    with pytest.raises(UserError, match=f"needs the package {package}, which is not installed") as caught:
        front_end.encode("текст 文 אב かな", code)
    assert "python -m pip install" in caught.value.hint
    assert package in caught.value.hint
    assert package in front_end.unready(code)
    requirements = (Path(__file__).parents[4] / "requirements-languages.txt").read_text("utf-8")
    wanted = caught.value.hint.split("pip install ")[1].split(" (it is in")[0].strip('"')
    assert wanted in requirements


def test_languages_without_a_package_need_none(base: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_packages(monkeypatch)
    assert [code for code in LANGUAGES if base.unready(code)] == ["ja", "ru", "zh"]
    for language in set(LANGUAGES) - set(NEEDS):
        for text, ids in PUBLISHED[language]:
            assert body(base, text, language) == ids


def test_missing_model_of_a_package_says_where_it_comes_from(base: FrontEnd, tmp_path: Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    install_stand_ins(monkeypatch, tmp_path)
    monkeypatch.setenv("DICTA_MODEL", str(tmp_path / "absent.onnx"))
    with pytest.raises(UserError, match=r"the model of dicta-onnx.*absent\.onnx") as caught:
        base.with_pointed_hebrew().encode("שלום", "he")
    assert "Download dicta-1.0.onnx from https://github.com/thewh1teagle" in caught.value.hint


def test_model_that_cannot_be_fetched_is_no_traceback(base: FrontEnd, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    install_stand_ins(monkeypatch, tmp_path)

    def offline() -> None:
        raise ConnectionError("no route to github.com")

    monkeypatch.setattr(sys.modules["spacy_pkuseg"], "pkuseg", offline)
    monkeypatch.setattr(sys.modules["russian_text_stresser.text_stresser"], "RussianTextStresser", offline)
    for language, name in (("zh", "spacy-pkuseg"), ("ru", "russian-text-stresser")):
        with pytest.raises(UserError, match=f"the model of {name}, which could not be loaded: no route") as caught:
            base.encode("文 слово", language)
        assert "GitHub" in caught.value.hint


def test_chinese_without_its_codes_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model_folder(tmp_path) / "Cangjie5_TC.json").unlink()
    install_stand_ins(monkeypatch, tmp_path)
    front_end = base_front_end(tmp_path, ROWS)
    with pytest.raises(UserError, match=r"needs Cangjie5_TC\.json, which the model's folder lacks"):
        front_end.encode("人", "zh")


def test_codes_travel_with_the_front_end_and_count(base: FrontEnd, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    install_stand_ins(monkeypatch, tmp_path)
    base.save(tmp_path / "saved")
    loaded = FrontEnd.load(tmp_path / "saved")
    text = PUBLISHED["zh"][0][0]
    assert loaded == base
    assert loaded.fingerprint == base.fingerprint
    assert loaded.style == "chatterbox"
    assert loaded.encode(text, "zh").tolist() == base.encode(text, "zh").tolist()
    codes = json.loads((tmp_path / "Cangjie5_TC.json").read_text("utf-8"))
    (tmp_path / "Cangjie5_TC.json").write_text(json.dumps(codes[::-1], ensure_ascii=False), encoding="utf-8")
    other = base_front_end(tmp_path, ROWS)
    assert other.fingerprint != base.fingerprint
    assert other.encode(text, "zh").tolist() != base.encode(text, "zh").tolist()


@pytest.mark.parametrize("damaged", [b"[1, 2]", b"{", b'["a"]', b'{"a": 1}'])
def test_damaged_codes_are_named(damaged: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model_folder(tmp_path) / "Cangjie5_TC.json").write_bytes(damaged)
    install_stand_ins(monkeypatch, tmp_path)
    with pytest.raises(UserError, match=r"Cangjie5_TC\.json is damaged"):
        base_front_end(tmp_path, ROWS).encode("人", "zh")


def test_settings_cannot_name_data_elsewhere(base: FrontEnd, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    base.save(folder)
    settings = json.loads((folder / "front_end.json").read_text("utf-8"))
    settings["data"] = ["../Cangjie5_TC.json"]
    (folder / "front_end.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(UserError, match=r"front_end\.json is damaged"):
        FrontEnd.load(folder)


def test_unknown_style_is_damage(base: FrontEnd, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    base.save(folder)
    text = (folder / "front_end.json").read_text("utf-8")
    (folder / "front_end.json").write_text(text.replace('"style": "chatterbox"', '"style": "other"'), encoding="utf-8")
    with pytest.raises(UserError, match=r"front_end\.json is damaged.*style 'other'"):
        FrontEnd.load(folder)


def test_tokenizer_is_chosen_by_the_rows_of_the_checkpoint(tmp_path: Path) -> None:
    """The published repository holds all three tokenizers side by side."""
    content = json.loads((MADE_UP / "tokenizer.json").read_text("utf-8"))
    content["model"]["vocab"]["[PLACEHOLDER99]"] = ROWS + 9
    (model_folder(tmp_path) / "mtl_tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    assert base_front_end(tmp_path, ROWS).size == ROWS
    assert base_front_end(tmp_path, ROWS + 10).size == ROWS + 10


@pytest.mark.parametrize("rows", [ROWS - 1, ROWS + 1, 2454])
def test_mismatch_names_both_files_and_both_sizes(rows: int, tmp_path: Path) -> None:
    """Neither a spare row nor the number of tokens is taken for a match: one id of the file is unused."""
    (model_folder(tmp_path) / "t3_mtl23ls_v2.safetensors").touch()
    with pytest.raises(UserError, match=rf"{MULTILINGUAL} has {ROWS} ids.*t3_mtl23ls_v2\.safetensors has {rows} text "):
        base_front_end(tmp_path, rows, "t3_mtl23ls_v2.safetensors")


def test_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no tokenizer"):
        base_front_end(tmp_path, ROWS)


@pytest.mark.parametrize(("checkpoint", "languages"), [
    ("t3_pt_br.safetensors", ("pt",)), ("t3_zh_cmn.safetensors", ("zh",)), ("t3_hi.safetensors", ("hi",)),
    ("t3_es_mx_latam.safetensors", ("es",)), ("t3_mtl23ls_v3.safetensors", LANGUAGES),
    ("t3_23lang.safetensors", LANGUAGES), ("t3_cfg.safetensors", LANGUAGES),
])
def test_single_language_pack_offers_its_language(checkpoint: str, languages: tuple[str, ...], tmp_path: Path) -> None:
    assert base_front_end(model_folder(tmp_path), ROWS, checkpoint).languages == languages


def test_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / MULTILINGUAL).write_bytes((MADE_UP / "tokenizer.json").read_bytes()[:-30])
    with pytest.raises(UserError, match=f"{MULTILINGUAL} is not a whole BPE tokenizer file"):
        base_front_end(tmp_path, ROWS)


def test_pack_without_a_language_tag_is_refused(tmp_path: Path) -> None:
    content = json.loads((MADE_UP / "tokenizer.json").read_text("utf-8"))
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "[pt]"]
    del content["model"]["vocab"]["[pt]"]
    shutil.rmtree(tmp_path, ignore_errors=True)
    tmp_path.mkdir()
    (tmp_path / MULTILINGUAL).write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match=r"lacks \[pt\]"):
        base_front_end(tmp_path, ROWS, "t3_pt_br.safetensors")
