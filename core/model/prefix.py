"""Extended text tables: the old rows are buffers (the prefix), and only the new rows are parameters.

No optimizer, weight decay, momentum, clipping or averaging changes a buffer. The old part of every output is computed
by the same matrix product as in the base model, at the same shape, so it is bit-identical, whatever rows were added.
The old rows may be cast to half precision for a training; the new rows stay in float32.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from data.front_end import NewToken
from models.base import LanguageModel


class PrefixTable(nn.Module):
    """A text table in parts: the base's rows (N, width), the rows of each earlier training, and `new` rows.

    All but the new ones are frozen. The rows (M, width) of each training are a separate tensor, so their matrix product
    keeps its shape when further rows are added. A bias (N,) is divided in the same way. A model that is only to be
    extended has no `new` rows.
    """

    weight: torch.Tensor  # the rows of the base, under the base's name
    bias: torch.Tensor | None  # the bias of the base

    def __init__(self, prefix: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("weight", prefix.detach())
        self.register_buffer("bias", None if bias is None else bias.detach())
        self.new: nn.Parameter | None = None
        self.new_bias: nn.Parameter | None = None
        self.earlier_count = 0  # number of earlier trainings

    def append(self, rows: torch.Tensor, bias: torch.Tensor | None, *, frozen: bool) -> None:
        """Append the `rows` of a training: as parameters, or `frozen`."""
        assert self.new is None, "the new rows come last"
        if frozen:
            self.register_buffer(f"earlier_{self.earlier_count}", rows.detach().clone())
            self.register_buffer(f"earlier_{self.earlier_count}_bias", None if bias is None else bias.detach().clone())
            self.earlier_count += 1
        else:
            self.new = nn.Parameter(rows.clone())
            self.new_bias = None if bias is None else nn.Parameter(bias.clone())

    def parts(self) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        """Rows and bias of the base, of each earlier training, and the new ones."""
        blocks = [(self.weight, self.bias)]
        blocks += [(self.get_buffer(f"earlier_{index}"), getattr(self, f"earlier_{index}_bias"))
                  for index in range(self.earlier_count)]
        return blocks if self.new is None else [*blocks, (self.new, self.new_bias)]


class PrefixEmbedding(PrefixTable):
    """An embedding whose rows are the parts of a `PrefixTable`."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids (...,) below the number of rows to (..., width)."""
        (prefix, _), *later = self.parts()
        later = [part for part in later if len(part[0])]  # an imported finetune may have no new row
        embedded, start = F.embedding(ids.clamp(max=len(prefix) - 1), prefix), len(prefix)
        for number, (rows, _) in enumerate(later, 1):
            # Each later part has the ids from `start` on; the last one reports ids beyond its rows.
            row_ids = (ids - start).clamp(min=0)
            if number < len(later):
                row_ids = row_ids.clamp(max=len(rows) - 1)
            embedded = torch.where((ids >= start)[..., None], F.embedding(row_ids, rows), embedded)
            start += len(rows)
        return embedded


class PrefixLinear(PrefixTable):
    """A linear head whose output rows are the parts of a `PrefixTable`."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden (..., width) to logits (..., number of rows)."""
        (prefix, bias), *later = self.parts()
        return torch.cat([F.linear(hidden, prefix, bias), *(
            F.linear(hidden, rows.to(hidden.dtype), None if its_bias is None else its_bias.to(hidden.dtype))
            for rows, its_bias in later)], -1)


def tokens_of_table(lm: LanguageModel, table: str, tokens: Sequence[NewToken]) -> tuple[NewToken, ...]:
    """The `tokens` that have a row in a text table: all of them; in the table of languages only language tags."""
    return tuple(token for token in tokens if table != lm.language_table or token.kind == "tag")


def rows_name(table: str) -> str:
    """The name under which the new rows of a text table are saved: that of its tensor, without `.weight`."""
    return table.removesuffix(".weight")


def parameter_name(table: str) -> str:
    """The name of the parameter that holds the new rows of a text table."""
    module, _, leaf = table.rpartition(".")
    return f"{module}.new" if leaf == "weight" else f"{module}.new_{leaf}"


def extend_tables(module: nn.Module, tables: tuple[str, ...], rows: Mapping[str, torch.Tensor], *,
                  frozen: bool = False) -> None:
    """Append the `rows` of a training to each of the text `tables`; their modules become `PrefixTable`s, in place.

    `rows` are (M, width), or (M,) of a bias, and named as by `rows_name`; `frozen` ones cannot be trained.
    """
    for table in tables:
        name, _, leaf = table.rpartition(".")
        if leaf == "bias":
            continue  # it is extended together with its weight
        owner, (parent, _, own_name) = module.get_submodule(name), name.rpartition(".")
        bias, new_bias = getattr(owner, "bias", None), rows.get(f"{name}.bias")
        assert (bias is None) == (new_bias is None), f"{name} has a bias, and new rows without one, or the reverse"
        # The first extension of a table replaces its module.
        if not isinstance(owner, PrefixTable):
            weight = module.get_parameter(table).data
            owner = PrefixEmbedding(weight) if isinstance(owner, nn.Embedding) else PrefixLinear(weight, bias)
            setattr(module.get_submodule(parent), own_name, owner)
        owner.append(rows[name], new_bias, frozen=frozen)


def whole_table(module: nn.Module, table: str) -> torch.Tensor:
    """All rows of a text table, extended or not: (N, width), or (N,) of a bias."""
    name, _, leaf = table.rpartition(".")
    owner = module.get_submodule(name)
    if not isinstance(owner, PrefixTable):
        return module.get_parameter(table).detach()
    parts = [bias if leaf == "bias" else rows for rows, bias in owner.parts()]
    return torch.cat([part.detach() for part in parts if part is not None])


def new_rows(module: nn.Module, tables: tuple[str, ...]) -> dict[str, nn.Parameter]:
    """The trained rows of each extended table, named as by `rows_name`."""
    return {rows_name(table): module.get_parameter(parameter_name(table)) for table in tables}


def base_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Every tensor of an extended or adapted module that came from the base, by its name in the base.

    Rows and adapters of earlier trainings belong to the base; their names contain `EARLIER_PREFIX`.
    """
    return {_BASE_LAYERS.sub(".", name): value for name, value in module.state_dict().items() if is_of_base(name)}


def is_of_base(name: str) -> bool:
    """Whether a tensor of an extended or adapted module belongs to the base, so not to new rows or adapters."""
    is_new = name.endswith((".new", ".new_bias")) or (".lora_" in name and not is_of_earlier_training(name))
    return not is_new and not is_count(name)


def is_of_earlier_training(name: str) -> bool:
    """Whether a tensor of an extended or adapted module belongs to an earlier training."""
    return EARLIER_PREFIX in name


_BASE_LAYERS = re.compile(r"(\.base_layer)+\.")  # repeated if the adapters of two trainings wrap a layer
EARLIER_PREFIX = ".earlier_"  # prefix of the rows and adapters of earlier trainings


def is_count(name: str) -> bool:
    """Whether a tensor is AdaLoRA's count of an adapter's ranks."""
    return ".ranknum." in name


def hash_tensors(tensors: dict[str, torch.Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
