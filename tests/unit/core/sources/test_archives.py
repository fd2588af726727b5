"""Archives from anywhere: what belongs to a dataset comes out, and nothing is written anywhere else."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from config.errors import UserError
from core.sources import archives as unpacking
from core.sources.archives import is_archive, unpack_archive

FREE = 10**10


def zipped(path: Path, files: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        for name, target in (links or {}).items():
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, 0o120777 << 16
            archive.writestr(info, target)
    return path


def tarred(path: Path, files: dict[str, bytes], kinds: dict[str, bytes] | None = None) -> Path:
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, kind in (kinds or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    return path


def below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "a" / "b" / "home"
    folder.mkdir(parents=True)
    return folder


EVIL = ("../../x.wav", "/tmp/lisan-x.wav", "..\\..\\x.wav", "C:\\x.wav", "C:x.wav", "a/../../x.wav", "\\\\host\\x.wav")
GOOD = {"wavs/a.wav": b"sound", "metadata.csv": "a|ሰላም\n".encode(), "text": b"a b"}


@pytest.mark.parametrize("make", [zipped, tarred])
def test_what_leads_out_is_skipped_and_named_and_the_rest_comes(tmp_path: Path, home: Path, make) -> None:
    path = make(tmp_path / ("x.zip" if make is zipped else "x.tar.gz"), {**GOOD, **dict.fromkeys(EVIL, b"evil")})
    before = below(tmp_path)
    skipped = unpack_archive(path, home, FREE)
    assert below(home) == GOOD
    assert {**before, **{f"a/b/home/{name}": content for name, content in GOOD.items()}} == below(tmp_path)
    assert len(skipped) == len(EVIL)
    assert all("leads out" in entry.reason or "path from the root" in entry.reason for entry in skipped)
    assert not Path("/tmp/lisan-x.wav").exists()


def test_links_and_devices_are_not_followed(tmp_path: Path, home: Path) -> None:
    kinds = {"s.wav": tarfile.SYMTYPE, "h.wav": tarfile.LNKTYPE, "d.wav": tarfile.CHRTYPE}
    path = tarred(tmp_path / "x.tar", GOOD, kinds)
    assert [entry.reason for entry in unpack_archive(path, home,
                                                     FREE)] == ["is a link or device, which is not followed"] * 3
    other = home.parent / "other"
    other.mkdir()
    skipped = unpack_archive(zipped(tmp_path / "x.zip", GOOD, {"s.wav": "/etc/passwd"}), other, FREE)
    assert [entry.location for entry in skipped] == ["x.zip: s.wav"]
    assert below(home) == below(other) == GOOD


def test_a_bomb_is_refused_before_it_fills_the_disk(
        tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "_ALWAYS_ALLOWED", 1_000_000)
    for path in (zipped(tmp_path / "bomb.zip", {"a.wav": bytes(20_000_000)}),
                 tarred(tmp_path / "bomb.tar.gz", {"a.wav": bytes(20_000_000)})):
        with pytest.raises(UserError, match=rf"{path.name} \(.* kB\) would unpack to more than [34].* MB"):
            unpack_archive(path, home, FREE)
        assert sum(len(content) for content in below(home).values()) < 5_000_000


def test_a_bomb_of_what_is_passed_over_is_refused_too(
        tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "_ALWAYS_ALLOWED", 1_000_000)
    path = tarred(tmp_path / "bomb.tgz", {"a.bin": bytes(105_000_000)})
    with pytest.raises(UserError, match="would unpack to more than"):
        unpack_archive(path, home, FREE)


def test_a_full_disk_is_said_with_the_room_there_is(tmp_path: Path, home: Path) -> None:
    with pytest.raises(UserError, match="would unpack to more than 0 bytes") as caught:
        unpack_archive(zipped(tmp_path / "x.zip", GOOD), home, 1000)
    assert "Free space" in caught.value.hint
    assert "then continue" in caught.value.hint


def test_a_lie_about_the_size_does_not_bring_more(tmp_path: Path, home: Path) -> None:
    path = zipped(tmp_path / "x.zip", {"a.wav": bytes(5_000_000), "b.wav": b"good"})
    content = path.read_bytes().replace((5_000_000).to_bytes(4, "little"), (1000).to_bytes(4, "little"))
    path.write_bytes(content)
    skipped = unpack_archive(path, home, FREE)
    assert below(home) == {"b.wav": b"good"}
    assert "is damaged" in skipped[0].reason


def test_a_damaged_archive_is_said(tmp_path: Path, home: Path) -> None:
    whole = tarred(tmp_path / "x.tar.gz", {"a.wav": bytes(range(256)) * 4000}).read_bytes()
    broken = {"cut.tar.gz": whole[:len(whole) // 2], "none.zip": b"PK\3\4 not so", "no.tar": b"\1" * 999}
    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"{name} is damaged or no archive"):
            unpack_archive(tmp_path / name, home, FREE)


def test_what_is_there_twice_nested_hidden_or_of_no_use_is_told(tmp_path: Path, home: Path) -> None:
    files = {"a.wav": b"1", "b/c.zip": b"", ".git/x.txt": b"", "cover.jpg": b"", "d.pdf": b""}
    path = tarred(tmp_path / "x.tar", files)
    with tarfile.open(path, "a") as archive:
        archive.addfile(tarfile.TarInfo("a.wav"))
    said = {entry.location: entry.reason for entry in unpack_archive(path, home, FREE)}
    assert below(home) == {"a.wav": b"1"}
    assert said == {
        "x.tar: a.wav": "is there twice",
        "x.tar: b/c.zip": "is an archive within the archive; unpack it and give it by itself",
        "x.tar: cover.jpg and 1 more": "no recording, text or table",
    }


@pytest.mark.parametrize("make", [zipped, tarred])
def test_a_file_where_others_need_a_folder_is_named_with_what_helps(tmp_path: Path, home: Path, make) -> None:
    said = {entry.location.partition(": ")[2]: entry.reason for entry in unpack_archive(
        make(tmp_path / "x.bin", {"a.txt": b"1", "a.txt/b.txt": b"2", "c.txt/d.txt": b"3", "c.txt": b"4"}), home, FREE)}
    assert below(home) == {"a.txt": b"1", "c.txt/d.txt": b"3"}
    assert said == {
        "a.txt/b.txt": "lies in a.txt, which is a file there too; rename one of the two",
        "c.txt": "is a file, but other files lie in a folder of that name; rename one of the two"}


def test_names_that_turn_the_line_around_are_spelled_out(tmp_path: Path, home: Path) -> None:
    (entry,) = unpack_archive(zipped(tmp_path / "x.zip", {"../\u202egpj.wav": b""}), home, FREE)
    assert entry.location == "x.zip: ../\\u202egpj.wav"


def test_an_archive_is_told_by_its_content_or_name(tmp_path: Path) -> None:
    assert is_archive(zipped(tmp_path / "words", {"a": b""}))
    assert is_archive(tmp_path / "x.TAR.GZ")
    (tmp_path / "a.csv").write_text("audio,text\n")
    assert not is_archive(tmp_path / "a.csv")
