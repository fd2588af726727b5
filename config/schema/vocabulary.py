"""Options of the verbs that get models, look at them, and give them the tokens of a language."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from config.schema.values import AbsolutePath, Initialisation, LanguageOrNothing, Name, NameOrNothing, Options, Place


class DownloadOptions(Options):
    """Get a base model into the workspace."""

    model: Name = Field("tiny", title="Model", description="Family of the base model; `tiny` ships with the app.")
    variant: NameOrNothing = Field("", title="Variant", description="Which of the family's checkpoints, such as `multilingual-v3`; nothing takes the recommended one.")
    folder: str = Field("", title="Folder", description="A folder on this machine that has the files already: it is used instead of the hub. The files are linked where that can be done, copied otherwise, and never moved.")
    save_as: NameOrNothing = Field("", title="Name in the workspace", description="Name of the model in the workspace; nothing makes one of family and variant.")
    revision: str = Field("main", min_length=1, max_length=200, title="Revision", description="Branch, tag or commit of the repository on the hub.")


class DoctorOptions(Options):
    """Say what a finetune from elsewhere changed against its base, or, without words, what this machine lacks."""

    part: Literal["machine", "model"] = Field("machine", title="Part", description="`model` examines a checkpoint from elsewhere; without a word the machine is examined.", json_schema_extra={"positional": True})
    base: Place = Field("", title="Base", description="The model it was made from: a name in the workspace, or a file or folder of weights.", json_schema_extra={"positional": True})
    checkpoint: AbsolutePath = Field("", title="Checkpoint", description="The finetune: a .safetensors or .pt file (of tensors alone), or the folder of one.", json_schema_extra={"positional": True})
    tokenizer: AbsolutePath = Field("", title="Its tokenizer", description="The tokenizer file (JSON) that it was trained with; empty takes one that lies in the checkpoint's folder.")
    measure: bool = Field(True, title="Measure", description="Also run base-language samples through both models where the base is in the workspace; takes as long as loading it and some seconds a language.")
    restore: NameOrNothing = Field("", title="Restore as", description="Where rows alone were damaged: write an export of this name with the base's rows and the new ones. Nothing that is there is changed.")
    language: LanguageOrNothing = Field("", title="New language", description="Code of the language that the new rows are for, such as `am`; needed to restore.")


class TokenizerOptions(Options):
    """Train new pieces on a dataset's text and merge them into the base tokenizer."""

    part: Literal["all", "train", "merge", "report"] = Field("all", title="Part", description="`train` learns the pieces, `merge` appends what was learned to the base tokenizer, `report` checks the merged tokenizer; `all` does the three.", json_schema_extra={"positional": True})
    model: Name = Field("tiny", title="Model", description="Base model whose tokenizer is extended.")
    dataset: Name = Field("amharic-demo", title="Dataset", description="Dataset whose training text is used.")
    tokenizer: Name = Field("tiny-am", title="Tokenizer name", description="Name of the merged tokenizer.")
    algorithm: Literal["bpe", "sentencepiece"] = Field("bpe", title="Algorithm", description="Library that learns the merges.")
    merges: int = Field(0, ge=0, le=20000, title="Merges", description="Pieces longer than one character to learn; every character of the text comes first and is always there.")
    rules: NameOrNothing = Field("", title="Text rules", description="Rules that write numbers, dates and abbreviations out as they are spoken: `am`, `om`, `ti`, the code of a language that num2words knows, or your own; nothing leaves the text as it stands.")
    tokenizer_file: AbsolutePath = Field("", title="Your own tokenizer", description="File of a tokenizer (JSON of BPE or Unigram, or a SentencePiece model) whose pieces are taken instead of learning some; they are matched by piece, and their ids there mean nothing here.")
    byte_fallback: bool = Field(False, title="Byte fallback", description="Spell a character that the recordings lack in bytes instead of refusing it: 256 more rows, which no text teaches, as every character of the recordings has a row of its own.")


def _sizes(values: tuple[int, ...]) -> tuple[int, ...]:
    if wrong := [value for value in values if not 1 <= value <= 20_000]:
        raise ValueError(f"{wrong[0]} pieces cannot be learned: ask for 1 to 20000")
    return values


class CompareTokenizersOptions(Options):
    """Compare tokenizers of several sizes on a dataset's text, and map the characters that it covers."""

    model: Name = Field("tiny", title="Model", description="Base model whose tokenizer is to be extended.")
    dataset: Name = Field("amharic-demo", title="Dataset", description="Dataset whose text the candidates are learned from.")
    rules: NameOrNothing = Field("", title="Text rules", description="Rules that write numbers, dates and abbreviations out, as for the tokenizer; nothing takes those of the language's newest tokenizer, `none` leaves the text as it stands.")
    sizes: Annotated[tuple[int, ...], AfterValidator(_sizes)] = Field((50, 200, 800), title="Sizes", description="Pieces longer than one character of each candidate; characters alone are always among them.")
    text: AbsolutePath = Field("", title="Text of the language", description="A text file (UTF-8) of the language: characters that it has and the dataset lacks are shown, with the sentences to record that would close the gaps.")
    tokenizer_file: AbsolutePath = Field("", title="Your own tokenizer", description="File of a tokenizer (JSON of BPE or Unigram, or a SentencePiece model) whose pieces are taken as one more candidate; they are matched by piece, and their ids there mean nothing here.")
    sentences: int = Field(20, ge=0, le=1000, title="Sentences", description="At most so many sentences to record are named.")
    byte_fallback: bool = Field(False, title="Byte fallback", description="Compare characters with byte fallback too.")


class ExtendOptions(Options):
    """Give the base model rows for the new tokens."""

    model: Name = Field("tiny", title="Model", description="Base model to extend.")
    tokenizer: Name = Field("tiny-am", title="Tokenizer", description="Merged tokenizer; its base part must be the model's own.")
    extension: Name = Field("tiny-am", title="Extension name", description="Name of the extended model.")
    initialisation: Initialisation = Field("romanised", title="Start of new rows", description="`random`: drawn like the old rows, to compare with; `mean` of all old rows with noise, mean of the `neighbours` (base tokens that spell the same text), the `romanised` spelling, the `factored` one (consonant plus vowel, for syllabaries), or `fitted`: the romanised start, then a short fit to the model's own states for that spelling, without audio.")
    seed: int = Field(0, ge=0, title="Seed", description="Seed of the noise.")
