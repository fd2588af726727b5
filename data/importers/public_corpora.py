"""Folder layouts of public corpora, recognised by the names and the first lines of their texts.

Each `CorpusLayout` names its source. A corpus may lie in several folders, such as one for each split, book or speaker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from config import foreign
from config.errors import UserError
from data.importers import corpora, tables, text_files
from data.importers.rows import ParsedItem, ParsedUtterance, SkippedRow, is_audio, leads_out, split_of_folders
from data.importers.sidecars import walk_folders

_LONGEST_WHOLE = 1 << 28  # characters of a JSON file that is read at once
_FLEURS = re.compile(r"\d+\t[^\t]+\.\w+\t[^\t]*\t[^\t]*\t([^\t]*\t)?\d+\t(MALE|FEMALE|OTHER)\s*")
_DONE = re.compile(r'\(\s*(\S+)\s+"(.*)"\s*\)')
_VCTK = r"/txt/(\w\d+)/\1_\d+\.txt$"
_LIBRITTS = r"/\d+_\d+_\d+_\d+\.normalized\.txt$"
_MAILABS = re.compile(r"(?:^|/)(?:female|male)/([^/]+)/[^/]+/[^/]+$")
_TAGS = {"<COMMA>": ",", "<PERIOD>": ".", "<QUESTIONMARK>": "?", "<EXCLAMATIONPOINT>": "!"}  # tags of GigaSpeech
_NO_SPEECH = ("<SIL>", "<MUSIC>", "<NOISE>", "<OTHER>", "ignore_time_segment_in_scoring")


@dataclass(frozen=True)
class CorpusLayout:
    """A public layout: the names of its texts, a pattern of their first line, and a reader of all of them.

    Where each clip has a text of its own, only the first is looked up, and the reader walks through the folders.
    """

    title: str
    name: str  # pattern of the text's path in the corpus, in lower case
    first_line: str
    read: Callable[[Path, Sequence[Path]], Iterator[ParsedItem]]
    a_text_per_clip: bool = False
    below: bool = False  # only where no table lies at the top of the folder


def find_layouts(folder: Path) -> list[tuple[CorpusLayout, list[Path]]]:
    """The layouts that texts below `folder` have, with these texts in order."""
    texts_of: dict[CorpusLayout, list[Path]] = {}
    at_top = False
    # A table at the top of the folder goes before layouts of folders below it.
    for path in folder.iterdir():
        if not at_top and path.is_file() and path.suffix.lower() in (".csv", ".tsv", ".list"):
            head = text_files.head(path)
            at_top = bool(tables.header_of(head) or tables.ljspeech_delimiter(head))

    for place, names in walk_folders(folder):
        for name in names:
            layout = None if is_audio(name) else layout_of(folder, place / name)
            if layout is None:
                continue
            texts = texts_of.setdefault(layout, [])
            if not (layout.a_text_per_clip and texts):
                texts.append(place / name)
    return [(layout, texts_of[layout]) for layout in LAYOUTS if layout in texts_of and not (layout.below and at_top)]


def layout_of(folder: Path, text: Path) -> CorpusLayout | None:
    """The layout that the file `text` below `folder` belongs to, by its name and its first line; None for no such."""
    path = f"/{text.relative_to(folder).as_posix().lower()}"
    return next((layout for layout in LAYOUTS if re.search(layout.name, path) and (
        not layout.first_line or re.match(layout.first_line, text_files.head(text).lstrip()))), None)


def _texts(folder: Path, pattern: str) -> Iterator[Path]:
    """Every text below `folder` whose path fits."""
    for place, names in walk_folders(folder):
        yield from (path for path in (place / name for name in names)
                    if re.search(pattern, f"/{path.relative_to(folder).as_posix().lower()}"))


def _splits(folder: Path, texts: Sequence[Path]) -> dict[Path, str]:
    """The split of each text by its folders or its name, if one is for training and another is not."""
    named = {path: split_of_folders([*path.relative_to(folder).parts[:-1], *re.split(r"[._-]", path.stem)])
             for path in texts}
    several = "train" in named.values() and len(set(named.values())) > 1
    return named if several else dict.fromkeys(texts, "")


def _lines(folder: Path, texts: Sequence[Path]) -> Iterator[tuple[str, Path, Path, str, str]]:
    """Place, text, its folder within the corpus, split, and content of each line that is not empty."""
    for path, split in _splits(folder, texts).items():
        inside = path.parent.relative_to(folder)
        for number, line in text_files.lines(path):
            if line.strip():
                yield f"{path.relative_to(folder)} line {number}", path, inside, split, line.strip("\r\n")


def _there(folder: Path, *candidates: Path) -> str:
    """The first of the relative paths at which a file exists; else the first, which is then named as missing."""
    upper_case = [path.with_suffix(path.suffix.upper()) for path in candidates]
    return str(next((path for path in (*candidates, *upper_case) if _is_file(folder, path)), candidates[0]))


def _is_file(folder: Path, path: str | Path) -> bool:
    """Whether a file exists at a path below `folder`; what leads out of it is not looked up."""
    return not leads_out(path) and (folder / path).is_file()


def _fleurs(folder: Path, texts: Sequence[Path]) -> Iterator[ParsedItem]:
    """id, file, text, text in lower case, characters, samples, gender; the id is that of the sentence."""
    for location, path, inside, split, line in _lines(folder, texts):
        cells = line.split("\t")
        if _FLEURS.fullmatch(line) is None:
            yield SkippedRow(location, tables.wrong_field_count(cells, 7, "\t"))
            continue
        part, name = Path(path.stem), cells[1]
        audio = _there(folder, inside / "audio" / part / name, inside / part / name, inside / name,
                       inside / "audio" / f"{part}.tar.gz.unpacked" / part / name,
                       inside / f"{part}.tar.gz.unpacked" / part / name)
        yield ParsedUtterance(location, audio, cells[2], split=split)


def _mls(folder: Path, texts: Sequence[Path]) -> Iterator[ParsedItem]:
    for location, _, inside, split, line in _lines(folder, texts):
        name, _, text = line.partition("\t")
        speaker, book, *_ = f"{name}__".split("_")
        yield ParsedUtterance(location, str(inside / "audio" / speaker / book / name), text, name, speaker, split)


def _mailabs(folder: Path, texts: Sequence[Path]) -> Iterator[ParsedItem]:
    """The CSV of a book is read, not its JSON. The text is the version with its numbers spelled out."""
    for path in texts:
        if path.suffix == ".json" and path.with_name("metadata.csv") in texts:
            continue
        inside = path.parent.relative_to(folder)
        match = _MAILABS.search(path.as_posix())
        speaker = match[1] if match else ""
        if not speaker and "mix" in path.parts:
            speaker = "several voices"
        if path.suffix == ".json":
            for name, texts_of in _json_object(path).items():
                location = f"{path.relative_to(folder)} entry {name}"
                versions = texts_of if isinstance(texts_of, dict) else {}
                text = str(versions.get("clean") or versions.get("original") or "")
                yield ParsedUtterance(location, str(inside / "wavs" / name), text, speaker=speaker)
            continue
        for item in tables.read_ljspeech(path):
            location = f"{inside}/{item.location}"
            yield (SkippedRow(location, item.reason) if isinstance(item, SkippedRow) else
                   ParsedUtterance(location, str(inside / "wavs" / item.audio), item.text, speaker=speaker))


def _json_object(path: Path) -> dict:
    try:
        content = foreign.loads(text_files.read(path, _LONGEST_WHOLE))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}.", "Download it again.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object.", "Download it again.")
    return content


def _festival(folder: Path, texts: Sequence[Path]) -> Iterator[ParsedItem]:
    for location, path, inside, _, line in _lines(folder, texts):
        match = _DONE.fullmatch(line.strip())
        if match is None:
            yield SkippedRow(location, f'is not of the form ( name "text" ): {line.strip()[:60]!r}')
            continue
        voice = re.search(r"cmu_us_(\w+?)_arctic", path.as_posix())
        corpus = inside.parent if inside.name == "etc" else inside
        speaker = voice[1] if voice else corpus.name if len(texts) > 1 else ""
        text = match[2].replace('\\"', '"')
        audio = _there(folder, *(place / f"{match[1]}.wav" for place in (corpus / "wav", corpus / "wavs", inside)))
        yield ParsedUtterance(location, audio, text, "" if len(texts) > 1 else match[1], speaker)


def _aishell(folder: Path, texts: Sequence[Path]) -> Iterator[ParsedItem]:
    """Words between spaces, which Chinese has not; the recordings of all splits lie beside the one transcript."""
    for location, _, inside, _, line in _lines(folder, texts):
        name, *words = line.split()
        parts = [(split, inside.parent / "wav" / split / name[6:11] / f"{name}.wav")
                 for split in ("train", "dev", "test")]
        split, audio = next(((split, path) for split, path in parts if _is_file(folder, path)), ("", parts[0][1]))
        yield ParsedUtterance(location, str(audio), "".join(words), name, name[6:11], split)


def _aishell3(folder: Path, texts: Sequence[Path]) -> Iterator[ParsedItem]:
    """Each character is followed by its pinyin, which is no text."""
    for location, _, inside, split, line in _lines(folder, texts):
        name, _, syllables = line.partition("\t")
        yield ParsedUtterance(location, str(inside / "wav" / name[:7] / name), "".join(syllables.split()[::2]),
                              Path(name).stem, name[:7], split)


def _baker(folder: Path, texts: Sequence[Path]) -> Iterator[ParsedItem]:
    """A line of text with marks of prosody (`#1` to `#4`), then one of pinyin."""
    for location, _, inside, _, line in _lines(folder, texts):
        name, _, text = line.partition("\t")
        if name.strip():
            yield ParsedUtterance(location, str(inside.parent / "Wave" / name.strip()), re.sub(r"#\d?", "", text), name)


def _jsut(folder: Path, texts: Sequence[Path]) -> Iterator[ParsedItem]:
    for location, _, inside, _, line in _lines(folder, texts):
        name, _, text = line.partition(":")
        audio = _there(folder, *(inside / place / f"{name}.wav" for place in ("wav", "wav24kHz16bit")))
        speaker = next((part for part in inside.parts if re.fullmatch(r"jvs\d{3}", part)), "")
        yield ParsedUtterance(location, audio, text, speaker=speaker)


def _openslr(folder: Path, texts: Sequence[Path]) -> Iterator[ParsedItem]:
    for location, _, inside, _, line in _lines(folder, texts):
        name, speaker, text = [*line.split("\t", 2), "", ""][:3]
        yield ParsedUtterance(location, str(inside / "data" / name[:2] / name), text, name, speaker)


def _voxpopuli(folder: Path, texts: Sequence[Path]) -> Iterator[ParsedItem]:
    """id, text, text without punctuation, speaker and split; the recordings lie in folders of their year."""
    names: dict[Path, list[str]] = {}
    for location, path, inside, _, line in _lines(folder, texts):
        cells = line.split("\t")
        if path not in names:
            names[path] = cells
        elif len(cells) != len(names[path]):
            yield SkippedRow(location, tables.wrong_field_count(cells, len(names[path]), "\t"))
        else:
            row = dict(zip(names[path], cells, strict=True))
            yield ParsedUtterance(location, str(inside / row["id"][:4] / row["id"]), row["raw_text"] or
                                  row["normalized_text"], row["id"], row.get("speaker_id", ""), row.get("split", ""))


def _stm(folder: Path, texts: Sequence[Path]) -> Iterator[ParsedItem]:
    """NIST's segment time marks: recording, channel, speaker, begin, end, perhaps labels, text."""
    for location, _, inside, split, line in _lines(folder, texts):
        if line.startswith(";;"):
            continue
        cells = line.split(maxsplit=5)
        try:
            name, _, speaker, begin_s, end_s = *cells[:3], float(cells[3]), float(cells[4])
        except (IndexError, ValueError):
            yield SkippedRow(location, f"is no segment time mark: {line[:60]!r}")
            continue

        # Labels such as `<o,f0,male>` stand before the text.
        text = re.sub(r"^<[^<>]*>\s*", "", cells[5] if len(cells) > 5 else "")
        if text.strip() in _NO_SPEECH:
            yield SkippedRow(location, "is marked as no speech")
            continue

        places = (inside.parent / "sph", inside.parent / "wav", inside)
        audio = _there(folder, *(Path(f"{place / name}{suffix}")
                                 for place, suffix in product(places, (".sph", ".wav", ".flac"))))
        # Some transcripts put a space before `'s`.
        yield ParsedUtterance(location, audio, re.sub(r" (?='\w)", "", text), speaker=speaker, split=split,
                              begin_s=begin_s, end_s=end_s)


def _gigaspeech(folder: Path, texts: Sequence[Path]) -> Iterator[ParsedItem]:
    """Recordings with segments; punctuation is written as tags."""
    for path in texts:
        try:
            for recording in _json_object(path)["audios"]:
                for segment in recording["segments"]:
                    text, name = str(segment.get("text_tn", segment.get("text", ""))), str(segment["sid"])
                    location = f"{path.name} segment {name}"
                    if text.strip() in _NO_SPEECH:
                        yield SkippedRow(location, f"is marked as no speech: {text}")
                        continue
                    # Punctuation is spelled as tags.
                    for tag, mark in _TAGS.items():
                        text = text.replace(f" {tag}", mark)
                    yield ParsedUtterance(location, str(path.parent.relative_to(folder) / recording["path"]), text,
                                          name, str(segment.get("speaker") or ""),
                                          begin_s=float(segment["begin_time"]), end_s=float(segment["end_time"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path} is not the JSON of GigaSpeech or WenetSpeech: it lacks {error}.",
                            "Download it again.") from error


def _kaldi(folder: Path, texts: Sequence[Path]) -> Iterator[ParsedItem]:
    """Folders of Kaldi below another, such as `data/train` and `data/test`."""
    for path, split in _splits(folder, [path for path in texts if corpora.is_kaldi(path.parent)]).items():
        inside = path.parent.relative_to(folder)
        for item in corpora.read_kaldi(path.parent):
            location = f"{inside}/{item.location}"
            if isinstance(item, SkippedRow):
                yield SkippedRow(location, item.reason)
            else:
                audio = _there(folder, Path(item.audio), inside / item.audio)
                yield replace(item, location=location, audio=audio, split=split)


def _vctk(folder: Path, texts: Sequence[Path]) -> Iterator[ParsedItem]:
    """The first of the two microphones of version 0.92 is read, which all speakers have; version 0.80 has one file."""
    for path in _texts(folder, _VCTK):
        speaker, location = path.parent.name, str(path.relative_to(folder))
        corpus = path.parents[2].relative_to(folder)
        places = [corpus / place / speaker for place in ("wav48_silence_trimmed", "wav48", "wav", "wavs")]
        suffixes = ("_mic1.flac", "_mic2.flac", ".wav")
        audio = _there(folder, *(place / f"{path.stem}{suffix}" for place, suffix in product(places, suffixes)))
        yield ParsedUtterance(location, audio, text_files.read(path), path.stem, speaker)


def _libritts(folder: Path, texts: Sequence[Path]) -> Iterator[ParsedItem]:
    tops = {split_of_folders([path.name]) for path in folder.iterdir() if path.is_dir()}
    named = "train" in tops and len(tops - {""}) > 1
    for path in _texts(folder, _LIBRITTS):
        split = split_of_folders(path.relative_to(folder).parts[:-1]) if named else ""
        name = path.name.removesuffix(".normalized.txt")
        audio = path.parent.relative_to(folder) / f"{name}.wav"
        yield ParsedUtterance(str(path.relative_to(folder)), str(audio), text_files.read(path), name,
                              name.partition("_")[0], split)


def _gpt_sovits(folder: Path, texts: Sequence[Path]) -> Iterator[ParsedItem]:
    """Name, phones, their counts and the normalised text of each recording that `5-wav32k` has."""
    for location, _, inside, _, line in _lines(folder, texts):
        cells = line.split("\t")
        if len(cells) != 4:
            yield SkippedRow(location, tables.wrong_field_count(cells, 4, "\t"))
        else:
            yield ParsedUtterance(location, str(inside / "5-wav32k" / cells[0]), cells[3])


def _gpt_sovits_lists(folder: Path, texts: Sequence[Path]) -> Iterator[ParsedItem]:
    """Its lists of labelled recordings. Paths are absolute and end in a folder beside the list's own."""
    for path in texts:
        inside = path.parent.relative_to(folder)
        for item in tables.read_ljspeech(path):
            location = f"{inside}/{item.location}"
            if isinstance(item, SkippedRow):
                yield SkippedRow(location, item.reason)
            else:
                *_, place, name = ("", *re.split(r"[/\\]", item.audio))
                audio = _there(folder, inside.parent / place / name, inside / place / name, inside / name)
                yield replace(item, location=location, audio=audio if _is_file(folder, audio) else item.audio)


def _voxforge(folder: Path, texts: Sequence[Path]) -> Iterator[ParsedItem]:
    """Submissions `SPEAKER-DATE-LETTERS`; an anonymous speaker is somebody else in each submission."""
    originals = {path.parent for path in texts if path.name.lower() == "prompts-original"}
    prompts = [path for path in texts if path.parent not in originals or path.name.lower() == "prompts-original"]
    for location, _, inside, _, line in _lines(folder, prompts):
        prompt, _, text = line.strip().replace("\t", " ").partition(" ")
        submission, name = inside.parent, Path(prompt).name
        named = (submission.name or folder.name, prompt.partition("/")[0])
        full = next((name_part for name_part in named if re.search(r"-\d{6,10}", name_part)), "")
        speaker = re.sub(r"-\d{6,10}.*$", "", full)
        audio = _there(folder, *(submission / kind / f"{name}.{kind}" for kind in ("wav", "flac")))
        yield ParsedUtterance(location, audio, text.strip(), "", full if speaker.lower() == "anonymous" else speaker)


def _ljspeech_folders(folder: Path, texts: Sequence[Path]) -> Iterator[ParsedItem]:
    """Lists in folders, each with its recordings: `READER/BOOK/metadata.csv` of HUI, or `VOICE/metadata.csv`."""
    for path, split in _splits(folder, texts).items():
        inside = path.parent.relative_to(folder)
        parts = [part for part in inside.parts if not split_of_folders([part])]
        has_header = tables.header_of(text_files.head(path)) is not None
        for item in tables.read_table(path) if has_header else tables.read_ljspeech(path):
            location = f"{inside}/{item.location}"
            if isinstance(item, SkippedRow):
                yield SkippedRow(location, item.reason)
                continue
            # The folder of a book is not a speaker.
            is_book = parts and re.match(rf"{re.escape(parts[-1])}_\d+_", Path(item.audio).name)
            speaker = item.speaker or (parts[0] if parts and not (is_book and len(parts) == 1) else "")
            audio = item.audio if is_audio(item.audio) else f"{item.audio}.wav"
            yield replace(item, location=location, audio=_there(folder, inside / "wavs" / audio, inside / audio),
                          id="", speaker=speaker, split=item.split or split)


def _babel(folder: Path, texts: Sequence[Path]) -> Iterator[ParsedItem]:
    """A time in brackets and a line of text in turn; the last time is the end."""
    for path, split in _splits(folder, texts).items():
        inside = path.parent.relative_to(folder)
        audio = _there(folder, *(inside.parent / "audio" / f"{path.stem}{suffix}" for suffix in (".sph", ".wav")))
        # The file's name has the language and the speaker.
        _, _, language, speaker, *_ = f"{path.stem}____".split("_")
        begin_s, text = None, ""
        for number, line in text_files.lines(path):
            match = re.fullmatch(r"\[(\d+(?:\.\d+)?)\]", line.strip())
            if match is None:
                text = f"{text} {line}".strip()
                continue
            # Marks of noise and of unclear words are not spoken.
            utterance = " ".join(re.sub(r"<[^<>]*>|\(\(\)\)|[~*]", " ", text).split())
            location = f"{path.relative_to(folder)} line {number - 1}"
            if begin_s is not None and utterance:
                yield ParsedUtterance(location, audio, utterance, "", f"{language}_{speaker}", split, begin_s,
                                      float(match[1]))
            elif begin_s is not None and text:
                yield SkippedRow(location, f"is marked as no speech: {text[:60]!r}")
            begin_s, text = float(match[1]), ""


def _lhotse(folder: Path, texts: Sequence[Path]) -> Iterator[ParsedItem]:
    """Supervisions with their recordings, or cuts, which hold both; times of a cut's supervisions are relative to it.
    """
    splits = _splits(folder, texts)
    # Supervisions need the recordings beside them; cuts hold both.
    alone = [path for path in texts if "cuts" not in path.name and not _recordings_of(path).is_file()]
    supervisions = [path for path in texts if "cuts" not in path.name and path not in alone]
    cuts = [path for path in texts if "cuts" in path.name]
    if alone and not supervisions and not cuts:
        raise UserError(f"{alone[0]} has the supervisions of lhotse without their recordings: "
                        f"{_recordings_of(alone[0]).name} is not beside it.",
                        "Put it there, or give cuts, which hold both (CutSet.to_file).")
    if supervisions:
        yield from (SkippedRow(str(path.relative_to(folder)), f"{_recordings_of(path).name} is not beside it")
                    for path in alone)

    # Read the supervisions, or the cuts if no supervisions are usable.
    for path in supervisions or cuts:
        recordings = {} if path not in supervisions else {
            str(record.get("id")): record for _, record in _objects(_recordings_of(path))}

        for number, record in _objects(path):
            location = f"{path.relative_to(folder)} line {number}"
            if path in supervisions:
                yield _supervision(location, record, recordings.get(str(record.get("recording_id"))), 0.0, splits[path])
            elif record.get("type", "MonoCut") != "MonoCut" or not record.get("supervisions"):
                yield SkippedRow(location, f"is a {record.get('type', 'MonoCut')} with "
                                 f"{len(record.get('supervisions') or ())} supervisions; one recording and its text "
                                 "are wanted")
            else:
                for supervision in record["supervisions"]:
                    yield _supervision(location, supervision, record.get("recording"), float(record.get("start", 0)),
                                       splits[path])


def _recordings_of(supervisions: Path) -> Path:
    name = supervisions.name.replace("supervisions", "recordings")
    plain = name.removesuffix(".gz")
    paths = [supervisions.with_name(other) for other in (name, plain, f"{plain}.gz")]
    return next((path for path in paths if path.is_file()), paths[0])


def _objects(path: Path) -> Iterator[tuple[int, dict]]:
    for number, line in text_files.lines(path):
        if line.strip():
            try:
                record = foreign.loads(line)
            except ValueError as error:
                raise UserError(f"{path}, line {number} is not JSON: {error}.", "Write the manifest again.") from error
            if isinstance(record, dict):
                yield number, record


def _supervision(location: str, supervision: dict, recording: dict | None, offset_s: float, split: str) -> ParsedItem:
    if recording is None:
        name = str(supervision.get("recording_id"))[:60]
        return SkippedRow(location, f"there is no recording {name!r} in the manifest")
    # Only a single file of one channel can be read, as it was recorded.
    sources = recording.get("sources") or []
    if not isinstance(supervision.get("duration"), int | float):
        return SkippedRow(location, f"has no duration but {supervision.get('duration')!r}")
    if len(sources) != 1 or sources[0].get("type") != "file" or len(sources[0].get("channels", (0,))) > 1:
        channels = [f"{source.get('type')} of {len(source.get('channels', ()))} channels" for source in sources]
        return SkippedRow(location, f"its recording is {', '.join(channels) or 'nowhere'}; one file of one channel is "
                          "wanted")
    if recording.get("transforms"):
        return SkippedRow(location, "its recording is transformed by lhotse; save the sound with its transforms")

    # Times of a cut's supervision are relative to the cut.
    begin_s = offset_s + float(supervision.get("start", 0))
    end_s: float | None = begin_s + float(supervision["duration"])
    if begin_s == 0 and end_s is not None and end_s >= float(recording.get("duration", 0)) - 0.01:
        end_s = None  # the whole recording
    text, name, speaker = (str(supervision.get(key) or "") for key in ("text", "id", "speaker"))
    return ParsedUtterance(location, str(sources[0]["source"]), text, name, speaker, split, begin_s, end_s)


LAYOUTS = (
    CorpusLayout("Kaldi folders", r"/[^/]+/wav\.scp$", "", _kaldi),  # kaldi-asr.org/doc/data_prep.html
    CorpusLayout("lhotse", r"/([^/]*[_-])?(supervisions|cuts)([_-][^/]*|\.\d+)?\.jsonl(\.gz)?$", r"\{", _lhotse),
    # lhotse.readthedocs.io/en/latest/corpus.html
    CorpusLayout("GPT-SoVITS", r"/[^/]+/[^/]+\.list$", r"[^|\n]+\|[^|\n]*\|[A-Za-z_]{2,8}\|", _gpt_sovits_lists,
                 below=True),
    CorpusLayout("GPT-SoVITS (2-name2text)", r"/2-name2text(-\d+)?\.txt$", r"[^\t\n]+\t[^\t\n]*\t[^\t\n]*\t",
                 _gpt_sovits),  # github.com/RVC-Boss/GPT-SoVITS, GPT_SoVITS/prepare_datasets/1-get-text.py
    CorpusLayout("VoxForge", r"/etc/prompts(-original)?$", "", _voxforge),  # Kaldi's egs/voxforge/s5/local
    CorpusLayout("BABEL", r"/transcription/[^/]+\.txt$", r"\[\d+(\.\d+)?\]\s*\n", _babel),  # lhotse/recipes/babel.py
    CorpusLayout("FLEURS", r"/(train|dev|test)\.tsv$", _FLEURS.pattern, _fleurs),  # Conneau et al. 2022; google/fleurs
    CorpusLayout("Multilingual LibriSpeech", r"/transcripts\.txt$", r"\d+_\d+_\d+\t", _mls),  # Pratap et al. 2020
    CorpusLayout("M-AILABS", r"/metadata_mls\.json$|/by_book/.*/metadata\.csv$|/(fe)?male/[^/]+/[^/]+/metadata\.csv$",
                 "", _mailabs),  # github.com/i-celeste-aurora/m-ailabs-dataset
    CorpusLayout("folders of LJSpeech", r"/[^/]+/metadata\.csv$", r"[^|,\n]+\|", _ljspeech_folders, below=True),
    # github.com/iisys-hof/HUI-Audio-Corpus-German, Step6_FinalizeDataset.py
    CorpusLayout("VCTK", _VCTK, "", _vctk, True),  # Yamagishi, Veaux and MacDonald 2019
    CorpusLayout("LibriTTS", _LIBRITTS, "", _libritts, True),  # Zen et al. 2019
    CorpusLayout("Festival (txt.done.data)", r"/(txt\.done\.data|[^/]*lines\.txt)$", r"\(\s*\S+\s+\"", _festival),
    # festvox.org/cmu_arctic
    CorpusLayout("AISHELL-1", r"/aishell_transcript[^/]*\.txt$", "BAC009S", _aishell),  # openslr.org/33
    CorpusLayout("AISHELL-3", r"/content\.txt$", r"SSB\d+\.wav\t", _aishell3),  # openslr.org/93
    CorpusLayout("BZNSYP (Baker)", r"/prosodylabeling/[^/]+\.txt$", r"\d{6}\t", _baker),  # data-baker.com
    CorpusLayout("JSUT or JVS", r"/transcripts?_utf8\.txt$", r"[^:\s]+:", _jsut),  # Sonobe et al. 2017, Takamichi 2019
    CorpusLayout("OpenSLR 35 and its like", r"/utt_spk_text\.tsv$", r"\w+\t\w+\t", _openslr),  # Kjartansson et al. 2018
    CorpusLayout("VoxPopuli", r"/asr_\w+\.tsv$", r"id\traw_text\tnormalized_text\t", _voxpopuli),  # Wang et al. 2021
    CorpusLayout("segment time marks (STM)", r"\.stm$", "", _stm),  # NIST SCTK; TED-LIUM
    CorpusLayout("GigaSpeech or WenetSpeech", r"/(gigaspeech|wenetspeech)[^/]*\.json$", r"\{", _gigaspeech),
)
