"""The process group of a run: how its ranks are started, and their collectives.

Every rank runs the same loop (`core.train`) on its share of each batch: P ranks with batches of B clips take the steps
of one process with batches of P x B. On one machine rank 0 starts the others (option `processes`); over several
machines torchrun starts all of them. Objects and flags use gloo, gradients on CUDA use NCCL.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.rendezvous import rendezvous

from config.errors import ErrorKind, UserError
from config.schema import get_world_size
from core.jobs.process_watchdog import watch_processes
from core.jobs.reporter import StopRequested
from core.training import nodes

_WAIT_TIMEOUT = timedelta(days=1)  # the other ranks wait while rank 0 evaluates a checkpoint
_STEP_TIMEOUT = timedelta(minutes=10)  # within a step no rank waits long for another one
_EXIT_TIMEOUT_S = 30.0
_BUCKET_ELEMENTS = 2**23  # gradients are summed in buckets of 32 MiB, so that their copy stays small
_DEVICE_KEY = "lisan/device"  # key in the store of the rendezvous
_RANK = "rank-"  # before the number of a rank, in the names of its tensors
_ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")


class AbortedByRank0(Exception):
    """Raised on the other ranks if rank 0 failed or was stopped; rank 0 reports the reason."""


class ProcessGroup:
    """The ranks of a run. With one process every method returns at once, without a collective.

    All ranks call each method (except `for_rank`), in the same order. It raises `UserError` if another rank died.
    """

    def __init__(self, rank: int = 0, world_size: int = 1, started: Sequence[subprocess.Popen[bytes]] = (),
                 node_names: Mapping[str, str] | None = None) -> None:
        """`started`: the processes of the other ranks, in rank 0; empty under torchrun.

        `node_names`: the nodes by their addresses, if there are several.
        """
        self.rank, self.world_size, self._started = rank, world_size, started
        self._node_names = dict(node_names or {})
        # Two groups, because ranks wait for a step for minutes, and for an evaluation by rank 0 for hours.
        self._step_group = dist.new_group(timeout=_STEP_TIMEOUT) if dist.is_initialized() else None
        self._wait_group = dist.new_group(timeout=_WAIT_TIMEOUT) if dist.is_initialized() else None
        if self._node_names:
            nodes.close_lost_connections()

    def broadcast(self, value: Any) -> Any:
        """The value of rank 0 on every rank; it must be picklable."""
        if self.world_size == 1:
            return value
        holder = [value]
        with self.reporting_dead_ranks():
            dist.broadcast_object_list(holder, 0, group=self._wait_group)
        return holder[0]

    def run_on_rank0(self, work: Callable[[], T]) -> T:
        """Call `work` on rank 0 while the others wait. Returns its result on every rank.

        A stop or a `UserError` is raised on rank 0, which reports it, and as `AbortedByRank0` on the others.
        """
        result = error = None
        if self.rank == 0:
            try:
                result = work()
            except (UserError, StopRequested) as caught:
                error = caught
        result, message = self.broadcast((result, None if error is None else str(error)))
        if error is not None:
            raise error
        if message is not None:
            raise AbortedByRank0(message)
        return result

    @contextmanager
    def rank0_first(self) -> Iterator[None]:
        """Context whose body rank 0 runs before the others, because it writes files that they read."""
        if self.rank:
            message = self.broadcast(None)
            if message is not None:
                raise AbortedByRank0(message)
            yield
            return
        try:
            yield
        except (UserError, StopRequested) as error:
            self.broadcast(str(error))
            raise
        self.broadcast(None)

    def any_rank(self, flag: bool) -> bool:
        """Whether `flag` is set on some rank."""
        return flag if self.world_size == 1 else bool(self._all_reduce_max([flag])[0])

    def all_reduce_sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of `values` over the ranks."""
        if self.world_size == 1:
            return values
        summed = values.detach().clone()
        with self.reporting_dead_ranks():
            dist.all_reduce(summed, group=self._step_group)
        return summed

    def all_reduce_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Sum the gradients over the ranks, in place. A parameter without a gradient on any rank keeps none.

        Call it after the backward passes, when no rank ran out of memory. An all-reduce inside the backward pass, as in
        DistributedDataParallel, would wait forever for a rank that gave up its pass.
        """
        if self.world_size == 1:
            return
        reached = self._all_reduce_max([value.grad is not None for value in parameters])
        gradients: list[torch.Tensor] = []
        for parameter, has_gradient in zip(parameters, reached, strict=True):
            if has_gradient and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter.data)
            if parameter.grad is not None:
                gradients.append(parameter.grad)
        while gradients:
            bucket = [gradients.pop()]
            while gradients and sum(value.numel() for value in bucket) + gradients[-1].numel() <= _BUCKET_ELEMENTS:
                bucket.append(gradients.pop())
            flat = torch.cat([value.flatten() for value in bucket])
            with self.reporting_dead_ranks():
                dist.all_reduce(flat, group=self._step_group)
            for value, summed in zip(bucket, flat.split([value.numel() for value in bucket]), strict=True):
                value.copy_(summed.view_as(value))

    def gather(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """On rank 0 the tensors of the other ranks, under `rank-N/`; on the others an empty dictionary."""
        if self.world_size == 1:
            return {}
        gathered: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
        with self.reporting_dead_ranks():
            dist.gather_object({name: value.cpu() for name, value in tensors.items()}, gathered, 0,
                               group=self._wait_group)

        # Rank 0 has its own tensors already.
        tensors_by_name: dict[str, torch.Tensor] = {}
        for rank, tensors_of_rank in enumerate(gathered or []):
            if rank:
                tensors_by_name.update({f"{_RANK}{rank}/{name}": value for name, value in tensors_of_rank.items()})
        return tensors_by_name

    def for_rank(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors of this rank among those that `gather` returned."""
        prefix = f"{_RANK}{self.rank}/"
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    def mesh(self, device: torch.device) -> DeviceMesh:
        """A one-dimensional mesh of all ranks, for FSDP."""
        assert self._step_group is not None
        return DeviceMesh.from_group(self._step_group, device.type)

    def close(self) -> None:
        """Leave the group; the other ranks may have ended.

        The groups are released here, which joins their threads. If the interpreter did it at its exit, a thread that
        waits for the GIL would be killed there, and abort the process ("terminate called without an active exception").
        """
        self._step_group = self._wait_group = None
        with suppress(RuntimeError):
            dist.destroy_process_group()

    @contextmanager
    def reporting_dead_ranks(self) -> Iterator[None]:
        """Context that turns an error of a collective into a `UserError` if another rank died."""
        try:
            yield
        except RuntimeError as error:
            # Gloo names the other end of a broken connection, in several wordings ("No route to host").
            lost = nodes.lost_node(str(error), self._node_names)
            if lost:
                raise UserError(f"The connection to {lost} was lost; training cannot continue.",
                                "See the last lines that it printed, and check its power and network. The run can "
                                "resume from its last checkpoint.", ErrorKind.ENVIRONMENT) from error
            dead = [process.poll() for process in self._started if process.poll() is not None]
            # gloo and NCCL word a closed connection differently ("Connection closed by peer").
            if not dead and "connection" not in str(error).lower():
                raise
            code = f" (exit code {dead[0]})" if dead else ""
            raise UserError(f"Another rank exited{code}; training cannot continue.",
                            "See the last lines of the log for the reason. The run can resume from its last "
                            "checkpoint.") from error

    def _all_reduce_max(self, flags: Sequence[bool]) -> list[int]:
        values = torch.tensor(flags, dtype=torch.int32)
        with self.reporting_dead_ranks():
            dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self._step_group)
        highest: list[int] = values.tolist()
        return highest


ONE_PROCESS = ProcessGroup()


@contextmanager
def launch(processes: int, device: torch.device, command: Sequence[str], workspace: Path) -> Iterator[ProcessGroup]:
    """The process group, in rank 0. Starts the other ranks with `command`, unless torchrun started all of them."""
    world_size = get_world_size(processes)
    if world_size == 1:
        yield ONE_PROCESS
        return
    started, address = list[subprocess.Popen[bytes]](), "env://"
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        started, address = _start_ranks(processes, device, command)
    group = None
    try:
        with watch_processes(started):  # also while this rank waits for the others to join
            node_names = init_process_group(address, 0, world_size, device, workspace)
            group = ProcessGroup(0, world_size, started, node_names)
            yield group
    finally:
        if group is not None:
            group.close()
        for process in started:
            try:
                process.wait(_EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def init_process_group(address: str, rank: int, world_size: int, device: torch.device | None = None,
                       workspace: Path | None = None) -> dict[str, str]:
    """Join the other ranks; on CUDA each rank of a machine gets a separate device.

    `device` is that of rank 0, None in the other ranks. They get its type through the store of the rendezvous, because
    all ranks need the same backend, and those that torchrun started do not know the options yet. If there are several
    nodes, they are checked (`workspace` must be shared), and their names are returned by address.
    """
    try:
        store, _, _ = next(rendezvous(address, rank, world_size, timeout=nodes.CONTACT_TIMEOUT))
        # After a restart torchrun's static rendezvous keeps its store, with the keys of the attempt before.
        store = PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        store.set_timeout(nodes.CONTACT_TIMEOUT)
        if device is not None:
            store.set(_DEVICE_KEY, device.type)
        on_cuda = store.get(_DEVICE_KEY) == b"cuda"
    except dist.DistError as error:
        raise nodes.no_contact("rank 0 did not begin; its job may wait in the queue" if rank
                               else str(error).partition("\n")[0]) from error
    node_names = (nodes.check_nodes(store, rank, world_size, workspace) if workspace and nodes.several_nodes() else {})
    if on_cuda:
        local_rank = int(os.environ.get("LOCAL_RANK", rank))
        if local_rank >= torch.cuda.device_count():
            raise UserError(f"Each rank needs another CUDA device, and {socket.gethostname()} has "
                            f"{torch.cuda.device_count()} for local rank {local_rank}.",
                            "Start fewer processes there, or train on the CPU.")
        torch.cuda.set_device(local_rank)
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_cuda else "gloo", store=store, rank=rank,
                            world_size=world_size, timeout=nodes.CONTACT_TIMEOUT)
    return node_names


def check_devices(processes: int, device: torch.device) -> None:
    """Raise `UserError` if this machine has fewer CUDA devices than processes."""
    if device.type == "cuda" and torch.cuda.device_count() < processes:
        raise UserError(f"{processes} processes need {processes} CUDA devices, and this machine has "
                        f"{torch.cuda.device_count()}.", "Set `processes` to the number of devices, or use the CPU.")


def _start_ranks(processes: int, device: torch.device,
                 command: Sequence[str]) -> tuple[list[subprocess.Popen[bytes]], str]:
    """Start ranks 1 and up on this machine. Returns their processes, and the address of the rendezvous."""
    check_devices(processes, device)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    threads = max(1, torch.get_num_threads() // processes)
    torch.set_num_threads(threads)
    started = []
    for rank in range(1, processes):
        environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes),
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": str(threads),
                       "LISAN_RANK0_PID": str(os.getpid())}
        started.append(subprocess.Popen([sys.executable, *command], cwd=_ROOT, env=environment,
                                        stdin=subprocess.DEVNULL))
    return started, f"tcp://127.0.0.1:{port}"
