"""The base models that Lisan knows, and what it knows of their families. Never loads torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from config.errors import UserError


@dataclass(frozen=True)
class Licence:
    """A licence that a person accepts by `name` before files under it are downloaded."""

    name: str
    title: str
    terms: str  # a sentence about the duties under the licence
    url: str
    # The text that the page of a derived model must state, word for word.
    notice: str = ""
    files: tuple[str, ...] = ()  # its text, which every export holds


@dataclass(frozen=True)
class RepositoryPart:
    """Files from one repository of the hub. Each is a choice of names, of which the first that exists is taken."""

    repository: str
    files: tuple[tuple[str, ...], ...]
    what: str = ""  # a description of these files
    # Paths in the model folder, for files that have another name there.
    paths: Mapping[str, str] = field(default_factory=dict)
    revision: str = "main"  # the commit that was tested; `main` is the newest
    licence: Licence | None = None  # None: that of the family, which asks for no consent

    def path(self, name: str) -> str:
        """Where the file `name` of the repository lies in the model folder."""
        return self.paths.get(name, name)


@dataclass(frozen=True)
class ModelVariant:
    """One published checkpoint of a family; its first part is its own repository."""

    name: str
    title: str
    languages: str
    parts: tuple[RepositoryPart, ...]
    codes: tuple[str, ...]  # language codes
    stripped: tuple[str, ...] = ()  # files that lose what is never read, an optimizer's state, after the download
    language_model: str = ""  # its file in the model folder
    # Shapes of tensors in that file; they tell its sizes.
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def repository(self) -> str:
        return self.parts[0].repository

    @property
    def licences(self) -> tuple[Licence, ...]:
        """Those that a person accepts, each once."""
        return tuple(dict.fromkeys(part.licence for part in self.parts if part.licence))

    def origin(self, path: str) -> tuple[RepositoryPart, str]:
        """The part that a file of the model folder belongs to, and the file's name in its repository."""
        for part in self.parts:
            for name in chain.from_iterable(part.files):
                if part.path(name) == path:
                    return part, name
        return self.parts[0], path


@dataclass(frozen=True)
class CatalogEntry:
    """What the catalog says of one family of base models."""

    name: str
    title: str
    what: str
    languages: str
    licence: str
    size: str
    note: str
    # Variants on the hub, the default first; without any, the model ships with the app.
    variants: tuple[ModelVariant, ...] = ()
    sampling: Mapping[str, float] = field(default_factory=dict)  # the published defaults
    sound_options: tuple[str, ...] = ()  # fields of `config.schema.SoundOptions` that have an effect
    preset: str = "demo"  # the file in `config/presets` that suits it
    own_voice: tuple[str, str] | None = None  # a file of the model, and the name of the voice in it
    codes_per_second: float = 25.0
    built_in_codes: tuple[str, ...] = ()  # language codes of a model that ships with the app
    clones_voices: bool = False  # made to speak in the voice of any reference recording
    conditioner_adapters: bool = False  # whether the voice conditioner has layers that may carry adapters

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the languages of the default variant, which is what a download without a choice brings."""
        return self.variants[0].codes if self.variants else self.built_in_codes

    @property
    def licences(self) -> tuple[Licence, ...]:
        """Those that a person accepts for one of the variants, each once."""
        return tuple(dict.fromkeys(chain.from_iterable(variant.licences for variant in self.variants)))


_CHATTERBOX = "ResembleAI/chatterbox"
_SPEAKER = (("ve.safetensors", "ve.pt"), ("conds.pt",))
_S3GEN = ("s3gen.safetensors", "s3gen.pt")
_MANY = ("ar", "da", "de", "el", "en", "es", "fi", "fr", "he", "hi", "it", "ja", "ko", "ms", "nl", "no", "pl", "pt",
         "ru", "sv", "sw", "tr", "zh")
_GRAPHEMES, _CANGJIE = ("grapheme_mtl_merged_expanded_v1.json",), ("Cangjie5_TC.json",)


def _t3_shapes(text_rows: int) -> Mapping[str, tuple[int, ...]]:
    """Shapes of a published T3. The files differ in their text rows alone (`models.chatterbox.t3`)."""
    return {
        "text_emb.weight": (text_rows, 1024), "text_head.weight": (text_rows, 1024),
        "speech_emb.weight": (8194, 1024), "speech_head.weight": (8194, 1024),
        "text_pos_emb.emb.weight": (2050, 1024), "speech_pos_emb.emb.weight": (4100, 1024),
        "tfmr.layers.29.mlp.down_proj.weight": (1024, 4096), "cond_enc.spkr_enc.weight": (1024, 256),
    }


def _main_variant(name: str, title: str, codes: tuple[str, ...], text_rows: int,
                  *own_files: tuple[str, ...]) -> ModelVariant:
    """A checkpoint of the main repository: its own files, T3 first, and those that all of them share.

    The published loader pairs v3 with `s3gen`, not with the `s3gen_v3` that lies beside it
    (resemble-ai/chatterbox, `mtl_tts.py`, commit 5de7a54).
    """
    languages = f"{len(codes)} languages" if len(codes) > 1 else "English"
    return ModelVariant(name, title, languages, (RepositoryPart(_CHATTERBOX, (*own_files, _S3GEN, *_SPEAKER)),), codes,
                        language_model=own_files[0][0], shapes=_t3_shapes(text_rows))


def _language_pack(name: str, title: str) -> ModelVariant:
    """A single-language pack: T3, tokenizer and its own S3Gen from its repository, the rest from the main one."""
    own_part = RepositoryPart(f"ResembleAI/Chatterbox-Multilingual-{name}", (
        (f"t3_{name.replace('-', '_')}.safetensors",), _GRAPHEMES, ("s3gen_v3.safetensors", "s3gen_v3.pt")))
    return ModelVariant(name, f"{title} pack", title, (own_part, RepositoryPart(_CHATTERBOX, (*_SPEAKER, _CANGJIE))),
                        (name[:2],), language_model=own_part.files[0][0], shapes=_t3_shapes(2454))


_CHATTERBOX_VARIANTS = (
    _main_variant("multilingual-v3", "Multilingual v3 (recommended)", _MANY, 2454,
                  ("t3_mtl23ls_v3.safetensors",), _GRAPHEMES, _CANGJIE),
    _main_variant("multilingual-v2", "Multilingual v2", _MANY, 2454,
                  ("t3_mtl23ls_v2.safetensors",), _GRAPHEMES, _CANGJIE),
    _main_variant("multilingual-v1", "The first multilingual", _MANY, 2352,
                  ("t3_23lang.safetensors",), ("mtl_tokenizer.json",), _CANGJIE),
    _main_variant("english", "English", ("en",), 704, ("t3_cfg.safetensors",), ("tokenizer.json",)),
    _language_pack("zh-cmn", "Mandarin Chinese"),
    _language_pack("es-mx-latam", "Latin American Spanish"),
    _language_pack("es-es", "Spanish of Spain"),
    _language_pack("pt-br", "Brazilian Portuguese"),
    _language_pack("pt-pt", "Portuguese of Portugal"),
    _language_pack("hi", "Hindi"),
)

BILIBILI = Licence(
    "bilibili", "bilibili Model Use License Agreement",
    "It binds whoever you give a finetune to, forbids to improve other commercial models with it, and asks for a "
    "separate licence from 100 million users a month or RMB 1 billion a year.",
    "https://huggingface.co/IndexTeam/IndexTTS-2/blob/main/LICENSE.txt",
    "Any modifications made to the original model in this Derivative Work are not endorsed, warranted, or guaranteed "
    "by the original right-holder of the original model, and the original right-holder disclaims all liability "
    "related to this Derivative Work.",
    ("LICENSE.txt", "LICENSE_ZH.txt"),
)
"""Clause 4.1(a) asks for the notice, clause 3.4(b) for the text (English, and Chinese, which prevails)."""

_NON_COMMERCIAL = Licence("CC-BY-NC-4.0", "Creative Commons Attribution-NonCommercial 4.0",
                          "No commercial use: this part makes the whole model non-commercial.",
                          "https://creativecommons.org/licenses/by-nc/4.0/")
_MIT = Licence("MIT", "MIT License", "Keep the copyright notice.", "https://opensource.org/license/mit")
_APACHE = Licence("Apache-2.0", "Apache License 2.0", "Keep the copyright notice, and state changes.",
                  "https://www.apache.org/licenses/LICENSE-2.0")


def _single(*names: str) -> tuple[tuple[str, ...], ...]:
    """Files without an alternative."""
    return tuple((name,) for name in names)


_W2V_BERT = RepositoryPart(
    "facebook/w2v-bert-2.0", _single("model.safetensors", "config.json", "preprocessor_config.json"),
    "w2v-bert 2.0, the speech features",
    {name: f"hf_cache/w2v-bert-2.0/{name}"
     for name in ("model.safetensors", "config.json", "preprocessor_config.json")},
    "da985ba0987f70aaeb84a80f2851cfac8c697a7b", _MIT)
_CAMPPLUS = RepositoryPart(
    "funasr/campplus", _single("campplus_cn_common.bin"), "CAMPPlus, the speaker encoder",
    {"campplus_cn_common.bin": "hf_cache/campplus_cn_common.bin"},
    "e4b6ede7ce16997aff4ae69fbca1f0175e2afede", _APACHE)
_BIGVGAN = RepositoryPart(
    "nvidia/bigvgan_v2_22khz_80band_256x", _single("bigvgan_generator.pt", "config.json"), "BigVGAN v2, the vocoder",
    {name: f"hf_cache/bigvgan/{name}" for name in ("bigvgan_generator.pt", "config.json")},
    "633ff708ed5b74903e86ff1298cf4a98e921c513", _MIT)
_INDEXTTS2 = ModelVariant(
    "2.0", "IndexTTS2", "Chinese and English", (
        RepositoryPart(
            "IndexTeam/IndexTTS-2",
            _single("gpt.pth", "s2mel.pth", "wav2vec2bert_stats.pt", "feat1.pt", "feat2.pt", "bpe.model",
                    "config.yaml"),
            "GPT, S2Mel, emotions and tokenizer", revision="740dcaff396282ffb241903d150ac011cd4b1ede",
            licence=BILIBILI),
        _W2V_BERT,
        RepositoryPart(
            "amphion/MaskGCT", _single("semantic_codec/model.safetensors"), "semantic codec",
            {"semantic_codec/model.safetensors": "hf_cache/semantic_codec_model.safetensors"},
            "265c6cef07625665d0c28d2faafb1415562379dc", _NON_COMMERCIAL),
        _CAMPPLUS, _BIGVGAN,
    ), ("en", "zh"), ("s2mel.pth",), language_model="gpt.pth", shapes={
        "text_embedding.weight": (12001, 1280), "text_head.weight": (12001, 1280), "mel_embedding.weight": (8194, 1280),
        "mel_head.weight": (8194, 1280), "text_pos_embedding.emb.weight": (602, 1280),
        "mel_pos_embedding.emb.weight": (1818, 1280), "gpt.h.23.mlp.c_fc.weight": (1280, 5120)})
"""The paths are those of the published code (index-tts/index-tts, `indextts/utils/model_download.py`), so that its
folder can be imported and it loads an export; the licences are those of the model cards at these commits."""

_INDEXTTS25 = ModelVariant(
    "2.5", "IndexTTS 2.5", "Chinese, English, Japanese, Spanish and Arabic", (
        RepositoryPart(
            "IndexTeam/IndexTTS-2.5",
            _single("gpt.pth", "s2mel.pth", "codec.pth", "wav2vec2bert_stats.pt", "feat1.pt", "feat2.pt",
                    "multilingual_zh_ja_yue_char_del.tiktoken", "config.yaml"),
            "GPT, S2Mel, semantic codec, emotions and tokenizer",
            revision="c39ce5ba981572cb187443877ff559dfb246ce63", licence=BILIBILI),
        _W2V_BERT, _CAMPPLUS, _BIGVGAN,
    ), ("ar", "en", "es", "ja", "zh"), ("s2mel.pth", "codec.pth"), language_model="gpt.pth")
"""As the package indextts25-inference 0.2.0 states it (README, `infer_v2_5.py`, `utils/model_download.py`, LICENSE).
The commit, sizes and hashes are those of public lists (`core.library.published`); the names in its settings were not
checked, and no list of its shapes was found."""

CATALOG: tuple[CatalogEntry, ...] = (
    CatalogEntry(
        "tiny", "Built-in tiny model",
        "A small model that ships with Lisan and does the whole job on a CPU in minutes; made from synthetic speech, "
        "so it sounds like a machine.",
        "English, French", "Apache-2.0", "24 MB", "Ships with the app; needs no network.",
        sampling={"temperature": 0.2, "top_k": 0, "top_p": 1.0, "min_p": 0.05, "repetition_penalty": 1.0,
                  "guidance": 0.5},
        built_in_codes=("en", "fr"),
    ),
    CatalogEntry(
        "chatterbox", "Chatterbox Multilingual",
        "Resemble AI's multilingual speech model with voice cloning: a Llama of 30 layers over 25 codes a second.",
        "23 languages", "MIT", "about 3.2 GB",
        "From huggingface.co, or from a folder that is on disk already. A download that breaks off is resumed.",
        _CHATTERBOX_VARIANTS,
        sampling={"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.05, "repetition_penalty": 2.0,
                  "guidance": 0.5},
        sound_options=("exaggeration", "flow_steps", "flow_prompt_s", "watermark", "hebrew"), preset="chatterbox",
        own_voice=("conds.pt", "built-in"), clones_voices=True,
    ),
    CatalogEntry(
        "indextts2", "IndexTTS2",
        "bilibili's speech model with voice cloning and emotion: a GPT-2 of 24 layers over 50 codes a second, or 25 in "
        "the variant 2.5.",
        "Chinese, English; Japanese, Spanish and Arabic in 2.5",
        "bilibili; parts MIT and Apache-2.0, and of 2.0 CC-BY-NC-4.0 (non-commercial)",
        "7.7 GB, 6.9 GB of it kept (2.0)",
        "Files from five repositories (2.5: four), or from a folder that is on disk already, such as `checkpoints` of "
        "the published code. The optional language model that reads emotions from text is not needed.",
        (_INDEXTTS2, _INDEXTTS25),
        sampling={"temperature": 0.8, "top_k": 30, "top_p": 0.8, "min_p": 0.0, "repetition_penalty": 10.0,
                  "guidance": 0.0},
        sound_options=("flow_steps", "flow_prompt_s", "emotion", "duration_s", "speaking_rate", "position_scheme"),
        preset="chatterbox", codes_per_second=50.0, clones_voices=True, conditioner_adapters=True,
    ),
)


def no_conditioner_layers(adapter_rank_conditioner: int) -> UserError:
    """The refusal of adapters of this rank in the voice conditioner of a model that has no layers for them."""
    return UserError(f"--adapter-rank-conditioner is {adapter_rank_conditioner}, but this model's voice conditioner "
                     "has no layers that can carry adapters.",
                     "Leave --adapter-rank-conditioner at 0; IndexTTS2 has such layers.")


PACKAGES: Mapping[str, Mapping[str, str]] = {
    "chatterbox": {"zh": "spacy_pkuseg", "ja": "pykakasi", "ru": "russian_text_stresser"},
    "indextts2": {"zh": "wetext", "en": "wetext", "ja": "fugashi"},
}
"""The package that a family's own text of a language needs."""
SUMS = "SHA256SUMS.json"  # hashes of the built-in model's files
RESTORE_HINT = "Restore it from the repository (git checkout), or make the model again: python -m scripts.dev.tiny."


def pack_folder(name: str) -> Path:
    """Where the pack that ships with the family `name` lies; the family's code is not imported."""
    spec = importlib.util.find_spec("models")
    assert spec is not None
    assert spec.submodule_search_locations
    folder = Path(next(iter(spec.submodule_search_locations))) / name / "pack"
    if not folder.is_dir():
        raise UserError(f"The files of the built-in model are missing: there is no {folder}.", RESTORE_HINT)
    return folder


def find_entry(name: str) -> CatalogEntry:
    """The entry of the family `name`; `UserError` when there is none."""
    for candidate in CATALOG:
        if candidate.name == name:
            return candidate
    raise UserError(
        f"There is no model family named {name!r}.",
        f"There are: {', '.join(candidate.name for candidate in CATALOG)}.",
    )


def variant(entry: CatalogEntry, name: str) -> ModelVariant:
    """The variant `name` of a family that has some, the default for an empty name; `UserError` when there is none."""
    for candidate in entry.variants:
        if name in ("", candidate.name):
            return candidate
    raise UserError(
        f"{entry.title} has no variant named {name!r}.",
        f"Known: {', '.join(candidate.name for candidate in entry.variants) or 'none; leave --variant out'}.",
    )


def require_licences(entry: CatalogEntry, chosen: ModelVariant, accepted: Collection[str]) -> None:
    """Raise `UserError` when a licence of a variant is not among those that were `accepted` by name."""
    open_licences = [licence for licence in chosen.licences if licence.name not in accepted]
    if open_licences:
        names = " ".join(f"{licence.name} ({licence.title}, {licence.url}): {licence.terms}"
                         for licence in open_licences)
        options = " ".join(f"--accept-licence {licence.name}" for licence in open_licences)
        raise UserError(f"{entry.title} has parts under licences that you have not accepted. {names}",
                        f"Read them, then accept them ({options}; on the page: tick the box that names them).")


def model_name(entry: CatalogEntry, chosen: ModelVariant) -> str:
    """The default name of a variant in the workspace."""
    return entry.name if chosen == entry.variants[0] else f"{entry.name}-{chosen.name}"


def text_package_hint(family: CatalogEntry, language: str, added: bool) -> str:
    """A sentence naming the package that text of a language lacks; empty for none, as for a language `added` here."""
    package = PACKAGES.get(family.name, {}).get(language)
    if added or package is None or importlib.util.find_spec(package) is not None:
        return ""
    return (f"Text of this language needs the package {package.replace('_', '-')}, which is not installed "
            "(it is in requirements-languages.txt).")
