"""Amharic money, digits with spaces and dashes, ranges, Latin words, abbreviations and Ge'ez numerals, written out."""

from __future__ import annotations

from decimal import Decimal

import pytest

from config.text_rules import Numbers
from data.languages import verbalizer
from data.languages.number_reader import IcuSpeller, geez_value, is_geez_numeral

VERBALIZERS = {code: verbalizer.verbalizer_of(verbalizer.checked_rules(verbalizer.rules_text(code), code))
           for code in ("am", "om", "ti", "sv")}


def am(text: str) -> str:
    return " ".join(VERBALIZERS["am"].verbalize(text).split())


@pytest.mark.parametrize(("text", "said"), [
    ("በ2016 $20 ሚሊዮን ተመደበ", "በሁለት ሺህ አስራ ስድስት ሃያ ሚሊዮን ዶላር ተመደበ"),
    ("ክፍል 3 £40", "ክፍል ሶስት አርባ ፓውንድ"),
    ("በ2012 ETB 500", "በሁለት ሺህ አስራ ሁለት አምስት መቶ ብር"),
    ("100 ብር 50 ሳንቲም", "አንድ መቶ ብር ሃምሳ ሳንቲም"),
    ("20 $ ነው", "ሃያ ዶላር ነው"),
    ("500 ETB 600 ETB", "አምስት መቶ ብር ስድስት መቶ ብር"),
    ("10 USD 20 EUR", "አስር የአሜሪካ ዶላር ሃያ ዩሮ"),
    ("5 USD 3 ሰው", "አምስት የአሜሪካ ዶላር ሶስት ሰው"),
    ("100$ 50 ሰው", "አንድ መቶ ዶላር ሃምሳ ሰው"),
])
def test_a_sign_of_money_belongs_to_the_number_after_it(text: str, said: str) -> None:
    assert am(text) == said


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


@pytest.mark.parametrize(("text", "said"), [
    ("ቀን 09-12-2013 2500 ብር", "ቀን ነሐሴ ዘጠኝ ቀን ሁለት ሺህ አስራ ሶስት ሁለት ሺህ አምስት መቶ ብር"),
    ("05-06-2012 12 ሰዓት", "የካቲት አምስት ቀን ሁለት ሺህ አስራ ሁለት አስራ ሁለት ሰዓት"),
    ("02 03 2014 10 ሰዎች", "ዜሮ ሁለት ዜሮ ሶስት ሁለት ሺህ አስራ አራት አስር ሰዎች"),
    ("ክፍል 05 12", "ክፍል ዜሮ አምስት አስራ ሁለት"),
])
def test_a_date_is_no_telephone_number(text: str, said: str) -> None:
    assert am(text) == said


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


@pytest.mark.parametrize(("text", "said"), [
    ("በGoogle", "በጎግል"), ("የGoogleን", "የጎግልን"), ("ከFacebook", "ከፌስቡክ"),
    ("የCOVID-19", "የኮቪድ አስራ ዘጠኝ"), ("በUSA", "በዩ ኤስ ኤ"),
    ("ሰላምLondon", "ሰላም ሎንዶን"), ("Googlebot", "ጉግሌቦት"),
])
def test_a_latin_word_takes_what_is_written_together_with_it(text: str, said: str) -> None:
    assert am(text) == said


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
    assert is_geez_numeral(numeral) == is_one
    if is_one:
        assert am(numeral) == am(str(geez_value(numeral)))


def test_geez_digits_in_a_row_are_read_one_by_one() -> None:
    assert am("፩፪፫") == "አንድ ሁለት ሶስት"


def test_tigrinya_and_oromo_take_the_same() -> None:
    assert VERBALIZERS["om"].verbalize("5%-10%") == "dhibbantaa shan hanga dhibbantaa kudhan"
    assert "Google" not in VERBALIZERS["ti"].verbalize("ብGoogle")
    assert VERBALIZERS["sv"].verbalize("1 000 000 hus") == "en miljon hus"


@pytest.mark.parametrize("part", ["1999 እስከ ", "111 ", "1999-", "እ.ኤ.አ. በ1999 ", "በ-"])
def test_long_runs_take_no_longer_than_their_length(part: str) -> None:
    """A pattern that reads a part in two ways takes 2**n steps: this would not end."""
    assert am(part * 500)


def test_a_line_that_ends_in_nel_is_not_joined_with_the_next() -> None:
    assert am("ሰላም\x85ለሁሉም") == "ሰላም ለሁሉም"


@pytest.mark.parametrize(("code", "text", "said"), [
    ("am", "-3°C", "ኔጌቲቭ ሶስት ዲግሪ ሴልሺየስ"), ("am", "-5%", "ኔጌቲቭ አምስት በመቶ"), ("am", "-$5", "ኔጌቲቭ አምስት ዶላር"),
    ("am", "$-5", "ኔጌቲቭ አምስት ዶላር"), ("am", "−2.5 km", "ኔጌቲቭ ሁለት ነጥብ አምስት ኪሎ ሜትር"), ("am", "–4°C", "ኔጌቲቭ አራት ዲግሪ ሴልሺየስ"),
    ("am", "-1/2", "ኔጌቲቭ ግማሽ"), ("am", "ከ -10°C", "ከ ኔጌቲቭ አስር ዲግሪ ሴልሺየስ"), ("am", "+5%", "ፕላስ አምስት በመቶ"),
    ("am", "+25", "ፕላስ ሃያ አምስት"),
    ("am", "+251911234567", "ፕላስ ሁለት አምስት አንድ ዘጠኝ አንድ አንድ ሁለት ሶስት አራት አምስት ስድስት ሰባት"),
    ("am", "3 –5 km", "ሶስት እስከ አምስት ኪሎ ሜትር"),
    ("ti", "-3°C", "ነጌቲቭ ሰለስተ ዲግሪ ሰንቲ ግሬድ"), ("ti", "-5%", "ነጌቲቭ ሓሙሽተ ሚእታዊት"), ("ti", "-$5", "ነጌቲቭ ሓሙሽተ ዶላር"),
    ("om", "-3°C", "hirʼisuu sadii digirii seelshiyeesii"), ("om", "-5%", "hirʼisuu dhibbantaa shan"),
    ("om", "-$5", "hirʼisuu doolaara shan"), ("sv", "-5 grader, −3,5", "minus fem grader, minus tre komma fem"),
])
def test_a_minus_sign_is_read_before_any_quantity(code: str, text: str, said: str) -> None:
    assert " ".join(VERBALIZERS[code].verbalize(text).split()) == said


def reader(name: str) -> verbalizer.Verbalizer:
    return verbalizer.verbalizer_of(verbalizer.checked_rules(verbalizer.rules_text(name), name))


def test_every_language_says_its_minus_in_letters() -> None:
    for name in verbalizer.rule_names():
        five = reader(name).verbalize("5").strip()
        for text, rest in (("-5", five), ("−$5", f"${five}")):
            said = reader(name).verbalize(text).strip()
            if name in verbalizer.written_by_hand() and rest != five:
                continue  # they say dollars, too
            assert said.endswith(rest), name
            assert any(map(str.isalpha, said.removesuffix(rest))), name


@pytest.mark.parametrize("name", ["ar", "cy", "de", "es", "fi", "fr", "hi", "lt", "ru", "sw", "tr", "vi", "yue", "zh"])
def test_numbers_with_signs_and_decimals_are_those_of_icu(name: str) -> None:
    """Whole, with its minus and decimal sign; num2words says them in fr. ICU's mīnus in lt is Latvian."""
    written = f"-3{reader(name).rules.numbers.decimal}5"
    by_icu = str(IcuSpeller(Numbers(engine="icu", language=name)).cardinal(Decimal("-3.5")))
    assert reader(name).verbalize(written) == by_icu.replace("mīnus", "minus")


@pytest.mark.parametrize(("code", "text", "said"), [
    ("am", "25 000 ሰዎች", "ሃያ አምስት ሺህ ሰዎች"), ("de", "25 000", "fünfundzwanzigtausend"),
    ("de", "5 200", "fünf zweihundert"), ("fr", "1 250 euros", "mille deux cent cinquante euros"),
    ("sv", "25 500 kr", "tjugofemtusen femhundra kr"), ("cs", "5 200", "pět tisíc dvěstě"),
    ("uk", "25 000", "двадцять п'ять тисяч"), ("fi", "5 200", "viisituhattakaksisataa"),
    ("pl", "5 200", "pięć tysięcy dwieście"), ("hu", "5 200", "ötezerkétszáz"),
    ("bg", "25 000", "двайсет и пет хиляди"),
    ("sk", "25 000", "dvadsaťpäťtisíc"), ("fr", "10 000,50", "dix mille virgule cinq zéro"),
    ("fr", "20 000-25 000", "vingt mille-vingt-cinq mille"), ("cs", "-1 000", "mínus tisíc"),
    ("kz", "5 200", "бес мың екі жүз"),
    ("sv", "5 200 10", "fem tvåhundra tio"), ("sv", "2016 500", "tvåtusen sexton femhundra"),
])
def test_one_group_after_a_plain_space(code: str, text: str, said: str) -> None:
    """It is of the number before it where CLDR parts groups by a space, and wherever it begins with 0."""
    assert " ".join(reader(code).verbalize(text).split()) == said


@pytest.mark.parametrize(("code", "text", "said"), [
    ("ru", "-3,25", "минус три целых двадцать пять сотых"), ("lt", "3,5", "trys ir penkios dešimtosios"),
    ("fa", "۳٫۵ و ۲۵٬۰۰۰", "سه و نیم و بیست و پنج هزار"),
    ("fa", "3.25", "سه و بیست و پنج صدم"), ("zh", "共-3.5度", "共负三点五度"), ("ja", "3.5", "三点五"),
    ("th", "3.25", "สามจุดสองห้า"), ("yue", "-5", "負五"), ("cs", "-3,5", "mínus tři celá pět"),
    ("zh", "0911", "零九一一"), ("eo", "1,5", "unu komo kvin"),
    ("ce", "3.5", "3.5"),  # it has no word for it: left for the tokenizer to report
])
def test_signs_and_decimals_by_libraries(code: str, text: str, said: str) -> None:
    assert reader(code).verbalize(text) == said


@pytest.mark.parametrize(("code", "text", "said"), [
    ("fi", "12. toukokuuta", "kahdestoista toukokuuta"), ("no", "Han bor i 3. etasje.", "Han bor i tredje etasje."),
    ("hu", "az 5. kerület", "az ötödik kerület"), ("tr", "2. kat", "ikinci kat"), ("sl", "5. maja", "peti maja"),
    ("no", "Det var 12. Han gikk.", "Det var tolv. Han gikk."), ("cs", "5. patro", "pět. patro"),  # it has no ordinals
    ("fr", "il a 12. puis", "il a douze. puis"), ("no", "3.5 meter", "tre.fem meter"),
])
def test_a_dot_before_a_small_letter_marks_an_ordinal(code: str, text: str, said: str) -> None:
    assert reader(code).verbalize(text) == said


@pytest.mark.parametrize(("text", "said"), [
    ("ከ-10", "ከኔጌቲቭ አስር"), ("ከ\u201110°C", "ከኔጌቲቭ አስር ዲግሪ ሴልሺየስ"), ("\u20115°C", "ኔጌቲቭ አምስት ዲግሪ ሴልሺየስ"),
    ("-5%-10%", "ኔጌቲቭ አምስት በመቶ እስከ አስር በመቶ"), ("ከ-10--5", "ከኔጌቲቭ አስር እስከ ኔጌቲቭ አምስት"),
    ("በ-1999 ዓ.ም", "በአስራ ዘጠኝ መቶ ዘጠና ዘጠኝ ዓመተ ምህረት"),  # the hyphen only joins a year
    ("እ.ኤ.አ. በ1999 ነው", "እንደ አውሮፓውያን አቆጣጠር በአስራ ዘጠኝ መቶ ዘጠና ዘጠኝ ነው"),
    ("ከ1983-1987 ዓ.ም", "ከአስራ ዘጠኝ መቶ ሰማንያ ሶስት እስከ አስራ ዘጠኝ መቶ ሰማንያ ሰባት ዓመተ ምህረት"),
    ("ከ1983 እስከ 1987 ዓ.ም", "ከአስራ ዘጠኝ መቶ ሰማንያ ሶስት እስከ አስራ ዘጠኝ መቶ ሰማንያ ሰባት ዓመተ ምህረት"),
    ("እ.ኤ.አ. ከ1995-1999", "እንደ አውሮፓውያን አቆጣጠር ከአስራ ዘጠኝ መቶ ዘጠና አምስት እስከ አስራ ዘጠኝ መቶ ዘጠና ዘጠኝ"),
    ("እ.ኤ.አ. በ1995 500 ሰዎች", "እንደ አውሮፓውያን አቆጣጠር በአስራ ዘጠኝ መቶ ዘጠና አምስት አምስት መቶ ሰዎች"),
    ("በ1983 እና 1987 ዓ.ም", "በአስራ ዘጠኝ መቶ ሰማንያ ሶስት እና አስራ ዘጠኝ መቶ ሰማንያ ሰባት ዓመተ ምህረት"),
    ("በ1960ዎቹ", "በአስራ ዘጠኝ መቶ ስልሳዎቹ"), ("የሕ/ተ/ም/ቤት", "የሕዝብ ተወካዮች ምክር ቤት"),
    ("በፌ/ጠ/ፍ/ቤት", "በፌዴራል ጠቅላይ ፍርድ ቤት"),
    ("አ/አ/ዩ", "አዲስ አበባ ዩኒቨርሲቲ"), ("የሚ/ሩ", "የሚኒስትሩ"), ("ጤ/ጣቢያው", "ጤና ጣቢያው"),
    ("የኢ.ፌ.ዴ.ሪ.ም", "የኢትዮጵያ ፌዴራላዊ ዴሞክራሲያዊ ሪፐብሊክም"), ("ኤፍ\u201116", "ኤፍ-አስራ ስድስት"), ("5-3-2", "አምስት-ሶስት-ሁለት"),
])
def test_amharic_signs_years_and_offices(text: str, said: str) -> None:
    assert am(text) == said


@pytest.mark.parametrize(("text", "said"), [
    ("በተ.መ.ድ. ስብሰባ", "በተባበሩት መንግስታት ድርጅት ስብሰባ"), ("ተ.መ.ድ.", "የተባበሩት መንግስታት ድርጅት"),
    ("ከኢ.ፌ.ዴ.ሪ መንግስት", "ከኢትዮጵያ ፌዴራላዊ ዴሞክራሲያዊ ሪፐብሊክ መንግስት"), ("የኢ.ፌ.ዴ.ሪ", "የኢትዮጵያ ፌዴራላዊ ዴሞክራሲያዊ ሪፐብሊክ"),
    ("ቅ/ጽ/ቤት", "ቅርንጫፍ ጽህፈት ቤት"), ("የቅ/ጽ/ቤቱ", "የቅርንጫፍ ጽህፈት ቤቱ"), ("ቅ/ማርያም", "ቅዱስ ማርያም"),
    ("በወ/መ/ሕ ቁጥር 5", "በወንጀለኛ መቅጫ ሕግ ቁጥር አምስት"), ("ወ/ማርያም", "ወልደ ማርያም"),
    ("ጠ/ሚ/ሩ", "ጠቅላይ ሚኒስትሩ"), ("ም/ጠ/ሚ", "ምክትል ጠቅላይ ሚኒስትር"), ("ም/ጠ/ሚ/ሩ", "ምክትል ጠቅላይ ሚኒስትሩ"),
    ("ሌ/ጄ/ል", "ሌተና ጄኔራል"), ("ጠ/ፍ/ቤት", "ጠቅላይ ፍርድ ቤት"), ("ከፍ/ቤት", "ከፍርድ ቤት"), ("የህ/ተ/ም/ቤት", "የህዝብ ተወካዮች ምክር ቤት"),
    ("አቶ ተ/ም መጡ", "አቶ ተክለ ማርያም መጡ"), ("ተ/ማርያም", "ተክለ ማርያም"), ("የተ/ም/ቤት", "የተወካዮች ምክር ቤት"),
    ("ት/ክፍሉ", "ትምህርት ክፍሉ"), ("ሊ/መንበሩ", "ሊቀ መንበሩ"), ("ተ/ፕ/ር", "ተባባሪ ፕሮፌሰር"), ("ሃ/አለቃ", "ሃምሳ አለቃ"),
    ("በ1967 ዓ.ም", "በአስራ ዘጠኝ መቶ ስልሳ ሰባት ዓመተ ምህረት"), ("12/05/1967", "ጥር አስራ ሁለት ቀን አስራ ዘጠኝ መቶ ስልሳ ሰባት"),
    ("በ2016 ዓ.ም", "በሁለት ሺህ አስራ ስድስት ዓመተ ምህረት"), ("1967 ብር", "አንድ ሺህ ዘጠኝ መቶ ስልሳ ሰባት ብር"),
])
def test_amharic_prefixes_slashes_and_years(text: str, said: str) -> None:
    assert am(text) == said


@pytest.mark.parametrize(("short", "written_out"), [
    ("ዓ.ም", "ዓመተ ምህረት"), ("ጠ.ሚ", "ጠቅላይ ሚኒስትር"), ("ኪ.ሜ", "ኪሎ ሜትር"), ("አ.አ", "አዲስ አበባ"), ("ም.ቤት", "ምክር ቤት"),
    ("ም.ቤቱ", "ምክር ቤቱ"), ("ጽ.ቤት", "ጽህፈት ቤት"), ("ፓ.ር", "ፓስተር"), ("ት.ት", "ትምህርት"), ("ወ.ሮ", "ወይዘሮ"), ("ዶ.ር", "ዶክተር"),
])
def test_abbreviations_of_etnltk(short: str, written_out: str) -> None:
    """`shortened_expansions_dict.json` of etnltk 0.0.22 (MIT), but for its spelling ሚኒስተር."""
    assert am(short) == am(short.replace(".", "/")) == written_out


def test_tigrinya_dates_have_the_month_first() -> None:
    """As `num_to_date(24, 5, 1991)` of tigrinya-numbers 0.2.0, but for the spelling of 90 (ተስዓ) and the ን of 1000."""
    assert VERBALIZERS["ti"].verbalize("1991-05-24").split()[:3] == ["ግንቦት", "ዕስራን", "ኣርባዕተን"]
    assert VERBALIZERS["ti"].verbalize("12/09/2013").split()[:3] == ["ግንቦት", "ዓሰርተ", "ክልተ"]
