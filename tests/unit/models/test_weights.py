"""PyTorch files: both formats are read as tensors alone, and written small and reproducibly."""

from pathlib import Path

import pytest
import torch

from config.errors import UserError
from core.model import tensor_files
from models import weights
from models.weights import LazyWeights

TABLE = {"a": torch.arange(4.0), "b": torch.ones(2, dtype=torch.int64)}


class Harmful:
    """What a stranger could put into a pickle."""

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path("harmed"),)


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(torch.equal(found[key], value) for key, value in wanted.items())


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.bin"])
def test_both_formats_are_read_whatever_the_ending(tmp_path: Path, name: str, zipped: bool) -> None:
    torch.save(TABLE, tmp_path / name, _use_new_zipfile_serialization=zipped)
    assert same(weights.read(tmp_path / name), TABLE)
    assert weights.shapes(tmp_path / name) == {"a": (4,), "b": (2,)}
    assert LazyWeights.open(tmp_path / name).names == ("a", "b")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"a": Harmful()}, tmp_path / "w.bin", _use_new_zipfile_serialization=zipped)
    with pytest.raises(UserError, match="could run code when loaded; it was refused"):
        weights.read(tmp_path / "w.bin")
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(("zipped", "message"), [(True, "is not a whole PyTorch file"), (False, "is damaged")])
def test_a_file_that_was_cut_off_is_named(tmp_path: Path, zipped: bool, message: str) -> None:
    path = tmp_path / "w.bin"
    torch.save(TABLE, path, _use_new_zipfile_serialization=zipped)
    path.write_bytes(path.read_bytes()[:-6])
    with pytest.raises(UserError, match=rf"w\.bin.* {message}"):
        weights.read(path)


def test_a_state_dict_may_lie_under_a_key_that_is_named(tmp_path: Path) -> None:
    torch.save({"model": TABLE, "epoch": 3}, tmp_path / "nested.pth")
    torch.save(TABLE, tmp_path / "flat.pth")
    for name in ("nested.pth", "flat.pth"):
        assert same(weights.read(tmp_path / name, ("model",)), TABLE)
        assert weights.shapes(tmp_path / name, ("model",)) == {"a": (4,), "b": (2,)}
    with pytest.raises(UserError, match=r"no table of tensors: model, epoch hold something else"):
        weights.read(tmp_path / "nested.pth")


def test_a_file_of_one_tensor(tmp_path: Path) -> None:
    torch.save(torch.eye(3), tmp_path / "bank.pt")
    torch.save(TABLE, tmp_path / "table.pt")
    assert torch.equal(weights.read_tensor(tmp_path / "bank.pt"), torch.eye(3))
    with pytest.raises(UserError, match="holds a dict, and one tensor is wanted"):
        weights.read_tensor(tmp_path / "table.pt")
    with pytest.raises(UserError, match="holds a Tensor, and a table of tensors is wanted"):
        weights.read(tmp_path / "bank.pt")


def test_written_files_hold_the_tensors_alone_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    large = torch.randn(1000, 1000)
    tensors = {"net": {"row": large[3], "turned": large[:2, :5].t()}}
    for name in ("one.pth", "another.pth"):
        weights.write_pytorch(tmp_path / name, tensors)
    assert (tmp_path / "one.pth").read_bytes() == (tmp_path / "another.pth").read_bytes()
    assert (tmp_path / "one.pth").stat().st_size < 10_000
    held = torch.load(tmp_path / "one.pth", weights_only=True)
    assert same(held["net"], tensors["net"])


def test_a_full_disk_is_an_error_of_the_system() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(OSError):  # which `atomic_directory` explains
        weights.write_pytorch(Path("/dev/full"), {"a": torch.ones(3_000_000)})


def test_a_file_that_is_written_tensor_by_tensor_has_the_bytes_of_the_library(tmp_path: Path) -> None:
    torch.manual_seed(4)
    held = {"b": torch.randn(3, 5), "turned": torch.randn(4, 2).t(), "a": torch.randn(2).bfloat16(),
            "h": torch.ones(3).half(), "step": torch.tensor(3.0), "none": torch.zeros(0, 3),
            "ሀ \"x\"": torch.randn(1).double()}
    held |= {str(kind): torch.arange(3).to(kind) for kind in (torch.bool, torch.uint8, torch.int8, torch.int16,
                                                              torch.int32, torch.int64)}
    tensor_files.write(tmp_path / "one.safetensors", held)
    assert (tmp_path / "one.safetensors").read_bytes() == tensor_files.serialize(held)
