"""Can what is to be spoken be spoken: a text, in a language and a voice that the model has? Never loads torch.

Looked at when it is asked for, from files alone. A model that is not there yet, or whose files do not say what it
knows, is looked at by the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from config.errors import UserError
from config.schema import CompareOptions, Options, SynthesizeOptions
from core.dataset.languages import describe_language
from core.library import catalog, model_info
from core.workspace import Workspace


def check(workspace: Workspace, options: Options) -> None:
    """Raise `UserError` for what the models that `options` name are known not to speak."""
    if isinstance(options, SynthesizeOptions):
        if not options.text.strip():
            raise UserError("There is no text to speak.", "Write what is to be said: --text TEXT.")
        _check(workspace, options.voice_model, (options.language,), options.voice)
    if isinstance(options, CompareOptions):
        if not options.finetuned:
            raise UserError("There is no finetuned model to compare with.", "Choose run:ID or export:NAME.")
        _check(workspace, options.base, (), options.voice)
        _check(workspace, options.finetuned, (language for language, _text in options.texts), options.voice)


def _check(workspace: Workspace, reference: str, languages: Iterable[str], voice: str) -> None:
    try:
        model = catalog.resolve(workspace, reference)
        base = model_info.base_model_of(workspace, model)
    except UserError:
        return  # it is not there; `core.job.asked` says so, or finds who is making it
    spoken, voices = model_info.languages(workspace, model), model_info.voice_names(workspace, base)
    for language in languages:
        if spoken and language not in spoken:
            raise UserError(f"{reference} does not speak {describe_language(language)}.",
                            f"Choose one of its languages ({', '.join(spoken)}), or a model that learnt this one.")
    if voice and voices and voice not in voices and not Path(voice).expanduser().is_file():
        raise UserError(f"{voice!r} is neither a voice of {reference} nor a recording.",
                        f"Its voices: {', '.join(voices)}. A reference recording is given by its path.")
