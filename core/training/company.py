"""Several processes that take one step together: torch's DistributedDataParallel, and who says what comes next.

The process of rank 0 is the job's worker; it alone writes, measures and speaks, and tells the
others when to take a step. Each process takes its share of every batch, so that P processes
with batches of B clips do what one does with P x B. On one machine the worker starts the
others itself; over several, torchrun starts them all (`python -m scripts.train` is its
program). Words go by gloo, gradients by NCCL on CUDA.
"""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from config.errors import UserError
from core.jobs.process_watchdog import watch_processes
from core.jobs.reporter import StopRequested
from core.training.divisible import RANK, number_of_processes
from core.training.fitting import Setting
from core.workspace import Workspace
from models.base import Losses, SpeechModel

END, STEP, STATE, GATHER, TRIAL = 0, 1, 2, 3, 4
_PATIENCE = timedelta(days=1)  # the others wait while rank 0 measures and speaks
_PASS = timedelta(minutes=10)  # a part of a model that another process does not send within a pass never comes
_ROOT = Path(__file__).resolve().parents[2]
_GONE_S = 30.0


class Company:
    """The processes of a run. `rank` 0 decides."""

    def __init__(self, others: Sequence[subprocess.Popen[bytes]] = ()) -> None:
        self.rank, self.size, self._others = dist.get_rank(), dist.get_world_size(), others
        self._wrapped: DistributedDataParallel | None = None
        self._passing = dist.new_group(timeout=_PASS)

    def join(self, model: SpeechModel, *, may_skip: bool = False) -> None:
        """Share the gradients of what `model` trains from now on; `may_skip`: a pass need not reach all of it."""
        self._wrapped = DistributedDataParallel(_Forward(model, may_skip), broadcast_buffers=False, init_sync=False,
                                                process_group=self._passing, find_unused_parameters=may_skip)

    def losses(self, *given: Any, **named: Any) -> Losses:
        """`SpeechModel.losses` of a part of this process's share; its gradients stay here until `share_gradients`."""
        assert self._wrapped is not None
        with self._wrapped.no_sync():
            found: Losses = self._wrapped(*given, **named)
            return found

    def share_gradients(self) -> None:
        """Let every process have the mean of all gradients.

        DistributedDataParallel shares within a backward pass, where a process that ran out of memory would leave the
        others waiting for ever. So it gets a pass of its own, over nothing, once all have said that theirs are done.
        """
        assert self._wrapped is not None
        with _told(self._others):
            self._wrapped().backward()

    def mesh(self, device: torch.device) -> DeviceMesh:
        """All processes, in a row, for what each has a part of."""
        return DeviceMesh.from_group(self._passing, device.type)

    def watched(self) -> AbstractContextManager[None]:
        """Context of passes that all processes take: that one of them died is said plainly."""
        return _told(self._others)

    def all_well(self, well: bool) -> bool:
        """Whether all processes are."""
        return bool(self.total(torch.tensor([0 if well else 1])).item() == 0)

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of `values` over the processes."""
        summed = values.detach().clone()
        with _told(self._others):
            dist.all_reduce(summed)
        return summed

    def tell(self, word: int, how: Setting | None = None) -> None:
        """As rank 0: say what all do next, and in which setting."""
        self.agree((word, how))

    def hear(self) -> tuple[int, Setting | None]:
        """As one of the others: wait for the next word."""
        word, how = self.agree(None)
        return word, how

    def agree(self, value: Any) -> Any:
        """What rank 0 says; a plain value."""
        held = [value]
        with _told(self._others):
            dist.broadcast_object_list(held, 0)
        return held[0]

    def gathered(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """As rank 0: the tensors of the others, under `rank-N/`; as one of these, nothing."""
        held: list[Any] | None = [None] * self.size if self.rank == 0 else None
        with _told(self._others):
            dist.gather_object({name: value.cpu() for name, value in tensors.items()}, held, 0)
        return {f"{RANK}{rank}/{name}": value for rank, own in enumerate(held or []) if rank
                for name, value in own.items()}

    def leave(self) -> None:
        """Part from the others, who may be gone; no step can be shared any more.

        What shares gradients goes first. If it went last, it would be the last to hold the connections, and it ends
        their threads while it keeps Python from running, for which one of these threads may be waiting: for ever.
        A traceback may hold its frames, so what it holds is taken from it.
        """
        if self._wrapped is not None:
            for held in ("reducer", "logger", "process_group"):
                setattr(self._wrapped, held, None)
            self._wrapped = None
        gc.collect()
        with suppress(RuntimeError):
            dist.destroy_process_group(self._passing)
        leave()

    def own(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Of what `gathered` gave, that of this process."""
        mark = f"{RANK}{self.rank}/"
        return {name.removeprefix(mark): value for name, value in tensors.items() if name.startswith(mark)}


class _Forward(nn.Module):
    """The losses as a module's forward pass, which is where DistributedDataParallel listens; of nothing, it is zero."""

    def __init__(self, model: SpeechModel, may_skip: bool) -> None:
        super().__init__()
        self.module, self._losses, self._may_skip = model.module, model.losses, may_skip

    def forward(self, *given: Any, **named: Any) -> Losses | torch.Tensor:
        if given:
            return self._losses(*given, **named)
        reached = [value for value in self.module.parameters() if value.requires_grad and
                   (value.grad is not None or not self._may_skip)]
        return torch.stack([value.flatten()[:1].sum() * 0.0 for value in reached]).sum()


@contextmanager
def gathering(processes: int, device: torch.device, workspace: Workspace) -> Iterator[Company | None]:
    """The company of this run's first process, with the others started where torchrun did not; None for one alone."""
    by_torchrun = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if number_of_processes(processes) == 1:
        yield None
        return
    others = [] if by_torchrun else _start_others(processes, device, workspace)
    address = "env://" if by_torchrun else f"tcp://127.0.0.1:{others[0][1]}"
    started = [process for process, _ in others]
    meet(address, 0 if not by_torchrun else int(os.environ["RANK"]),
         number_of_processes(processes), device)
    company = Company(started)
    try:
        with watch_processes(started):
            yield company
        company.tell(END)
    except StopRequested:
        company.tell(END)
        raise
    finally:
        company.leave()
        _wait(started)


def meet(address: str, rank: int, size: int, device: torch.device) -> None:
    """Join the others; on CUDA each process of a machine has a device of its own."""
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=address, rank=rank, world_size=size, timeout=_PATIENCE)


def leave() -> None:
    """Part from the others, who may be gone."""
    with suppress(RuntimeError):
        dist.destroy_process_group()


def check_devices(processes: int, device: torch.device) -> None:
    """Each process of this machine needs a device of its own."""
    if device.type == "cuda" and torch.cuda.device_count() < processes:
        there = torch.cuda.device_count()
        raise UserError(f"{processes} processes were asked for, and there are {there} CUDA devices.",
                        "Ask for one process a device, or for the CPU.")


def _start_others(processes: int, device: torch.device,
                  workspace: Workspace) -> list[tuple[subprocess.Popen[bytes], int]]:
    """Ranks 1 and up on this machine; each with the port at which they meet."""
    check_devices(processes, device)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    threads = str(max(1, torch.get_num_threads() // processes))
    torch.set_num_threads(int(threads))
    found = []
    for rank in range(1, processes):
        environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes),
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": threads,
                       "LISAN_DEVICE": device.type}
        command = [sys.executable, "-m", "core.training.follower", str(workspace.path)]
        found.append((subprocess.Popen(command, cwd=_ROOT, env=environment, stdin=subprocess.DEVNULL), port))
    return found


def _wait(others: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in others:
        try:
            process.wait(_GONE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _told(others: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Say plainly that another process died, which is heard as a broken connection."""
    try:
        yield
    except RuntimeError as error:
        dead = [process.poll() for process in others if process.poll() is not None]
        if not dead and "onnection" not in str(error):
            raise
        code = f" (exit code {dead[0]})" if dead else ""
        raise UserError(f"Another process of this training ended{code}: the steps cannot be shared any more.",
                        "The log's last lines may say why. The run can continue from its last checkpoint.") from error
