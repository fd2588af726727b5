"""Compare the weights of a checkpoint from elsewhere with the base's: which tensor is which, and how each differs.

A tensor is equal, rounded, shrunk, of low rank, trained, permuted, replaced, noise or broken. Values are compared in
float32 after both were read, so a file saved in another type is not taken for a trained one. A difference of low rank
is what a merged LoRA leaves (Hu et al. 2021); a uniform shrinking is what decoupled weight decay leaves where no
gradient came (Loshchilov and Hutter 2019). New rows that began as zeros, as the mean row, or as the mean row and almost
nothing (the mean resizing of transformers adds a normal of 1e-9 of the old rows' covariance) and were never trained are
alike: a model cannot tell the new letters from each other.

Tensors are matched by name, else by value. Trainers put prefixes before names (`t3.`, `model.`, `module.`,
`_orig_mod.`), and adapters put `.base_layer` into them. A tensor that was trained a little still has its direction.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from config.schema import WeightSet
from core.library.diagnosis import NEW_ROWS, State, TensorFinding
from models.base import WeightsFile

_ROUNDINGS = (torch.bfloat16, torch.float16)
_OWN_AT_LEAST = 0.5  # cosine below which a row has nothing to do with the one that was there
_TWIN_AT_LEAST = 0.9  # cosine from which a row is another's
_NOISE_AT_MOST = 1.15  # largest singular value over that of white noise; tables of trained models have 1.4 and more
_ALL = 0.9  # share of the rows; in few dimensions some resemble the base's by accident
_SHAKEN_AT_MOST = 0.95  # median cosine of the other rows below which all rows moved, and the strangers moved farthest
_SHRUNK_BY_REST = 0.1  # share of the difference that a common factor may leave unexplained
_MOST_RANK = 136  # columns of the sketch; a LoRA of rank 128 and some to see that it ends there
_WHOLE = 256  # sides up to which all singular values are computed
# The share of the shorter side above which a rank is not called low.
_LOW = 0.25
# The share of the old rows' length within which rows are alike. The mean resizing leaves 5e-5.
_NEAR = 1e-3
_CHUNK = 1024  # rows compared with all others at once
_WITHIN = (("_orig_mod.", ""), (".base_layer.", "."), (".parametrizations.weight.original", ".weight"))
_SAMPLES = 256  # values of a tensor that are compared
_ALIKE = 0.9  # cosine of the samples of two tensors that match
_AS_MANY = 0.9  # share of the best prefix's names from which another one holds the model too
_AVERAGED = re.compile(r"(?:^|[._])(?:ema|averaged?|shadow)(?:[._]|$)")
"""Of a prefix before averaged weights: `ema.`, `model_ema.`, `ema_model_state_dict.`."""
_STATE = re.compile(r"(?:optim|sched|lr_sched|scaler|grad_scaler|rng|random|cuda_rng)\w*\.")
"""Before what training programs save beside the weights."""


@dataclass(frozen=True)
class TensorChange:
    """How one tensor differs. Moves are lengths of differences over lengths of base rows."""

    state: State
    words: str
    change: float = 0.0
    rows_moved: int = 0
    largest: float = 0.0
    median: float = 0.0
    rank: int | None = None
    rows_behind: int = 0  # base rows that stand behind all of them, where `among` has more


def compare_tensors(base: torch.Tensor, tensor: torch.Tensor, among: torch.Tensor | None = None) -> TensorChange:
    """How `tensor` differs from `base`, of the same shape.

    For a table with one row an id, `among` is the whole table of which `tensor` is the beginning: its rows are
    looked for at other places, and counted where they hold something else.
    """
    kind = tensor.dtype
    old, new = base.float(), tensor.float()

    broken = int((~torch.isfinite(new)).sum())
    if broken:
        location = "" if among is None else f" (rows {format_spans(~torch.isfinite(new).all(1))})"
        words = f"{broken} of {new.numel()} values are no numbers{location}{_beside(base, tensor, among)}"
        return TensorChange("broken", words)

    if torch.equal(old, new):
        stored = "" if base.dtype == kind else f", stored as {dtype_name(kind)}"
        return TensorChange("equal", f"bit-identical{stored}")

    moved, rounded = _moved_rows(base, new)
    if not moved.any():
        return TensorChange("rounded", f"equal but for rounding to {rounded}", _relative(old, new))
    if old.ndim < 2:
        old, new, moved = old.reshape(1, -1), new.reshape(1, -1), moved.any().reshape(1)
    return _moved(old.flatten(1), new.flatten(1), moved, among, kind)


def _beside(base: torch.Tensor, tensor: torch.Tensor, among: torch.Tensor | None) -> str:
    """The change of the values that are numbers, in words; the others are replaced by those of the base.

    Of a matrix whose whole rows changed these are compared: a replaced value would add to the rank of a difference.
    """

    numbers = torch.isfinite(tensor)
    filled = torch.where(numbers, tensor, base.to(tensor.dtype))
    # Those of the base may be no numbers either, once they are stored in this type.
    if not numbers.any() or not torch.isfinite(filled).all():
        return ""
    change = compare_tensors(base, filled,
                   None if among is None else among.nan_to_num(0.0, 0.0, 0.0))
    whole_rows = numbers.flatten(1).all(1) if tensor.ndim > 1 else numbers.new_zeros(0)
    if among is None and whole_rows.any():
        rows = compare_tensors(base[whole_rows], tensor[whole_rows])
        change = change if rows.state in ("equal", "rounded") else rows
    return (f"; all others are {change.words}" if change.state in ("equal", "rounded")
            else f"; beside these: {change.words}")


def dtype_name(kind: torch.dtype) -> str:
    """Such as `bfloat16`."""
    return str(kind).removeprefix("torch.")


def is_transposed(base: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether `tensor` is `base` with rows for columns; a square matrix that is nearer to itself is not."""
    if base.ndim != 2 or tensor.shape != base.shape[::-1]:
        return False
    old, new = base.float(), tensor.float()
    if float(_cosine(old.reshape(1, -1), new.T.reshape(1, -1))[0]) <= _TWIN_AT_LEAST:
        return False
    return old.shape != new.shape or bool((new - old).norm() > (new.T - old).norm())


def is_turned(stored: torch.Tensor, loaded: torch.Tensor) -> bool:
    """Whether a model holds a matrix of its file with rows for columns, as those of GPT-2 are held here."""
    return stored.ndim == 2 and not (stored.shape == loaded.shape and torch.equal(stored.to(loaded.dtype), loaded)) \
        and stored.T.shape == loaded.shape and torch.equal(stored.T.to(loaded.dtype), loaded)


def format_spans(rows: torch.Tensor, limit: int = 4) -> str:
    """Indices of the rows that are True, such as `12-40, 99`."""
    spans: list[list[int]] = []
    for index in rows.nonzero().reshape(-1).tolist():
        if spans and spans[-1][1] == index - 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    span_text = ", ".join(str(begin) if begin == end else f"{begin}-{end}" for begin, end in spans[:limit])
    return span_text + (" and more" if len(spans) > limit else "")


def find_rows(base_rows: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """(N,) for each row of `base_rows` (N, D) the row of `rows` (M, D) that is nearest to it; -1 where none is near."""
    similar = _unit(base_rows.float()) @ _unit(rows.float()).T
    best, place = similar.max(1)
    nearness = similar.diagonal()[:len(place)]

    # A row that is as near to its own place as to any other has not moved.
    stays = torch.arange(len(place))
    place[:len(nearness)] = torch.where(nearness >= best[:len(nearness)] - 1e-6, stays[:len(nearness)],
                                        place[:len(nearness)])
    return torch.where(best > _TWIN_AT_LEAST, place, -1)


def _moved(old: torch.Tensor, new: torch.Tensor, moved: torch.Tensor, among: torch.Tensor | None,
           kind: torch.dtype) -> TensorChange:
    """The change of (N, D) rows of which some moved by more than rounding."""
    lengths = old.norm(dim=1)
    moves = (new - old).norm(dim=1) / torch.where(lengths > 0, lengths, lengths.mean().clamp(min=1e-12))
    cosines = _cosine(old, new)
    count = int(moved.sum())

    def change(state: State, words: str, rank: int | None = None, rows_behind: int = 0) -> TensorChange:
        return TensorChange(state, words, _relative(old, new), count, float(moves.max()), float(moves[moved].median()),
                            rank, rows_behind)

    permuted = _permuted(old, among.float(), moved, cosines) if among is not None else None
    if permuted:
        return change("permuted", permuted[0], rows_behind=permuted[1])

    # Rows that do not resemble their own row of the base were replaced.
    strangers = moved & (cosines < _OWN_AT_LEAST)
    if among is not None and strangers.any():
        if int(strangers.sum()) >= _ALL * len(old) and _is_noise(old, new):
            return change("noise", f"noise: none of its {len(old)} rows resembles a row of the base")
        if _is_shaken(moved, strangers, cosines):
            return change("replaced", f"{count} of {len(old)} rows moved, by {float(moves[moved].median()):.0%} of "
                                      f"their length at the median; {int(strangers.sum())} of them no longer resemble "
                                      "the base's")
        return change("replaced", f"{int(strangers.sum())} of {len(old)} rows hold something else altogether "
                                  f"(rows {format_spans(strangers)})")

    # A common factor is the trace of weight decay.
    factor = _factor(old[moved], new[moved], kind)
    if factor is not None:
        which = "" if moved.all() else f"{count} of {len(old)} rows "
        return change("shrunk", f"{which}shrunk to {factor:.4g} of what it was: weight decay")
    if len(old) > 1 and float(_cosine(old.reshape(1, -1), new.reshape(1, -1))[0]) < _OWN_AT_LEAST:
        return change("replaced", "it has nothing to do with the base tensor")
    # A low rank is the trace of a merged LoRA.
    rank = low_rank(new - old, new, kind)
    if rank is not None:
        return change("low rank", f"the difference has rank {rank}, as a merged LoRA leaves it", rank=rank)
    words = f"trained: moved by {_relative(old, new):.2%} of its length" if old.any() else "trained: it was zero before"
    return change("trained", words)


def _moved_rows(base: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, str]:
    """Which rows (N,) moved by more than a rounding, taking the rounding that explains most; and its name."""
    old = base.float()
    fewest, name = _rows_differ(old, new), "nothing"
    for kind in _ROUNDINGS:
        differing = _rows_differ(old.to(kind).float(), new)
        if int(differing.sum()) < int(fewest.sum()):
            fewest, name = differing, dtype_name(kind)
    return fewest, name


def _rows_differ(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    differ = old != new
    return differ.reshape(len(old), -1).any(1) if old.ndim > 1 else differ.any().reshape(1) if old.ndim == 0 else differ


def _permuted(old: torch.Tensor, among: torch.Tensor, moved: torch.Tensor,
              cosines: torch.Tensor) -> tuple[str, int] | None:
    """How many base rows stand at another place, in words, and how many of them behind the last of `old`.

    None when they are less than half of those that moved: a row of noise may lie near one of the base by accident.
    """
    places = find_rows(old, among)
    away = moved & (places >= 0) & (places != torch.arange(len(old))) & (cosines < _TWIN_AT_LEAST)
    count, distinct = int(away.sum()), len(set(places[away].tolist()))
    # Rows that are alike match by accident.
    if count < 2 or count * 2 < int(moved.sum()) or distinct * 2 < count:
        return None
    first_away = int(away.nonzero()[0])
    words = f"{count} of {len(old)} rows stand at another place (row {first_away} is now row {int(places[first_away])})"
    return words, int((away & (places >= len(old))).sum())


def _is_noise(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Whether no row of `new` (N, D) resembles one of `old`, and all have the singular values of white noise.

    Rows of another trained model resemble the base's no more than noise does, but a few directions carry most of them.
    """
    if len(new) < 2 or int((find_rows(old, new) >= 0).sum()) > (1 - _ALL) * len(old):
        return False
    centred = new - new.mean(0)
    rows, columns = centred.shape
    white = float(centred.std()) * (rows**0.5 + columns**0.5)  # Marchenko and Pastur 1967
    return float(_singular_values(centred)[0]) < _NOISE_AT_MOST * white


def _is_shaken(moved: torch.Tensor, strangers: torch.Tensor, cosines: torch.Tensor) -> bool:
    """Whether `strangers` are only those rows of a table that moved farthest, because all of it moved far."""
    others_moved = moved & ~strangers
    return int(others_moved.sum()) > int(strangers.sum()) and float(cosines[others_moved].median()) < _SHAKEN_AT_MOST


def _factor(old: torch.Tensor, new: torch.Tensor, kind: torch.dtype) -> float | None:
    """The common factor of all rows, where it and the rounding to `kind` explain the difference; else None."""
    factor = float((old * new).sum() / old.square().sum().clamp(min=1e-30))
    remainder, gone = float((new - factor * old).norm()), float((new - old).norm())
    rounding = _noise(new, kind)
    explained = remainder < _SHRUNK_BY_REST * gone + 2 * rounding * old.numel() ** 0.5
    return factor if explained and (1 - factor) * float(old.norm()) > 10 * rounding else None


def _noise(values: torch.Tensor, kind: torch.dtype) -> float:
    """The standard deviation that rounding to `kind` leaves, or to float32 where that is coarser."""
    step = max(torch.finfo(kind).eps if kind.is_floating_point else 0.0, torch.finfo(torch.float32).eps)
    return 0.3 * step * float(values.square().mean().sqrt())


def low_rank(difference: torch.Tensor, weight: torch.Tensor, kind: torch.dtype) -> int | None:
    """The rank of a matrix (N, D) above the rounding noise of `weight` as `kind`; None when it is not low.

    Large matrices are sketched (Halko, Martinsson and Tropp 2011): a low rank shows in few random columns.
    """
    rows, columns = difference.shape
    if min(rows, columns) < 4:
        return None

    noise = _noise(weight, kind)
    values = _singular_values(difference)
    floor = max(2 * noise * (rows**0.5 + columns**0.5), 1e-6 * float(values[0]))
    rank = int((values > floor).sum())

    remainder = max(0.0, float(difference.square().sum()) - float(values[:rank].square().sum()))
    allowed = (2 * noise * (rows * columns) ** 0.5) ** 2 + 1e-6 * float(difference.square().sum())
    lowest = min(_MOST_RANK - 8, int(_LOW * min(rows, columns)))
    return rank if 0 < rank <= max(1, lowest) and remainder <= allowed else None


def _singular_values(matrix: torch.Tensor) -> torch.Tensor:
    """The largest singular values, all of them for a small matrix."""
    if min(matrix.shape) <= _WHOLE:
        return torch.linalg.svdvals(matrix)
    noise = torch.randn(matrix.shape[1], _MOST_RANK, generator=torch.Generator().manual_seed(0))
    basis, _ = torch.linalg.qr(matrix @ noise)
    return torch.linalg.svdvals(basis.T @ matrix)


def _relative(old: torch.Tensor, new: torch.Tensor) -> float:
    """The length of the difference over that of the old values; 1 where these were zero."""
    gone, length = float((new - old).norm()), float(old.norm())
    return gone / (length or gone or 1.0)


def _unit(rows: torch.Tensor) -> torch.Tensor:
    return rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-30)


def _cosine(rows: torch.Tensor, other_rows: torch.Tensor) -> torch.Tensor:
    return (_unit(rows) * _unit(other_rows)).sum(1)


def compare_new_rows(name: str, base_rows: torch.Tensor, table: torch.Tensor,
                     used: Collection[int] | None = None) -> list[TensorFinding]:
    """A finding for the rows of `table` (M, D) behind those of `base_rows` (N, D); none where there are no more.

    Of a bias (M,) only whether its values are numbers is told: equal ones do not make tokens alike.
    `used` are the ids that have a piece, where the tokenizer is known: rows without one only fill up the table.
    """

    rows, kind = table[len(base_rows):].float(), dtype_name(table.dtype)
    if not len(rows):
        return []
    shape, count = tuple(rows.shape), len(rows)
    broken = int((~torch.isfinite(rows)).reshape(count, -1).any(1).sum())
    if broken:
        words = f"{broken} of {count} rows hold values that are no numbers"
        return [TensorFinding(name, NEW_ROWS, "broken", words, shape, kind, rows=count)]
    if rows.ndim == 1:
        words = f"biases from {float(rows.min()):.3g} to {float(rows.max()):.3g}"
        return [TensorFinding(name, NEW_ROWS, "new", words, shape, kind, rows=count, distinct=count)]

    with_piece = sorted(row - len(base_rows) for row in used or () if len(base_rows) <= row < len(table))
    read = rows[with_piece] if with_piece else rows
    length = float(base_rows.float().norm(dim=1).median().clamp(min=1e-12))
    different = count_distinct(read, _NEAR * length)

    # The words name what a reader should know beside the length.
    words = f"their length is {float(read.norm(dim=1).median()) / length:.2f} times that of the old rows"
    if len(read) < count:
        words += f"; {count - len(read)} have no piece and are not counted"
    if different == 1 < len(read):
        words += "; all of them are alike, so that none can be told from another"
    elif different < len(read):
        words += f"; only {different} of them differ from each other, and rows that are alike cannot be told apart"
    # Many files have a spare row: it counts only if it is known to be read.
    if len(read) == 1:
        untrained = bool(with_piece) and not read.any()
    else:
        untrained = different == 1 or different * 2 < len(read)

    return [TensorFinding(name, NEW_ROWS, "untrained" if untrained else "new", words, shape, kind, rows=count,
                    distinct=different)]


def count_distinct(rows: torch.Tensor, near: float) -> int:
    """How many of the rows (N, D) lie farther than `near` from each one before them."""
    centred = (rows - rows.mean(0)).double()
    count = 0
    for start in range(0, len(centred), _CHUNK):
        chunk = centred[start:start + _CHUNK]
        alike = torch.cdist(chunk, centred[:start + len(chunk)]) <= near
        count += int((~alike.tril(start - 1).any(1)).sum())
    return count



@dataclass(frozen=True)
class TensorMatching:
    """`found` gives the checkpoint's name for a base name; the rest has no match."""

    found: Mapping[str, str]
    prefix: str  # before all of the names
    renamed: Mapping[str, str]  # matched by their values: base name, and the name there
    missing: tuple[str, ...]  # names of the base without a match
    # Tensors of the checkpoint only, without other sets of weights and the state of a training.
    extra: tuple[str, ...]
    others: tuple[str, ...] = ()  # prefixes under which the file holds the whole model once more
    state: int = 0  # tensors of an optimizer, a schedule or a random generator

    @property
    def averaged(self) -> bool:
        """Whether the matched weights are an average (EMA) of those of the training."""
        return is_averaged(self.prefix)

    @property
    def adapters(self) -> tuple[str, ...]:
        """Extra tensors that are low-rank factors and were not merged."""
        return tuple(name for name in self.extra if ".lora_" in f".{name}")


def is_averaged(prefix: str) -> bool:
    """Whether the weights behind a prefix are an average (EMA) of those of a training."""
    return _AVERAGED.search(prefix) is not None


def match_tensors(base: WeightsFile, other: WeightsFile, tables: Sequence[str],
                  weights: WeightSet = "auto") -> TensorMatching:
    """Matches of the base's tensors in `other`; `tables` may have more rows there.

    A file may hold the model twice, as it was trained and as its average. `weights` selects one: `auto` the average if
    there is one, because that is what its program speaks with. A set that does not exist gives no match.
    """

    # Wrappers of training programs add parts to the names.
    clean = {}
    for name in other.names:
        plain = name
        for inside, instead in _WITHIN:
            plain = plain.replace(inside, instead)
        clean[plain] = name

    prefixes = _prefixes(base.names, tuple(clean))
    eligible = [prefix for prefix in prefixes if weights == "auto" or is_averaged(prefix) == (weights == "ema")]
    prefix = next((prefix for prefix in eligible if is_averaged(prefix)), next(iter(eligible), ""))
    matches = ({name: clean[prefix + name] for name in base.names if prefix + name in clean}
               if eligible or not prefixes else {})
    other_prefixes = tuple(other for other in prefixes if other != prefix)
    elsewhere = {name for plain, name in clean.items()
                 if other_prefixes and plain.startswith(tuple(filter(None, other_prefixes)))}
    state = {name for plain, name in clean.items() if _STATE.match(plain)}

    # Tensors without a match by name are matched by their values.
    unmatched = [name for name in base.names if name not in matches]
    accounted = {*matches.values(), *state, *elsewhere}
    extra = [name for name in other.names if name not in accounted]
    renamed = _match_values(base, other, unmatched, extra, tables) if eligible or not prefixes else {}

    return TensorMatching(
        matches | renamed, prefix, renamed, tuple(name for name in unmatched if name not in renamed),
        tuple(name for name in extra if name not in renamed.values()), other_prefixes, len(state),
    )


def _prefixes(base_names: Sequence[str], names: Sequence[str]) -> list[str]:
    """The prefixes before names of the base behind which most of them stand: the most frequent first, then the shorter.
    """
    known_names, counted = set(base_names), Counter[str]()
    for name in names:
        parts = name.split(".")
        starts = [".".join(parts[:cut]) + "." if cut else "" for cut in range(len(parts))]
        counted.update(start for start in starts if name[len(start):] in known_names)
    ordered = sorted(counted, key=lambda start: (-counted[start], len(start)))
    return [start for start in ordered if counted[start] >= _AS_MANY * counted[ordered[0]]]


def _match_values(base: WeightsFile, other: WeightsFile, names: Sequence[str], extra: Sequence[str],
                  tables: Sequence[str]) -> dict[str, str]:
    """Base tensors without a match by name whose values stand under another name."""
    # Samples of the checkpoint, each read once.
    samples: dict[tuple[str, int], torch.Tensor] = {}
    matches: dict[str, str] = {}
    for name in names:
        shape, grows = base.shape(name), name in tables
        fitting = [key for key in extra if key not in matches.values() and _fits(shape, other.shape(key), grows)]
        if not shape or not fitting:
            continue

        base_sample, alike = _sample(base, name, shape[0]), {}
        for key in fitting:
            if (key, shape[0]) not in samples:
                samples[key, shape[0]] = _sample(other, key, shape[0])
            alike[key] = float(base_sample @ samples[key, shape[0]])
        best = max(alike, key=lambda key: alike[key])
        if alike[best] > _ALIKE:
            matches[name] = best
    return matches


def _sample(file: WeightsFile, name: str, rows: int) -> torch.Tensor:
    """Some values of the first `rows` rows, spread evenly, of length one."""
    flat = file.tensor(name)[:rows].reshape(-1)
    picked = flat[torch.linspace(0, len(flat) - 1, min(_SAMPLES, len(flat))).long()].double()
    return picked / picked.norm().clamp(min=1e-30)


def _fits(shape: tuple[int, ...], other_shape: tuple[int, ...], grows: bool) -> bool:
    return shape == other_shape or (grows and shape[1:] == other_shape[1:] and len(other_shape) > 0
                                    and other_shape[0] > shape[0])
