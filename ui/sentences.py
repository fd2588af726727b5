"""Sentences to try, by language; all in letters that the demo's recordings hold."""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "am": ("ሰላም ለሁሉም", "ውሃ እፈልጋለሁ", "ዛሬ በጣም ደስ ብሎኛል"),
    "en": ("The old boat came home before the rain.", "She opened the window and listened."),
    "fr": ("Le petit bateau rentre avant la pluie.", "Elle ouvre la fenêtre et écoute."),
}

