"""PyTorch files that others made: tensors, containers and numbers of numpy are read; nothing is run or blown up."""

from __future__ import annotations

import argparse
import builtins
import collections
import functools
import io
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from config.errors import UserError
from models import weights
from models.weights import LazyWeights

TABLE = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.int64)}
FORMATS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


class _Call:
    """Pickled as a call of `function` with `arguments`."""

    def __init__(self, function: Callable[..., object], *arguments: object, state: object = None) -> None:
        self._reduced = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self) -> tuple[object, ...]:
        return self._reduced


def _training_checkpoint() -> dict[str, object]:
    """What training programs save beside their weights."""
    np.random.seed(4)
    return {
        "model": collections.OrderedDict(TABLE), "ema": {name: value + 1 for name, value in TABLE.items()},
        "optimizer": {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.zeros(2, 3)}},
                      "param_groups": [{"lr": 1e-4, "betas": (0.9, 0.999), "params": [0]}]},
        "rng_state": {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()},
        "best": np.float64(1.25), "step": np.int64(38_000), "history": np.arange(3, dtype=np.float32)[::-1],
        "table": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "flag": np.bool_(True), "scaler": None,
        "config": {"training": {"learning_rate": 1e-5, "betas": [0.8, 0.99]}},
    }


@FORMATS
def test_a_training_checkpoint_with_the_state_of_numpy_is_read(tmp_path: Path, zipped: bool) -> None:
    saved = _training_checkpoint()
    torch.save(saved, tmp_path / "latest.pth", _use_new_zipfile_serialization=zipped)
    held = weights.read_nested(tmp_path / "latest.pth")
    assert all(torch.equal(held["model"][name], value) for name, value in TABLE.items())
    kind, keys, *rest = held["rng_state"]["numpy"]
    wanted = saved["rng_state"]["numpy"]  # type: ignore[index]
    assert (kind, rest) == (wanted[0], list(wanted[2:]))
    assert keys.dtype == wanted[1].dtype
    assert np.array_equal(keys, wanted[1])
    assert (held["best"], held["step"], held["flag"]) == (1.25, 38_000, True)
    assert np.array_equal(held["table"], saved["table"])  # type: ignore[arg-type]
    assert held["history"].tolist() == [2.0, 1.0, 0.0]
    names = LazyWeights.open(tmp_path / "latest.pth").names
    assert {"model.a", "ema.a", "optimizer.state.0.exp_avg"} <= set(names)


CALLS: dict[str, Callable[[], object]] = {
    "a command": lambda: _Call(os.system, "touch harmed"),
    "evaluation": lambda: _Call(eval, "open('harmed', 'w')"),
    "execution": lambda: _Call(exec, "open('harmed', 'w')"),
    "an attribute": lambda: _Call(getattr, [], "append"),
    "a module": lambda: _Call(__import__, "os"),
    "a partial": lambda: functools.partial(os.system, "touch harmed"),
    "a call in a call": lambda: _Call(_first, [_Call(os.system, "touch harmed")]),
    "a call as a key": lambda: {_Call(os.system, "touch harmed"): 1},
    "a call in an optimizer": lambda: {"optimizer": {"state": {0: {"step": _Call(os.system, "touch harmed")}}}},
    "a call in the state of a dict": lambda: _Call(collections.OrderedDict,
                                                   state={"x": _Call(os.system, "touch harmed")}),
    "an open file": lambda: _Call(open, "harmed", "w"),
    "a huge bytearray": lambda: _Call(bytearray, 1 << 42),
    "a huge tensor": lambda: _Call(torch.FloatTensor, 1 << 20, 1 << 20),
    "options of a program": lambda: argparse.Namespace(lr=1),
    "an array of objects": lambda: np.array([object(), [1]], dtype=object),
    "a memory map": lambda: _Call(np.memmap, "harmed", "uint8", "w+", 0, (10,)),
    "numpy's own loading": lambda: _Call(np.load, "harmed.npy", None, True),
    "a module of torch": lambda: torch.nn.Linear(2, 2),
    "torch's own loading": lambda: _Call(torch.load, "other.pt"),
    "a quantized tensor": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
    "a sparse tensor": lambda: torch.eye(3).to_sparse(),
}


def _first(values: list[object]) -> object:
    return values[0]


@FORMATS
@pytest.mark.parametrize("made", CALLS)
def test_nothing_else_is_built_and_what_was_named_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str, zipped: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": TABLE, "other": CALLS[made]()}, tmp_path / "w.pt", _use_new_zipfile_serialization=zipped)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match=r"w\.pt (holds Python objects beside tensors \(\S+\)|was refused)") as refused:
        weights.read_nested(tmp_path / "w.pt")
    assert refused.value.hint
    assert sorted(tmp_path.iterdir()) == before


def _archive(path: Path, pickled: bytes, storages: dict[str, bytes] | None = None,
             compression: int = zipfile.ZIP_STORED) -> Path:
    """A file as torch writes one, around a pickle of one's own."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("w/data.pkl", pickled)
        archive.writestr("w/byteorder", b"little")
        for name, content in (storages or {"0": bytes(16)}).items():
            archive.writestr(f"w/data/{name}", content)
        archive.writestr("w/version", b"3\n")
    return path


_STORAGE = b"((U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x04tQ"  # of 4 numbers
_TENSOR = b"\x80\x02}U\x01actorch._utils\n_rebuild_tensor_v2\n" + _STORAGE
_REST = b"\x89ccollections\nOrderedDict\n)RtRs."


def _tensor(size: bytes, stride: bytes) -> bytes:
    return _TENSOR + b"K\x00" + size + stride + _REST


def _long(number: int) -> bytes:
    content = pickle.encode_long(number)
    return b"\x8a" + bytes([len(content)]) + content


def test_a_pickle_of_ones_own_is_read_as_torch_would(tmp_path: Path) -> None:
    path = _archive(tmp_path / "w.pt", _tensor(b"K\x04\x85", b"K\x01\x85"))
    assert weights.read(path)["a"].tolist() == [0.0] * 4


HUGE: dict[str, bytes] = {
    "more than its storage": _tensor(_long(1 << 45) + b"\x85", b"K\x01\x85"),
    "one number repeated": _tensor(_long(1 << 40) + b"\x85", b"K\x00\x85"),
    "negative": _tensor(_long(-5) + b"\x85", b"K\x01\x85"),
    "a product that overflows": _tensor(_long(1 << 62) + _long(1 << 62) + b"\x86", b"K\x01K\x01\x86"),
    "texts as sizes": _tensor(b"U\x01x\x85", b"K\x01\x85"),
    "a list that holds itself": b"\x80\x02]q\x00h\x00a.",
    "a dict that holds itself": b"\x80\x02}q\x00U\x01ah\x00s.",
    "a billion values": b"\x80\x02]" + b"".join(
        b"q" + bytes([level]) + b"]" + b"(" + (b"h" + bytes([level])) * 20 + b"e" for level in range(12)) + b".",
    "deep lists": b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".",
    "an array that is shorter than it says": (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01" + _long(1 << 40) +
        b"\x85cnumpy\ndtype\nU\x02f8K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x08"
        + bytes(8) + b"tb."),
    "an array of objects without the flags that say so": (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x01\x85"
        b"cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x08"
        b"AAAAAAAAtb."),
    "a type with fields": (
        b"\x80\x02cnumpy\ndtype\nU\x03V16K\x00K\x01\x87R(K\x03U\x01|NU\x01x\x85}K\x10K\x01K\x10tb."),
    "an array without a state": b"\x80\x02cnumpy._core.multiarray\n_reconstruct\n)R.",
    "a scalar without a type": b"\x80\x02cnumpy.core.multiarray\nscalar\nNU\x08AAAAAAAA\x86R.",
    "a name from the stack": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0ctouch harmed\x85R.",
    "an extension": b"\x80\x02\x82\x01.",
    "another persistent id": b"\x80\x02U\x01xQ.",
    "no end": b"\x80\x02}U\x01a",
    "nothing": b"",
    "no opcode": b"\xff\xfe",
    "a text longer than the file": b"\x80\x02X\xff\xff\xff\x7fabc.",
    "a place in the memo that is far away": b"\x80\x02]r\xff\xff\xff\x7f" + b"j\xff\xff\xff\x7fa.",
}


@pytest.mark.parametrize("made", HUGE)
def test_what_claims_to_be_larger_than_the_file_is_refused_at_once(tmp_path: Path, made: str) -> None:
    path = _archive(tmp_path / "w.pt", HUGE[made])
    with pytest.raises(UserError, match=r"w\.pt"):
        weights.read_nested(path)


ZIPS: dict[str, Callable[[Path], object]] = {
    "a bomb": lambda path: _archive(path, _tensor(b"K\x04\x85", b"K\x01\x85"), {"0": bytes(50_000_000)},
                                    zipfile.ZIP_DEFLATED),
    "two pickles of one name": lambda path: _twice(path),
    "a size that is not there": lambda path: _resized(path, 1 << 31),
    "no storage": lambda path: _archive(path, _tensor(b"K\x04\x85", b"K\x01\x85"), {"9": bytes(16)}),
    "a short storage": lambda path: _archive(path, _tensor(b"K\x04\x85", b"K\x01\x85"), {"0": bytes(4)}),
    "no pickle": lambda path: _only(path, "w/version"),
    "a program": lambda path: _only(path, "w/code/__torch__.py", "w/constants.pkl", "w/data.pkl"),
    "a name outside": lambda path: _only(path, "../../data.pkl", "../../version"),
    "an archive in front of an archive": lambda path: _behind(path),
}


def _twice(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("w/data.pkl", b"\x80\x02}.")
        archive.writestr("w/version", b"3\n")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("w/data.pkl", b"cos\nsystem\nU\x0ctouch harmed\x85R.")


def _resized(path: Path, size: int) -> None:
    """The central directory says that a storage has `size` bytes."""
    content = bytearray(_archive(path, _tensor(b"K\x04\x85", b"K\x01\x85")).read_bytes())
    entry = content.index(b"w/data/0", content.index(b"PK\x01\x02")) - 46
    content[entry + 20:entry + 28] = struct.pack("<II", size, size)
    path.write_bytes(content)


def _only(path: Path, *names: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"\x80\x02c__torch__\nModel\n)\x81." if name.endswith(".pkl") else b"3\n")


def _behind(path: Path) -> None:
    inner = io.BytesIO()
    torch.save({"a": _Call(os.system, "touch harmed")}, inner)
    path.write_bytes(_archive(path, b"\x80\x02}.").read_bytes() + inner.getvalue())


@pytest.mark.parametrize("made", ZIPS)
def test_archives_that_are_not_what_torch_writes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    ZIPS[made](tmp_path / "w.pt")
    with pytest.raises(UserError, match=r"w\.pt"):
        LazyWeights.open(tmp_path / "w.pt")
    assert not (tmp_path / "harmed").exists()


def test_a_random_change_of_a_byte_never_ends_in_another_error(tmp_path: Path) -> None:
    """A property: whatever bytes are changed, the file is read or refused in a sentence, and nothing is run."""
    torch.save(_training_checkpoint(), tmp_path / "whole.pth", _use_new_zipfile_serialization=False)
    content, chance = (tmp_path / "whole.pth").read_bytes(), random.Random(7)
    called: list[str] = []
    before = {name: getattr(builtins, name) for name in ("eval", "exec")}
    for _ in range(150):
        changed = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(min(len(changed), 6000))] = chance.randrange(256)
        (tmp_path / "w.pth").write_bytes(changed)
        try:
            weights.read_nested(tmp_path / "w.pth")
        except UserError as error:
            called.append(error.message)
    assert len(called) > 30
    assert before == {name: getattr(builtins, name) for name in before}
