"""The published files of the base models: sizes and hashes, by which an unknown file is recognised. Never loads torch.

The hub lists the SHA-256 of large files and git's hash of small ones. These were taken from lists
in public repositories, each named beside its hashes with the commit of the list; the commit of the hub is in
`COMMITS`. No list was found for the files of IndexTeam/IndexTTS-2 and of the language packs other than pt-br: of those
only the shapes of the language model are known (`catalog.ModelVariant.shapes`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from config.errors import UserError
from core.library import catalog
from core.library.catalog import ModelVariant
from core.library.certificate import BaseIdentity
from core.library.records import ModelRecord, read_model_record
from core.workspace import Workspace
from data.durable_files import ExpectedFile, read_sums

Shapes = Mapping[str, tuple[int, ...]]

COMMITS: Mapping[str, str] = {
    "ResembleAI/chatterbox": "5bb1f6ee58e50c3b8d408bc82a6d3740c2db6e18",
    "ResembleAI/Chatterbox-Multilingual-pt-br": "b3952f18bc2eaa72b9bd7c17d2c4653bcad4770d",
    "IndexTeam/IndexTTS-2.5": "c39ce5ba981572cb187443877ff559dfb246ce63",
    "facebook/w2v-bert-2.0": "da985ba0987f70aaeb84a80f2851cfac8c697a7b",
    "amphion/MaskGCT": "265c6cef07625665d0c28d2faafb1415562379dc",
    "funasr/campplus": "e4b6ede7ce16997aff4ae69fbca1f0175e2afede",
    "nvidia/bigvgan_v2_22khz_80band_256x": "633ff708ed5b74903e86ff1298cf4a98e921c513",
}
"""The commit of each repository whose files are listed here."""

# Source: ayutaz/vokra, tools/parity/chatterbox_family_inspect.py, commit 1935494d74ec46c47783cfddbeec26ca96922886. It
# also lists the git hash of each large file's LFS pointer, which its size and SHA-256 reproduce. The sizes of the three
# T3 are those of our networks' tensors and a header of 32.8 kB.
_CHATTERBOX = {
    "Cangjie5_TC.json": ExpectedFile(1_920_163, blob="d77891f84ca1db0d6f7058a4ee081d4bb0bfe88e"),
    "conds.pt": ExpectedFile(107_374, "6552d70568833628ba019c6b03459e77fe71ca197d5c560cef9411bee9d87f4e"),
    "grapheme_mtl_merged_expanded_v1.json": ExpectedFile(69_989, blob="d27fb3f2fd38ca39b7bbfbf83a13b3c617e551df"),
    "mtl_tokenizer.json": ExpectedFile(68_125, blob="54c8910a05341d2131a30256705f4fdb703f8ffa"),
    "s3gen.pt": ExpectedFile(1_057_165_844, "9b9ff07e60b20c136e2b1b3d7563a24604e8d2c4c267888d1ee929dd0151d2a3"),
    "s3gen.safetensors": ExpectedFile(
        1_056_484_620, "2b78103c654207393955e4900aac14a12de8ef25f4b09424f1ef91941f161d4e"),
    "t3_23lang.safetensors": ExpectedFile(
        2_143_154_168, "5b2194350053f9fc01544e614d923f1e5c8cd785ba596acc142d3d1d8614908c"),
    "t3_cfg.safetensors": ExpectedFile(
        2_129_653_744, "914cb1696f47527fe8852ca8f1fe1fa63cb34f76f9c715e84e067b744dd0da81"),
    "t3_mtl23ls_v2.safetensors": ExpectedFile(
        2_143_989_752, "b1237586127ce98e7800a68e49938eb5092846862aabcb6e17b2fda7889a6c75"),
    "t3_mtl23ls_v3.safetensors": ExpectedFile(
        2_143_989_928, "5abca8321ede76f8e61f1cc0d19aea6c946b28871017ce8726f8a69203f05953"),
    "tokenizer.json": ExpectedFile(25_470, blob="abd07c710243ba89bf1b21780e7c37ddde92334e"),
    "ve.pt": ExpectedFile(5_698_626, "4b16d836bc598509860f6fa068165a8bb5e9ac84f05582dfcf278a5a372879f1"),
    "ve.safetensors": ExpectedFile(5_695_784, "f0921cab452fa278bc25cd23ffd59d36f816d7dc5181dd1bef9751a7fb61f63c"),
}

# Source: zenindiones-maker/BR-no-GTA, T3_SHA256 and S3GEN_SHA256 of a module in app/services beside
# owner_voice_audition_handoff_service.py (07ac09ef1ad12e8f1c722385939883fe3e694a69; the commit of the module itself is
# not known). Its S3Gen are the files s3gen_v3 of the list above. No sizes.
_PT_BR = {
    "t3_pt_br.safetensors": ExpectedFile(sha256="074aaf65255eb9cb960288f7cc72e09d3b5008f6e0b14868c0d4e5b0bd7cbb6c"),
    "s3gen_v3.safetensors": ExpectedFile(
        1_056_381_804, "4a46190f3dccc2230fbb3488a930bccc925862ee68f2662433dfcfe93ce6c2cb"),
}

# Source of all but MaskGCT: MoyouDE/index-tts, tests/fixtures/reader-assets.lock.json, commit
# 8757c36cc14863766664f0079add191ab190e202. The same hashes, and that of MaskGCT's codec without its size, are in
# Sharrnah/whispering, Models/TTS/index_tts.py, commit b65d606b1b0173833e75943b6e0a26116dc36dca.
_INDEXTTS25 = {
    "codec.pth": ExpectedFile(607_290_935, "d15cbed16a40f478438c961fb043f68dfa6353bf56c966761315db3433e9722c"),
    "config.yaml": ExpectedFile(2_860, "18adf417be3e8f5e2e48e30f7420c719170a6870619436250f360d626877870e"),
    "feat1.pt": ExpectedFile(57_170, "f219cb447d80216ba615666da2ff8d63ac544eee26657f3a7b278692bf7a67c4"),
    "feat2.pt": ExpectedFile(374_866, "9c4292e96dee535aea9a6206e9a0c856dd578dde9212acdb16dd3ada4d12bf80"),
    "gpt.pth": ExpectedFile(3_259_599_833, "43a8f4c30eccdf201958d3b9713511482c19d56dc20b0b1c4ee1e6b080b19d85"),
    "multilingual_zh_ja_yue_char_del.tiktoken": ExpectedFile(
        907_395, "747979631e813193436aabcff7c1c235d37de8097b71c563ec8b63b7a515c718"),
    "s2mel.pth": ExpectedFile(414_908_601, "9b1b0003fc189c94cc349758d7ebc25f903b7eb2de4602879959cc64ce816456"),
    "wav2vec2bert_stats.pt": ExpectedFile(9_343, "c9c176c2b8850ab2e3ba828bbfa969deaf4566ce55db5f2687b8430b87526ad2"),
}
_W2V_BERT = {
    "config.json": ExpectedFile(1_874, "f5572bd5998b68182e9c328a43127ed21fed687f6910497136b91a4e3b0e3675"),
    "model.safetensors": ExpectedFile(
        2_322_063_736, "eb890c9660ed6e3414b6812e27257b8ce5454365d5490d3ad581ea60b93be043"),
    "preprocessor_config.json": ExpectedFile(275, "8e6281aad64f97e40534135a59dcc5d33571efae376f2a25adf5551951897ab4"),
}
_BIGVGAN = {
    "bigvgan_generator.pt": ExpectedFile(
        449_228_171, "e95ba25972d3de0628d99cd156e9315a9c018899bf739988959ebe3544080ced"),
    "config.json": ExpectedFile(1_405, "88a1f47acf747db0b21e97a389d838566147f7a5464583ff5c8d819d870f03ee"),
}

FILES: Mapping[str, Mapping[str, ExpectedFile]] = {
    "ResembleAI/chatterbox": _CHATTERBOX,
    "ResembleAI/Chatterbox-Multilingual-pt-br": _PT_BR,
    "IndexTeam/IndexTTS-2.5": _INDEXTTS25,
    "facebook/w2v-bert-2.0": _W2V_BERT,
    "amphion/MaskGCT": {"semantic_codec/model.safetensors": ExpectedFile(
        sha256="ec947271175d8cad75ec37e83aa487e27c97a0f72a303393772da5ffa84bddf2")},
    "funasr/campplus": {"campplus_cn_common.bin": ExpectedFile(
        28_036_335, "3388cf5fd3493c9ac9c69851d8e7a8badcfb4f3dc631020c4961371646d5ada8")},
    "nvidia/bigvgan_v2_22khz_80band_256x": _BIGVGAN,
}
"""By repository and name there."""


@dataclass(frozen=True)
class UnknownFile:
    """A file that is not the published one; `reason` ends the sentence "t3.safetensors is unknown: ..."."""

    path: str  # path in the model folder
    reason: str


@dataclass(frozen=True)
class FileCheck:
    """The files of a model beside the published ones."""

    unknown: tuple[UnknownFile, ...]
    unlisted: tuple[str, ...]  # paths of files of which no published hash is known

    @property
    def identity(self) -> BaseIdentity:
        return "unknown" if self.unknown else "unlisted" if self.unlisted else "published"

    @property
    def note(self) -> str:
        """What a reader of a result should know: unknown files, else those without a published hash; else empty."""
        if self.unknown:
            return f"unknown base: {'; '.join(f'{file.path}: {file.reason}' for file in self.unknown)}"
        return f"no published hash is known of {', '.join(self.unlisted)}" if self.unlisted else ""


def check_files(variant: ModelVariant, files: Mapping[str, ExpectedFile],
                locate: Callable[[str], Path] | None = None,
                read_shapes: Callable[[Path], Shapes] | None = None) -> FileCheck:
    """Compare the `files` of a model, by their paths in its folder, with the published ones.

    `locate` gives a file on the disk, where there is one yet: git's hash of small files is computed from it, and
    `read_shapes` reads the shapes of the language model if its hash is not the published one.
    """
    unknown, unlisted = [], []
    for path, file in files.items():
        part, name = variant.origin(path)
        published = FILES.get(part.repository, {}).get(name)
        difference = "" if published is None else _difference(published, file, locate and locate(path))
        if published is None:
            unlisted.append(path)
        if path == variant.language_model and variant.shapes and locate and read_shapes and (
                published is None or difference):
            difference = ", ".join(filter(None, (difference, compare_shapes(variant, read_shapes(locate(path))))))
        # A file without a published hash is unlisted, one that differs is unknown.
        if difference:
            unknown.append(UnknownFile(path, difference))
    return FileCheck(tuple(unknown), tuple(unlisted))


def compare_shapes(variant: ModelVariant, shapes: Shapes) -> str:
    """How the shapes of a language model differ from those of the published one; empty if they do not.

    The names in the file may stand behind a prefix, as in a training's checkpoint.
    """
    differences = []
    for name, published_shape in variant.shapes.items():
        shape_in_file = next((shape for key, shape in shapes.items() if key == name or key.endswith(f".{name}")), None)
        if shape_in_file is None:
            differences.append(f"it has no {name}")
        elif shape_in_file != published_shape:
            differences.append(f"{name} is {shape_in_file}, the published one {published_shape}")
    further = f" and {len(differences) - 1} more shapes differ" if len(differences) > 1 else ""
    return f"{differences[0]}{further}" if differences else ""


def check_record(variant: ModelVariant, record: ModelRecord, folder: Path) -> FileCheck:
    """The files of the model in `folder` as its record has them, and before they were stripped."""
    return check_files(variant, {**record.files, **record.originals}, lambda path: folder / path)


def identify_base(workspace: Workspace, model: str) -> tuple[BaseIdentity, str]:
    """Whether the files of a base model are the published ones, and which are not, as a certificate says it."""
    folder = workspace.model(model)
    record = read_model_record(folder)
    if record is not None:
        if not record.files:
            return "unknown", "unknown base: its record lists no files"
        check = check_record(catalog.variant(catalog.find_entry(record.family), record.variant), record, folder)
        return check.identity, check.note
    try:
        packed, in_folder = (read_sums(path / catalog.SUMS, "") for path in (catalog.pack_folder(model), folder))
    except UserError as error:
        return "unknown", f"unknown base: {error.message.rstrip('.')}"
    if in_folder != packed:
        return "unknown", "unknown base: its files are not those of the built-in model"
    return "published", ""


def git_hash(path: Path) -> str:
    """Git's SHA-1 of a small file."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _difference(published: ExpectedFile, file: ExpectedFile, path: Path | None) -> str:
    """How a file differs from the published one, with both values; empty if it does not or no hash can be compared."""
    if published.size >= 0 and file.size >= 0 and file.size != published.size:
        return f"it has {file.size} bytes, the published file {published.size}"
    if published.sha256 and file.sha256:
        if file.sha256 != published.sha256:
            return f"its SHA-256 begins {file.sha256[:12]}, that of the published file {published.sha256[:12]}"
        return ""
    blob = file.blob or (git_hash(path) if published.blob and path is not None else "")
    if published.blob and blob and blob != published.blob:
        return f"its git hash begins {blob[:12]}, that of the published file {published.blob[:12]}"
    return ""
