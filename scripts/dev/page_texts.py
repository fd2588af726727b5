"""Compare the tables of the page's texts with the texts of the page and of the code.

    python -m scripts.dev.page_texts                       # numbers for each language
    python -m scripts.dev.page_texts --missing fr          # the texts that the French table lacks
    python -m scripts.dev.page_texts --page URL --missing fr   # of the running page, on every tab
    python -m scripts.dev.page_texts --unused fr           # the texts that no code and no page has

The texts of the code are read from the syntax tree: labels, sentences and errors, each sentence on its own. An
expression inside a sentence is a place such as {name}. What the page shows when it is opened is read in Chromium.
"""

from __future__ import annotations

import argparse
import ast
import html
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "ui" / "texts"
PAGE, OPTIONS, SERVER = "page", "options", "server"
"""Where a text comes from: the modules of the page, titles and help of options, sentences of the other modules."""

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[^\sa-z])")
_PLACE = re.compile(r"\{\w+\}")
_ENGLISH = re.compile(r"(^|\s)(the|a|an|of|into|as|this|these|that)(?=\s|$)")
_NUMBER = r"([+\-\u2212]?\d[\d.,]*%?)"
_CODE_TEXT = re.compile(r"[<>{}\\]|\w_\w|^--|^\.|https?://|^[#@]|^(SELECT|INSERT|CREATE|DELETE|UPDATE|ORDER|OFFSET)\b|'self'"
                        r"|\bWHERE \w+ =|^\w+ = \d+$|^\w+/[\w-]+; \w+=|^\||^\"\"\"")
"""Markup, names in code, options, addresses, SQL, the content security policy, media types and tables of Markdown."""
_COMMAND = re.compile(r"sudo [^.]*|python -m scripts[. ]\w+( [a-z]+)?( (--[\w-]+|[A-Z]+|\w+:\S+|\{\w+\}))*"
                      r"|[\w.:-]+ --[\w-]+ \S+|-\w .*")
"""A command line, or the part of one behind the command."""
_NAMES = re.compile(
    r"(?<!\w)(torch|torchaudio|wetext|nemo-text-processing|minisign|SHA256|CER|Weights & Biases|Common Voice"
    r"|Multilingual LibriSpeech|TextGrid \(Praat\)|Festival \(txt\.done\.data\)|GPT-SoVITS \(2-name2text\))(?!\w)")
"""Names that are the same in each language: of packages, of a measure, and of corpora and programs."""
_ATTRIBUTES = frozenset((
    "class_", "elem_id", "elem_classes", "id", "js", "href", "src", "style", "viewBox", "type", "role", "variant",
    "size", "key", "name", "lang", "dir", "d", "transform", "fill", "stroke", "points", "rel", "target",
    "api_visibility",
    "download", "method", "action", "encoding", "help", "metavar", "dest", "prog", "media_type", "headers", "kind",
    "tab", "verb", "formats", "file_types", "sources", "scope", "field", "unit_key", "program", "command"))
"""Keywords whose values nobody reads on the page; `help` is of the command line."""
_UNREAD_CALLS = frozenset((
    "compile", "match", "fullmatch", "search", "sub", "split", "partition", "rpartition", "startswith", "endswith",
    "removeprefix", "removesuffix", "strip", "lstrip", "rstrip", "replace", "get", "getattr", "hasattr", "setattr",
    "open", "joinpath", "glob", "rglob", "encode", "decode", "debug", "info", "warning", "error", "exception", "pop",
    "add_argument", "ArgumentParser", "import_module", "getLogger", "with_name", "with_suffix", "ValueError",
    "AssertionError", "TypeError", "KeyError", "RuntimeError", "NotImplementedError", "AttributeError", "IndexError",
    "TypeVar", "environ", "run", "Popen", "print", "write", "write_text", "NewType", "namedtuple",
    "Counter", "Gauge", "Histogram"))  # the last three describe figures to programs that watch a server
_SPOKEN_ERRORS = ("ValueError",)
"""A validator's error is part of the sentence that names the field."""
_OPTION_WORDS = ("title", "description")
_IN_OTHER_LANGUAGES = frozenset(("NATIVE_NAMES", "SENTENCES"))
"""Variables whose texts are in languages of their own: names that speakers give these, and what a model speaks."""


_NOT_SHOWN = re.compile(
    r"Segoe UI|Roboto|Helvetica Neue|Arial|Menlo|Consolas|(SF|Liberation) (Mono|Sans)|Lisan Ethiopic"  # fonts
    r"|by id|suspended|\||estimate badge bad|0 0 0 3px .*|background-color .*|attachment; .*|object-src.*"
    r"|.*frame-ancestors.*|window\.lisanTables .*|clip1\.wav.*|.*--allow-host lisan.*"
    r"|.*--root-path.* is not a host name\."
    r"|d MMMM?|GET, POST|authorization, .*|clips\.rank, .*|path\|text\|.*"  # a date, headers, columns
    r"|(name|latin|words|fold): (words: )?\[?(\{\w+\})+\]?"  # lines of a rules file
    r"|step \{step\}(/|: held-out).*|step \{step\}: \{value\}|saved \{path\}"  # lines of a log
    r"|\{index\} \(\{name\}, \{free_gib\} GiB\)"
    r"|\{description\} \(default: .*"  # the help of a command
    r"|(variant|mcd|lisan|id|part)( \{\w+\})+")
"""Names of fonts, keys, headers and styles, and what only a terminal shows."""
_RULE_FIELDS = Path("config/text_rules.py")
"""What its fields mean is in a rules file, not on the page."""


@dataclass(frozen=True)
class Text:
    """A sentence of the code."""

    text: str
    origin: str
    location: str  # path and line


def sentences(text: str) -> list[str]:
    """The sentences of a text, as the page's script divides them."""
    plain = re.sub(r"\s+", " ", html.unescape(text)).strip()
    # What follows a sentence without a space is another sentence, or nothing.
    divided = re.sub(r"(?<=[.!?])(\{\w+\})+$", "", plain)
    return [part for part in _SENTENCE_END.split(divided) if part]


def is_read(text: str, plain_words: bool) -> bool:
    """Whether a text is one that people read: words, not a name or a pattern of the code."""
    if "```" in text or _COMMAND.fullmatch(text):
        return False
    words = _NAMES.sub(" ", re.sub(r"`[^`]*`|\{\w+\}", " ", text))
    if not re.search(r"[A-Za-z]{2}", words) or _CODE_TEXT.search(words):
        return False
    if " " in text.strip():
        return bool(re.search(r"[A-Za-z]{2,}", words))
    return plain_words and text[:1].isupper() and text[1:].islower()


def code_texts(root: Path = ROOT) -> list[Text]:
    """The sentences of all modules that can reach the page, each once."""
    texts: dict[str, Text] = {}
    for folder in ("ui", "config", "core", "data", "models"):
        for path in sorted((root / folder).rglob("*.py")):
            for text in module_texts(path, root):
                texts.setdefault(text.text, text)
    for path in sorted((root / "ui").glob("*.js")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            for match in re.finditer(r"""lisan(?:ShowFault|Text)\(.*?(?:"([^"]+)"|`([^`]+)`)""", line):
                named = re.sub(r"\$\{[^}]*\}", "{value}", match[1] or match[2])
                for sentence in filter(lambda sentence: not _NOT_SHOWN.fullmatch(sentence), sentences(named)):
                    texts.setdefault(sentence, Text(sentence, PAGE, f"{path.relative_to(root)}:{number}"))
    return list(texts.values())


def module_texts(path: Path, root: Path) -> Iterator[Text]:
    """The sentences of a module."""
    in_page = path.relative_to(root).parts[0] == "ui"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node, origin in _strings(tree, in_page):
        for sentence in (sentence for text in templates(node) for sentence in sentences(text)):
            if not is_read(sentence, in_page or origin == OPTIONS) or _NOT_SHOWN.fullmatch(sentence):
                continue
            if origin != OPTIONS or path.relative_to(root) != _RULE_FIELDS:
                yield Text(sentence, origin, f"{path.relative_to(root)}:{node.lineno}")


def templates(node: ast.expr) -> list[str]:
    """The texts of a string with a place for each expression in it, named for the expression.

    A choice of two words or endings is no place, as in `clip{'' if count == 1 else 's'}`: it makes two texts.
    """
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    assert isinstance(node, ast.JoinedStr)
    previous: ast.expr | None = None
    parts: list[str | tuple[str, tuple[str, str]]] = []  # texts and places, or a condition with its words
    taken: set[str] = set()
    for value in node.values:
        if isinstance(value, ast.Constant):
            parts.append(str(value.value))
        else:
            assert isinstance(value, ast.FormattedValue)
            glued = isinstance(previous, ast.Constant) and str(previous.value)[-1:].isalpha()
            parts.append(_choice(value.value, glued) or _place(value.value, taken))
        previous = value
    conditions = list(dict.fromkeys(part[0] for part in parts if not isinstance(part, str)))
    return ["".join(part if isinstance(part, str) else part[1][chosen[conditions.index(part[0])]] for part in parts)
            for chosen in product((0, 1), repeat=len(conditions))]


def _choice(node: ast.expr, glued: bool) -> tuple[str, tuple[str, str]] | None:
    """The condition of a word or, glued to one, of its ending, and both of these; else None."""
    if isinstance(node, ast.IfExp) and isinstance(node.body, ast.Constant) and isinstance(node.orelse, ast.Constant):
        condition, words = node.test, (str(node.body.value), str(node.orelse.value))
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.left, ast.Constant):
        condition, words = node.right, (str(node.left.value), "")
    else:
        return None
    # Several words are a part of the sentence, with a translation of their own.
    return (ast.unparse(condition), words) if all(word.isalpha() or glued and not word for word in words) else None


def _place(node: ast.expr, taken: set[str]) -> str:
    """A place that is named for the expression, with a number behind a name that is taken."""
    name = _place_name(node)
    count = 2
    while name in taken:
        name = f"{re.sub(r'[0-9]+$', '', name)}{count}"
        count += 1
    taken.add(name)
    return f"{{{name}}}"


def _place_name(node: ast.expr) -> str:
    """A name for an expression: that of the variable or field, or of the last argument of a call."""
    if isinstance(node, ast.Name):
        return node.id.strip("_").lower()
    if isinstance(node, ast.Attribute):
        return node.attr.strip("_").lower()
    if isinstance(node, ast.Call):
        for argument in node.args:
            if isinstance(argument, ast.Name | ast.Attribute | ast.Call):
                return _place_name(argument)
    return "value"


def _strings(tree: ast.Module, in_page: bool) -> Iterator[tuple[ast.expr, str]]:
    """The strings of a module that people may read on the page, with their origin."""
    server = PAGE if in_page else SERVER

    def visit(node: ast.AST, origin: str) -> Iterator[tuple[ast.expr, str]]:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant | ast.JoinedStr):
            return  # a docstring
        if isinstance(node, ast.Compare | ast.Assert | ast.arg):
            return
        if isinstance(node, ast.JoinedStr):
            yield node, origin
            for value in node.values:
                if isinstance(value, ast.FormattedValue):
                    yield from visit(value.value, origin)
            return
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                yield node, origin
            return
        if isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            if node.value is not None and not names & _IN_OTHER_LANGUAGES:
                yield from visit(node.value, origin)
            if isinstance(node, ast.AnnAssign):
                # Options have their titles and help in annotations too.
                for call in ast.walk(node.annotation):
                    if isinstance(call, ast.Call):
                        yield from visit(call, origin)
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in node.body:
                yield from visit(part, origin)
            return
        if isinstance(node, ast.Subscript):
            yield from visit(node.value, origin)
            return
        if isinstance(node, ast.Dict):
            for value in node.values:
                yield from visit(value, origin)
            return
        if isinstance(node, ast.Call):
            yield from visit_call(node, origin)
            return
        for child in ast.iter_child_nodes(node):
            yield from visit(child, origin)

    def visit_call(node: ast.Call, origin: str) -> Iterator[tuple[ast.expr, str]]:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "Field":
            for keyword in node.keywords:
                if keyword.arg in _OPTION_WORDS:
                    yield from visit(keyword.value, OPTIONS)
            return
        if isinstance(node.func, ast.Attribute):
            yield from visit(node.func.value, origin)
        if name == "pluralize" and isinstance(node.args[1], ast.Constant):
            noun = str(node.args[1].value)
            yield from ((ast.Constant(text, lineno=node.lineno), origin) for text in (f"1 {noun}", f"{{n}} {noun}s"))
        if name in _UNREAD_CALLS and name not in _SPOKEN_ERRORS:
            return
        arguments = node.args[1:] if name in ("element", "div", "span") else node.args
        for argument in arguments:
            yield from visit(argument, origin)
        for keyword in node.keywords:
            if keyword.arg not in _ATTRIBUTES and not (keyword.arg or "").startswith(("data_", "on")):
                yield from visit(keyword.value, origin)

    for statement in tree.body:
        yield from visit(statement, server)


@dataclass(frozen=True)
class Table:
    """The texts of one language, as far as they are compared; `ui/translations.py` says what they are."""

    texts: Mapping[str, str]
    values: Mapping[str, str]
    read_by: str = ""


def read_tables(folder: Path = TABLES) -> Mapping[str, Table]:
    """The tables by code of the language."""
    contents = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    return {code: Table(content["texts"], content["values"], content["read_by"]) for code, content in contents.items()}


class Matcher:
    """Whether a table has a sentence, by the rules of `translate.js`."""

    def __init__(self, table: Table) -> None:
        self.exact = {**table.values, **table.texts}
        self.patterns = [(pattern_of(text), text[-1] in ".!?") for text in self.exact if _PLACE.search(text)]
        self.normal = {_PLACE.sub("{}", text) for text in self.exact}

    def has_template(self, text: str) -> bool:
        """Whether the table has a text of the code itself: the pattern of another text would translate half of it."""
        return text in self.exact or _PLACE.sub("{}", text) in self.normal

    def has(self, text: str) -> bool:
        """Whether the page translates `text`, which it shows."""
        if self.has_template(text):
            return True
        ends = text[-1:] in ".!?"
        for pattern, whole in self.patterns:
            found = pattern.fullmatch(text) if whole or not ends else None
            # A label's place takes no whole sentence, and nothing that only another label can have.
            if found and (ends or not any(_ENGLISH.search(place) for place in found.groups())):
                return True
        return False


def pattern_of(text: str) -> re.Pattern[str]:
    """The expression for a text with places."""
    parts = re.split(r"\{(\w+)\}", text)
    places = (_NUMBER if len(name) == 1 else r"(\S+)" if re.fullmatch(r"id\d*", name) else "(.+?)"
              for name in parts[1::2])
    return re.compile("".join(re.escape(part) + place for part, place in zip(parts[::2], [*places, ""], strict=True)),
                      re.DOTALL)


def page_texts(url: str) -> list[str]:
    """The texts that the page at `url` shows on each tab when it is opened, and in its folded sections."""
    from playwright.sync_api import sync_playwright  # a package of the tests

    from tests.browser.conftest import FLAGS, chromium

    texts: dict[str, None] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1600, "height": 900}, locale="en-US")
        page.goto(url)
        page.wait_for_selector("#tabs [role=tab]")
        page.wait_for_timeout(2000)  # Gradio draws the tabs more than once
        script = "() => [...document.querySelectorAll('[role=tab][id^=tab-]')].map((tab) => tab.id.slice(4, -7))"
        for tab in dict.fromkeys(page.evaluate(script)):
            page.goto(f"{url}?tab={tab}")
            page.wait_for_selector("#tabs [role=tab]")
            page.wait_for_timeout(5000)  # the app fills the tab
            for text, _ in page.evaluate("() => window.lisanTexts(false)"):
                texts.setdefault(text)
        browser.close()
    return [text for text in texts if re.search(r"[A-Za-z]{2}", text)]


def report(code: Sequence[Text], page: Sequence[str], languages: Mapping[str, Table]) -> str:
    """For each language the share of the texts that its table has, by where they come from."""
    lines = []
    for name, table in languages.items():
        matcher = Matcher(table)
        counts = []
        for origin in (PAGE, OPTIONS, SERVER):
            texts = [text.text for text in code if text.origin == origin]
            counts.append(f"{origin} {sum(map(matcher.has_template, texts))} of {len(texts)}")
        if page:
            counts.append(f"opened page {sum(map(matcher.has, page))} of {len(page)}")
        lines.append(f"{name}: " + ", ".join(counts) + ("" if table.read_by else ", a draft"))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--page", metavar="URL", action="append", default=[],
                        help="read the texts of this running page too; may be repeated")
    languages = sorted(read_tables())
    parser.add_argument("--missing", choices=languages, help="print the texts that this table lacks")
    parser.add_argument("--unused", choices=languages, help="print the texts of this table that nothing has")
    parser.add_argument("--json", action="store_true", help="print the texts of --missing as JSON")
    given = parser.parse_args(arguments)
    code = code_texts()
    page = [sentence for url in given.page for text in page_texts(url) for sentence in sentences(text)]
    page = list(dict.fromkeys(page))

    if given.missing:
        matcher = Matcher(read_tables()[given.missing])
        missing = {text: "opened page" for text in page if not matcher.has(text)}
        missing |= {text.text: f"{text.origin} {text.location}" for text in code
                    if not matcher.has_template(text.text)}
        sys.stdout.write(json.dumps(missing, ensure_ascii=False, indent=1) + "\n" if given.json else
                         "".join(f"{location}\t{text}\n" for text, location in missing.items()))
    elif given.unused:
        sources = [_PLACE.sub("{}", text.text) for text in code]
        known = {*sources, *page}
        table = read_tables()[given.unused]
        for text in {**table.texts, **table.values}:
            pattern = pattern_of(text)
            if _PLACE.sub("{}", text) not in known and not any(pattern.fullmatch(shown) for shown in page):
                sys.stdout.write(f"{text}\n")
    else:
        sys.stdout.write(report(code, page, read_tables()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
