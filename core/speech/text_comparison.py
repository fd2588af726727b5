"""Compare the text of each clip with other texts of the dataset, by a CTC recogniser that knows the language.

The score of a text is its log-likelihood, summed over all its alignments (Graves et al. 2006). The other texts are
those of the neighbouring clips, which a shifted table would hold, and some of clips further away.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
import torch.nn.functional as F

from config.errors import UserError
from core.speech.evaluation import spread_evenly
from data.acoustics import audio
from data.manifest import ManifestClip, PreparedDataset
from data.text_match import MAX_OFFSET
from models.base import CTCRecogniser

OTHER_TEXTS = 10
_MARGIN = 5.0  # nats: by so much another text must be likelier
_LEAST_SHARE = 0.5  # share of the clips; if their own text is the best in fewer, the recogniser understands nothing
_MAX_WITHOUT_SAMPLE, _SAMPLE = 300, 100  # clips
_SHOWN = 60  # characters


@dataclass(frozen=True)
class TextComparison:
    """In how many of the `clips` the own text is the likeliest, and the clips in which another one is."""

    clips: int
    own: int
    messages: Mapping[str, str]  # clip id to message
    offset: int = 0  # rows: in most clips the text so many clips further is the likeliest

    @property
    def is_informative(self) -> bool:
        """Whether the recogniser understands these voices: else it says nothing about a single clip."""
        return self.offset != 0 or self.own >= _LEAST_SHARE * self.clips

    @property
    def warning(self) -> str:
        """What the comparison says about the dataset, in a sentence or two; empty if nothing is wrong."""
        if self.clips == 0:
            return ""
        if self.offset:
            way = "after" if self.offset > 0 else "before"
            rows = f"{abs(self.offset)} clip{'s' if abs(self.offset) > 1 else ''}"
            return (f"The recogniser hears the text that stands {rows} {way} the own one: the own text is the "
                    f"likeliest in {self.own} of {self.clips} clips. The texts are shifted.")
        if not self.is_informative:
            return (f"The recogniser finds the own text the likeliest in only {self.own} of {self.clips} clips: it "
                    "does not understand these recordings, or the texts belong to other clips. It marks no clip.")
        if self.messages:
            count = len(self.messages)
            return (f"In {count} of {self.clips} clips the recogniser finds another text of the dataset likelier than "
                    "the own one: these come first in the review.")
        return ""


def compare_texts(dataset: PreparedDataset, texts: Sequence[str], recogniser: CTCRecogniser, language: str,
                  progress: Callable[[int, int], None] = lambda finished, total: None, *,
                  thorough: bool = False) -> TextComparison:
    """Compare the clips in `language`; `texts` are those of all clips, normalised, in the order of the dataset.

    Of a large dataset only a sample is compared if every text of it fits, unless `thorough`. Clips whose recording or
    text the recogniser cannot take are left out. `progress` gets the clips that are done, and all that are compared.
    """
    label_of = {letter: number for number, letter in enumerate(recogniser.letters, start=1)}
    spelled: list[list[int]] = []
    for text in texts:
        letters = recogniser.normalise(text, language)
        spelled.append([label_of[letter] for letter in letters if letter in label_of])
    places = [place for place, clip in enumerate(dataset.clips) if clip.language == language and spelled[place]]
    sample = places if thorough or len(places) <= _MAX_WITHOUT_SAMPLE else spread_evenly(places, _SAMPLE)

    # If every text of the sample fits, the others are not compared.
    best_places = _best_places(dataset, sample, spelled, recogniser, progress)
    if len(sample) < len(places) and any(place != best for place, best in best_places.items()):
        unsampled = [place for place in places if place not in set(sample)]
        best_places |= _best_places(dataset, unsampled, spelled, recogniser, progress)

    # Shifted texts have the same offset in most clips.
    clips = len(best_places)
    own_best = sum(place == best for place, best in best_places.items())
    offsets = Counter(best - place for place, best in best_places.items() if best != place)
    offset, count = max(offsets.items(), key=lambda item: item[1], default=(0, 0))
    comparison = TextComparison(clips, own_best, {
        dataset.clips[place].id: f"the recogniser hears the text of {dataset.clips[best].id} in it: "
                                 f"“{texts[best][:_SHOWN]}”" for place, best in sorted(best_places.items())
        if best != place}, offset if count > _LEAST_SHARE * clips else 0)
    return comparison if comparison.is_informative else replace(comparison, messages={})


def _best_places(dataset: PreparedDataset, places: Sequence[int], spelled: Sequence[Sequence[int]],
                 recogniser: CTCRecogniser, progress: Callable[[int, int], None]) -> dict[int, int]:
    """By place of a clip, the place of the likeliest text: its own, unless another one is likelier by `_MARGIN`."""
    best_places: dict[int, int] = {}
    for count, place in enumerate(places, start=1):
        clip = dataset.clips[place]
        candidates = [place, *_other_places(place, spelled, clip.id)]
        scores = _scores(dataset, clip, [spelled[candidate] for candidate in candidates], recogniser)
        # Another text must be clearly likelier than the clip's own, which is the first.
        if len(scores) > 1 and scores.isfinite().any():
            best = int(scores.argmax())
            best_places[place] = candidates[best] if scores[best] - scores[0] >= _MARGIN else place
        progress(count, len(places))
    return best_places


def _other_places(place: int, spelled: Sequence[Sequence[int]], name: str) -> list[int]:
    """The places of other texts: the neighbours', then some further away; none is the same text."""
    # Shifted texts are near; texts in the wrong order may be anywhere.
    near = [place + offset for offset in range(-MAX_OFFSET, MAX_OFFSET + 1) if offset]
    generator = random.Random(name)
    far = generator.sample(range(len(spelled)), min(len(spelled), 4 * OTHER_TEXTS))
    places = [other for other in dict.fromkeys((*near, *far)) if 0 <= other < len(spelled)
              and spelled[other] and spelled[other] != spelled[place]]
    return places[:OTHER_TEXTS]


@torch.inference_mode()
def _scores(dataset: PreparedDataset, clip: ManifestClip, labels: Sequence[Sequence[int]],
            recogniser: CTCRecogniser) -> torch.Tensor:
    """The log-likelihood of each sequence of labels, (N,); -inf for one that the clip is too short for.

    Empty where the recording cannot be read, which the measures report.
    """
    try:
        waveform = audio.load(dataset.audio_path(clip), recogniser.sample_rate)
    except UserError:
        return torch.zeros(0)
    log_probs = recogniser.log_probabilities(waveform, clip.language).float().cpu()  # (F, V)

    # CTC gives the likelihood of each text for the same frames.
    lengths = torch.tensor([len(sequence) for sequence in labels])
    targets = torch.tensor(list(chain.from_iterable(labels)))
    frames = torch.full((len(labels),), len(log_probs))
    losses = F.ctc_loss(log_probs[:, None].expand(-1, len(labels), -1), targets, frames, lengths, reduction="none")
    return -losses
