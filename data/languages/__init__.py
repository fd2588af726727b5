"""Normalisation and verbalization of text by language; `data.normalisers` selects a normaliser by name."""

from __future__ import annotations

from config.errors import UserError

REQUIREMENTS = "requirements-languages.txt"


class MissingTool(UserError):
    """A language needs a package or model that is not installed."""


def missing_package(language: str, package: str, install: str) -> MissingTool:
    """`package` is not installed; `install` is what pip needs."""
    return MissingTool(
        f"{language} text needs the package {package}, which is not installed.",
        f"Install it: python -m pip install {install} (it is in {REQUIREMENTS}), then start again.",
    )


def missing_model(language: str, package: str, reason: object, hint: str) -> MissingTool:
    """`package` is installed, its model is not."""
    return MissingTool(f"{language} text needs the model of {package}, which could not be loaded: {reason}.", hint)
