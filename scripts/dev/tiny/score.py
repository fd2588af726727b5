"""Judge a finetuned demo run on every held-out set of 40 sentences apart, beside base and originals.

    python -m scripts.dev.tiny.score RUN --workspace workspace

The certificate mixes the sets and leaves out sentences that chose the checkpoint; this is
the finer table of the documentation.
"""

from __future__ import annotations

import argparse

import torch

from core.model.loading import TTSModel, load
from core.speech import evaluation
from core.speech.evaluation import SpeechEvaluator
from core.workspace import Workspace
from data.manifest import HeldOutSentence, read_json_lines
from models.base import Sampling
from scripts.dev.tiny.pack import BASE_LANGUAGES, DEMO, PACK, SPLITS


def sentences_of(language: str, split: str) -> list[HeldOutSentence]:
    """The shipped held-out sentences of one set, with their recordings."""
    if language in BASE_LANGUAGES:
        rows = [row for _, row in read_json_lines(PACK / "held_out.jsonl")
                if row["language"] == language and row["split"] == split]
        return [HeldOutSentence(str(row["text"]), PACK / str(row["audio"])) for row in rows]
    rows = [row for _, row in read_json_lines(DEMO / "manifest.jsonl") if str(row["id"]).startswith(split)]
    return [HeldOutSentence(str(row["text"]), DEMO / str(row["audio"])) for row in rows]


def main() -> None:
    """Print one Markdown row a set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="id of the run in the workspace")
    parser.add_argument("--workspace", default="workspace")
    args = parser.parse_args()
    workspace, device = Workspace.open(args.workspace), torch.device("cpu")
    finetuned = load(workspace, f"run:{args.run}", device)
    base = load(workspace, "base:tiny", device)
    untrained = load(workspace, "extension:tiny-am", device)
    evaluator = SpeechEvaluator.of(base, base.family.load_recogniser(base.base_folder))
    print("| set | originals | before | after |\n|---|---|---|---|")
    for language in (*BASE_LANGUAGES, "am"):
        # Only the extension has rows of the new language.
        untuned = base if language in BASE_LANGUAGES else untrained
        for split in SPLITS:
            _row(evaluator, untuned, finetuned, language, split)


def _row(evaluator: SpeechEvaluator, untuned: TTSModel, finetuned: TTSModel, language: str, split: str) -> None:
    sentences = sentences_of(language, split)
    recorded = [evaluation.score_recording(evaluator, language, item) for item in sentences if item.original]
    original = evaluation.corpus_score(language, recorded).error
    base_error, tuned_error = (evaluation.evaluate_language(evaluator, model, language, sentences, Sampling())[0].error
                               for model in (untuned, finetuned))
    print(f"| {language} {split} | {original:.3f} | {base_error:.3f} | {tuned_error:.3f} |", flush=True)


if __name__ == "__main__":
    main()
