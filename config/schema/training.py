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

GROUPS = ("Data", "Optimizer", "Adapters", "Losses and regularization", "Checkpoints and evaluation",
          "Hardware and tracking")
"""The groups of a form's fields, in their order."""
_DATA: dict[str, JsonValue] = {"group": "Data"}
_OPTIMIZER: dict[str, JsonValue] = {"group": "Optimizer"}
_ADAPTERS: dict[str, JsonValue] = {"group": "Adapters"}
_REGULARIZATION: dict[str, JsonValue] = {"group": "Losses and regularization"}
_CHECKPOINTS: dict[str, JsonValue] = {"group": "Checkpoints and evaluation"}
_HARDWARE: dict[str, JsonValue] = {"group": "Hardware and tracking"}


class TrainOptions(Options):
    """Train the extended model on a dataset."""

    extension: Name = Field("tiny-am", title="Extension", description="Extended model to train.")
    dataset: Name = Field("amharic-demo", title="Dataset", description="Dataset to train on.")
    scope: Scope = Field("gated", title="Scope", description="`rows`: new embedding rows only. `gated`: new rows, and adapters active for the new language only. `full`: also base weights, with replay; drift is measured. Base embedding rows are always frozen.")
    steps: int = Field(800, ge=1, le=1_000_000, title="Steps", description="Number of optimizer steps.")
    max_minutes: float = Field(0.0, ge=0.0, le=10_000.0, title="Time limit (minutes)", description="Stop and save after this time; 0 is no limit.")
    batch_size: int = Field(16, ge=1, le=512, title="Batch size", description="Clips per forward pass.", json_schema_extra=_OPTIMIZER)
    processes: int = Field(1, ge=1, le=64, title="Processes", description="Data-parallel processes on this machine, one per GPU; the effective batch is multiplied by it. For several machines use torchrun and leave this at 1.", json_schema_extra=_HARDWARE)
    sharding: Literal["none", "full"] = Field("none", title="Sharding", description="`none` (DDP): each process holds the whole model. `full` (FSDP): trained weights, gradients and optimizer state are sharded; scope `full` with several processes only. Checkpoints are the same.", json_schema_extra=_HARDWARE)
    gradient_accumulation: int = Field(1, ge=1, le=256, title="Gradient accumulation", description="Forward passes per optimizer step.", json_schema_extra=_OPTIMIZER)
    row_lr: float = Field(5e-3, gt=0.0, le=1.0, title="Learning rate, rows", description="Peak learning rate of the new embedding rows.", json_schema_extra=_OPTIMIZER)
    adapter_lr: float = Field(2e-3, gt=0.0, le=1.0, title="Learning rate, adapters", description="Peak learning rate of the adapters.", json_schema_extra=_OPTIMIZER)
    weight_decay: float = Field(0.01, ge=0.0, le=1.0, title="Weight decay", description="Decoupled weight decay of the adapters; new rows, DoRA magnitudes and base weights have none.", json_schema_extra=_OPTIMIZER)
    full_trainable: FullChanges = Field("everything", title="Trainable in full", description="Base weights that scope `full` trains beside the new rows: `everything`; `layers` (layers and heads); `heads` (last norm and speech head); or `adapters` (no base weights, adapters for every language).", json_schema_extra=_OPTIMIZER)
    layer_lr: float = Field(5e-5, gt=0.0, le=1.0, title="Learning rate, layers", description="Peak learning rate of the base's layers and embeddings; scope `full` only.", json_schema_extra=_OPTIMIZER)
    head_lr: float = Field(1e-4, gt=0.0, le=1.0, title="Learning rate, heads", description="Peak learning rate of the base's last norm and speech head; scope `full` only.", json_schema_extra=_OPTIMIZER)
    layer_lr_decay: float = Field(1.0, gt=0.0, le=1.0, title="Layer-wise LR decay", description="Learning rate of each base layer relative to the layer above it; 1 is the same for all. Scope `full` only.", json_schema_extra=_OPTIMIZER)
    distillation: float = Field(0.0, ge=0.0, le=100.0, title="Distillation weight", description="Weight of the KL divergence from the base model on replayed clips; scope `full` only.", json_schema_extra=_REGULARIZATION)
    l2_sp: float = Field(0.0, ge=0.0, le=1000.0, title="L2-SP weight", description="Weight of the squared distance of trained base weights from their start (L2-SP); scope `full` only.", json_schema_extra=_REGULARIZATION)
    ewc: float = Field(0.0, ge=0.0, le=1000.0, title="EWC weight", description="Weight of the same distance scaled by Fisher information on replayed clips (EWC); scope `full` only.", json_schema_extra=_REGULARIZATION)
    fisher_clips: int = Field(32, ge=1, le=10_000, title="Fisher clips", description="Number of replayed clips for the Fisher information of EWC.", json_schema_extra=_REGULARIZATION)
    drift_bound: float = Field(0.2, gt=0.0, le=100.0, title="Drift bound", description="Largest allowed rise of a base language's loss since step 0, in nats per code; scope `full` only.", json_schema_extra=_REGULARIZATION)
    drift_action: Literal["warn", "stop"] = Field("warn", title="On drift", description="Above the drift bound: `warn`, or `stop` the run.", json_schema_extra=_REGULARIZATION)
    schedule: Literal["cosine", "linear", "constant"] = Field("cosine", title="LR schedule", description="Decay of the learning rates after the warmup.", json_schema_extra=_OPTIMIZER)
    min_lr_ratio: float = Field(0.03, ge=0.0, le=1.0, title="Min LR ratio", description="Learning rate at the last step, relative to the peak.", json_schema_extra=_OPTIMIZER)
    warmup: int = Field(30, ge=0, le=100_000, title="Warmup steps", description="Steps of linear warmup.", json_schema_extra=_OPTIMIZER)
    optimizer: Literal["adamw", "adamw8bit"] = Field("adamw", title="Optimizer", description="`adamw8bit` stores the optimizer state in 8 bits, a quarter of the memory; needs `pip install bitsandbytes`.", json_schema_extra=_OPTIMIZER)
    ema: float = Field(0.0, ge=0.0, lt=1.0, title="EMA decay", description="Decay of an exponential moving average of the trained weights, such as 0.999; it is evaluated, saved and exported. 0 is off.", json_schema_extra=_OPTIMIZER)
    max_grad_norm: float = Field(1.0, gt=0.0, le=1000.0, title="Max gradient norm", description="Gradient clipping by global norm.", json_schema_extra=_OPTIMIZER)
    adapter: AdapterKind = Field("lora", title="Adapter type", description="`lora`; `dora`, which also trains weight magnitudes; `adalora`, which distributes a rank budget over the layers.", json_schema_extra=_ADAPTERS)
    adapter_rank: int = Field(16, ge=0, le=512, title="Adapter rank", description="Rank in the attention layers; with `adalora` the mean final rank. 0 is none.", json_schema_extra=_ADAPTERS)
    adapter_rank_mlp: int | None = Field(None, ge=0, le=512, title="Adapter rank, MLP", description="Rank in the MLP layers; empty is the rank of attention, 0 is none.", json_schema_extra=_ADAPTERS)
    adapter_rank_heads: int | None = Field(None, ge=0, le=512, title="Adapter rank, heads", description="Rank at the speech head; empty is the rank of attention, 0 is none.", json_schema_extra=_ADAPTERS)
    adapter_scale: float = Field(2.0, gt=0.0, le=64.0, title="Adapter scale", description="Alpha divided by rank.", json_schema_extra=_ADAPTERS)
    adapter_dropout: float = Field(0.1, ge=0.0, le=0.9, title="Adapter dropout", description="Dropout before each adapter.", json_schema_extra=_ADAPTERS)
    text_dropout: float = Field(0.1, ge=0.0, le=0.9, title="Text dropout", description="Share of samples without text, as classifier-free guidance needs.", json_schema_extra=_REGULARIZATION)
    code_dropout: float = Field(0.7, ge=0.0, le=0.9, title="Code dropout", description="Largest share of input codes that are masked in a sample.", json_schema_extra=_REGULARIZATION)
    text_loss_weight: float = Field(0.1, ge=0.0, le=10.0, title="Text loss weight", description="Weight of the next-token loss on text, relative to the speech loss.", json_schema_extra=_REGULARIZATION)
    guided_attention_weight: float = Field(0.1, ge=0.0, le=10.0, title="Guided attention weight", description="Weight of a loss for monotonic text alignment in the alignment heads; families without such heads ignore it.", json_schema_extra=_REGULARIZATION)
    augmentation: float = Field(0.0, ge=0.0, le=1.0, title="Augmentation", description="Share of clips per epoch that are replaced by an augmented variant; needs a dataset with variants. 0 is off. Validation is never augmented.", json_schema_extra=_DATA)
    replay: float = Field(0.3, ge=0.0, le=0.9, title="Replay ratio", description="Share of base-language clips in each batch; scope `full` only.", json_schema_extra=_DATA)
    replay_datasets: TextOrNothing = Field("", title="Replay datasets", description="Datasets in base languages, comma-separated. Empty: the replay texts, else the model's included clips, else speech that the base model synthesizes. Scope `full` only.", json_schema_extra=_DATA)
    replay_texts: str = Field("", title="Replay texts", description="Text file of sentences that the base model synthesizes for replay: language code, tab, sentence per line. Empty: the model's included clips, else built-in sentences. Scope `full` only.", json_schema_extra=_DATA)
    precision: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", title="Precision", description="Precision of frozen weights and computation; trained weights are always float32. `auto` is bfloat16 where supported, float16 with loss scaling on older GPUs (compute capability 7), else float32.", json_schema_extra=_HARDWARE)
    activation_checkpointing: Literal["auto", "on", "off"] = Field("auto", title="Activation checkpointing", description="Recompute activations in the backward pass: less memory, same result, about a third more time. `auto` turns it on when memory is short.", json_schema_extra=_HARDWARE)
    compile: Literal["off", "on"] = Field("off", title="torch.compile", description="Compile the layers: some minutes at the start, then faster steps on CUDA.", json_schema_extra=_HARDWARE)
    checkpoint_every: int = Field(200, ge=1, le=1_000_000, title="Checkpoint every (steps)", description="Steps between checkpoints, each with scored samples.", json_schema_extra=_CHECKPOINTS)
    init_from: str = Field("", title="Initialise from run", description="`run:ID` (its best checkpoint) or `run:ID@STEP`: start from its rows and adapters with a new optimizer. Rows are matched by token, so tokenizers may differ. Empty: the extension.", json_schema_extra=_CHECKPOINTS)
    keep_last: int = Field(2, ge=1, le=1000, title="Keep last", description="Number of last checkpoints to keep, beside the best and pinned ones; use 2 or more, as the last may be damaged.", json_schema_extra=_CHECKPOINTS)
    evaluation_sentences: int = Field(20, ge=0, le=200, title="Evaluation sentences", description="Held-out sentences synthesized and scored at each checkpoint; 0 selects the best by speech loss.", json_schema_extra=_CHECKPOINTS)
    recogniser: RecogniserOrNothing = Field("", title="Recogniser (ASR)", description="Recogniser that scores the new language: empty is the model's own where it knows the language; else OWNER/NAME on the Hub, such as `facebook/mms-1b-all`, a folder, or `built-in`. Compare with its scores on original recordings.", json_schema_extra=_CHECKPOINTS)
    recogniser_language: str = Field("", max_length=40, title="Recogniser language", description="The recogniser's name of the language where it is not the code, such as `amh` for MMS or `amharic` for Whisper. Empty tries the code and common names.", json_schema_extra=_CHECKPOINTS)
    select_best_by: Literal["auto", "speech_loss", "cer"] = Field("auto", title="Select best checkpoint by", description="`speech_loss` on held-out clips, or `cer` (character error rate) of synthesized sentences. `auto` is `cer` where a recogniser knows the language, else `speech_loss`.", json_schema_extra=_CHECKPOINTS)
    validate_every: int = Field(0, ge=0, le=1_000_000, title="Validate every (steps)", description="Steps between validations without samples; 0 validates at checkpoints only. If the best is selected by loss, a better step is saved at once.", json_schema_extra=_CHECKPOINTS)
    validation_disjoint_by: Literal["source", "speaker"] = Field("source", title="Validation split by", description="Exclude held-out clips from validation that share the `source` (recording) or the `speaker` with a training clip.", json_schema_extra=_CHECKPOINTS)
    patience: int = Field(0, ge=0, le=1000, title="Early-stopping patience", description="Stop after this many validations without improvement; 0 never stops.", json_schema_extra=_CHECKPOINTS)
    seed: int = Field(0, ge=0, title="Seed", description="Seed of data order, dropout and samples.", json_schema_extra=_HARDWARE)
    tracker: Literal["none", "trackio", "wandb"] = Field("none", title="Experiment tracker", description="Also log to `trackio` or `wandb` (must be installed), beside the run's journal and TensorBoard files.", json_schema_extra=_HARDWARE)
    wait_for_gpu_gib: float = Field(0.0, ge=0.0, le=1000.0, title="Wait for GPU memory (GiB)", description="Wait in the queue until a GPU has this much free memory; later jobs may run first. 0 does not wait. Ignored on a CPU.", json_schema_extra=_HARDWARE)
    wait_for_idle_gpu: bool = Field(False, title="Wait for an idle GPU", description="Wait until no other program uses the GPU.", json_schema_extra=_HARDWARE)
    max_attempts: int = Field(1, ge=1, le=20, title="Max attempts", description="Number of starts: after a crash the run resumes from its last checkpoint. Errors that need a person, and a stop, end it at once.", json_schema_extra=_HARDWARE)
    device: Device = Field("auto", title="Device", description="`auto` uses CUDA when available.")


class PreflightOptions(TrainOptions):
    """Check a training on eight clips in about a minute: features, two steps, save, reload, synthesize."""
