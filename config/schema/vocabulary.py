"""Options of the verbs for base models, tokenizers and embeddings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from config.schema.values import AbsolutePath, Initialisation, LanguageOrNothing, Name, NameOrNothing, Options, Place


class DownloadOptions(Options):
    """Download a base model into the workspace."""

    model: Name = Field("tiny", title="Model", description="Family of the base model; `tiny` is included.")
    variant: NameOrNothing = Field("", title="Variant", description="Checkpoint of the family, such as `multilingual-v3`; empty is the recommended one.")
    folder: str = Field("", title="Folder", description="Local folder with the files, used instead of the Hub. Files are linked where possible, else copied, never moved.")
    save_as: NameOrNothing = Field("", title="Name in the workspace", description="Name of the model in the workspace; empty is family and variant.")
    revision: str = Field("main", min_length=1, max_length=200, title="Revision", description="Branch, tag or commit of the repository on the Hub.")


class DoctorOptions(Options):
    """Diagnose a fine-tuned checkpoint against its base; without arguments, diagnose this machine."""

    part: Literal["machine", "model"] = Field("machine", title="Part", description="`model` diagnoses a fine-tuned checkpoint, `machine` this machine.", json_schema_extra={"positional": True})
    base: Place = Field("", title="Base", description="The base model of the checkpoint: a name in the workspace, or a file or folder of weights.", json_schema_extra={"positional": True})
    checkpoint: AbsolutePath = Field("", title="Checkpoint", description="The fine-tuned weights: a .safetensors file, a .pt file of tensors only, or their folder.", json_schema_extra={"positional": True})
    tokenizer: AbsolutePath = Field("", title="Checkpoint tokenizer", description="Tokenizer file (JSON) of the checkpoint; empty uses the one in its folder.")
    measure: bool = Field(True, title="Measure", description="Also run base-language samples through both models, where the base is in the workspace. Takes the loading time and some seconds per language.")
    restore: NameOrNothing = Field("", title="Restore as", description="Where only embedding rows were damaged: name of an export with the base's rows and the new rows. No existing file is changed.")
    language: LanguageOrNothing = Field("", title="New language", description="Language code of the new rows, such as `am`; required to restore.")


class TokenizerOptions(Options):
    """Learn pieces on a dataset's texts and append them to the base tokenizer."""

    part: Literal["all", "train", "merge", "report"] = Field("all", title="Part", description="`train` learns pieces, `merge` appends them to the base tokenizer, `report` checks the result; `all` does the three.", json_schema_extra={"positional": True})
    model: Name = Field("tiny", title="Model", description="Base model whose tokenizer is extended.")
    dataset: Name = Field("amharic-demo", title="Dataset", description="Dataset whose training texts are used.")
    tokenizer: Name = Field("tiny-am", title="Tokenizer name", description="Name of the merged tokenizer.")
    algorithm: Literal["bpe", "sentencepiece"] = Field("bpe", title="Algorithm", description="Training algorithm: `bpe` (Hugging Face tokenizers) or `sentencepiece`.")
    merges: int = Field(0, ge=0, le=20000, title="Merges", description="Number of pieces longer than one character; every character of the texts is always a token.")
    rules: NameOrNothing = Field("", title="Text rules", description="Rules that write out numbers, dates and abbreviations as spoken: `am`, `om`, `ti`, a language code that num2words supports, or your own; empty keeps the text.")
    tokenizer_file: AbsolutePath = Field("", title="Custom tokenizer", description="Tokenizer file (JSON of BPE or Unigram, or a SentencePiece model) whose pieces are used instead of learning new ones; only its pieces are used, not its ids.")
    byte_fallback: bool = Field(False, title="Byte fallback", description="Encode characters that the recordings lack as bytes instead of refusing them. Adds 256 rows, which no training text uses.")


def _sizes(values: tuple[int, ...]) -> tuple[int, ...]:
    if wrong := [value for value in values if not 1 <= value <= 20_000]:
        raise ValueError(f"{wrong[0]} pieces cannot be learned: ask for 1 to 20000")
    return values


class CompareTokenizersOptions(Options):
    """Compare tokenizers of several sizes on a dataset's texts, and map its characters."""

    model: Name = Field("tiny", title="Model", description="Base model whose tokenizer would be extended.")
    dataset: Name = Field("amharic-demo", title="Dataset", description="Dataset whose texts the candidates are trained on.")
    rules: NameOrNothing = Field("", title="Text rules", description="Text rules, as for the tokenizer; empty uses those of the language's newest tokenizer, `none` keeps the text.")
    sizes: Annotated[tuple[int, ...], AfterValidator(_sizes)] = Field((50, 200, 800), title="Sizes", description="Number of pieces longer than one character of each candidate; characters alone are always compared.")
    text: AbsolutePath = Field("", title="Text of the language", description="Text file (UTF-8) of the language: shows characters that the dataset lacks, and sentences to record for them.")
    tokenizer_file: AbsolutePath = Field("", title="Custom tokenizer", description="Tokenizer file (JSON of BPE or Unigram, or a SentencePiece model) whose pieces are one more candidate; only its pieces are used, not its ids.")
    sentences: int = Field(20, ge=0, le=1000, title="Sentences", description="Maximum number of sentences to record that are listed.")
    byte_fallback: bool = Field(False, title="Byte fallback", description="Also compare characters with byte fallback.")


class ExtendOptions(Options):
    """Append embedding rows for the new tokens to the base model."""

    model: Name = Field("tiny", title="Model", description="Base model to extend.")
    tokenizer: Name = Field("tiny-am", title="Tokenizer", description="Merged tokenizer that begins with the model's own.")
    extension: Name = Field("tiny-am", title="Extension name", description="Name of the extended model.")
    initialisation: Initialisation = Field("romanised", title="New-token initialisation", description="`random`: like the base rows; `mean` of all base rows with noise; mean of the `neighbours` (base tokens of the same text), of the `romanised` spelling, or `factored` (consonant plus vowel, for syllabaries); `fitted`: romanised, then a short fit to the model's own states, without audio.")
    seed: int = Field(0, ge=0, title="Seed", description="Seed of the noise.")
