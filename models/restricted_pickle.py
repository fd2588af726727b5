"""PyTorch files of strangers: tensors, plain containers, and arrays and scalars of numpy; nothing else is built.

Training programs save more than weights: states of optimizers, and of random generators, which numpy pickles as
arrays. torch's restricted unpickler (`weights_only`) refuses those arrays, and numpy's own functions are not safe to
allow: a pickled dtype carries flags that numpy believes. So the names of numpy stand for classes of this module, which
check shape, type and size before an array is made of the bytes.

Three walls stand before a file. Its names of functions and classes are read first, without calling one, and must be on
the list below, which is shorter than torch's own. torch's unpickler then builds the values. What it built must not be
larger than the file: a few bytes can claim to be a tensor of terabytes, or a list that holds itself.
"""

from __future__ import annotations

import math
import pickle
import pickletools
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from config.foreign import DEEPEST

_MOST_VALUES = 2_000_000  # An optimizer's state of 10,000 tensors has 100,000 values.
_MOST_PICKLED = 256 << 20  # bytes of a pickle beside its tensors
_LEGACY_PICKLES = 5  # magic number, protocol, system, content, keys of the storages that follow
_STORAGES = frozenset(f"{kind}Storage" for kind in (
    "Untyped", "Typed", "Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool",
    "ComplexDouble", "ComplexFloat"))
_REBUILD = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter",
            "_rebuild_parameter_with_state")
_DTYPES = frozenset(name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype))
_NUMPY_KINDS = frozenset("?bhilqBHILQefdFD")  # numbers alone: no objects, texts, records or times


class _PickledDtype:
    """A pickled `numpy.dtype`: only numbers are taken, and never its flags."""

    def __init__(self, name: object = "", *_: object) -> None:
        self.name, self.order = name, "="

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or any(part is not None for part in state[2:5]):
            raise pickle.UnpicklingError("a numpy type that is none of a number")
        self.order = state[1]

    def checked(self) -> np.dtype[Any]:
        """The type of a number; `UnpicklingError` for any other."""
        name, order = (value.decode("latin-1") if isinstance(value, bytes) else value
                       for value in (self.name, self.order))
        if not isinstance(name, str) or order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"a numpy type {name!r}, byte order {order!r}")
        try:
            kind = np.dtype(name)
        except (TypeError, ValueError) as error:
            raise pickle.UnpicklingError(f"a numpy type {name[:40]!r}") from error
        if kind.char not in _NUMPY_KINDS:
            raise pickle.UnpicklingError(f"a numpy type {name[:40]!r}, which is none of a number")
        return kind.newbyteorder(order) if order in "<>" else kind


class _PickledArray:
    """A pickled `numpy.ndarray`; `value` checks what its state claims."""

    def __init__(self, *_: object) -> None:
        self._state: tuple[object, ...] = ()

    def __setstate__(self, state: object) -> None:
        self._state = state if isinstance(state, tuple) else ()

    def value(self) -> np.ndarray:
        """The array; `UnpicklingError` if shape, type and bytes do not belong together."""
        if len(self._state) != 5:
            raise pickle.UnpicklingError("an array of numpy without its state")
        _, shape, dtype, fortran, content = self._state
        sizes = shape if isinstance(shape, tuple) else (None,)
        if not isinstance(dtype, _PickledDtype) or not all(type(size) is int and size >= 0 for size in sizes):
            raise pickle.UnpicklingError(f"an array of numpy of the shape {str(shape)[:60]}")
        return _numbers(dtype, content, sizes, "F" if fortran else "C")


class _ArrayClass:
    """What stands for the class `numpy.ndarray` in a pickle, which only names it."""


def _scalar(dtype: object = None, content: object = b"") -> object:
    """A pickled scalar of numpy."""
    if not isinstance(dtype, _PickledDtype):
        raise pickle.UnpicklingError("a scalar of numpy without its type")
    return _numbers(dtype, content, (), "C")[()]


def _from_buffer(content: object = b"", dtype: object = None, shape: object = (), order: object = "C") -> object:
    """An array as numpy pickles it in protocol 5."""
    array = _PickledArray()
    array.__setstate__((1, shape, dtype, order == "F", content))
    return array


def _numbers(dtype: _PickledDtype, content: object, shape: tuple[Any, ...], order: str) -> np.ndarray:
    """Bytes as numbers; `UnpicklingError` if there are more or fewer of them than `shape` asks for."""
    kind = dtype.checked()
    if not isinstance(content, bytes | bytearray) or len(content) != math.prod(shape) * kind.itemsize:
        size = len(content) if isinstance(content, bytes | bytearray) else type(content).__name__
        raise pickle.UnpicklingError(f"an array of numpy of the shape {str(shape)[:60]} with {size} bytes")
    return np.frombuffer(bytes(content), kind).reshape(shape, order=order)  # type: ignore[call-overload]


_STAND_INS: Mapping[str, Any] = {
    "numpy.core.multiarray._reconstruct": _PickledArray, "numpy.core.multiarray.scalar": _scalar,
    "numpy._core.multiarray._reconstruct": _PickledArray, "numpy._core.multiarray.scalar": _scalar,
    "numpy.core.numeric._frombuffer": _from_buffer, "numpy._core.numeric._frombuffer": _from_buffer,
    "numpy.ndarray": _ArrayClass, "numpy.dtype": _PickledDtype,
}
_ALLOWED = frozenset((
    "collections.OrderedDict", "collections.Counter", "_codecs.encode", "torch.Size", "torch.device",
    "torch.serialization._get_layout", "torch.nn.parameter.Parameter", "torch.storage.UntypedStorage",
    "torch.storage.TypedStorage", *(f"torch.{name}" for name in (*_STORAGES, *_DTYPES)),
    *(f"torch._utils.{name}" for name in _REBUILD), *_STAND_INS))
"""Whatever a file may name. Not on it, though torch allows them: `bytearray` and the classes of tensors, which make as
much of a number as it says, and what makes sparse, quantized, meta and nested tensors."""


def load(path: Path) -> object:
    """The content of a PyTorch file; `pickle.UnpicklingError` with the reason where it holds more than may be built.

    What torch raises for a damaged file passes through.
    """
    size = path.stat().st_size
    zipped = zipfile.is_zipfile(path)
    if zipped:
        size = _check_archive(path, size)
    refused = sorted(set(_named(path, zipped)) - _ALLOWED)
    if refused:
        raise ForeignGlobal(refused[0])
    allowed = [(stand_in, name) for name, stand_in in _STAND_INS.items()]
    with torch.serialization.safe_globals(allowed):  # type: ignore[arg-type]  # pairs are taken since torch 2.6
        held = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    return _Plain(size).of(held)


class ForeignGlobal(pickle.UnpicklingError):
    """A file names a function or class that is not on the list; `name` is that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the file names {name[:120]}")
        self.name = name[:120]


def _check_archive(path: Path, size: int) -> int:
    """How many bytes of tensors an archive holds; `UnpicklingError` if torch did not write it so.

    torch stores files as they are: a compressed one could be a thousand times as large inside.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise ValueError(f"its list of files is damaged: {error}") from error
    names = [member.filename for member in members]
    packed = [member.filename for member in members if member.compress_type != zipfile.ZIP_STORED]
    if packed:
        raise pickle.UnpicklingError(f"its file {packed[0][:60]!r} is compressed, which torch never does")
    if sum(member.file_size for member in members) > size:
        raise pickle.UnpicklingError(f"its files have more bytes than itself ({size})")
    if len(set(names)) != len(names):
        raise pickle.UnpicklingError("it has two files of one name")
    return sum(member.file_size for member in members if "/data/" in member.filename)


def _named(path: Path, zipped: bool) -> Iterator[str]:
    """Functions and classes that the pickles of a file name, without building anything."""
    if not zipped:
        with open(path, "rb") as file:
            for _ in range(_LEGACY_PICKLES):
                yield from _globals(file)
        return
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.filename.endswith(".pkl"):
                if member.file_size > _MOST_PICKLED:
                    raise pickle.UnpicklingError(f"{member.filename[:60]!r} has {member.file_size} bytes, at most "
                                                 f"{_MOST_PICKLED} are read")
                with archive.open(member) as file:
                    yield from _globals(file)


def _globals(file: IO[bytes]) -> Iterator[str]:
    for opcode, argument, _ in pickletools.genops(file):
        if opcode.name in ("GLOBAL", "INST"):
            module, _, name = str(argument).partition(" ")
            yield f"{'builtins' if module == '__builtin__' else module}.{name}"
        elif opcode.name in ("STACK_GLOBAL", "EXT1", "EXT2", "EXT4", "PERSID"):
            raise pickle.UnpicklingError(f"it has the instruction {opcode.name}, which torch never writes")


class _Plain:
    """Copies containers with arrays of numpy in them, within bounds on depth, number and size."""

    def __init__(self, file_size: int) -> None:
        self._file_size, self._count = file_size, 0
        self._storages, self._bytes = set[int](), 0  # addresses, and what lies there

    def of(self, held: object, depth: int = 0) -> object:
        """`held` with plain containers and checked tensors."""
        self._count += 1
        if depth > DEEPEST or self._count > _MOST_VALUES:
            raise pickle.UnpicklingError(f"it has more than {DEEPEST} levels or {_MOST_VALUES} values, or holds itself")
        if isinstance(held, torch.Tensor):
            return self._checked(held)
        if isinstance(held, _PickledArray):
            return held.value()
        if isinstance(held, _PickledDtype):
            return str(held.checked())
        if isinstance(held, Mapping):
            return {key: self.of(value, depth + 1) for key, value in held.items()}
        if isinstance(held, list | tuple | set | frozenset):
            values = [self.of(value, depth + 1) for value in held]
            return tuple(values) if isinstance(held, tuple) else values
        return held

    def _checked(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that is no larger than the file, nor together with the others."""
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise pickle.UnpicklingError(f"a tensor that is {tensor.layout} on {tensor.device.type}")
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._storages:
            self._storages.add(storage.data_ptr())
            self._bytes += storage.nbytes()
        if max(tensor.numel() * tensor.element_size(), self._bytes) > self._file_size:
            raise pickle.UnpicklingError(f"a tensor of the shape {tuple(tensor.shape)} in a file of "
                                         f"{self._file_size} bytes of tensors")
        return tensor.detach() if tensor.requires_grad else tensor
