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
    """Refuse bounds between which some recordings cannot be cut."""
    shortest = given.data.get("min_clip_s", 0.0)
    if value < 2 * shortest + 1:
        raise ValueError(f"clips of {shortest:g} to {value:g} s cannot be cut from every recording: the maximum must be "
                         f"at least twice the minimum plus a second, here {2 * shortest + 1:g}")
    return value


class ClipOptions(Options):
    """Length and audio processing of clips that are cut from long recordings."""

    min_clip_s: float = Field(2.0, ge=0.5, le=10.0, title="Minimum clip length (s)", description="Including padding.")
    max_clip_s: Annotated[float, AfterValidator(_longest)] = Field(15.0, ge=3.0, le=30.0, validate_default=True, title="Maximum clip length (s)", description="Including padding. Speech without a pause is cut at its quietest point, with a warning. The built-in model needs at most 10 s.")
    padding_s: float = Field(0.2, ge=0.0, le=1.0, title="Padding (s)", description="Silence kept before and after the speech, where there is any.")
    lufs: float = Field(-23.0, ge=-50.0, le=0.0, title="Loudness (LUFS)", description="Target loudness of each clip (ITU-R BS.1770), limited by its peak; 0 keeps the loudness.")
    sample_rate: SampleRate = Field(0, ge=0, le=192_000, title="Sample rate (Hz)", description="Resample clips to this rate; 0 keeps the recording's rate. Features are always extracted at the model's rate.")
    denoise: bool = Field(False, title="Denoise", description="Reduce steady noise, estimated from the pauses. Only for noisy recordings: it also alters the voice.")
    speakers: Literal["one", "recording", "folder"] = Field("one", title="Speakers", description="One speaker in all (`one`), per `recording`, or per `folder`.")


class SegmentOptions(ClipOptions):
    """Segment long recordings without text at their pauses."""

    source: Recording = Field("", title="Long recordings", description="Path or URL of a recording, a video, a folder of them, or an archive.")
    segments: Name = Field("recordings", title="Name", description="Name of the segments in the workspace.")
    language: LanguageCode = Field("am", title="Language", description="Language code of the speech, such as `am`.")
    threshold: float = Field(0.5, ge=0.05, le=0.95, title="VAD threshold", description="Speech probability (Silero VAD) above which audio counts as speech; lower finds fainter speech, and more noise.")


class TranscribeOptions(Options):
    """Transcribe segments with a speech recogniser (ASR)."""

    segments: Name = Field("recordings", title="Segments", description="Name of the segments in the workspace.")
    recogniser: Recogniser = Field("openai/whisper-small", title="Recogniser (ASR)", description="OWNER/NAME of a speech recogniser on the Hub that transformers supports, such as `openai/whisper-large-v3` or `facebook/mms-1b-all`; a folder; or `built-in`, for the built-in model's synthetic voices only.")
    recogniser_language: str = Field("", max_length=40, title="Recogniser language", description="The recogniser's name of the language where it is not the code, such as `amh` for MMS.")
    revision: str = Field("main", min_length=1, max_length=200, title="Revision", description="Branch, tag or commit of the recogniser on the Hub.")
    flag_below: float = Field(0.5, ge=0.0, le=1.0, title="Flag below", description="Clips with a lower recogniser confidence are flagged for review.")
    drop_below: float = Field(0.0, ge=0.0, le=1.0, title="Drop below", description="Clips with a lower recogniser confidence are excluded from the dataset; 0 keeps all.")
    device: Device = Field("auto", title="Device", description="`auto` uses CUDA when available.")


class AlignOptions(ClipOptions):
    """Align long recordings with their texts or subtitles, and cut a clip per sentence."""

    source: Recording = Field("", title="Long recordings", description="Path or URL of a recording, a video, a folder of them, or an archive. Without Text, each needs a text, subtitle or label file of the same name.")
    text: AbsolutePath = Field("", title="Text", description="Text of a single recording: plain text (UTF-8) or subtitles, whose timestamps are ignored. Empty: the file beside each recording.")
    segments: Name = Field("recordings", title="Name", description="Name of the segments in the workspace.")
    language: LanguageCode = Field("am", title="Language", description="Language code of the speech, such as `am`.")
    recogniser: Recogniser = Field("facebook/mms-1b-all", title="Recogniser (CTC)", description="OWNER/NAME of a CTC recogniser on the Hub, such as `facebook/mms-1b-all`; a folder; or `built-in`, for the built-in model's synthetic voices only. The text is romanised where the recogniser lacks the script.")
    recogniser_language: str = Field("", max_length=40, title="Recogniser language", description="The recogniser's name of the language where it is not the code, such as `amh` for MMS.")
    revision: str = Field("main", min_length=1, max_length=200, title="Revision", description="Branch, tag or commit of the recogniser on the Hub.")
    rules: NameOrNothing = Field("", title="Text rules", description="Rules that write out numbers, dates and abbreviations for the alignment; the clips keep the original text.")
    flag_below: float = Field(0.3, ge=0.0, le=1.0, title="Flag below", description="Clips with a lower alignment score are flagged for review.")
    drop_below: float = Field(0.1, ge=0.0, le=1.0, title="Drop below", description="Clips with a lower alignment score are excluded, and listed.")
    device: Device = Field("auto", title="Device", description="`auto` uses CUDA when available.")


class PrepareOptions(Options):
    """Import, check and split a dataset, and extract its features."""

    source: Source = Field("demo", title="Source", description="Path or URL of a folder, file or archive; `hub:OWNER/NAME`; `segments:NAME` for segments of long recordings; `demo`, included; or `as-is`, this dataset itself, to extract features for another model.")
    dataset: Name = Field("amharic-demo", title="Dataset name", description="Name of the dataset in the workspace.")
    language: LanguageCode = Field("am", title="Language", description="Language code of the speech, such as `am`. Recordings in a language of the base model can only be replayed (scope `full`).")
    add_to: NameOrNothing = Field("", title="Add to", description="An existing dataset: the new one has its clips and the clips of the source that it lacks. The existing one is unchanged.")
    max_clips: int = Field(0, ge=0, title="Max clips", description="Use only the first clips of the source; 0 uses all.")
    rules: NameOrNothing = Field("", title="Text rules", description="Rules that write out numbers, dates and abbreviations before texts are checked; use those of the tokenizer. The dataset keeps the original texts.")
    licence: str = Field("", max_length=200, title="Licence", description="Licence of the recordings, such as `CC-BY-4.0`; shown with the dataset and with every export trained on it.")
    held_out: float = Field(0.1, ge=0.0, le=0.5, title="Held-out share", description="Share of clips held out from training where the source defines no split.")
    split_disjoint_by: Literal["source", "speaker"] = Field("source", title="Held-out split by", description="Held-out and training clips share no `source` (sentence or recording), or no `speaker` either. A split of the source is kept.")
    model: Name = Field("tiny", title="Model", description="Base model that extracts the features.")
    variants: int = Field(0, ge=0, le=10, title="Augmented variants", description="Variants of each training clip in speed, pitch and noise, for augmentation in training. Each takes as long to extract as the clip. 0 adds none and keeps existing ones.")
    variant_speed: float = Field(0.1, ge=0.0, le=0.1, title="Variant speed", description="Largest relative change of speed at the same pitch; 0 keeps the speed.")
    variant_pitch: float = Field(0.5, ge=0.0, le=0.5, title="Variant pitch (semitones)", description="Largest change of pitch at the same speed; 0 keeps the pitch.")
    variant_noise: float = Field(30.0, ge=0.0, le=60.0, title="Variant SNR (dB)", description="Lowest signal-to-noise ratio of added noise; 0 adds none.")
    seed: int = Field(0, ge=0, title="Seed", description="Seed of the split and the variants.")
    device: Device = Field("auto", title="Device", description="Device for feature extraction; `auto` uses CUDA when available.")


class ReviseOptions(Options):
    """Save a new version of a dataset with the decisions of its review; the old one is unchanged."""

    dataset: Name = Field("amharic-demo", title="Dataset", description="The reviewed dataset.")
    save_as: Name = Field("amharic-demo-2", title="Save as", description="Name of the new version.")
    model: Name = Field("tiny", title="Model", description="Base model that extracts the features of fixed clips.")
    device: Device = Field("auto", title="Device", description="Device for feature extraction; `auto` uses CUDA when available.")
