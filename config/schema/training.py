"""Options of the verbs that train."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from config.schema.values import (
    AdapterKind,
    Device,
    FullChanges,
    Name,
    Options,
    RecogniserOrNothing,
    Scope,
    TextOrNothing,
)

_ADAPTERS: dict[str, JsonValue] = {"group": "Adapters"}
_OPTIMIZER: dict[str, JsonValue] = {"group": "Optimizer"}
_PROTECTION: dict[str, JsonValue] = {"group": "Base protection"}
_LEARNED: dict[str, JsonValue] = {"group": "What is learned from"}
_CHECKPOINTS: dict[str, JsonValue] = {"group": "Validation and checkpoints"}
_MACHINES: dict[str, JsonValue] = {"group": "Tracking and machines"}
GROUPS = ("Adapters", "Optimizer", "Base protection", "What is learned from", "Validation and checkpoints",
          "Tracking and machines")
"""The folds of a form that a field stands in, in their order."""


class TrainOptions(Options):
    """Train the extended model on a dataset."""

    extension: Name = Field("tiny-am", title="Extension", description="Extended model to train.")
    dataset: Name = Field("amharic-demo", title="Dataset", description="Dataset to train on.")
    scope: Scope = Field("gated", title="Scope", description="`rows`: only the new rows. `gated`: new rows, and adapters that act on the new language alone. `full`: the base itself but for its old rows, with replay of its languages; the drift is measured.")
    steps: int = Field(800, ge=1, le=1_000_000, title="Steps", description="Optimizer steps.")
    max_minutes: float = Field(0.0, ge=0.0, le=10_000.0, title="Time limit (minutes)", description="Stop and save after this long; 0 is no limit.")
    batch_size: int = Field(16, ge=1, le=512, title="Batch size", description="Clips in one forward pass.", json_schema_extra=_OPTIMIZER)
    processes: int = Field(1, ge=1, le=64, title="Processes", description="Processes of this machine that share each step, one a GPU; each takes batches of this size, so that two with 8 clips do what one does with 16. Over several machines, start it with torchrun and leave this at 1.", json_schema_extra=_MACHINES)
    sharding: Literal["none", "full"] = Field("none", title="Sharding", description="`none`: each process holds all of the model, which is fastest. `full`: each holds only its part of what is trained, its gradients and its optimizer state (torch's FSDP), for a model that one GPU cannot train; scope `full` with several processes only. Checkpoints are the same files.", json_schema_extra=_MACHINES)
    gradient_accumulation: int = Field(1, ge=1, le=256, title="Accumulation", description="Forward passes in one step.", json_schema_extra=_OPTIMIZER)
    row_lr: float = Field(5e-3, gt=0.0, le=1.0, title="Learning rate, rows", description="Peak learning rate of the new rows.", json_schema_extra=_OPTIMIZER)
    adapter_lr: float = Field(2e-3, gt=0.0, le=1.0, title="Learning rate, adapters", description="Peak learning rate of the adapters.", json_schema_extra=_OPTIMIZER)
    weight_decay: float = Field(0.01, ge=0.0, le=1.0, title="Weight decay", description="Decoupled decay of the adapters; new rows, the magnitudes of DoRA and what came with the base are not decayed.", json_schema_extra=_OPTIMIZER)
    full_trainable: FullChanges = Field("everything", title="Changed in full", description="What of the base scope `full` trains beside the new rows; the old rows never. `everything`; `layers`: the layers and the heads; `heads`: the last norm and the speech head; `adapters`: no tensor of the base, but adapters that act on every language.", json_schema_extra=_PROTECTION)
    layer_lr: float = Field(5e-5, gt=0.0, le=1.0, title="Learning rate, layers", description="Peak learning rate of the base's layers and embeddings; scope `full` only.", json_schema_extra=_PROTECTION)
    head_lr: float = Field(1e-4, gt=0.0, le=1.0, title="Learning rate, heads", description="Peak learning rate of the base's last norm and speech head; scope `full` only.", json_schema_extra=_PROTECTION)
    layer_lr_decay: float = Field(1.0, gt=0.0, le=1.0, title="Layer decay", description="Each layer of the base learns at this share of the rate of the layer above it, embeddings least; 1 is the same for all. Scope `full` only.", json_schema_extra=_PROTECTION)
    distillation: float = Field(0.0, ge=0.0, le=100.0, title="Distillation", description="Weight of the divergence from the unchanged base on replayed clips; scope `full` only.", json_schema_extra=_PROTECTION)
    l2_sp: float = Field(0.0, ge=0.0, le=1000.0, title="Pull to the base", description="Strength with which every changed number of the base is pulled back to where it was (L2-SP); scope `full` only.", json_schema_extra=_PROTECTION)
    ewc: float = Field(0.0, ge=0.0, le=1000.0, title="Pull by importance", description="The same, weighed by how much the base languages depend on each number (EWC); it is estimated on replayed clips. Scope `full` only.", json_schema_extra=_PROTECTION)
    fisher_clips: int = Field(32, ge=1, le=10_000, title="Clips for importance", description="Replayed clips that the importance is estimated on.", json_schema_extra=_PROTECTION)
    drift_bound: float = Field(0.2, gt=0.0, le=100.0, title="Drift bound", description="Rise of the loss of a base language, in nats a code since before the first step, that is too much; scope `full` only.", json_schema_extra=_PROTECTION)
    drift_action: Literal["warn", "stop"] = Field("warn", title="Past the drift bound", description="`warn` and go on, or `stop` the run.", json_schema_extra=_PROTECTION)
    schedule: Literal["cosine", "linear", "constant"] = Field("cosine", title="Schedule", description="How the learning rates fall after the warmup.", json_schema_extra=_OPTIMIZER)
    min_lr_ratio: float = Field(0.03, ge=0.0, le=1.0, title="Rate floor", description="Share of the peak rates that is left at the last step.", json_schema_extra=_OPTIMIZER)
    warmup: int = Field(30, ge=0, le=100_000, title="Warmup", description="Steps of linear warmup before the schedule.", json_schema_extra=_OPTIMIZER)
    optimizer: Literal["adamw", "adamw8bit"] = Field("adamw", title="Optimizer", description="`adamw8bit` keeps the optimizer's moments in 8 bits: a quarter of their memory, by the package bitsandbytes (`pip install bitsandbytes`).", json_schema_extra=_OPTIMIZER)
    ema: float = Field(0.0, ge=0.0, lt=1.0, title="Averaging", description="Decay of a moving average of what is trained, such as 0.999, which is then what is measured, saved and exported; 0 is none.", json_schema_extra=_OPTIMIZER)
    max_grad_norm: float = Field(1.0, gt=0.0, le=1000.0, title="Gradient clipping", description="Largest norm of all gradients together.", json_schema_extra=_OPTIMIZER)
    adapter: AdapterKind = Field("lora", title="Adapters", description="Kind of the low-rank adapters. `lora`; `dora` also learns the length of each row of the weights; `adalora` shares one budget of ranks out over the layers while it trains.", json_schema_extra=_ADAPTERS)
    adapter_rank: int = Field(16, ge=0, le=512, title="Adapter rank", description="Rank of the adapters in the attention layers; with `adalora` the mean rank at the end. 0 is none there.", json_schema_extra=_ADAPTERS)
    adapter_rank_mlp: int | None = Field(None, ge=0, le=512, title="Adapter rank, MLP", description="Rank in the MLP layers; empty is that of attention, 0 is no adapters there.", json_schema_extra=_ADAPTERS)
    adapter_rank_heads: int | None = Field(None, ge=0, le=512, title="Adapter rank, heads", description="Rank at the speech head; empty is that of attention, 0 is no adapter there.", json_schema_extra=_ADAPTERS)
    adapter_scale: float = Field(2.0, gt=0.0, le=64.0, title="Adapter scale", description="Alpha divided by rank: how strongly the adapters act.", json_schema_extra=_ADAPTERS)
    adapter_dropout: float = Field(0.1, ge=0.0, le=0.9, title="Adapter dropout", description="Dropout before each adapter.", json_schema_extra=_ADAPTERS)
    text_dropout: float = Field(0.1, ge=0.0, le=0.9, title="Text dropout", description="Share of samples whose text is hidden, so that guidance keeps working.", json_schema_extra=_LEARNED)
    code_dropout: float = Field(0.7, ge=0.0, le=0.9, title="Code dropout", description="Largest share of input codes that are hidden in a sample.", json_schema_extra=_LEARNED)
    text_loss_weight: float = Field(0.1, ge=0.0, le=10.0, title="Text loss weight", description="Weight of the next-token loss on text beside that on speech.", json_schema_extra=_LEARNED)
    guided_attention_weight: float = Field(0.1, ge=0.0, le=10.0, title="Guided attention", description="Weight of a loss that asks the model's aligned heads to read the text at an even pace; families without such heads skip it.", json_schema_extra=_LEARNED)
    augmentation: float = Field(0.0, ge=0.0, le=1.0, title="Augmentation", description="Share of the clips of an epoch that are heard as one of their variants, chosen anew each epoch; the dataset must have been prepared with variants. 0 is none. Validation and samples are never augmented.", json_schema_extra=_LEARNED)
    replay: float = Field(0.3, ge=0.0, le=0.9, title="Replay", description="Share of base-language clips in each batch; scope `full` only.", json_schema_extra=_PROTECTION)
    replay_datasets: TextOrNothing = Field("", title="Datasets to replay", description="Your own recordings in languages that the base speaks: prepared datasets, with commas between them. Empty takes the texts to replay, or else the clips that come with the model, or else what the base model itself speaks. Scope `full` only.", json_schema_extra=_PROTECTION)
    replay_texts: str = Field("", title="Texts to replay", description="A text file of what the base model speaks, to be rehearsed: a language code, a tab and a sentence a line. Empty takes the clips that come with the model, or else lets it speak the sentences that come with the app. Scope `full` only.", json_schema_extra=_PROTECTION)
    precision: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", title="Precision", description="What is frozen and computed; what is trained is always float32. `auto` is bfloat16 where the hardware has it, float16 with a scaled loss on the cards before (compute capability 7), else float32.", json_schema_extra=_MACHINES)
    activation_checkpointing: Literal["auto", "on", "off"] = Field("auto", title="Activation checkpointing", description="Compute a layer's activations again in the backward pass: less memory, the same result, about a third more time. `auto` does it when memory asks for it.", json_schema_extra=_MACHINES)
    compile: Literal["off", "on"] = Field("off", title="Compile", description="Let torch compile the layers: some minutes at the start, then faster steps on CUDA.", json_schema_extra=_MACHINES)
    checkpoint_every: int = Field(200, ge=1, le=1_000_000, title="Checkpoint every", description="Steps between checkpoints, each with rendered and judged samples.", json_schema_extra=_CHECKPOINTS)
    init_from: str = Field("", title="Begin on the weights of", description="`run:ID` (its best checkpoint) or `run:ID@STEP`: the run begins on those rows and adapters, with a fresh optimizer; rows are told by their tokens, so the vocabulary may be another. Nothing begins on the extension as it was made.", json_schema_extra=_CHECKPOINTS)
    keep_last: int = Field(2, ge=1, le=1000, title="Keep last", description="Last checkpoints that are kept, beside the best one and those that were given a name; one more than a single one is there when the last turns out to be damaged.", json_schema_extra=_CHECKPOINTS)
    evaluation_sentences: int = Field(20, ge=0, le=200, title="Judged sentences", description="Held-out sentences spoken and judged at each checkpoint; 0 chooses the best by speech loss.", json_schema_extra=_CHECKPOINTS)
    recogniser: RecogniserOrNothing = Field("", title="Judge", description="Who hears how well the new language can be understood: nothing is the judge that comes with the model, if it knows the language; else OWNER/NAME on the hub of a recogniser that does, such as `facebook/mms-1b-all`, a folder with one, or `built-in`. Its own errors count too: look at those on recordings beside them.", json_schema_extra=_CHECKPOINTS)
    recogniser_language: str = Field("", max_length=40, title="The judge's name of the language", description="What the recogniser that judges calls the language, where it is not the code, such as `amh` for MMS or `amharic` for Whisper. Empty tries the code and the usual names.", json_schema_extra=_CHECKPOINTS)
    select_best_by: Literal["auto", "speech_loss", "cer"] = Field("auto", title="Best by", description="What makes a checkpoint the best: `speech_loss` on held-out clips, or the `cer` of the sentences it speaks. `auto` is the error where a judge knows the language, since loss turns up before speech stops getting better, else the loss.", json_schema_extra=_CHECKPOINTS)
    validate_every: int = Field(0, ge=0, le=1_000_000, title="Validate every", description="Steps between validations without samples; 0 validates at checkpoints alone. When the best is chosen by loss, a better step is saved at once.", json_schema_extra=_CHECKPOINTS)
    validation_disjoint_by: Literal["source", "speaker"] = Field("source", title="Validation shares no", description="Held-out clips that share this with a training clip are left out of validation: the `source` (the recording they were cut from), or the `speaker`.", json_schema_extra=_CHECKPOINTS)
    patience: int = Field(0, ge=0, le=1000, title="Patience", description="Validations in a row without a better value after which the training ends; 0 is never.", json_schema_extra=_CHECKPOINTS)
    seed: int = Field(0, ge=0, title="Seed", description="Seed of order, dropout and samples.", json_schema_extra=_MACHINES)
    tracker: Literal["none", "trackio", "wandb"] = Field("none", title="Tracker", description="Where the numbers and samples of the run go as well, beside its own journal and TensorBoard's event files: `trackio`, or `wandb` (Weights & Biases); their package must be installed.", json_schema_extra=_MACHINES)
    wait_for_gpu_gib: float = Field(0.0, ge=0.0, le=1000.0, title="Wait for GPU memory (GiB)", description="At its turn in the queue the run waits until a GPU has so much free memory beside other programs, and takes that one; jobs behind it go ahead meanwhile. 0 does not wait. On a processor it does not apply.", json_schema_extra=_MACHINES)
    wait_for_idle_gpu: bool = Field(False, title="Wait for an idle GPU", description="The same, until no other program is at work on it.", json_schema_extra=_MACHINES)
    max_attempts: int = Field(1, ge=1, le=20, title="Tries", description="How often the run is begun at most: after a crash it goes on by itself from its last checkpoint. What a person must mend, and a stop, end it at once.", json_schema_extra=_MACHINES)
    device: Device = Field("auto", title="Device", description="`auto` is CUDA when there is one.")


class PreflightOptions(TrainOptions):
    """Try a training on eight clips in about a minute, before it is started: prepare, two steps, save, reload, speak."""
