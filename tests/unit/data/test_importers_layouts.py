"""Public layouts of datasets, three clips of each, as their specifications have them: read right, or refused by name.

The source of each sample stands above it. Recordings are tones; a `*` in a sample's file name is one of them.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from config.errors import UserError
from core.sources.dataset_source import open_source, read_rows
from core.workspace import Workspace
from data.importers import ImportedSource, import_source
from tests.unit.small_data import Recorder, write_clip

TEXTS = ("It was a bright cold day in April.", "The clocks were striking thirteen.", "He went up the stairs.")
A, B, C = TEXTS
Row = tuple[str, str, str]  # text, speaker, split
NO_SPEAKER = "speaker"


def rows(*speakers: str, split: str = "", texts: tuple[str, ...] = TEXTS) -> list[Row]:
    return [(text, speaker, split) for text, speaker in zip(texts, speakers or (NO_SPEAKER,) * 3, strict=True)]


def lines(*records: dict) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def textgrid(*tiers: tuple[str, list[tuple[float, float, str]]], short: bool = False) -> str:
    """As Praat writes it: https://www.fon.hum.uva.nl/praat/manual/TextGrid_file_formats.html."""
    end = tiers[0][1][-1][1]
    if short:
        body = f'File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n{end}\n<exists>\n{len(tiers)}\n'
        for name, spans in tiers:
            body += f'"IntervalTier"\n"{name}"\n0\n{end}\n{len(spans)}\n'
            body += "".join(f'{begin}\n{stop}\n"{text}"\n' for begin, stop, text in spans)
        return body
    body = (f'File type = "ooTextFile"\nObject class = "TextGrid"\n\nxmin = 0 \nxmax = {end} \ntiers? <exists> \n'
            f"size = {len(tiers)} \nitem []: \n")
    for number, (name, spans) in enumerate(tiers, 1):
        body += (f'    item [{number}]:\n        class = "IntervalTier" \n        name = "{name}" \n        xmin = 0 \n'
                 f"        xmax = {end} \n        intervals: size = {len(spans)} \n")
        for at, (begin, stop, text) in enumerate(spans, 1):
            body += (f"        intervals [{at}]:\n            xmin = {begin} \n            xmax = {stop} \n"
                     f'            text = "{text}" \n')
    return body


SPANS = [(0.0, 0.5, ""), (0.5, 1.5, A), (1.5, 2.5, B), (2.5, 3.5, C.replace("He", '""He""'))]
SPOKEN = [(A, NO_SPEAKER, ""), (B, NO_SPEAKER, ""), (C.replace("He", '"He"'), NO_SPEAKER, "")]


def elan(*tiers: tuple[str, str, str]) -> str:
    """Tiers (name, attributes, text of the first annotation) with three annotations each."""
    slots = "".join(f'<TIME_SLOT TIME_SLOT_ID="ts{n}" TIME_VALUE="{n * 500}"/>' for n in range(1, 7))
    body = ""
    for name, attributes, first in tiers:
        notes = "".join(
            f'<ANNOTATION><ALIGNABLE_ANNOTATION ANNOTATION_ID="{name}{n}" TIME_SLOT_REF1="ts{2 * n - 1}" '
            f'TIME_SLOT_REF2="ts{2 * n}"><ANNOTATION_VALUE>{text}</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION>'
            "</ANNOTATION>"
            for n, text in enumerate((first, B, C), 1))
        body += f'<TIER LINGUISTIC_TYPE_REF="default-lt" TIER_ID="{name}" {attributes}>{notes}</TIER>'
    return (f'<?xml version="1.0" encoding="UTF-8"?><ANNOTATION_DOCUMENT FORMAT="3.0" VERSION="3.0"><HEADER '
            f'TIME_UNITS="milliseconds"/><TIME_ORDER>{slots}</TIME_ORDER>{body}</ANNOTATION_DOCUMENT>')


def source(name: str) -> dict:
    return {"id": name, "sources": [{"type": "file", "channels": [0], "source": f"audio/{name}.wav"}],
            "sampling_rate": 16000, "num_samples": 16000, "duration": 1.0, "channel_ids": [0]}


def supervision(name: str, recording: str, text: str, start: float, duration: float, speaker: str = "s1") -> dict:
    return {"id": name, "recording_id": recording, "start": start, "duration": duration, "channel": 0, "text": text,
            "language": "English", "speaker": speaker}


GIGA = {"dataset": "GigaSpeech", "audios": [{"aid": "P1", "path": "audio/P1.wav", "segments": [
    {"sid": f"P1S{n}", "speaker": "N/A", "begin_time": n, "end_time": n + 0.9, "text_tn": text}
    for n, text in enumerate(("IT WAS COLD <COMMA> AND BRIGHT <PERIOD>", "<MUSIC>", "WAS IT <QUESTIONMARK>"))]}]}
FLEURS = [f"{number}\t{name}.wav\t{text}\t{text.lower()}\t{' '.join(text)}\t16000\t{gender}\n"
          for number, name, text, gender in ((1, "11", A, "MALE"), (1, "12", A, "FEMALE"), (2, "13", B, "MALE"))]
COQUI = "audio_file|text|speaker_name\n"
SPONTANEOUS = ("client_id\taudio_id\taudio_file\tduration_ms\tprompt_id\tprompt\ttranscription\tvotes\tage\tgender\t"
               "language\tsplit\tchar_per_sec\tquality_tags\n")
Files = dict[str, str]

# name: (the source of the specification, recordings, texts, the format that is named, rows; or what the refusal says)
LAYOUTS: dict[str, tuple[str, tuple[str, ...], Files, str, list[Row] | str]] = {
    "LJSpeech": ("keithito.com/LJ-Speech-Dataset", ("wavs/a.wav", "wavs/b.wav", "wavs/c.wav"),
                 {"metadata.csv": f"a|It is 9.|It is nine.\nb|{B}|{B}\nc|{C}|{C}\n"}, "LJSpeech",
                 rows(texts=("It is nine.", B, C))),
    "Piper, one voice": ("github.com/OHF-Voice/piper1-gpl docs/TRAINING.md", ("wavs/a.wav", "wavs/b.wav", "wavs/c.wav"),
                         {"metadata.csv": f"a|{A}\nb|{B}\nc|{C}\n"}, "LJSpeech", rows()),
    "Piper, several voices": ("github.com/rhasspy/piper TRAINING.md", ("wav/a.wav", "wav/b.wav", "wav/c.wav"),
                              {"metadata.csv": f"a|anna|{A}\nb|anna|{B}\nc|bert|{C}\n"}, "path|speaker|text",
                              rows("anna", "anna", "bert")),
    "VITS file list": ("github.com/jaywalnut310/vits filelists", ("wavs/a.wav", "wavs/b.wav", "wavs/c.wav"),
                       {"train.txt": f"wavs/a.wav|0|{A}\nwavs/b.wav|0|{B}\nwavs/c.wav|1|{C}\n"}, "path|speaker|text",
                       rows("speaker-0", "speaker-0", "speaker-1")),
    "Coqui, train and eval": ("coqui in TTS/tts/datasets/formatters.py of coqui-ai/TTS",
                              ("wavs/a.wav", "wavs/b.wav", "wavs/c.wav"),
                              {"metadata_train.csv": f"{COQUI}wavs/a.wav|{A}|x\nwavs/b.wav|{B}|x\n",
                               "metadata_eval.csv": f"{COQUI}wavs/c.wav|{C}|y\n"},
                              "LJSpeech with a header",
                              [(C, "y", "held_out"), (A, "x", "train"), (B, "x", "train")]),
    "GPT-SoVITS": ("github.com/RVC-Boss/GPT-SoVITS README: vocal_path|speaker_name|language|text",
                   ("output/a.wav", "output/b.wav", "output/c.wav"),
                   {"x.list": "".join(f"D:\\gpt\\output\\{name}.wav|anna|en|{text}\n" for name, text in zip(
                       "abc", TEXTS, strict=True))}, "path|speaker|language|text", rows("anna", "anna", "anna")),
    "Bert-VITS2": ("github.com/fishaudio/Bert-VITS2 preprocess_text.py", ("Data/wavs/a.wav", "Data/wavs/b.wav",
                                                                          "Data/wavs/c.wav"),
                   {"esd.list": "".join(f"./Data/wavs/{name}.wav|{speaker}|EN|{text}\n" for name, speaker, text in zip(
                       "abc", "xxy", TEXTS, strict=True))}, "path|speaker|language|text", rows("x", "x", "y")),
    "Bert-VITS2, preprocessed": ("the same, after preprocess_text.py", ("wavs/a.wav", "wavs/b.wav", "wavs/c.wav"),
                                 {"train.list": "".join(f"wavs/{name}.wav|x|EN|{text}|_ ih t _|0 0 0 0|1 2 1\n"
                                                        for name, text in zip("abc", TEXTS, strict=True))},
                                 "path|speaker|language|text", rows("x", "x", "x")),
    "CSS10": ("github.com/Kyubyong/css10", ("meian/a.wav", "meian/b.wav", "meian/c.wav"),
              {"transcript.txt": "meian/a.wav|It is 9.|It is nine.|3.5\n"
               f"meian/b.wav|{B}|{B}|2\nmeian/c.wav|{C}|{C}|1.2\n"},
              "path|text|normalised text|seconds", rows(texts=("It is nine.", B, C))),
    "KSS": ("github.com/Kyubyong/kss", ("1/a.wav", "1/b.wav", "1/c.wav"),
            {"transcript.v.1.4.txt": "".join(f"1/{name}.wav|{text}|{text}|ㄱ|3.5|a translation\n" for name, text in zip(
                "abc", TEXTS, strict=True))}, "path|text|normalised text|seconds", rows()),
    "DeepSpeech CSV": ("deepspeech.readthedocs.io: wav_filename,wav_filesize,transcript", ("a.wav", "b.wav", "c.wav"),
                       {"train.csv": "wav_filename,wav_filesize,transcript\n" + "".join(
                           f'{name}.wav,32044,"{text}"\n' for name, text in zip("abc", TEXTS, strict=True))}, "CSV",
                       rows()),
    "SpeechBrain CSV": ("speechbrain.readthedocs.io, data loading", ("a.wav", "b.wav", "c.wav"),
                        {"train.csv": "ID,duration,wav,spk_id,wrd\n" + "".join(
                            f"{name},1.0,$data_root/{name}.wav,s1,{text}\n" for name, text in zip(
                                "abc", TEXTS, strict=True))}, "CSV", rows("s1", "s1", "s1")),
    "Audiofolder of the hub": ("huggingface.co/docs/datasets/audio_dataset", ("data/a.wav", "data/b.wav", "data/c.wav"),
                               {"metadata.csv": "file_name,transcription\n" + "".join(
                                   f"data/{name}.wav,{text}\n" for name, text in zip("abc", TEXTS, strict=True))},
                               "CSV", rows()),
    "NeMo manifest": ("docs.nvidia.com/nemo-framework, ASR datasets", ("audio/a.wav", "audio/b.wav", "audio/c.wav"),
                      {"manifest.jsonl": lines(*({"audio_filepath": f"/data/audio/{name}.wav", "text": text,
                                                  "duration": 1.0} for name, text in zip("abc", TEXTS, strict=True)))},
                      "JSON lines", rows()),
    "Hi-Fi TTS": ("openslr.org/109: several manifests", ("audio/92_clean/a.wav", "audio/92_clean/b.wav",
                                                         "audio/92_clean/c.wav"),
                  {f"92_manifest_clean_{split}.json": lines(*({
                      "audio_filepath": f"audio/92_clean/{name}.wav", "text": text.lower(), "duration": 1.0,
                      "text_no_preprocessing": text, "text_normalized": text} for name, text in found))
                   for split, found in (("train", (("a", A), ("b", B))), ("dev", (("c", C),)))}, "JSON",
                  [(C.lower(), NO_SPEAKER, "held_out"), (A.lower(), NO_SPEAKER, "train"),
                   (B.lower(), NO_SPEAKER, "train")]),
    "Emilia": ("huggingface.co/datasets/amphion/Emilia-Dataset; lhotse/recipes/emilia.py",
               tuple(f"EN_B00000/EN_B00000_S00000/mp3/EN_B00000_S00000_W00000{n}.mp3" for n in range(3)),
               {"EN_B00000.jsonl": lines(*({
                   "id": f"EN_B00000_S00000_W00000{n}", "text": text, "duration": 1.0, "start": 0.2, "end": 0.7,
                   "wav": f"EN_B00000/EN_B00000_S00000/mp3/EN_B00000_S00000_W00000{n}.mp3", "language": "en",
                   "speaker": "EN_B00000_S00000", "dnsmos": 3.3} for n, text in enumerate(TEXTS)))}, "JSON lines",
               rows(*["EN_B00000_S00000"] * 3)),
    "Common Voice": ("github.com/common-voice/cv-dataset", ("clips/a.mp3", "clips/b.mp3", "clips/c.mp3"),
                     {"validated.tsv": "client_id\tpath\tsentence_id\tsentence\tup_votes\n" + "".join(
                         f"c{n}\t{name}.mp3\tx\t{text}\t2\n" for n, (name, text) in enumerate(zip(
                             "abc", TEXTS, strict=True)))}, "Common Voice", rows("c0", "c1", "c2")),
    "Common Voice Spontaneous": ("datasheet of Common Voice Spontaneous Speech 23.0", ("audios/a.mp3", "audios/b.mp3",
                                                                                       "audios/c.mp3"),
                                 {"ss-corpus-ady.tsv": SPONTANEOUS + "".join(
                                     f"c1\t{n}\t{name}.mp3\t1000\t7\tHow was it?\t{text}\t1\t\t\tAdyghe\ttrain\t9\t"
                                     f"short-audio|speech-rate\n" for n, (name, text) in enumerate(zip(
                                         "abc", TEXTS, strict=True)))}, "TSV", rows("c1", "c1", "c1", split="train")),
    "FLEURS": ("huggingface.co/datasets/google/fleurs, data/*/train.tsv", ("audio/train/11.wav", "audio/train/12.wav",
                                                                           "audio/dev/13.wav"),
               {"train.tsv": FLEURS[0] + FLEURS[1], "dev.tsv": FLEURS[2]}, "FLEURS",
               [(B, NO_SPEAKER, "held_out"), (A, NO_SPEAKER, "train"), (A, NO_SPEAKER, "train")]),
    "Multilingual LibriSpeech": ("openslr.org/94", ("train/audio/30/7/30_7_000001.flac",
                                                    "train/audio/30/7/30_7_000002.flac",
                                                    "dev/audio/31/8/31_8_000003.flac"),
                                 {"train/transcripts.txt": f"30_7_000001\t{A}\n30_7_000002\t{B}\n",
                                  "dev/transcripts.txt": f"31_8_000003\t{C}\n", "metainfo.txt": "30 | F | train\n",
                                  "train/segments.txt": "30_7_000001\thttp://x\t1.0\t2.0\n"},
                                 "Multilingual LibriSpeech",
                                 [(C, "31", "held_out"), (A, "30", "train"), (B, "30", "train")]),
    "LibriSpeech": ("openslr.org/12", ("dev-clean/84/121/84-121-0000.flac", "dev-clean/84/121/84-121-0001.flac",
                                       "dev-clean/84/121/84-121-0002.flac"),
                    {"dev-clean/84/121/84-121.trans.txt": f"84-121-0000 {A}\n84-121-0001 {B}\n84-121-0002 {C}\n"},
                    "LibriSpeech", rows("84", "84", "84")),
    "LibriTTS": ("openslr.org/60", tuple(f"{split}/{reader}/5/{reader}_5_000001_00000{n}.wav" for split, reader, n in (
        ("train-clean-100", 84, 0), ("train-clean-100", 84, 1), ("dev-clean", 99, 2))),
        {f"{split}/{reader}/5/{reader}_5_000001_00000{n}.{kind}.txt": text if kind == "normalized" else "RAW 9"
         for kind in ("normalized", "original") for split, reader, n, text in (
             ("train-clean-100", 84, 0, A), ("train-clean-100", 84, 1, B), ("dev-clean", 99, 2, C))}, "LibriTTS",
        [(C, "99", "held_out"), (A, "84", "train"), (B, "84", "train")]),
    "VCTK 0.92": ("doi.org/10.7488/ds/2645", tuple(f"wav48_silence_trimmed/p225/p225_00{n}_mic{mic}.flac"
                                                  for n in (1, 2) for mic in (1, 2)) + (
        "wav48_silence_trimmed/s5/s5_001_mic1.flac",),
        {"txt/p225/p225_001.txt": A, "txt/p225/p225_002.txt": B, "txt/s5/s5_001.txt": C,
         "speaker-info.txt": "ID  AGE  GENDER  ACCENTS  REGION COMMENTS\np225  23  F    English\n"}, "VCTK",
        rows("p225", "p225", "s5")),
    "CMU ARCTIC": ("festvox.org/cmu_arctic", tuple(f"cmu_us_bdl_arctic/wav/arctic_a000{n}.wav" for n in (1, 2, 3)),
                   {"cmu_us_bdl_arctic/etc/txt.done.data": "".join(
                       f'( arctic_a000{n} "{text}" )\n' for n, text in enumerate((A, B, 'He said \\"no\\".'), 1))},
                   "Festival (txt.done.data)", rows("bdl", "bdl", "bdl", texts=(A, B, 'He said "no".'))),
    "M-AILABS": ("github.com/i-celeste-aurora/m-ailabs-dataset",
                 tuple(f"en_US/by_book/female/judy/emma/wavs/{name}.wav" for name in "ab") + (
                     "en_US/by_book/male/elliot/jekyll/wavs/c.wav",),
                 {"en_US/by_book/female/judy/emma/metadata.csv": f"a|It is 9.|It is nine.\nb|{B}|{B}\n",
                  "en_US/by_book/female/judy/emma/metadata_mls.json": "{}",
                  "en_US/by_book/male/elliot/jekyll/metadata_mls.json": json.dumps(
                      {"c.wav": {"original": C, "clean": C.lower()}})}, "M-AILABS",
                 [("It is nine.", "judy", ""), (B, "judy", ""), (C.lower(), "elliot", "")]),
    "metadata_mls.json": ("the same, of one book", ("wavs/a.wav", "wavs/b.wav", "wavs/c.wav"),
                          {"metadata_mls.json": json.dumps({f"{name}.wav": {"original": text, "clean": text} for
                                                            name, text in zip("abc", TEXTS, strict=True)})},
                          "M-AILABS", rows()),
    "AISHELL-1": ("openslr.org/33", tuple(f"wav/train/S0002/BAC009S0002W012{n}.wav" for n in range(3)),
                  {"transcript/aishell_transcript_v0.8.txt": "".join(
                      f"BAC009S0002W012{n} 而 对 楼市{n}\n" for n in range(3))}, "AISHELL-1",
                  rows(*["S0002"] * 3, split="train", texts=("而对楼市0", "而对楼市1", "而对楼市2"))),
    "AISHELL-3": ("openslr.org/93", tuple(f"train/wav/SSB0005/SSB0005000{n}.wav" for n in range(3)),
                  {"train/content.txt": "".join(f"SSB0005000{n}.wav\t广 guang3 州 zhou1\n" for n in range(3)),
                   "spk-info.txt": "SSB0005\tA\tfemale\tnorth\n"}, "AISHELL-3",
                  rows(*["SSB0005"] * 3, texts=("广州",) * 3)),
    "BZNSYP (Baker)": ("lhotse/recipes/baker_zh.py", tuple(f"Wave/00000{n}.wav" for n in (1, 2, 3)),
                       {"ProsodyLabeling/000001-010000.txt": "".join(
                           f"00000{n}\t卡尔普#2陪外孙#1玩滑梯#4。\n\tka2 er2 pu3 pei2\n" for n in (1, 2, 3))},
                       "BZNSYP (Baker)", rows(texts=("卡尔普陪外孙玩滑梯。",) * 3)),
    "JSUT": ("sites.google.com/site/shinnosuketakamichi/publication/jsut",
             tuple(f"basic5000/wav/BASIC5000_000{n}.wav" for n in (1, 2, 3)),
             {"basic5000/transcript_utf8.txt": "".join(f"BASIC5000_000{n}:水をマレーシアから。\n" for n in (1, 2, 3))},
             "JSUT or JVS", rows(texts=("水をマレーシアから。",) * 3)),
    "OpenSLR 32, line_index.tsv": ("openslr.org/32", ("a.wav", "b.wav", "c.wav"),
                                   {"line_index.tsv": f"a\t{A}\nb\t{B}\nc\t{C}\n"}, "LJSpeech", rows()),
    "OpenSLR 35": ("openslr.org/35", ("data/0a/0a1.flac", "data/0a/0a2.flac", "data/0b/0b1.flac"),
                   {"utt_spk_text.tsv": f"0a1\tx1\t{A}\n0a2\tx1\t{B}\n0b1\tx2\t{C}\n"}, "OpenSLR 35 and its like",
                   rows("x1", "x1", "x2")),
    "VoxPopuli": ("github.com/facebookresearch/voxpopuli", tuple(f"en/2012/20120112-09{n}-en.ogg" for n in range(3)),
                  {"en/asr_train.tsv": "id\traw_text\tnormalized_text\tspeaker_id\tsplit\tgender\n" + "".join(
                      f"20120112-09{n}-en\t{text}\t{text.lower()}\t7\ttrain\tmale\n" for n, text in enumerate(TEXTS))},
                  "VoxPopuli", rows("7", "7", "7", split="train")),
    "Kaldi": ("kaldi-asr.org/doc/data_prep.html", ("a.wav", "b.wav", "c.wav"),
              {"wav.scp": "a a.wav\nb b.wav\nc c.wav\n", "text": f"a {A}\nb {B}\nc {C}\n",
               "utt2spk": "a s1\nb s1\nc s2\n"}, "Kaldi", rows("s1", "s1", "s2")),
    "Kaldi, train and test": ("the same; github.com/besacier/ALFFA_PUBLIC, ASR/AMHARIC/data",
                              ("data/train/wav/a.wav", "data/train/wav/b.wav", "data/test/wav/c.wav"),
                              {"data/train/wav.scp": "a data/train/wav/a.wav\nb data/train/wav/b.wav\n",
                               "data/train/text": f"a {A}\nb {B}\n", "data/train/utt2spk": "a s1\nb s1\n",
                               "data/test/wav.scp": "c wav/c.wav\n", "data/test/text": f"c {C}\n"}, "Kaldi folders",
                              [(A, "s1", "train"), (B, "s1", "train"), (C, NO_SPEAKER, "test")]),
    "lhotse supervisions": ("lhotse.readthedocs.io/en/latest/corpus.html", ("audio/r.wav", "audio/q.wav"),
                            {"x_recordings_train.jsonl": lines(source("r"), source("q")),
                             "x_supervisions_train.jsonl": lines(
                                 supervision("1", "r", A, 0.0, 0.5), supervision("2", "r", B, 0.5, 0.4),
                                 supervision("3", "q", C, 0.0, 1.0, "s2"))}, "lhotse", rows("s1", "s1", "s2")),
    "lhotse cuts": ("lhotse.readthedocs.io/en/latest/cuts.html", ("audio/r.wav",),
                    {"cuts.jsonl": lines(*({"id": f"c{n}", "start": n / 4, "duration": 0.25, "channel": 0, "type":
                                            "MonoCut", "recording": source("r"), "supervisions": [
                                                supervision(str(n), "r", text, 0.0, 0.25)]} for n, text in enumerate(
                        TEXTS)))}, "lhotse", rows("s1", "s1", "s1")),
    "TED-LIUM (STM)": ("openslr.org/51; NIST SCTK", ("wav/T.wav",),
                       {"stm/T.stm": f"T 1 T_S 0.10 0.40 <o,f0,male> {A}\nT 1 T_S 0.40 0.50 <NA> "
                        f"ignore_time_segment_in_scoring\nT 1 T_S 0.50 0.90 <o,f0,male> i 'm {B}\n"},
                       "segment time marks (STM)", [(A, "T_S", ""), (f"i'm {B}", "T_S", "")]),
    "GigaSpeech": ("github.com/SpeechColab/GigaSpeech", ("audio/P1.wav",), {"GigaSpeech.json": json.dumps(GIGA)},
                   "GigaSpeech or WenetSpeech", [("IT WAS COLD, AND BRIGHT.", "N/A", ""), ("WAS IT?", "N/A", "")]),
    "WebDataset, unpacked": ("github.com/webdataset/webdataset", ("000.wav", "001.wav", "002.wav"),
                             {f"00{n}.json": json.dumps({"text": text, "speaker": "s1", "start": 7.0, "end": 8.0})
                              for n, text in enumerate(TEXTS)}, "JSON beside each recording", rows("s1", "s1", "s1")),
    "WebDataset, txt and json": ("the same", ("000.wav", "001.wav", "002.wav"),
                                 {**{f"00{n}.txt": text for n, text in enumerate(TEXTS)},
                                  **{f"00{n}.json": '{"speaker": "s1"}' for n in range(3)}},
                                 "a text beside each recording", rows("s1", "s1", "s1")),
    "Whisper JSON": ("github.com/openai/whisper writers", ("talk.wav",),
                     {"talk.json": json.dumps({"text": " ".join(TEXTS), "language": "en", "segments": [
                         {"id": n, "start": n * 0.3, "end": n * 0.3 + 0.3, "text": f" {text}"} for n, text in enumerate(
                             TEXTS)]})}, "JSON beside each recording", rows()),
    "TextGrid": ("Praat's manual, TextGrid file formats", ("talk.wav",), {"talk.TextGrid": textgrid(("text", SPANS))},
                 "TextGrid (Praat)", SPOKEN),
    "TextGrid, short": ("the same", ("talk.wav",), {"talk.TextGrid": textgrid(("text", SPANS), short=True)},
                        "TextGrid (Praat)", SPOKEN),
    "TextGrid of speakers": ("montreal-forced-aligner.readthedocs.io, corpus structure", ("talk.wav",),
                             {"talk.TextGrid": textgrid(("anna", [(0, 1, A), (1, 3, "")]),
                                                        ("bert", [(0, 1.1, ""), (1.1, 2, B), (2, 3, C)]))},
                             "TextGrid (Praat)", rows("anna", "bert", "bert")),
    "TextGrid with a translation": ("Praat's manual", ("talk.wav",), {"talk.TextGrid": textgrid(
        ("amharic", SPANS), ("english", SPANS))}, "TextGrid (Praat)", "which one is the transcript cannot be told"),
    "TextGrid of an aligner": ("montreal-forced-aligner.readthedocs.io, output", ("talk.wav",), {
        "talk.TextGrid": textgrid(("words", [(0, 1, "it")]), ("phones", [(0, 1, "ih")]))}, "TextGrid (Praat)",
        "words and phones of a forced alignment alone"),
    "ELAN": ("ELAN Annotation Format 3.0", ("talk.wav",), {"talk.eaf": elan(
        ("A", 'PARTICIPANT="Abebe"', A), ("T", 'PARENT_REF="A"', "a translation"))}, "ELAN",
        rows("Abebe", "Abebe", "Abebe")),
    "ELAN, two tiers": ("the same", ("talk.wav",), {"talk.eaf": elan(("A", "", A), ("B", "", "another"))}, "ELAN",
                        "which one is the transcript cannot be told"),
    "TIMIT": ("catalog.ldc.upenn.edu/LDC93S1", ("TRAIN/DR1/FCJF0/SA1.WAV", "TRAIN/DR1/FCJF0/SA2.WAV",
                                                "TRAIN/DR1/FCJF0/SX37.WAV"),
              {f"TRAIN/DR1/FCJF0/{name}.{kind}": f"0 46797 {text} \n" if kind == "TXT" else "0 3050 h#\n3050 4559 sh\n"
               for kind in ("TXT", "PHN") for name, text in zip(("SA1", "SA2", "SX37"), TEXTS, strict=True)},
              "a text beside each recording", rows()),
    "HTK labels": ("HTK Book 3.4, label files", ("a.wav",), {"a.lab": "0 2500000 sil\n2500000 5100000 ax\n"},
                   "a text beside each recording", "labels with times (HTK)"),
    "a text beside each": ("docs of piper, festvox and others", ("a.wav", "b.wav", "c.wav"),
                           {"a.txt": A, "b.lab": B, "c.txt": C}, "a text beside each recording", rows()),
    "StyleTTS2": ("github.com/yl4579/StyleTTS2 Data/train_list.txt", ("a.wav", "b.wav", "c.wav"),
                  {"train_list.txt": "a.wav|ðɪ ˌoʊvɚwˈɛlmɪŋ mədʒˈɔːɹᵻɾi|0\nb.wav|æt lˈæst , ɪnðə twˈɛntiəθ mˈʌnθ|0\n"
                   "c.wav|lɔŋ nˈæɹoʊ ɹˈuːmz wˈʌn|0\n"}, "", r"column 2 holds phonemes \(IPA\) instead of text"),
    "StyleTTS2 with texts": ("its README: filename.wav|transcription|speaker", ("a.wav", "b.wav", "c.wav"),
                             {"train_list.txt": f"a.wav|{A}|0\nb.wav|{B}|0\nc.wav|{C}|1\n"}, "path|text|speaker",
                             rows("speaker-0", "speaker-0", "speaker-1")),
    "FastSpeech 2": ("github.com/ming024/FastSpeech2 preprocessor.py",
                     ("LJSpeech/a.wav", "LJSpeech/b.wav", "LJSpeech/c.wav"),
                     {"train.txt": "".join(f"LJSpeech/{name}|LJSpeech|{{HH AH0 L OW1}}|{text}\n"
                                                         for name, text in zip("abc", TEXTS, strict=True))},
                     "id|speaker|{phones}|text", rows(*["LJSpeech"] * 3)),
    "GPT-SoVITS, output": ("GPT-SoVITS webui.py: output/slicer_opt, output/asr_opt",
                           ("slicer_opt/v.wav_0.wav", "slicer_opt/v.wav_1.wav", "slicer_opt/v.wav_2.wav"),
                           {"asr_opt/slicer_opt.list": "".join(
                               f"D:\\GPT-SoVITS\\output\\slicer_opt\\v.wav_{n}.wav|slicer_opt|EN|{text}\n"
                               for n, text in enumerate(TEXTS))}, "GPT-SoVITS", rows(*["slicer_opt"] * 3)),
    "GPT-SoVITS, logs": ("GPT_SoVITS/prepare_datasets/1-get-text.py and 2-get-hubert-wav32k.py",
                         tuple(f"5-wav32k/{name}.wav" for name in "abc"),
                         {"2-name2text.txt": "".join(f"{name}.wav\tHH AH0 L OW1\tNone\t{text}\n" for name, text in zip(
                             "abc", TEXTS, strict=True)), "4-cnhubert/a.wav.pt": "x",
                          "6-name2semantic.tsv": "item_name\tsemantic_audio\na.wav\t1 2\n"},
                         "GPT-SoVITS (2-name2text)", rows()),
    "HUI": ("github.com/iisys-hof/HUI-Audio-Corpus-German Step6_FinalizeDataset.py",
            tuple(f"{place}/wavs/{Path(place).name}_0{n}_f00000{n}.wav" for n, place in enumerate(
                ("Eva_K/toten_seelen", "Eva_K/gruene_gesichter", "Karlsson/altmodische_leute"))),
            {f"{place}/metadata.csv": f"{Path(place).name}_0{n}_f00000{n}|{TEXTS[n]}\n" for n, place in enumerate(
                ("Eva_K/toten_seelen", "Eva_K/gruene_gesichter", "Karlsson/altmodische_leute"))},
            "folders of LJSpeech", rows("Eva_K", "Eva_K", "Karlsson")),
    "HUI, one reader": ("the same", tuple(f"{book}/wavs/{book}_01_f00000{n}.wav" for n, book in enumerate("xxy")),
                        {"x/metadata.csv": f"x_01_f000000|{A}\nx_01_f000001|{B}\n",
                         "y/metadata.csv": f"y_01_f000002|{C}\n"}, "folders of LJSpeech", rows()),
    "a folder for each voice": ("LJSpeech's layout, once for each voice",
                                ("anna/wavs/1.wav", "anna/wavs/2.wav", "bert/wavs/1.wav"),
                                {"anna/metadata.csv": f"1|{A}\n2|{B}\n", "bert/metadata.csv": f"1|{C}\n"},
                                "folders of LJSpeech", rows("anna", "anna", "bert")),
    "VoxForge": ("kaldi-asr/kaldi egs/voxforge/s5/local/voxforge_data_prep.sh",
                 ("ralf-20080103-abc/wav/de1-01.wav", "anonymous-20090101-xyz/wav/a0001.wav",
                  "anonymous-20090202-uvw/flac/a0002.flac"),
                 {"ralf-20080103-abc/etc/PROMPTS": f"ralf-20080103-abc/mfc/de1-01 {A.upper()}\n",
                  "ralf-20080103-abc/etc/prompts-original": f"de1-01 {A}\n",
                  "ralf-20080103-abc/etc/README": "User Name:ralf\n",
                  "anonymous-20090101-xyz/etc/prompts-original": f"a0001 {B}\n",
                  "anonymous-20090202-uvw/etc/PROMPTS": f"anonymous-20090202-uvw/mfc/a0002 {C}\n"}, "VoxForge",
                 rows("ralf", "anonymous-20090101-xyz", "anonymous-20090202-uvw")),
    "VoxForge, one submission": ("the same", ("wav/a0001.wav",), {
        "etc/PROMPTS": f"ralf-20080103-abc/mfc/a0001 {A}\n"}, "VoxForge", [(A, "ralf", "")]),
    "VCTK 0.80 in capitals": ("Yamagishi, Veaux and MacDonald 2012",
                              ("wav48/p225/p225_001.WAV", "wav48/p226/p226_002.WAV"),
                              {"txt/p225/p225_001.txt": A, "txt/p226/p226_002.txt": B}, "VCTK",
                              [(A, "p225", ""), (B, "p226", "")]),
    "OpenSLR 30, lines.txt": ("openslr.org/30", ("a.wav", "b.wav", "c.wav"), {"si_lk.lines.txt": "".join(
        f'( {name} "{text}" )\n' for name, text in zip("abc", TEXTS, strict=True))},
                              "Festival (txt.done.data)", rows()),
    "names in decomposed letters": ("macOS, which stores names so", ("wavs/e\u0301.wav",),
                                    {"metadata.csv": f"\u00e9|{A}\n"}, "LJSpeech", [(A, NO_SPEAKER, "")]),
    "a header in German": ("a spreadsheet", ("wavs/a.wav", "wavs/b.wav"),
                           {"metadata.csv": f"datei|satz\na|{A}\nb|{B}\n"},
                           "LJSpeech", [(A, NO_SPEAKER, ""), (B, NO_SPEAKER, "")]),
    "a subset that is no split": ("huggingface.co/datasets/Thorsten-Voice/TV-44kHz-Full", ("a.wav",),
                                  {"data.csv": f"file,text,subset\na.wav,{A},TV-2021.06\n"}, "CSV",
                                  [(A, NO_SPEAKER, "")]),
    "a list in another folder": ("a person's folder", ("audio/a.wav",), {"meta/list.txt": f"audio/a.wav|{A}\n"}, "",
                                 "list.txt names recordings of .*, but lies in a folder below it"),
    "a packed table": ("a person's folder", ("a.wav",), {"data.csv.gz": "x"}, "", "a file compressed by gzip"),
    "HUI with statistics": ("HUI-Audio-Corpus-German, Step8_DatasetStatistic.py",
                            ("Eva/x/wavs/x_01_f1.wav", "Karl/y/wavs/y_01_f1.wav"),
                            {"Eva/x/metadata.csv": f"x_01_f1|{A}\n", "Karl/y/metadata.csv": f"y_01_f1|{B}\n",
                             "overview.csv": "speaker,hours\nEva,3\n"}, "folders of LJSpeech",
                            [(A, "Eva", ""), (B, "Karl", "")]),
    "VITS, train and val": ("github.com/jaywalnut310/vits filelists", tuple(f"{name}.wav" for name in "abc"),
                            {"train.txt": f"a.wav|0|{A}\nb.wav|1|{B}\n", "val.txt": f"c.wav|1|{C}\n"},
                            "path|speaker|text", [(A, "speaker-0", "train"), (B, "speaker-1", "train"),
                                                  (C, "speaker-1", "held_out")]),
    "lhotse supervisions alone": ("lhotse.readthedocs.io/en/latest/corpus.html", ("audio/r.wav",),
                                  {"x_supervisions_train.jsonl": lines(supervision("1", "r", A, 0.0, 0.5))}, "",
                                  "without their recordings: x_recordings_train.jsonl is not beside it"),
    "lhotse, one of them packed": ("the same", ("audio/r.wav",), {
        "recordings.jsonl": lines(source("r")), "supervisions.jsonl": lines(
            *(supervision(str(n), "r", text, n / 4, 0.25) for n, text in enumerate(TEXTS)))},
                                   "lhotse", rows(*["s1"] * 3)),
    "BABEL": ("lhotse/recipes/babel.py", ("training/audio/BABEL_BP_307_10033_20111024_205740_inLine.wav",),
              {"training/transcription/BABEL_BP_307_10033_20111024_205740_inLine.txt":
               f"[0.0]\n<no-speech>\n[0.1]\n{A}\n[0.4]\n<cough> {B} (())\n[0.6]\n[0.7]\n{C}\n[0.9]\n"}, "BABEL",
              rows(*["307_10033"] * 3)),
    "Kaldi with an archive": ("kaldi-asr.org/doc/io.html", ("a.wav",),
                              {"wav.scp": "a data/wav.1.ark:123\n", "text": f"a {A}\n"}, "Kaldi",
                              "wav.scp has a place in an archive of Kaldi"),
    "OpenSLR 71, two tables": ("openslr.org/71: line_index_female.tsv and line_index_male.tsv",
                               ("f1.wav", "f2.wav", "m1.wav"),
                               {"line_index_female.tsv": f"f1\t{A}\nf2\t{B}\n", "line_index_male.tsv": f"m1\t{C}\n"},
                               "LJSpeech", rows()),
    "ESD": ("github.com/HLTSingapore/Emotional-Speech-Data: id, text and emotion", ("a.wav", "b.wav", "c.wav"),
            {"0011.txt": f"a\t{A}\tHappy\nb\t{B}\tNeutral\nc\t{C}\tSad\n"}, "LJSpeech", rows()),
    **{f"TextGrid, {title}": ("Praat's manual", ("talk.wav",), {"talk.TextGrid": textgrid(*tiers)},
                              "TextGrid (Praat)", wanted) for title, tiers, wanted in (
        ("transcription and translation", (("translation", SPANS), ("transcription", SPANS)), SPOKEN),
        ("translation with other ends", (("Transcription", SPANS), ("Translation", [(0.4, 1.6, "x"), (1.6, 3.4, "y")])),
         SPOKEN),
        ("notes in the pauses", (("Anna", [*SPANS, (3.5, 4.0, "")]),
                                 ("notes", [(0, 0.5, "laughs"), (3.5, 4.0, "door")])), SPOKEN),
        ("only a translation", (("translation", SPANS),), "has no tier of the text"),
        ("two transcripts", (("text", SPANS), ("transcription", SPANS)), "which one is the transcript cannot be told"),
        ("an unknown tier above another", (("amharic", SPANS), ("x", [(0.4, 1.6, "a"), (1.6, 3.4, "b")])),
         "which one is the transcript cannot be told"),
        ("phonetic transcription", (("transcription", [(0.0, 1.0, "kˈɛpt kənsˈiːld")]), ("Mary", [(0.0, 1.0, A)])),
         [(A, NO_SPEAKER, "")]),
        ("speakers with transcripts", (("Speaker 1 - text", [(0, 1, A), (1, 3, "")]),
                                       ("Speaker 2 - text", [(0, 1, ""), (1, 2, B), (2, 3, C)])),
         rows("Speaker 1", "Speaker 2", "Speaker 2")))},
    "ELAN of Toolbox": ("ELAN's manual, import of Toolbox: ref@, tx@ and ft@", ("talk.wav",), {"talk.eaf": elan(
        ("ref@AB", "", "talk.001")).replace("</ANNOTATION_DOCUMENT>", "".join(
            f'<TIER TIER_ID="{name}@AB" PARENT_REF="ref@AB">' + "".join(
                f'<ANNOTATION><REF_ANNOTATION ANNOTATION_ID="{name}{n}" ANNOTATION_REF="ref@AB{n}"><ANNOTATION_VALUE>'
                f"{text}</ANNOTATION_VALUE></REF_ANNOTATION></ANNOTATION>" for n, text in enumerate(texts, 1))
            + "</TIER>" for name, texts in (("tx", TEXTS), ("ft", ("eins", "zwei", "drei")))) +
            "</ANNOTATION_DOCUMENT>")},
                        "ELAN", rows()),
    **{title: (f"a {suffix} file", ("talk.wav",), {f"talk{suffix}": text}, "", said) for title, suffix, text, said in (
        ("SubStation Alpha", ".ass", "[Script Info]\n", "subtitles of SubStation Alpha"),
        ("SBV", ".sbv", "0:00:00.599,0:00:04.160\nhello\n", "YouTube's SBV subtitles"),
        ("TTML", ".ttml", "<tt xmlns='http://www.w3.org/ns/ttml'/>", "TTML subtitles"),
        ("Transcriber", ".trs", "<Trans/>", "a transcript of Transcriber"),
        ("CHAT", ".cha", "@UTF8\n@Begin\n*CHI:\tmore cookie .\n", r"CHAT \(CHILDES"),
        ("EXMARaLDA", ".exb", "<basic-transcription/>", "EXMARaLDA"), ("MLF", ".mlf", "#!MLF!#\n", "label file of HTK"),
        ("CTM", ".ctm", "talk 1 0.1 0.2 it\n", "NIST's CTM"),
        ("THCHS-30", ".wav.trn", "绿 是\nlv4 shi4\nl v4 sh ix4\n", "THCHS-30"),
        ("spreadsheet", ".xlsx", "PK", "a spreadsheet"), ("TFRecord", ".tfrecord", "x", "TFRecord"),
        ("HDF5", ".h5", "x", "HDF5"), ("Kaldi archive", ".ark", "x", "an archive of Kaldi"))},
}


def written(folder: Path, recordings: tuple[str, ...], texts: Files) -> Path:
    for number, name in enumerate(recordings):
        made = write_clip(folder / f"{name}.made.wav", 4.0 if name.startswith("talk") else 1.0, 200 + 9 * number)
        made.rename(folder / name)  # no recording is opened here, so that it may be called as it wants
    for name, content in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return folder


def found(imported: ImportedSource) -> list[Row]:
    return [(row.text, row.speaker, row.split) for row in imported.rows]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_public_layout_is_read_right_or_refused_by_name(tmp_path: Path, name: str) -> None:
    _, recordings, texts, form, wanted = LAYOUTS[name]
    folder = written(tmp_path / "corpus", recordings, texts)
    if not form:
        assert isinstance(wanted, str)
        with pytest.raises(UserError, match=wanted):
            import_source(folder)
        return
    imported = import_source(folder)
    assert imported.form == form
    if isinstance(wanted, str):
        assert not imported.rows
        assert wanted in " ".join(one.reason for one in imported.skipped)
    else:
        assert sorted(found(imported)) == sorted(wanted)
        assert len({row.id for row in imported.rows}) == len(wanted)


@pytest.mark.parametrize("share", [0.4, 0.8])
def test_a_layout_that_is_cut_off_is_read_as_far_as_it_can_be(tmp_path: Path, share: float) -> None:
    """Nothing but a `UserError` ends an import, and no text that is read is one that the whole layout has not."""
    for number, (name, (_, recordings, texts, _, wanted)) in enumerate(LAYOUTS.items()):
        cut = {path: content[:int(share * len(content))] for path, content in texts.items()}
        try:
            read = [row.text for row in import_source(written(tmp_path / str(number) / "corpus", recordings, cut)).rows]
        except UserError:
            continue
        if isinstance(wanted, list):
            assert all(any(whole.startswith(text) for whole, _, _ in wanted) for text in read), (name, read)


def test_there_are_thirty_layouts_at_least_and_each_names_its_source() -> None:
    assert sum(isinstance(wanted, list) for *_, wanted in LAYOUTS.values()) >= 30
    assert all(specification for specification, *_ in LAYOUTS.values())


def test_times_of_annotations_and_of_the_source_recording_are_told_apart(tmp_path: Path) -> None:
    def spans(name: str) -> list[tuple[float, float | None]]:
        _, recordings, texts, *_ = LAYOUTS[name]
        return [(row.begin_s, row.end_s) for row in import_source(written(tmp_path / name, recordings, texts)).rows]

    whole = [(0.0, None)] * 3
    assert spans("Emilia") == spans("WebDataset, unpacked") == whole
    assert spans("TextGrid") == spans("TextGrid, short") == [(0.5, 1.5), (1.5, 2.5), (2.5, 3.5)]
    assert spans("ELAN") == [(0.5, 1.0), (1.5, 2.0), (2.5, 3.0)]
    assert spans("lhotse supervisions") == [(0.0, 0.5), (0.5, 0.9), (0.0, None)]
    assert spans("lhotse cuts") == [(0.0, 0.25), (0.25, 0.5), (0.5, 0.75)]
    assert spans("TED-LIUM (STM)") == [(0.1, 0.4), (0.5, 0.9)]


def tables(folder: Path) -> list[dict]:
    sounds = [write_clip(folder / f"{n}.wav", pitch=200 + 9 * n).read_bytes() for n in range(3)]
    for n in range(3):
        (folder / f"{n}.wav").unlink()
    return [{"audio": {"bytes": sound, "path": f"{n}.wav"}, "text": text, "speaker_id": "s1"}
            for n, (sound, text) in enumerate(zip(sounds, TEXTS, strict=True))]


def parquet(folder: Path) -> None:
    table = pyarrow.Table.from_pylist(tables(folder))
    (folder / "data").mkdir()
    pyarrow.parquet.write_table(table.slice(0, 2), folder / "data" / "train-00000-of-00001.parquet")
    pyarrow.parquet.write_table(table.slice(2), folder / "data" / "test-00000-of-00001.parquet")


def arrow(folder: Path) -> None:
    """`Dataset.save_to_disk` of the datasets library: the stream format."""
    table = pyarrow.Table.from_pylist(tables(folder))
    for split, part in (("train", table.slice(0, 2)), ("test", table.slice(2))):
        (folder / split).mkdir()
        with pyarrow.ipc.new_stream(folder / split / "data-00000-of-00001.arrow", part.schema) as writer:
            writer.write_table(part)
        (folder / split / "state.json").write_text('{"_data_files": []}')


def shards(folder: Path) -> None:
    """Two shards of WebDataset; a key may come back in another shard."""
    for shard, keys in (("en-000000.tar", ((0, "a"), (1, "b"))), ("en-000001.tar", ((2, "a"),))):
        with tarfile.open(folder / shard, "w") as archive:
            for n, key in keys:
                sound = write_clip(folder.parent / "made.wav", pitch=200 + 9 * n).read_bytes()
                about = json.dumps({"text": TEXTS[n], "speaker": "s1"}).encode()
                for suffix, content in (("wav", sound), ("json", about)):
                    info = tarfile.TarInfo(f"{key}.{suffix}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))


def fleurs(folder: Path) -> None:
    """As the repository of FLEURS has it, before its archives are unpacked."""
    (folder / "audio").mkdir()
    for split, names in (("train", ("11", "12")), ("dev", ("13",))):
        (folder / f"{split}.tsv").write_text("".join(FLEURS[:2] if split == "train" else FLEURS[2:]), "utf-8")
        with tarfile.open(folder / "audio" / f"{split}.tar.gz", "w:gz") as archive:
            for name in names:
                archive.add(write_clip(folder.parent / "made.wav", pitch=int(name) * 20), f"{split}/{name}.wav")


def lhotse_gz(folder: Path) -> None:
    _, recordings, texts, *_ = LAYOUTS["lhotse supervisions"]
    written(folder, recordings, {})
    for name, content in texts.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content.encode()))


@pytest.mark.parametrize(("make", "wanted"), [
    (parquet, [(A, "s1", "train"), (B, "s1", "train"), (C, "s1", "test")]),
    (arrow, [(A, "s1", "train"), (B, "s1", "train"), (C, "s1", "test")]),
    (shards, rows("s1", "s1", "s1")),
    (fleurs, [(A, NO_SPEAKER, "train"), (A, NO_SPEAKER, "train"), (B, NO_SPEAKER, "held_out")]),
    (lhotse_gz, rows("s1", "s1", "s2")),
])
def test_what_is_packed_is_written_out_and_read(tmp_path: Path, workspace: Workspace, make: Callable[[Path], None],
                                                wanted: list[Row]) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    make(folder)
    with open_source(str(folder), "en", workspace, Recorder()) as opened:
        assert sorted(found(read_rows(opened, "en", Recorder()))) == sorted(wanted)


def test_a_table_that_was_uploaded_reads_no_file_of_this_machine(tmp_path: Path, workspace: Workspace) -> None:
    secret = write_clip(tmp_path / "secret.wav")
    for folder, wanted in ((workspace.cache / "uploads" / "x", []), (tmp_path / "own", [A])):
        folder.mkdir(parents=True)
        about = {"audio": {"bytes": None, "path": str(secret)}, "text": A}
        schema = pyarrow.schema({"audio": pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()}),
                                 "text": pyarrow.string()})
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([about], schema), folder / "train.parquet")
        with open_source(str(folder), "en", workspace, Recorder()) as opened:
            assert [row.text for row in read_rows(opened, "en", Recorder()).rows] == wanted
