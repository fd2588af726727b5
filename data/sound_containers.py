"""The kind of a sound file by its content, and how much sound its frames or pages hold.

Headers are not believed: frames of MP3 are walked one by one, pages of OGG are counted per stream, and the sizes of WAV
chunks are compared with the file. `data.sound_files` compares this with what decodes. No suffix is looked at.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from config import confinement

_HEAD = 4096  # bytes that tell what a file is
_RESYNC = 1 << 20  # bytes without a frame after which an MP3 is not walked further
_UNKNOWN_SIZES = (0, 0x7FFFF000, 0x7FFFFFFF)  # chunk sizes written by programs that cannot go back to fill them in
_UNKNOWN_FROM = 0xFFFF0000
_RADIO_S = 15.0  # a first page later than this was not the first of its stream


@dataclass(frozen=True)
class ContainerFacts:
    """A sound file by its content; None if the container does not say."""

    kind: str = ""  # such as "mp3" or "wav"; empty for unknown content
    stated_s: float | None = None  # stated by the header
    present_s: float | None = None  # present as frames, pages or bytes
    cut_off: bool = False  # the file ends in the middle of a frame, or before its header says
    chained: bool = False  # several streams, one behind another
    files: tuple[tuple[int, int], ...] = ()  # begin and end in bytes of whole files joined one behind another
    is_exact: bool = True  # False: header and frames of an MP3 differ, of which its decoder would complain


FILM_KINDS = frozenset(("mp4", "matroska", "avi", "asf", "aac", "amr", "flv", "mpeg", "mpegts"))
"""Read by ffmpeg only."""
SOUND_KINDS = frozenset(("wav", "w64", "flac", "ogg", "mp3", "aiff", "au", "caf"))
"""Read by libsndfile."""
_NOT_SOUND = (
    (b"version https://git-lfs", "a Git LFS pointer, not the recording itself"),
    (b"<!doctype html", "a web page (HTML), not a recording"),
    (b"<html", "a web page (HTML), not a recording"),
    (b"<?xml", "an XML text, not a recording"),
    (b"pk\x03\x04", "a ZIP archive, not a recording"),
    (b"\x1f\x8b", "a gzip archive, not a recording"),
)


def kind_of(head: bytes) -> str:
    """The container that begins with `head`; empty if it is unknown."""
    # A tag may stand before any kind of sound.
    if head[:3] == b"ID3" and len(head) > 10:
        behind = head[_id3_size(head):]
        return kind_of(behind) if behind[:3] != b"ID3" and kind_of(behind) else "mp3"
    if head[:4] in (b"RIFF", b"RIFX", b"RF64"):
        return "avi" if head[8:12] == b"AVI " else "wav" if head[8:12] == b"WAVE" else ""

    # Most containers begin with a fixed magic; others have it at another place.
    magics = ((b"riff\x2e\x91\xcf\x11", "w64"), (b"fLaC", "flac"), (b"OggS", "ogg"), (b".snd", "au"), (b"caff", "caf"),
              (b"\x1aE\xdf\xa3", "matroska"), (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "asf"), (b"#!AMR", "amr"),
              (b"FLV\x01", "flv"), (b"\x00\x00\x01\xba", "mpeg"))
    for magic, kind in magics:
        if head.startswith(magic):
            return kind
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return "aiff"
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free"):
        return "mp4"
    if head[:1] == b"\x47" and head[188:189] == b"\x47":
        return "mpegts"
    if head[:1] == b"\xff" and len(head) > 1 and head[1] & 0xF6 == 0xF0:
        return "aac"  # ADTS, whose layer is 0

    # MPEG audio has no magic, so a frame is parsed.
    return "mp3" if _mpeg_frame(head, 0) is not None else ""


def content_of(path: Path) -> str:
    """The container of the file at `path`, by its content; empty if it is unknown or cannot be read."""
    try:
        with confinement.verified(path) as source, open(source, "rb") as file:
            return kind_of(file.read(_HEAD))
    except OSError:
        return ""


def not_sound(path: Path) -> str:
    """The kind of a file that is not sound, in words; empty if it is unknown."""
    try:
        with confinement.verified(path) as source, open(source, "rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return ""
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    for magic, words in _NOT_SOUND:
        if start.startswith(magic):
            return words
    if not head.strip(b"\0"):
        return "empty" if not head else "filled with zeros"
    return ""


def inspect(path: Path) -> ContainerFacts:
    """The container at `path`, with what it states and holds; `OSError` if it cannot be read."""
    with confinement.verified(path) as source, open(source, "rb") as file:
        kind = kind_of(file.read(_HEAD))
        walk = _WALKS.get(kind)
        if walk is None:
            return ContainerFacts(kind)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                return replace(walk(content), kind=kind)
            except (struct.error, IndexError, ValueError):  # damaged: what decodes is all that is known
                return ContainerFacts(kind)


def _id3_size(content: bytes | mmap.mmap, offset: int = 0) -> int:
    """Bytes of an ID3v2 tag with its header, whose size has 7 bits a byte."""
    size = 0
    for byte in content[offset + 6:offset + 10]:
        size = size << 7 | byte & 0x7F
    return size + (20 if content[offset + 5] & 0x10 else 10)


# --- MPEG audio: https://www.mp3-tech.org/programmer/frame_header.html ---

_BIT_RATES = {  # kbit/s by (is MPEG-1, layer)
    (True, 1): (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_MPEG_RATES = (44100, 48000, 32000)


@dataclass(frozen=True)
class _MpegFrame:
    size: int  # bytes
    samples: int
    rate: int  # Hz
    tag_at: int  # offset of a Xing header from the start of the frame


_mpeg_frames: dict[int, _MpegFrame | None] = {}  # keyed by the header's bits; a file has few different ones


def _mpeg_frame(content: bytes | mmap.mmap, offset: int) -> _MpegFrame | None:
    """The frame whose header stands at `offset`; None if there is none."""
    header = content[offset:offset + 4]
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE0 != 0xE0:
        return None
    key = int.from_bytes(header, "big")
    if key not in _mpeg_frames:
        if len(_mpeg_frames) > 4096:
            _mpeg_frames.clear()
        _mpeg_frames[key] = _parsed_frame(header)
    return _mpeg_frames[key]


def _parsed_frame(header: bytes) -> _MpegFrame | None:
    version, layer = header[1] >> 3 & 3, 4 - (header[1] >> 1 & 3)
    bit_rate_at, rate_at, padding = header[2] >> 4, header[2] >> 2 & 3, header[2] >> 1 & 1
    if version == 1 or layer == 4 or bit_rate_at in (0, 15) or rate_at == 3:
        return None
    is_first = version == 3
    bit_rate = 1000 * _BIT_RATES[is_first, layer][bit_rate_at]
    rate = _MPEG_RATES[rate_at] >> {3: 0, 2: 1, 0: 2}[version]
    if layer == 1:
        return _MpegFrame((12 * bit_rate // rate + padding) * 4, 384, rate, 0)

    # In layers 2 and 3, the Xing header is behind the side information.
    samples = 576 if layer == 3 and not is_first else 1152
    is_mono = header[3] >> 6 == 3
    side = (17 if is_mono else 32) if is_first else (9 if is_mono else 17)
    return _MpegFrame(samples // 8 * bit_rate // rate + padding, samples, rate, 4 + side)


def _walk_mp3(content: mmap.mmap) -> ContainerFacts:
    """Frames counted one by one. Encoder delay and padding are subtracted if the first header has them."""
    size, offset = len(content), 0
    seconds, frames, audio_bytes = 0.0, 0, 0
    stated_s, stated_frames, stated_bytes, headers = 0.0, 0, 0, 0  # all read from the first header
    cut_off = searched = False

    while offset < size:
        frame = _mpeg_frame(content, offset)

        # Skip a tag, or search for the next frame behind damaged bytes.
        if frame is None:
            following = _behind_tag(content, offset)
            if following is None:
                following, searched = _next_frame(content, offset), True
            if following is None:
                break
            offset = following
            continue
        if offset + frame.size > size:
            cut_off = True
            break

        # A frame with a Xing or VBRI header holds no sound.
        tag = content[offset + frame.tag_at:offset + frame.tag_at + 4] if frame.tag_at else b""
        if tag in (b"Xing", b"Info"):
            headers += 1
            # Decoders trim at the start of the file only.
            if headers == 1:
                stated_frames, stated_bytes, trimmed = _xing(content, offset + frame.tag_at)
                stated_s = max(0, stated_frames * frame.samples - trimmed) / frame.rate
                seconds -= trimmed / frame.rate
            audio_bytes += frame.size
        elif content[offset + 36:offset + 40] == b"VBRI":
            audio_bytes += frame.size
        else:
            seconds, frames, audio_bytes = seconds + frame.samples / frame.rate, frames + 1, audio_bytes + frame.size
        offset += frame.size

    if not frames:
        # Where no frame stands at once, as in FLAC behind the tag of an MP3, the decoders find out what it is.
        return ContainerFacts(cut_off=cut_off and not searched)
    if headers == 1 and stated_frames > frames:
        cut_off = True

    # libmpg123 complains about differences of more than 1%. Some encoders count the header's own frame, others do not.
    is_exact = (not cut_off and headers <= 1 and (not stated_frames or abs(stated_frames - frames) <= 1)
                and (not stated_bytes or abs(stated_bytes - audio_bytes) <= 0.01 * audio_bytes))
    return ContainerFacts("", stated_s if stated_frames else None, max(0.0, seconds), cut_off, headers > 1,
                          is_exact=is_exact)


def _xing(content: mmap.mmap, offset: int) -> tuple[int, int, int]:
    """Frames, bytes, and samples of delay and padding by the Xing header at `offset`; 0 if it does not say."""
    flags = int.from_bytes(content[offset + 4:offset + 8], "big")
    place, frames, total = offset + 8, 0, 0
    if flags & 1:
        frames, place = int.from_bytes(content[place:place + 4], "big"), place + 4
    if flags & 2:
        total, place = int.from_bytes(content[place:place + 4], "big"), place + 4
    place += (100 if flags & 4 else 0) + (4 if flags & 8 else 0)

    # The encoder's tag has delay and padding, 12 bits each.
    trimmed = 0
    if content[place:place + 4] in (b"LAME", b"Lavf", b"Lavc"):
        high, middle, low = content[place + 21:place + 24]
        trimmed = (high << 4 | middle >> 4) + ((middle & 15) << 8 | low)
    return frames, total, trimmed


def _behind_tag(content: mmap.mmap, offset: int) -> int | None:
    """Where the tag (ID3, APE, Lyrics3) at `offset` ends; None if there is none."""
    if content[offset:offset + 3] == b"ID3":
        return offset + _id3_size(content, offset)
    if content[offset:offset + 3] == b"TAG":
        return offset + 128
    if content[offset:offset + 8] == b"APETAGEX":
        return offset + 32 + int.from_bytes(content[offset + 12:offset + 16], "little")
    if content[offset:offset + 11] == b"LYRICSBEGIN":
        end = content.find(b"LYRICS200", offset)
        return end + 9 if end >= 0 else None
    return None


def _next_frame(content: mmap.mmap, offset: int) -> int | None:
    """The next frame that is followed by another one or by the end; None if none is near."""
    limit = min(len(content), offset + _RESYNC)
    offset = content.find(b"\xff", offset + 1, limit)
    while offset >= 0:
        frame = _mpeg_frame(content, offset)
        end = offset + frame.size if frame is not None else 0
        if frame is not None and (end >= len(content) or _mpeg_frame(content, end) is not None
                                  or _behind_tag(content, end) is not None):
            return offset
        offset = content.find(b"\xff", offset + 1, limit)
    return None


# --- OGG: RFC 3533; Opus RFC 7845 ---


@dataclass
class _OggStream:
    rate: int = 0  # granules a second; 0 for what is not sound
    skipped: int = 0  # granules before the first sample
    first_granule: int = -1  # granule position of the first page with sound
    last_granule: int = -1
    has_end: bool = False

    @property
    def seconds(self) -> float:
        if not self.rate or self.last_granule < 0:
            return 0.0
        is_grabbed = self.first_granule > _RADIO_S * self.rate  # begins in the middle of a stream
        return max(0.0, (self.last_granule - (self.first_granule if is_grabbed else self.skipped)) / self.rate)


@dataclass
class _OggWalk:
    streams: dict[int, _OggStream] = field(default_factory=dict)  # open, by serial number
    ended: list[_OggStream] = field(default_factory=list)
    links: int = 0


def _walk_ogg(content: mmap.mmap) -> ContainerFacts:
    walk, is_cut, has_sound = _OggWalk(), False, True
    offset = content.find(b"OggS")
    while offset >= 0:
        if offset + 27 > len(content):
            is_cut = True
            break

        flags, granule, serial, segments = struct.unpack_from("<xxxxxBqIxxxxxxxxB", content, offset)
        lacing = content[offset + 27:offset + 27 + segments]
        body = offset + 27 + segments
        end = body + sum(lacing)
        if len(lacing) < segments or end > len(content):
            is_cut = True
            break

        # A first page begins a new stream, also with a serial number that was used before.
        if flags & 2:
            if serial in walk.streams:
                walk.ended.append(walk.streams.pop(serial))
            stream = _ogg_stream(content[body:min(end, body + 64)])
            walk.streams[serial] = stream
            if stream.rate:
                # Streams beside one another form one link of the chain.
                walk.links += has_sound
                has_sound = False
        else:
            open_stream = walk.streams.get(serial)
            if open_stream is not None and open_stream.rate and granule > 0:
                open_stream.first_granule = granule if open_stream.first_granule < 0 else open_stream.first_granule
                open_stream.last_granule, has_sound = max(open_stream.last_granule, granule), True
                open_stream.has_end = open_stream.has_end or bool(flags & 4)
            elif open_stream is not None and flags & 4:
                open_stream.has_end = True
        offset = content.find(b"OggS", end)

    sounds = [stream for stream in (*walk.ended, *walk.streams.values()) if stream.rate]
    if not sounds:
        return ContainerFacts()

    # Parallel streams (a film with two languages) last as long as one; consecutive streams add up.
    present_s = sum(stream.seconds for stream in sounds) if walk.links == len(sounds) else None
    return ContainerFacts("", None, present_s, is_cut or not sounds[-1].has_end, walk.links > 1)


def _ogg_stream(packet: bytes) -> _OggStream:
    if packet.startswith(b"OpusHead"):
        return _OggStream(48000, int.from_bytes(packet[10:12], "little"))
    if packet.startswith(b"\x01vorbis"):
        return _OggStream(int.from_bytes(packet[12:16], "little"))
    if packet.startswith(b"\x7fFLAC"):
        return _OggStream(_stream_info(packet[17:])[0])
    if packet.startswith(b"Speex   "):
        return _OggStream(int.from_bytes(packet[36:40], "little"))
    return _OggStream()


# --- FLAC: RFC 9639 ---


def _stream_info(block: bytes | mmap.mmap) -> tuple[int, int]:
    """Sample rate and number of samples (0: unknown) by a STREAMINFO block of 34 bytes."""
    bits = int.from_bytes(block[10:18], "big")
    return bits >> 44, bits & (1 << 36) - 1


def _walk_flac(content: mmap.mmap) -> ContainerFacts:
    start = _id3_size(content) if content[:3] == b"ID3" else 0
    stated, begins = list[float](), list[int]()
    while start >= 0 and content[start:start + 4] == b"fLaC":
        rate, samples = _stream_info(content[start + 8:start + 42])
        stated.append(samples / rate if rate else 0.0)
        begins.append(start)
        start = content.find(b"fLaC\x00\x00\x00\x22", start + 4)
    if not stated:
        return ContainerFacts()
    whole_s = sum(stated) if all(stated) else None
    return ContainerFacts("", stated[0] or None, whole_s if len(stated) > 1 else None, chained=len(stated) > 1,
                          files=_ranges(begins, len(content)))


def _ranges(begins: Sequence[int], size: int) -> tuple[tuple[int, int], ...]:
    """Where each of several files begins and ends; empty for one."""
    return tuple(zip(begins, (*begins[1:], size), strict=True)) if len(begins) > 1 else ()


# --- WAV, AIFF, AU ---

_LINEAR = (1, 3, 6, 7, 0xFFFE)  # PCM, float, A-law, mu-law, extensible: bytes a second are constant


def _walk_wav(content: mmap.mmap) -> ContainerFacts:
    stated_s, present_s, cut_off, parts = 0.0, 0.0, False, 0
    begins = list[int]()
    offset, is_known, bytes_a_second = 0, True, 0
    order = ">" if content[:4] == b"RIFX" else "<"
    if content[:4] == b"RF64":
        return ContainerFacts()  # its sizes lie elsewhere, and libsndfile reads them

    while offset + 8 <= len(content):
        # Walk the chunks. A file may consist of several, each with its own RIFF header.
        name, size = content[offset:offset + 4], struct.unpack_from(f"{order}I", content, offset + 4)[0]
        if name in (b"RIFF", b"RIFX") and content[offset + 8:offset + 12] == b"WAVE":
            begins.append(offset)
            offset += 12
            continue
        if name == b"fmt ":
            code, _, rate, _, align = struct.unpack_from(f"{order}HHIIH", content, offset + 8)
            bytes_a_second = rate * align if code in _LINEAR else 0
        if name == b"data":
            if not bytes_a_second:
                return ContainerFacts()
            parts += 1

            # A program that was interrupted leaves an unknown size: the sound then lasts to the end of the file.
            available = len(content) - offset - 8
            if size in _UNKNOWN_SIZES[1:] or size >= _UNKNOWN_FROM or (size == 0 and available > 0):
                is_known, size = False, available
            elif size > available:
                cut_off = True
            elif not _is_chunk(content, offset + 8 + size + (size & 1), order):
                # The header ends earlier than the sound.
                present_s += (available - size) / bytes_a_second
            stated_s += size / bytes_a_second
            present_s += min(size, available) / bytes_a_second
        offset += 8 + size + (size & 1)

    if not parts:
        return ContainerFacts()

    # If several files follow one another, the header describes the first only.
    return ContainerFacts("", stated_s if is_known and parts == 1 else None, present_s, cut_off, parts > 1,
                          _ranges(begins, len(content)) if parts == len(begins) else ())


def _is_chunk(content: mmap.mmap, offset: int, order: str) -> bool:
    """Whether a chunk, or the end of the file, is at `offset`."""
    available = len(content) - offset
    if available < 8:
        return True
    name, size = content[offset:offset + 4], int(struct.unpack_from(f"{order}I", content, offset + 4)[0])
    return name in (b"RIFF", b"RIFX") or (all(32 <= byte < 127 for byte in name) and size <= available - 8) or not any(
        content[offset:offset + min(available, 4096)])


def _walk_aiff(content: mmap.mmap) -> ContainerFacts:
    return ContainerFacts("", cut_off=struct.unpack_from(">I", content, 4)[0] + 8 > len(content) + 1)


def _walk_au(content: mmap.mmap) -> ContainerFacts:
    offset, size = struct.unpack_from(">II", content, 4)
    return ContainerFacts("", cut_off=size != 0xFFFFFFFF and offset + size > len(content))


_WALKS: dict[str, Callable[[mmap.mmap], ContainerFacts]] = {
    "mp3": _walk_mp3, "ogg": _walk_ogg, "flac": _walk_flac, "wav": _walk_wav, "aiff": _walk_aiff, "au": _walk_au,
}
