"""Options of the verbs that synthesize, export and push."""

from __future__ import annotations

from pydantic import Field

from config.schema.values import Device, LanguageCode, Name, NameOrNothing, Options, SpeakingPrecision


class SamplingOptions(Options):
    """Sampling of speech codes; empty fields take the model's defaults."""

    temperature: float | None = Field(None, ge=0.0, le=2.0, title="Temperature", description="0 is greedy decoding; empty is the model's default (0.2 built-in, 0.8 Chatterbox).")
    top_p: float | None = Field(None, gt=0.0, le=1.0, title="Top-p", description="Nucleus sampling: smallest set of codes with this probability; empty is the model's default (1).")
    min_p: float | None = Field(None, ge=0.0, le=1.0, title="Min-p", description="Exclude codes below this share of the highest probability; empty is the model's default (0.05).")
    repetition_penalty: float | None = Field(None, ge=1.0, le=3.0, title="Repetition penalty", description="Above 1, repeated codes become less likely; empty is the model's default (1 built-in, 2 Chatterbox).")
    guidance: float | None = Field(None, ge=0.0, le=3.0, title="Guidance scale (CFG)", description="Weight of classifier-free guidance; 0 is off and faster; empty is the model's default (0.5).")
    seed: int = Field(0, ge=0, title="Seed", description="Same seed, text, voice and device: same audio.")


class SoundOptions(Options):
    """Decoding of codes to audio, for the families with these controls (Chatterbox)."""

    exaggeration: float = Field(0.5, ge=0.0, le=2.0, title="Exaggeration", description="Expressiveness; 0.5 is neutral. Chatterbox only.")
    flow_steps: int = Field(10, ge=1, le=100, title="Flow steps", description="Steps of the flow-matching decoder; fewer are faster and coarser, 4 or 5 are usable. Chatterbox only.")
    flow_prompt_s: float = Field(10.0, ge=1.0, le=10.0, title="Timbre prompt (s)", description="Length of the reference recording used for the timbre; shorter is faster and less similar. Chatterbox only.")
    watermark: bool = Field(True, title="Watermark", description="Add an inaudible watermark (Perth). Chatterbox only.")


class SynthesizeOptions(Options):
    """Synthesize a text."""

    voice_model: str = Field("base:tiny", title="Model", description="`base:NAME`, `run:ID` (its best checkpoint), `run:ID@STEP` or `export:NAME`.")
    text: str = Field("", title="Text", description="Text to synthesize.")
    language: LanguageCode = Field("en", title="Language", description="Language code of the text.")
    voice: str = Field("", title="Voice", description="A voice of the model, or the path of a reference recording; empty is the model's first voice.")
    sampling: SamplingOptions = Field(default_factory=SamplingOptions, title="Sampling", description="Sampling of speech codes.")
    sound: SoundOptions = Field(default_factory=SoundOptions, title="Audio", description="Decoding of codes to audio.")
    precision: SpeakingPrecision = Field("auto", title="Precision", description="Precision of the language model. `auto` is bfloat16 for large models where the hardware supports it; `int8` is fastest on a CPU and less accurate.")
    device: Device = Field("auto", title="Device", description="`auto` uses CUDA when available.")


class CompareOptions(Options):
    """Synthesize the same texts with the base and the fine-tuned model, and score both."""

    base: str = Field("base:tiny", title="Base", description="Model on the left.")
    finetuned: str = Field("", title="Fine-tuned", description="Model on the right: `run:ID` or `export:NAME`.")
    texts: tuple[tuple[str, str], ...] = Field((), title="Texts", description="Pairs of language and text; empty uses a held-out sentence of each language.")
    voice: str = Field("", title="Voice", description="A voice of the model, or the path of a reference recording; empty is the model's first voice.")
    sampling: SamplingOptions = Field(default_factory=SamplingOptions, title="Sampling", description="Sampling of speech codes.")
    sound: SoundOptions = Field(default_factory=SoundOptions, title="Audio", description="Decoding of codes to audio.")
    precision: SpeakingPrecision = Field("auto", title="Precision", description="Precision of the language model. `auto` is bfloat16 for large models where the hardware supports it; `int8` is fastest on a CPU and less accurate.")
    device: Device = Field("auto", title="Device", description="`auto` uses CUDA when available.")


class ExportOptions(Options):
    """Export a fine-tuned model in its original format, with its certificate."""

    run: str = Field("", title="Run", description="`run:ID` (its best checkpoint) or `run:ID@STEP`.")
    export: Name = Field("tiny-am", title="Export name", description="Name of the export.")
    override: tuple[str, ...] = Field((), title="Override", description="Names of failed certificate checks to ignore.")


class PushOptions(Options):
    """Upload an export to a repository on the Hub as one commit. The token is read from HF_TOKEN."""

    export: NameOrNothing = Field("", title="Export", description="Name of the export in the workspace.", json_schema_extra={"positional": True})
    repository: str = Field("", title="Repository", description="OWNER/NAME on the Hub; created if missing.", json_schema_extra={"positional": True})
    public: bool = Field(False, title="Public", description="Make the repository public; the default is private.")
