"""HTML built from values that are escaped unless they are HTML already. Knows nothing of jobs."""

from __future__ import annotations

import html
from collections.abc import Iterable

from config.errors import CODE

_EMPTY = ("img", "br", "wbr")


class Html(str):
    """Text that is safe to put into a page as it is."""


NOTHING = Html("")


def escape(value: object) -> Html:
    """`value` as HTML: unchanged when it is `Html`, escaped otherwise."""
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def join(parts: Iterable[object], separator: str = "") -> Html:
    """All parts, escaped where needed."""
    return Html(separator.join(escape(part) for part in parts))


def with_code(text: object) -> Html:
    """`text` as HTML, with what stands between backticks as code."""
    if isinstance(text, Html):
        return text
    parts = CODE.split(str(text))  # every second one was marked
    return join(element("code", part) if number % 2 else part for number, part in enumerate(parts))


def element(name: str, *children: object, **attributes: object) -> Html:
    """`<name ...>children</name>`; `class_` is class, `data_x` is data-x, None and False are omitted."""
    words = [name]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(key)
        elif value is not None and value is not False:
            words.append(f'{key}="{html.escape(str(value))}"')
    start = f"<{' '.join(words)}>"
    return Html(start if name in _EMPTY else f"{start}{join(children)}</{name}>")


def div(class_: str, *children: object, **attributes: object) -> Html:
    return element("div", *children, class_=class_, **attributes)


def span(class_: str, *children: object, **attributes: object) -> Html:
    return element("span", *children, class_=class_, **attributes)


def paragraph(*children: object, class_: str | None = None) -> Html:
    return element("p", *children, class_=class_)


def heading(text: object, level: int = 3) -> Html:
    return element(f"h{level}", text)


def player(address: str, label: str = "") -> Html:
    """An audio player that fetches its file when it is played."""
    return element("audio", controls=True, preload="none", src=address, aria_label=label or None)


def shortened(text: str, limit: int = 240) -> str:
    """`text`, cut with "..." when it is longer than a heading should be."""
    return text if len(text) <= limit else text[:limit].rstrip() + "..."


def table(head: Iterable[object], rows: Iterable[Iterable[object]], class_: str = "") -> Html:
    """A table whose cells carry their column's name, so that a narrow page can stack them."""
    names = [str(name) for name in head]
    body = [
        element("tr", *(element("td", cell, data_name=name) for name, cell in zip(names, row, strict=True)))
        for row in rows
    ]
    return div("scroll", element(
        "table", element("thead", element("tr", *(element("th" if name else "td", name) for name in names))),
        element("tbody", *body), class_=f"sheet {class_}".strip(),
    ))
