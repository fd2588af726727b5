"""The verb `resynthesize`: recordings through a model's codec and vocoder, beside themselves, without any training.

It takes seconds and shows the best that the model can ever sound in this voice (`core.library.reproduction`).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from config import confinement
from config.errors import UserError
from config.schema import ResynthesizeOptions
from core import compute
from core.jobs.events import AudioGenerated, Plan, Progress, Result
from core.jobs.reporter import Reporter, check_stop, pluralize, stage
from core.library import lineage
from core.library.reproduction import ReproductionMeasurements
from core.sources.source_assessment import PlayedClip, sample_clips
from core.speech import clips, measures
from core.workspace import Workspace
from data import manifest
from data.acoustics import audio
from data.manifest import ManifestClip
from models.registry import family

RECORDING, RESYNTHESIS = "recording", "resynthesis"
"""The sides of the clips that the job emits."""
# Seconds of a clip that are used; longer clips are cut.
_LONGEST_S = 12.0


def run(options: ResynthesizeOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Write each clip as it is and as the model reproduces it; returns similarity, naturalness and the outcome."""
    base = lineage.find_base_or_shipped(workspace, options.model)
    chosen, folder = family(base.family_name), base.folder
    (reporter.directory / clips.FOLDER).mkdir(exist_ok=True)

    with stage(reporter, "read"), confinement.temporary_folder() as temporary:
        sampled = _clips(options, workspace, temporary)
        if not sampled:
            raise UserError("None of the recordings can be read.", "Check the files, or give another source.")
        reporter.emit(Plan((f"{pluralize(len(sampled), 'clip')} through the codec and vocoder of {base.name}.",),
                           {"clips": len(sampled)}))
        recordings = [_cut(*audio.read(temporary / clip.path)) for clip in sampled]

    with stage(reporter, "load"):
        device = compute.setup_device(options.device)
        extractor, vocoder = chosen.load_extractor(folder, device), chosen.load_vocoder(folder, device)

    resynthesized = []
    with stage(reporter, "speak"):
        # Each clip is spoken in the voice of its own recording.
        for index, (clip, (waveform, rate)) in enumerate(zip(sampled, recordings, strict=True)):
            check_stop(reporter)
            resampled = audio.resample(waveform, rate, extractor.sample_rate)
            voice = chosen.voice_from_recording(folder, device, resampled, extractor.sample_rate)
            decoded = vocoder.decode(extractor.extract(resampled).speech_codes, voice).cpu()
            resynthesized.append((decoded, vocoder.sample_rate))
            for side, sound, sound_rate in ((RECORDING, waveform, rate), (RESYNTHESIS, decoded, vocoder.sample_rate)):
                path = f"{clips.FOLDER}/{index}-{side}.wav"
                audio.save(reporter.directory / path, sound, sound_rate)
                reporter.emit(AudioGenerated(side, index, path, clip.text, options.language,
                                             round(len(sound) / sound_rate, 3)))

    with stage(reporter, "measure"):
        measured = _measure(base.name, chosen.name, recordings, resynthesized, reporter)
    return {**measured.to_result(), "summary": " ".join(filter(None, (measured.describe(), measured.advise())))}


def _clips(options: ResynthesizeOptions, workspace: Workspace, folder: Path) -> list[PlayedClip]:
    """Clips of one speaker, as files in `folder`."""
    if not options.dataset:
        return sample_clips(options.source, options.language, options.clips, folder)
    dataset = manifest.load(workspace.dataset(options.dataset))

    def order(clip: ManifestClip) -> tuple[bool, str]:
        return not 3.0 <= clip.duration_s <= _LONGEST_S, clip.id

    speaker = next(iter(dataset.clips)).speaker
    clips_of_speaker = sorted((clip for clip in dataset.clips if clip.speaker == speaker), key=order)[:options.clips]
    played = []
    for number, clip in enumerate(clips_of_speaker):
        waveform, rate = audio.read(dataset.audio_path(clip))
        audio.save(folder / f"{number}.wav", waveform, rate)
        played.append(PlayedClip(clip.text, f"{number}.wav", clip.duration_s, clip.speaker))
    return played


def _cut(waveform: torch.Tensor, sample_rate: int) -> tuple[torch.Tensor, int]:
    """The waveform without more than `_LONGEST_S` seconds."""
    return waveform[:round(_LONGEST_S * sample_rate)], sample_rate


def _measure(model: str, family_name: str, recordings: list[tuple[torch.Tensor, int]],
             resynthesized: list[tuple[torch.Tensor, int]], reporter: Reporter) -> ReproductionMeasurements:
    """Similarity of each clip to the other recordings of its speaker, and its naturalness."""
    embeddings = [measures.similarity_embedding(*sound) for sound in recordings]
    similarity, own_similarity = list[float](), list[float]()
    naturalness, own_naturalness = list[float](), list[float]()
    for index, sound in enumerate(resynthesized):
        reporter.emit(Progress(index, len(resynthesized), "clips", "measured"))
        other_embeddings = [embedding for number, embedding in enumerate(embeddings) if number != index]
        # A speaker with one clip has nothing to be compared with.
        if other_embeddings:
            centre = np.mean(other_embeddings, axis=0)
            similarity.append(measures.cosine(measures.similarity_embedding(*sound), centre))
            own_similarity.append(measures.cosine(embeddings[index], centre))
        naturalness.append(measures.naturalness(*sound))
        own_naturalness.append(measures.naturalness(*recordings[index]))
    return ReproductionMeasurements.from_clips(model, family_name, similarity, own_similarity, naturalness,
                                               own_naturalness)
