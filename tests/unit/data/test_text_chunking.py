"""Text is cut where a reader would breathe, in any script, and nothing of it is lost."""

import random

import pytest

from config.errors import UserError
from data.text_chunking import split_sentences, split_text

LINES = {
    "am": "እያንዳንዱ፡ሰው፡የመኖር፣፡በነጻነትና፡በሰላም፡የመኖሩ፡መጠበቅ፡መብት፡አለው። ሰላም ነው? እንዴት ነህ፧ ደህና ነኝ፡፡ አመሰግናለሁ:: ዋጋው 3.5 ብር ነው፤ ነገ እመጣለሁ።",
    "hi": "चूंकि राष्ट्रों के बीच मैत्रीपूर्ण सम्बन्धों को बढ़ाना ज़रूरी है, इसलिए हम यहाँ हैं। क्या आप ठीक हैं? हाँ॥ मूल्य 3.5 है।",
    "en": 'Mr. Smith paid $3.5 to J. K. Rowling, of example.com, at 10:30. Really?! "Who is it?" she asked. '
          "Yes… maybe. Whereas it is essential to promote the development of friendly relations, we came (No. 5).",
    "fr": "« Bonjour ! » dit-il. Il est 10 h 30, n’est-ce pas ? Oui, M. Dupont... et vous ? Considérant "
          "qu’il est essentiel d’encourager le développement de relations amicales, cela coûte 3,5 euros.",
    "zh": "鉴于有必要促进各国间友好关系的发展，我们来了。你叫什么名字？我叫“小明”。温度是３．５度，很冷！很好。",
    "ar": "ولما كانت شعوب الأمم المتحدة قد أكدت في الميثاق من جديد إيمانها، فإن هذا مهم. كيف حالك؟ أنا بخير؛ شكرا.",
    "th": "โดยที่ประชากรแห่งสหประชาชาติได้ยืนยันไว้ในกฎบัตรถึงความเชื่อมั่นในสิทธิมนุษยชนอันเป็นหลักมูล ในเกียรติศักดิ์และคุณค่าของมนุษย์",
    "my": "နိုင်ငံ အချင်းချင်း ချစ်ခင်ရင်းနှီးစွာ ဆက်ဆံရေးကို ပိုမိုတိုးတက်စေရန် ကြံဆောင်ရမည်ဖြစ်သောကြောင့် လည်းကောင်း၊ သည်။ ဟုတ်တယ်။",
}


def letters(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize(("language", "wanted"), [
    ("am", ["እያንዳንዱ፡ሰው፡የመኖር፣፡በነጻነትና፡በሰላም፡የመኖሩ፡መጠበቅ፡መብት፡አለው።", "ሰላም ነው?", "እንዴት ነህ፧", "ደህና ነኝ፡፡", "አመሰግናለሁ::",
            "ዋጋው 3.5 ብር ነው፤ ነገ እመጣለሁ።"]),
    ("hi", ["चूंकि राष्ट्रों के बीच मैत्रीपूर्ण सम्बन्धों को बढ़ाना ज़रूरी है, इसलिए हम यहाँ हैं।", "क्या आप ठीक हैं?", "हाँ॥", "मूल्य 3.5 है।"]),
    ("zh", ["鉴于有必要促进各国间友好关系的发展，我们来了。",
            "你叫什么名字？", "我叫“小明”。", "温度是３．５度，很冷！", "很好。"]),
    ("ar", ["ولما كانت شعوب الأمم المتحدة قد أكدت في الميثاق من جديد إيمانها، فإن هذا مهم.",
            "كيف حالك؟", "أنا بخير؛ شكرا."]),
])
def test_sentences_end_at_the_full_stops_of_their_script(language: str, wanted: list[str]) -> None:
    assert split_sentences(LINES[language]) == wanted


@pytest.mark.parametrize(("text", "wanted"), [
    ("It costs 3.5 dollars. See example.com. Good.", ["It costs 3.5 dollars.", "See example.com.", "Good."]),
    ("Dr. Who met J. K. Rowling. She left.", ["Dr. Who met J. K. Rowling.", "She left."]),
    ('"Who is it?" she asked. "Me."', ['"Who is it?" she asked.', '"Me."']),
    ("« Bonjour ! » dit-il. Ça va ?", ["« Bonjour ! » dit-il.", "Ça va ?"]),
    ("He said no. No. 5 won.", ["He said no.", "No. 5 won."]),
    ("1. First of all. 2. Second.", ["1. First of all.", "2. Second."]),
    ("all lower case. and on it goes", ["all lower case.", "and on it goes"]),
    ("Wait... what? Wait... What?", ["Wait... what?", "Wait...", "What?"]),
    ("A heading\n\nThe text\ngoes on.", ["A heading", "The text goes on."]),
    ("", []), (" \n\n ", []),
])
def test_a_full_stop_within_a_sentence_does_not_end_it(text: str, wanted: list[str]) -> None:
    assert split_sentences(text) == wanted


def test_long_sentences_are_cut_at_commas_before_spaces() -> None:
    found = split_text("one two three four, five six seven eight", 20, len)
    assert [(piece.text, piece.boundary) for piece in found] == [
        ("one two three four,", "phrase"), ("five six seven eight", "sentence")]
    found = split_text("one two three four five six seven eight", 20, len)
    assert [piece.boundary for piece in found] == ["word", "sentence"]


def test_numbers_are_not_cut_at_their_commas() -> None:
    assert "1,000,000" in [word for piece in split_text("it is 1,000,000 of them, at 10:30 here", 14, len)
                           for word in piece.text.split()]


def test_a_word_longer_than_the_limit_is_refused_or_kept_but_never_cut() -> None:
    with pytest.raises(UserError, match="'incomprehensibilities' takes 21 tokens; the model speaks at most 20 at once"):
        split_text("these incomprehensibilities", 20, len)
    assert [piece.text for piece in split_text("these incomprehensibilities", 10, len, word_limit=30)] == [
        "these", "incomprehensibilities"]


@pytest.mark.parametrize("language", LINES)
def test_nothing_is_lost_and_no_piece_is_too_long(language: str) -> None:
    generator = random.Random(language)
    for _ in range(40):
        words = LINES[language].split(" ")
        text = " ".join(words[generator.randrange(len(words)):] + words)
        limit = generator.randrange(28, 90)
        count = generator.choice([len, lambda part: len(part.encode()) // 3 + 1])
        pieces = split_text(text, limit, count, word_limit=90)
        assert letters("".join(piece.text for piece in pieces)) == letters(text)
        assert all(piece.text == piece.text.strip() != "" for piece in pieces)
        too_long = [piece.text for piece in pieces if count(piece.text) > limit]
        assert all(" " not in piece for piece in too_long)
        if language in ("am", "hi", "en", "fr", "ar"):  # scripts with spaces: words stay whole
            pieced = [word for piece in pieces for word in piece.text.replace("፡", " ").split()]
            assert pieced == text.replace("፡", " ").split()
