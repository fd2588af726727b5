"""What rules of version 2 write out otherwise; those of version 1, saved beside older tokenizers, keep their text."""

from __future__ import annotations

import pytest

from config.rules_file import parse
from data import rules
from data.languages.numerals import geez_value, well_formed

WRITERS = {code: rules.writer_of(rules.checked(rules.text_of(code), code)) for code in ("am", "om", "ti", "sv")}
FIRST = rules.writer_of(parse(rules.text_of("am").replace("version: 2", "version: 1"), "am"))


def am(text: str) -> str:
    return " ".join(WRITERS["am"].spoken(text).split())


def first(text: str) -> str:
    return " ".join(FIRST.spoken(text).split())


@pytest.mark.parametrize(("text", "said", "before"), [
    ("በ2016 $20 ሚሊዮን ተመደበ", "በሁለት ሺህ አስራ ስድስት ሃያ ሚሊዮን ዶላር ተመደበ", "በሁለት ሺህ አስራ ስድስት ዶላር ሃያ ሚሊዮን ተመደበ"),
    ("ክፍል 3 £40", "ክፍል ሶስት አርባ ፓውንድ", "ክፍል ሶስት ፓውንድ አርባ"),
    ("በ2012 ETB 500", "በሁለት ሺህ አስራ ሁለት አምስት መቶ ብር", "በሁለት ሺህ አስራ ሁለት ብር አምስት መቶ"),
    ("100 ብር 50 ሳንቲም", "አንድ መቶ ብር ሃምሳ ሳንቲም", "አንድ መቶ ብር ሃምሳ ሳንቲም"),
    ("20 $ ነው", "ሃያ ዶላር ነው", "ሃያ ዶላር ነው"),
    ("500 ETB 600 ETB", "አምስት መቶ ብር ስድስት መቶ ብር", "አምስት መቶ ብር ስድስት መቶ ብር"),
    ("10 USD 20 EUR", "አስር የአሜሪካ ዶላር ሃያ ዩሮ", "አስር የአሜሪካ ዶላር ሃያ ዩሮ"),
    ("5 USD 3 ሰው", "አምስት የአሜሪካ ዶላር ሶስት ሰው", "አምስት የአሜሪካ ዶላር ሶስት ሰው"),
    ("100$ 50 ሰው", "አንድ መቶ ዶላር ሃምሳ ሰው", "አንድ መቶ ዶላር ሃምሳ ሰው"),
])
def test_a_sign_of_money_belongs_to_the_number_after_it(text: str, said: str, before: str) -> None:
    assert am(text) == said
    assert first(text) == before


@pytest.mark.parametrize(("text", "said"), [
    ("1 000 000 ብር", "አንድ ሚሊዮን ብር"), ("25\u00a0000 ሰዎች", "ሃያ አምስት ሺህ ሰዎች"), ("12\u202f500", "አስራ ሁለት ሺህ አምስት መቶ"),
    ("ክፍል 5 200 ተማሪዎች", "ክፍል አምስት ሁለት መቶ ተማሪዎች"),  # one group after a plain space is another number
    ("በ2016 500 ሰዎች", "በሁለት ሺህ አስራ ስድስት አምስት መቶ ሰዎች"),
    ("1 000 000 000 ብር", "አንድ ቢሊዮን ብር"), ("2 000 012 500", "ሁለት ቢሊዮን አስራ ሁለት ሺህ አምስት መቶ"),
])
def test_groups_of_three_digits_after_spaces_are_one_number(text: str, said: str) -> None:
    assert am(text) == said


@pytest.mark.parametrize("text", ["0911-23-45-67", "0911 23 45 67", "0911 234567", "0911234567"])
def test_a_telephone_number_is_read_digit_by_digit(text: str) -> None:
    assert am(text) == "ዜሮ ዘጠኝ አንድ አንድ ሁለት ሶስት አራት አምስት ስድስት ሰባት"
    assert am(f"+251 91 123 4567 እና {text}").startswith("ሁለት አምስት አንድ ዘጠኝ አንድ አንድ ሁለት ሶስት አራት አምስት ስድስት ሰባት እና ዜሮ")


@pytest.mark.parametrize("text", ["ቀን 09-12-2013 2500 ብር", "05-06-2012 12 ሰዓት", "02 03 2014 10 ሰዎች", "ክፍል 05 12"])
def test_a_date_is_no_telephone_number(text: str) -> None:
    assert am(text) == first(text)


def test_a_telephone_number_ends_before_what_is_parted_otherwise() -> None:
    assert am("0911-234567 100 ብር").endswith("ስድስት ሰባት አንድ መቶ ብር")


@pytest.mark.parametrize(("text", "said"), [
    ("ከ5%-10%", "ከአምስት በመቶ እስከ አስር በመቶ"), ("ከ5-10%", "ከአምስት እስከ አስር በመቶ"), ("ከ1-5ኛ", "ከአንድ እስከ አምስተኛ"),
    ("2:30-3:30", "ሁለት ሰዓት ተኩል እስከ ሶስት ሰዓት ተኩል"), ("$5-$10", "አምስት ዶላር እስከ አስር ዶላር"), ("5-10 ብር", "አምስት እስከ አስር ብር"),
    ("3–5 km", "ሶስት እስከ አምስት ኪሎ ሜትር"),
    ("1/1/2015-5/1/2015", "መስከረም አንድ ቀን ሁለት ሺህ አስራ አምስት እስከ መስከረም አምስት ቀን ሁለት ሺህ አስራ አምስት"),
    ("2-1", "ሁለት አንድ"), ("5-3-2", "አምስት-ሶስት-ሁለት"), ("ኤፍ-16", "ኤፍ-አስራ ስድስት"),
    ("2021-05-12", "ሜይ አስራ ሁለት ቀን ሁለት ሺህ ሃያ አንድ"),
])
def test_a_dash_between_like_quantities_is_a_range(text: str, said: str) -> None:
    assert am(text) == said


@pytest.mark.parametrize(("text", "said"), [
    ("12:30:45", "አስራ ሁለት ሰዓት ተኩል ከአርባ አምስት ሰከንድ"), ("12፡30፡45", "አስራ ሁለት ሰዓት ተኩል ከአርባ አምስት ሰከንድ"),
    ("በ4:07:00", "በአራት ሰዓት ከሰባት ደቂቃ"), ("2፡30፡", "ሁለት ሰዓት ተኩል"),
])
def test_seconds(text: str, said: str) -> None:
    assert am(text) == said


@pytest.mark.parametrize(("text", "said", "before"), [
    ("በGoogle", "በጎግል", "በ ጉግል"), ("የGoogleን", "የጎግልን", "የ ጉግል ን"), ("ከFacebook", "ከፌስቡክ", "ከ ፋሴቡክ"),
    ("የCOVID-19", "የኮቪድ አስራ ዘጠኝ", "የ ሲ ኦ ቪ አይ ዲ-አስራ ዘጠኝ"), ("በUSA", "በዩ ኤስ ኤ", "በ ዩ ኤስ ኤ"),
    ("ሰላምLondon", "ሰላም ሎንዶን", "ሰላም ሎንዶን"), ("Googlebot", "ጉግሌቦት", "ጉግሌቦት"),
])
def test_a_latin_word_takes_what_is_written_together_with_it(text: str, said: str, before: str) -> None:
    assert am(text) == said
    assert first(text) == before


@pytest.mark.parametrize(("text", "said"), [
    ("ም/ቤት", "ምክር ቤት"), ("የም/ቤቱ", "የምክር ቤቱ"), ("አ.አ. ከተማ", "አዲስ አበባ ከተማ"), ("አ/አ ከተማ", "አዲስ አበባ ከተማ"),
    ("ዶ.ር. አበበ", "ዶክተር አበበ"), ("ወ.ሮ. አልማዝ", "ወይዘሮ አልማዝ"),
])
def test_abbreviations_with_a_last_dot(text: str, said: str) -> None:
    assert am(text) == said


@pytest.mark.parametrize(("text", "said"), [
    ("31/6/2015", "ሰላሳ አንድ ስድስት ሁለት ሺህ አስራ አምስት"), ("13/13/2016", "አስራ ሶስት አስራ ሶስት ሁለት ሺህ አስራ ስድስት"),
    ("6/13/2015", "ጳጉሜን ስድስት ቀን ሁለት ሺህ አስራ አምስት"),
    ("31/5/2015 እ.ኤ.አ", "ሜይ ሰላሳ አንድ ቀን ሁለት ሺህ አስራ አምስት እንደ አውሮፓውያን አቆጣጠር"),
])
def test_the_ethiopian_calendar_has_no_such_days(text: str, said: str) -> None:
    assert am(text) == said


@pytest.mark.parametrize(("numeral", "is_one"), [
    ("፩", True), ("፲፱፻፷፯", True), ("፻፼", True), ("፼፼", True), ("፲፪፼፴፬፻፶፮", True),
    ("፻፻", False), ("፩፪፫", False), ("፩፲", False),
])
def test_geez_digits_that_form_no_numeral(numeral: str, is_one: bool) -> None:
    assert well_formed(numeral) == is_one
    if is_one:
        assert am(numeral) == am(str(geez_value(numeral)))


def test_geez_digits_in_a_row_are_read_one_by_one() -> None:
    assert am("፩፪፫") == "አንድ ሁለት ሶስት"


def test_tigrinya_and_oromo_take_the_same() -> None:
    assert WRITERS["om"].spoken("5%-10%") == "dhibbantaa shan hanga dhibbantaa kudhan"
    assert "Google" not in WRITERS["ti"].spoken("ብGoogle")
    assert WRITERS["sv"].spoken("1 000 000 hus") == "en miljon hus"


def test_a_line_that_ends_in_nel_is_not_joined_with_the_next() -> None:
    assert am("ሰላም\x85ለሁሉም") == "ሰላም ለሁሉም"
    assert first("ሰላም\x85ለሁሉም") == "ሰላምለሁሉም"
