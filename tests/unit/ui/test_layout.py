"""Words and fields can be made out: contrasts as WCAG 2.2 asks for them (1.4.3: 4.5 for text, 1.4.11: 3 for fields)."""

from __future__ import annotations

import re
from functools import lru_cache

import gradio as gr
import pytest

from ui import layout

SCHEMES = ("light", "dark")
TEXT, FIELD = 4.5, 3.0


def luminance(colour: str) -> float:
    parts = [int(colour.lstrip("#")[at:at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@lru_cache(maxsize=1)
def built() -> gr.themes.Base:
    return layout.build_theme()


def of_theme(name: str, scheme: str) -> str:
    """A colour of the theme, its references followed."""
    made = built()
    value = str(getattr(made, f"{name}_dark" if scheme == "dark" else name))
    while value.startswith("*"):
        value = str(getattr(made, value[1:]))
    return value


def of_sheet(name: str, scheme: str) -> str:
    """A colour of the style sheet's variables."""
    sheet = layout.STYLE_SHEET.read_text("utf-8")
    block = sheet.partition("\n.dark {" if scheme == "dark" else ":root {")[2].partition("}")[0]
    found = re.search(rf"--{name}: (#[0-9a-f]{{6}})", block)
    assert found, name
    return found[1]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("ground", ["body_background_fill", "block_background_fill", "background_fill_secondary"])
@pytest.mark.parametrize("text", ["body_text_color", "body_text_color_subdued", "block_info_text_color"])
def test_text_stands_out_from_every_ground(scheme: str, ground: str, text: str) -> None:
    assert contrast(of_theme(text, scheme), of_theme(ground, scheme)) >= TEXT


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_stands_in_an_empty_field_can_be_read(scheme: str) -> None:
    assert contrast(of_theme("input_placeholder_color", scheme), of_theme("input_background_fill", scheme)) >= TEXT


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("tone", ["good", "bad", "wait", "busy"])
def test_a_badge_stands_out_from_its_own_ground(scheme: str, tone: str) -> None:
    assert contrast(of_sheet(tone, scheme), of_sheet(f"{tone}-soft", scheme)) >= TEXT


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("ground", ["body_background_fill", "block_background_fill"])
def test_warnings_stand_out(scheme: str, ground: str) -> None:
    assert contrast(of_sheet("warn", scheme), of_theme(ground, scheme)) >= TEXT


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("ground", ["block_background_fill", "input_background_fill"])
def test_the_edge_of_a_field_can_be_seen(scheme: str, ground: str) -> None:
    assert contrast(of_theme("input_border_color", scheme), of_theme(ground, scheme)) >= FIELD
