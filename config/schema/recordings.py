"""Options of the verbs that make datasets of recordings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from config.schema.values import (
    AbsolutePath,
    Device,
    LanguageCode,
    Name,
    NameOrNothing,
    Options,
    Recogniser,
    Recording,
    SampleRate,
    Source,
)


def _longest(value: float, given: ValidationInfo) -> float:
    """So long that any recording can be cut into clips between both bounds."""
    shortest = given.data.get("min_clip_s", 0.0)
    if value < 2 * shortest + 1:
        raise ValueError(f"clips of {shortest:g} to {value:g} s cannot be cut from any recording: let the longest be "
                         f"more than twice the shortest and a second, here at least {2 * shortest + 1:g}")
    return value


class ClipOptions(Options):
    """How clips are cut out of long recordings, and what is done to their sound."""

    min_clip_s: float = Field(2.0, ge=0.5, le=10.0, title="Shortest clip (seconds)", description="With its padding.")
    max_clip_s: Annotated[float, AfterValidator(_longest)] = Field(15.0, ge=3.0, le=30.0, validate_default=True, title="Longest clip (seconds)", description="With its padding. A voice that makes no pause for so long is cut where it is quietest, and that is said. The built-in model learns from clips of up to 10 seconds: give 10 for it.")
    padding_s: float = Field(0.2, ge=0.0, le=1.0, title="Padding (seconds)", description="Silence that is kept before and after the speech, where there is so much.")
    lufs: float = Field(-23.0, ge=-50.0, le=0.0, title="Loudness (LUFS)", description="Each clip is made so loud (ITU-R BS.1770), or as near as its peak allows; 0 leaves the loudness it has.")
    sample_rate: SampleRate = Field(0, ge=0, le=192_000, title="Sample rate (Hz)", description="Clips are resampled once to this rate (soxr); 0 keeps the recording's own, and the model's own rate is made of it when features are extracted.")
    denoise: bool = Field(False, title="Denoise", description="Take steady noise off by what the recording's pauses sound like. Only for recordings that need it: it takes some of the voice too.")
    speakers: Literal["one", "recording", "folder"] = Field("one", title="Speakers", description="Whose voice it is: `one` in all, one a `recording`, or one a `folder`.")


class SegmentOptions(ClipOptions):
    """Cut long recordings without text into clips at their pauses, to be transcribed."""

    source: Recording = Field("", title="Long recordings", description="Path or URL of a recording, a film, a folder of them or an archive.")
    segments: Name = Field("recordings", title="Name", description="Name of the segments in the workspace.")
    language: LanguageCode = Field("am", title="Language", description="Code of the language that is spoken.")
    threshold: float = Field(0.5, ge=0.05, le=0.95, title="Voice threshold", description="Probability from which silero-vad's ear takes a sound for a voice; lower hears fainter voices, and more noise.")


class TranscribeOptions(Options):
    """Find the text of segments with a speech recogniser."""

    segments: Name = Field("recordings", title="Segments", description="Name of the segments in the workspace.")
    recogniser: Recogniser = Field("openai/whisper-small", title="Recogniser", description="OWNER/NAME on the hub of any recogniser that transformers knows, such as `openai/whisper-large-v3` or `facebook/mms-1b-all`; a folder with one; or `built-in`, which knows the built-in model's synthetic voices alone and writes letters without spaces.")
    recogniser_language: str = Field("", max_length=40, title="Its name of the language", description="What the recogniser calls the language, where it is not the code, such as `amh` for MMS.")
    revision: str = Field("main", min_length=1, max_length=200, title="Revision", description="Branch, tag or commit of the recogniser on the hub.")
    flag_below: float = Field(0.5, ge=0.0, le=1.0, title="Doubtful below", description="Clips whose recogniser is less sure than this are flagged, to be listened to.")
    drop_below: float = Field(0.0, ge=0.0, le=1.0, title="Left out below", description="Clips whose recogniser is less sure than this get no text, and stay out of the dataset; 0 keeps all.")
    device: Device = Field("auto", title="Device", description="`auto` is CUDA when there is one.")


class AlignOptions(ClipOptions):
    """Find where in a long recording its text is said, sentence by sentence, and cut clips there; also for subtitles."""

    source: Recording = Field("", title="Long recordings", description="Path or URL of a recording, a film, a folder of them or an archive. Without a text, each with a text, subtitles or labels of the same name beside it.")
    text: AbsolutePath = Field("", title="Text", description="File with the text of the one recording: plain text (UTF-8) or subtitles, whose times are not believed; nothing takes what lies beside each recording.")
    segments: Name = Field("recordings", title="Name", description="Name of the segments in the workspace.")
    language: LanguageCode = Field("am", title="Language", description="Code of the language that is spoken.")
    recogniser: Recogniser = Field("facebook/mms-1b-all", title="Recogniser", description="A CTC recogniser: OWNER/NAME on the hub, such as `facebook/mms-1b-all`, a folder with one, or `built-in`, which knows the built-in model's synthetic voices alone. Where it does not know the script, the text is romanised.")
    recogniser_language: str = Field("", max_length=40, title="Its name of the language", description="What the recogniser calls the language, where it is not the code, such as `amh` for MMS.")
    revision: str = Field("main", min_length=1, max_length=200, title="Revision", description="Branch, tag or commit of the recogniser on the hub.")
    rules: NameOrNothing = Field("", title="Text rules", description="Rules that write numbers, dates and abbreviations out as they are spoken, so that they are found; the clips keep their text as it was written.")
    flag_below: float = Field(0.3, ge=0.0, le=1.0, title="Doubtful below", description="Clips that fit their text less than this are flagged, to be listened to.")
    drop_below: float = Field(0.1, ge=0.0, le=1.0, title="Left out below", description="Clips that fit their text less than this are left out, and named.")
    device: Device = Field("auto", title="Device", description="`auto` is CUDA when there is one.")


class PrepareOptions(Options):
    """Import a dataset, check it, split it, and cache its features."""

    source: Source = Field("demo", title="Source", description="Path or URL of a folder, file or archive, `hub:OWNER/NAME`, or `segments:NAME` for long recordings that were cut and transcribed; `demo` ships with the app; `as-is` takes the dataset of this name as it stands, to make its features for another model.")
    dataset: Name = Field("amharic-demo", title="Dataset name", description="Name of the dataset in the workspace.")
    language: LanguageCode = Field("am", title="Language", description="Code of the language that is spoken, such as `am`. Recordings in a language that the model speaks already are not trained on; a training in scope `full` can rehearse them.")
    add_to: NameOrNothing = Field("", title="Add to", description="Name of a dataset that is there: the new one has its clips and those of the source that it lacks. The old one stays as it is.")
    max_clips: int = Field(0, ge=0, title="Most clips", description="Take no more than so many clips of the source, the first ones; 0 takes all.")
    rules: NameOrNothing = Field("", title="Text rules", description="Rules that write numbers, dates and abbreviations out before a text is checked: those that the tokenizer will be made with. The dataset keeps its texts as they were written.")
    licence: str = Field("", max_length=200, title="Licence", description="What the recordings may be used for, such as `CC-BY-4.0`; it is told on the dataset and on every export that learned from it.")
    held_out: float = Field(0.1, ge=0.0, le=0.5, title="Held-out share", description="Share of clips kept from training when the source names no split.")
    split_disjoint_by: Literal["source", "speaker"] = Field("source", title="Held-out clips share no", description="`source`: sentence and recording; `speaker`: no speaker either, so that it is heard how it does with voices it was not trained on. Where the source names splits, these are kept.")
    model: Name = Field("tiny", title="Model", description="Base model whose extractor makes the features.")
    variants: int = Field(0, ge=0, le=10, title="Augmented variants", description="Versions of each training clip, a little faster or slower, higher or lower, or with light noise, that a training may hear in its place; each takes as long to make as the clip's own features. 0 makes none, and keeps those that were made.")
    variant_speed: float = Field(0.1, ge=0.0, le=0.1, title="Variants, speed", description="Variants are at most this share faster or slower, at the same pitch; 0 leaves the speed.")
    variant_pitch: float = Field(0.5, ge=0.0, le=0.5, title="Variants, pitch", description="Variants are at most so many semitones higher or lower, at the same speed; 0 leaves the pitch.")
    variant_noise: float = Field(30.0, ge=0.0, le=60.0, title="Variants, noise", description="The voice is at least so many decibels above the noise that is added; 0 adds none.")
    seed: int = Field(0, ge=0, title="Seed", description="Seed of the split and of the variants.")
    device: Device = Field("auto", title="Device", description="Where features are extracted; `auto` is CUDA when there is one.")


class ReviseOptions(Options):
    """Write a reviewed dataset anew, with what was decided about its clips; the old one stays as it is."""

    dataset: Name = Field("amharic-demo", title="Dataset", description="Dataset that was reviewed.")
    save_as: Name = Field("amharic-demo-2", title="Save as", description="Name of the new version.")
    model: Name = Field("tiny", title="Model", description="Base model whose extractor makes the features of mended clips.")
    device: Device = Field("auto", title="Device", description="Where features are extracted; `auto` is CUDA when there is one.")
