"""Old rows that cannot move: buffers beside the only parameters, the new rows.

No optimizer, weight decay, momentum, clipping or averaging can touch what is not a
parameter. The old part of every output comes from the very matrix product the base model
makes, at its old shape, so that it stays bit-identical whatever stands beside it. The old
rows may be cast to half precision for a training; the new rows stay in float32.
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
    """A text table: `prefix` (N, width) frozen rows, those of `taught` languages, frozen too, and the `new` ones.

    Each language's rows (M, width) are a tensor of their own, so that its products keep their shape whatever comes
    behind them. A bias (N,) is divided likewise. A model that is only a base has no `new` rows.
    """

    weight: torch.Tensor  # the prefix, under the name it has in the base
    bias: torch.Tensor | None  # the same

    def __init__(self, prefix: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("weight", prefix.detach())
        self.register_buffer("bias", None if bias is None else bias.detach())
        self.new: nn.Parameter | None = None
        self.new_bias: nn.Parameter | None = None
        self.languages = 0  # that were taught

    def append(self, rows: torch.Tensor, bias: torch.Tensor | None, *, frozen: bool) -> None:
        """Append the `rows` of a language: to train, or `frozen`."""
        assert self.new is None, "the new rows come last"
        if frozen:
            self.register_buffer(f"taught_{self.languages}", rows.detach().clone())
            self.register_buffer(f"taught_{self.languages}_bias", None if bias is None else bias.detach().clone())
            self.languages += 1
        else:
            self.new = nn.Parameter(rows.clone())
            self.new_bias = None if bias is None else nn.Parameter(bias.clone())

    def parts(self) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        """Rows and bias of the prefix, of each taught language, and the new ones."""
        found = [(self.weight, self.bias)]
        found += [(self.get_buffer(f"taught_{index}"), getattr(self, f"taught_{index}_bias"))
                  for index in range(self.languages)]
        return found if self.new is None else [*found, (self.new, self.new_bias)]


class PrefixEmbedding(PrefixTable):
    """An embedding of these rows."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids (...,) below the number of rows to (..., width)."""
        (prefix, _), *behind = self.parts()
        embedded, start = F.embedding(ids.clamp(max=len(prefix) - 1), prefix), len(prefix)
        for number, (rows, _) in enumerate(behind, 1):
            own = (ids - start).clamp(min=0)
            if number < len(behind):
                own = own.clamp(max=len(rows) - 1)
            embedded = torch.where((ids >= start)[..., None], F.embedding(own, rows), embedded)
            start += len(rows)
        return embedded


class PrefixLinear(PrefixTable):
    """A linear head of these rows."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden (..., width) to logits (..., number of rows)."""
        (prefix, bias), *behind = self.parts()
        return torch.cat([F.linear(hidden, prefix, bias), *(
            F.linear(hidden, rows.to(hidden.dtype), None if own is None else own.to(hidden.dtype))
            for rows, own in behind)], -1)


def tokens_of_table(lm: LanguageModel, table: str, tokens: Sequence[NewToken]) -> tuple[NewToken, ...]:
    """Those of the `tokens` that have a row in a text table: all, or the tags alone in the table of languages."""
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
    """Append the `rows` of a language to each of the text `tables`, whose modules get their prefix form.

    `rows` are (M, width), or (M,) of a bias, and named as by `rows_name`; `frozen` ones cannot be trained.
    """
    for table in tables:
        name, _, leaf = table.rpartition(".")
        if leaf == "bias":
            continue  # with its weight
        owner, (parent, _, own_name) = module.get_submodule(name), name.rpartition(".")
        bias, new_bias = getattr(owner, "bias", None), rows.get(f"{name}.bias")
        assert (bias is None) == (new_bias is None), f"{name} has a bias, and new rows without one, or the reverse"
        if not isinstance(owner, PrefixTable):
            weight = module.get_parameter(table).data
            owner = PrefixEmbedding(weight) if isinstance(owner, nn.Embedding) else PrefixLinear(weight, bias)
            setattr(module.get_submodule(parent), own_name, owner)
        owner.append(rows[name], new_bias, frozen=frozen)


def whole_table(module: nn.Module, table: str) -> torch.Tensor:
    """All rows of a text table, (N, width) or (N,) of a bias, whether it was extended or not."""
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
    """Every tensor of an extended or adapted module that came from the base, by the base's own names.

    Rows and adapters of languages that the base was taught are among them, under names of their own.
    """
    return {_BASE_LAYERS.sub(".", name): value for name, value in module.state_dict().items() if is_of_base(name)}


def is_of_base(name: str) -> bool:
    """Whether a tensor of an extended or adapted module is the base's: neither a new row nor a new adapter's."""
    is_new = name.endswith((".new", ".new_bias")) or (".lora_" in name and not is_taught(name))
    return not is_new and not is_count(name)


def is_taught(name: str) -> bool:
    """Whether a tensor of an extended or adapted module is of a language that the base was taught."""
    return TAUGHT in name


_BASE_LAYERS = re.compile(r"(\.base_layer)+\.")  # adapters of two kinds wrap a layer twice
TAUGHT = ".taught_"  # in the names of rows and adapters of taught languages


def is_count(name: str) -> bool:
    """Whether a tensor only says how many directions an adapter has, as AdaLoRA's do."""
    return ".ranknum." in name


def hash_tensors(tensors: dict[str, torch.Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
