"""Options of the verbs that speak, and hand on what can."""

from __future__ import annotations

from pydantic import Field

from config.schema.values import Device, LanguageCode, Name, NameOrNothing, Options, SpeakingPrecision


class SamplingOptions(Options):
    """How codes are drawn. What is left empty is what the model speaks best with."""

    temperature: float | None = Field(None, ge=0.0, le=2.0, title="Temperature", description="0 always takes the likeliest code; empty is the model's own (0.2 built-in, 0.8 Chatterbox).")
    top_p: float | None = Field(None, gt=0.0, le=1.0, title="Top p", description="Smallest set of codes with this probability; empty is the model's own (1).")
    min_p: float | None = Field(None, ge=0.0, le=1.0, title="Min p", description="Codes below this share of the likeliest are left out; empty is the model's own (0.05).")
    repetition_penalty: float | None = Field(None, ge=1.0, le=3.0, title="Repetition penalty", description="Above 1, codes already used become less likely; empty is the model's own (1 built-in, 2 Chatterbox).")
    guidance: float | None = Field(None, ge=0.0, le=3.0, title="Guidance", description="Weight of the difference to speech without text; 0 is off and faster; empty is the model's own (0.5).")
    seed: int = Field(0, ge=0, title="Seed", description="Same seed, text, voice and device: same audio.")


class SoundOptions(Options):
    """How codes become sound, for the families that have these controls (Chatterbox)."""

    exaggeration: float = Field(0.5, ge=0.0, le=2.0, title="Exaggeration", description="How lively the voice is; 0.5 is neutral. Chatterbox only.")
    flow_steps: int = Field(10, ge=1, le=100, title="Flow steps", description="Fewer are faster and rougher; 4 or 5 are usable. Chatterbox only.")
    flow_prompt_s: float = Field(10.0, ge=1.0, le=10.0, title="Timbre prompt (seconds)", description="How much of the reference recording gives the timbre; less is faster and less like it. Chatterbox only.")
    watermark: bool = Field(True, title="Watermark", description="Mark the sound, inaudibly, as made by a machine (Perth). Chatterbox only.")


class SynthesizeOptions(Options):
    """Speak a text."""

    voice_model: str = Field("base:tiny", title="Model", description="`base:NAME`, `run:ID` (its best checkpoint), `run:ID@STEP` or `export:NAME`.")
    text: str = Field("", title="Text", description="What to say.")
    language: LanguageCode = Field("en", title="Language", description="Language of the text.")
    voice: str = Field("", title="Voice", description="A voice of the model, or a path to a reference recording; empty is the model's first voice.")
    sampling: SamplingOptions = Field(default_factory=SamplingOptions, title="Sampling", description="How codes are drawn.")
    sound: SoundOptions = Field(default_factory=SoundOptions, title="Sound", description="How codes become sound.")
    precision: SpeakingPrecision = Field("auto", title="Precision", description="Of the language model while it speaks. `auto` is bfloat16 for large models where the hardware has it; `int8` is fastest on a CPU and costs some accuracy.")
    device: Device = Field("auto", title="Device", description="`auto` is CUDA when there is one.")


class CompareOptions(Options):
    """Speak the same texts with the base and the finetuned model, and judge both."""

    base: str = Field("base:tiny", title="Base", description="Model on the left.")
    finetuned: str = Field("", title="Finetuned", description="Model on the right: `run:ID` or `export:NAME`.")
    texts: tuple[tuple[str, str], ...] = Field((), title="Texts", description="Pairs of language and text; none takes a held-out sentence of each language.")
    voice: str = Field("", title="Voice", description="A voice of the model, or a path to a reference recording; empty is the model's first voice.")
    sampling: SamplingOptions = Field(default_factory=SamplingOptions, title="Sampling", description="How codes are drawn.")
    sound: SoundOptions = Field(default_factory=SoundOptions, title="Sound", description="How codes become sound.")
    precision: SpeakingPrecision = Field("auto", title="Precision", description="Of the language model while it speaks. `auto` is bfloat16 for large models where the hardware has it; `int8` is fastest on a CPU and costs some accuracy.")
    device: Device = Field("auto", title="Device", description="`auto` is CUDA when there is one.")


class ExportOptions(Options):
    """Write a finetuned model for others to load, with its certificate."""

    run: str = Field("", title="Run", description="`run:ID` (its best checkpoint) or `run:ID@STEP`.")
    export: Name = Field("tiny-am", title="Export name", description="Name of the export.")
    override: tuple[str, ...] = Field((), title="Override", description="Names of failed certificate checks to export in spite of.")


class PushOptions(Options):
    """Upload an export to a repository of the hub, as one commit. The token comes from HF_TOKEN in the environment."""

    export: NameOrNothing = Field("", title="Export", description="Name of the export in the workspace.", json_schema_extra={"positional": True})
    repository: str = Field("", title="Repository", description="OWNER/NAME on the hub; made when it is not there.", json_schema_extra={"positional": True})
    public: bool = Field(False, title="Public", description="Let everyone see it; without this the repository is private.")
