"""What the verb `compare_tokenizers` refuses before its work, which is `core.compare_tokenizers`."""

from __future__ import annotations

from contextlib import suppress

from config.errors import UserError
from config.schema import CompareTokenizersOptions, TokenizerOptions
from core.dataset import languages
from core.library.artefacts import languages_of_dataset
from core.library.lineage import Model
from core.submission.requirements import check_rules
from core.workspace import Workspace


def check(workspace: Workspace, options: CompareTokenizersOptions | TokenizerOptions) -> None:
    """The dataset must be in a language that the model can still learn, and the rules of that language."""
    # A missing model is reported with the other needs.
    model_languages: tuple[tuple[str, ...], tuple[str, ...]] = (), ()
    with suppress(UserError):
        model = Model.find(workspace, options.model)
        model_languages = model.base_languages, model.added_languages
    for language in languages_of_dataset(workspace, options.dataset):
        languages.check_new(options.dataset, language, *model_languages)
    check_rules(workspace, options.rules, options.dataset)
