"""What the kernels of `models.triton_*` and the flow's compute, by torch's operations.

They work on the very tensors that the kernels are given.

`tests.emulated_cuda` records them in its graphs, which Triton's own kernels would not pass through.
"""

from __future__ import annotations

import importlib
import itertools
import random
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from models.alignment_guard import LARGE, AlignmentGuard, text_attention
from models.sampling import _hash

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # of tests of the kernels


def kernel_module(name: str) -> ModuleType:
    """A module of kernels: interpreted on a CPU, compiled on a GPU; the test is skipped where neither can be."""
    from triton import knobs

    if not knobs.runtime.interpret and DEVICE.type == "cpu":
        pytest.skip("the kernels are compiled here, for a GPU that torch does not see")
    if knobs.runtime.interpret:
        _shuffle_programs()
    return importlib.import_module(f"models.{name}")


@lru_cache
def _shuffle_programs() -> None:
    """Let the interpreter run the programs of each launch in another order, as a GPU may: one after the other hides
    a program that reads what another one writes."""
    from triton.runtime.interpreter import interpreter_builder

    order: list[Any] = []
    draws = random.Random(1)
    set_dim, set_index = interpreter_builder.set_grid_dim, interpreter_builder.set_grid_idx

    def draw(*grid: int) -> None:
        order[:] = itertools.product(*map(range, grid))
        draws.shuffle(order)
        set_dim(*grid)

    interpreter_builder.set_grid_dim = draw
    interpreter_builder.set_grid_idx = lambda *place: set_index(*order.pop())


class Kernel:
    """Launched as a kernel is: with a grid in brackets, then with its arguments."""

    def __init__(self, compute: Callable[..., None]) -> None:
        self.compute, self.launches = compute, 0

    def __getitem__(self, grid: object) -> Callable[..., None]:
        self.launches += 1
        return self.compute


def linear(rows: torch.Tensor, gain: Any, shift: Any, *given: Any, WIDTH: int, PARTS: int, NORM: int,
           ACTIVATION: int, **_: object) -> None:
    """`_few_rows` and `_many_rows`."""
    weights, biases, (residual, made, _, epsilon, *_) = given[:3], given[3:6], given[6:]
    vectors = rows.float()
    if NORM and shift is not None:
        vectors = F.layer_norm(vectors, (WIDTH,), gain.float(), shift.float(), epsilon)
    elif NORM:
        vectors = F.rms_norm(vectors, (WIDTH,), gain.float(), epsilon)
    totals = []
    for weight, bias in list(zip(weights, biases, strict=True))[:2 if ACTIVATION == 2 else PARTS]:
        total = vectors @ weight.float().T
        totals.append(total if bias is None else total + bias.float())
    if ACTIVATION == 2:
        totals = [F.silu(totals[0]) * totals[1]]
    result = torch.cat(totals, 1)
    if ACTIVATION == 1:
        result = F.gelu(result, approximate="tanh")
    if residual is not None:
        result = result + residual.float()
    made.copy_(result)


def attend(joined: torch.Tensor, cosines: Any, sines: Any, keys: torch.Tensor, values: torch.Tensor,
           positions: torch.Tensor, mixed: torch.Tensor, rotated: Any, row_stride: int, head_stride: int,
           scale: float, *, HEADS: int, SIZE: int, **_: object) -> None:
    """`_attend`."""
    query, key, value = joined.view(len(joined), 3, HEADS, SIZE).float().unbind(1)
    if cosines is not None:
        cosine, sine = cosines[positions][:, None].float(), sines[positions][:, None].float()
        query, key = (one * cosine + one.roll(SIZE // 2, -1) * sine for one in (query, key))
    at = positions[:, None, None, None].expand(-1, HEADS, 1, SIZE)
    keys.scatter_(2, at, key[:, :, None].to(keys.dtype))
    values.scatter_(2, at, value[:, :, None].to(values.dtype))
    query = query.to(keys.dtype)
    if rotated is not None:
        rotated.copy_(query.flatten(1))
    scores = (keys.float() @ (query.float() * scale)[..., None])[..., 0]
    after = torch.arange(keys.shape[2], device=keys.device) > positions[:, None]
    weights = scores.masked_fill(after[:, None], -torch.inf).softmax(-1)
    mixed.copy_((weights[:, :, None] @ values.float()).flatten(1))


def sample(logits: torch.Tensor, used: torch.Tensor, forbidden: torch.Tensor, keys: torch.Tensor, suppress: Any,
           force: Any, guidance: torch.Tensor, penalty: torch.Tensor, temperature: torch.Tensor,
           log_min_p: torch.Tensor, noise_scale: torch.Tensor, codes: torch.Tensor, steps: torch.Tensor,
           code_position: torch.Tensor, positions: torch.Tensor, sampled: torch.Tensor, scores: torch.Tensor,
           noise: torch.Tensor, highest: torch.Tensor, arrived: torch.Tensor, texts: int, vocabulary: int,
           max_codes: int, stop: int, *, GUIDED: bool, **_: object) -> None:
    """`_sample`, by the noise of `models.sampling`."""
    columns = torch.arange(vocabulary, device=logits.device)
    score = logits[:texts].float()
    if GUIDED:
        score = score + guidance * (score - logits[texts:].float())
    if suppress is not None:
        score = torch.where(suppress[:, None] & (columns == stop), -LARGE, score)
        score = torch.where(force[:, None], torch.where(columns == stop, LARGE, -LARGE), score)
    score = torch.where(used, torch.minimum(score / penalty, score * penalty), score)
    score = score.masked_fill(forbidden.index_select(0, steps.clamp(max=1)), -torch.inf) / temperature
    uniform = ((_hash(keys.gather(1, steps[:, None]) ^ columns) >> 9) + 0.5) / (1 << 23)
    gumbel = -torch.log(-torch.log(uniform)) * noise_scale
    top = score.amax(-1, keepdim=True)
    chosen = (score - top + gumbel).masked_fill(score < top + log_min_p, -torch.inf).argmax(-1)
    used.scatter_(1, chosen[:, None], True)
    codes.scatter_(1, steps[:, None], chosen[:, None])
    sampled.copy_(chosen.repeat(len(sampled) // texts))
    for count in (steps, code_position, positions):
        count += 1


def observe(queries: Any, keys: Any, positions: torch.Tensor, codes: torch.Tensor, length: torch.Tensor,
            end: torch.Tensor, reread: torch.Tensor, suppress_before: torch.Tensor, last_ids: torch.Tensor,
            *given: Any, **_: object) -> None:
    """`_observe`, by the guard of `models.alignment_guard` on the same tensors."""
    texts, guard = len(length), AlignmentGuard.__new__(AlignmentGuard)
    names = ("frames", "position", "last_code", "complete", "suppress", "force", "tail", "repeated")
    state, start = given[:8], given[14]
    vars(guard).update(zip(names, state, strict=True), length=length, end=end, reread=reread,
                       suppress_before=suppress_before, last_ids=last_ids)
    mask = torch.arange(keys[0].shape[1], device=positions.device) <= positions[:texts, None]
    guard.observe(text_attention(torch.cat(queries, 1), torch.stack(keys, 1), mask, start), codes[:texts])


def normalise(rows: torch.Tensor, added: Any, gain: Any, shift: Any, after: Any, after_stride: int, total: Any,
              made: torch.Tensor, length: int, epsilon: float, *, WIDTH: int, MISH: bool, BY_TAPS: bool,
              CENTRED: bool, **_: object) -> None:
    """`models.triton_vocoder._normalise`."""
    value = rows.float()
    if added is not None:
        value = value + added.float()
        total.copy_(value)
    if gain is not None and CENTRED:
        value = F.layer_norm(value, (WIDTH,), gain.float(), shift.float(), epsilon)
    elif gain is not None:
        value = F.rms_norm(value, (WIDTH,), gain.float(), epsilon) + shift.float()
    if MISH:
        value = F.mish(value)
    if after is not None:
        value = value + (after.float().view_as(value) if after_stride else after.float())
    if BY_TAPS:
        value = torch.cat([F.pad(value, (0, 0, tap, 0))[:, :length] for tap in (2, 1, 0)], -1)
    made.copy_(value)


def rotate_pairs(heads: torch.Tensor, rotary: torch.Tensor, made: torch.Tensor, *_: object, **__: object) -> None:
    """`models.triton_vocoder._rotate_pairs`."""
    first, second = heads.float().unflatten(-1, (-1, 2)).unbind(-1)
    cosine, sine = (part[:, None] for part in rotary.unbind(-1))
    made.copy_(torch.stack([first * cosine - second * sine, first * sine + second * cosine], -1).flatten(-2))


def snake(signal: torch.Tensor, alpha: torch.Tensor, made: torch.Tensor, length: Any, *_: object,
          **__: object) -> None:
    """`models.triton_vocoder._snake`."""
    rate = alpha[:, None, None]
    made.copy_(signal + torch.sin(rate * signal).square() / (rate + 1e-9))
    if length is not None:
        made.masked_fill_(torch.arange(signal.shape[3], device=signal.device) >= length, 0)


def anti_aliased_snake(signal: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor, made: torch.Tensor, length: int,
                       channels: int, *first_taps: float, **_: object) -> None:
    """`models.triton_vocoder._anti_aliased_snake`, filtered as published: transposed, with a stride."""
    half = torch.tensor(first_taps, device=signal.device)
    taps = torch.cat([half, half.flip(0)]).expand(channels, 1, 12)
    twice = 2 * F.conv_transpose1d(F.pad(signal[:, :, 0], (5, 5), "replicate"), taps, stride=2, groups=channels)
    twice = twice[..., 15:-15]
    rate, inverse = alpha.exp()[:, None], 1 / (beta.exp()[:, None] + 1e-9)
    twice = twice + torch.sin(rate * twice).square() * inverse
    made.copy_(F.conv1d(F.pad(twice, (5, 6), "replicate"), taps, stride=2, groups=channels)[:, :, None])


def add_norm(hidden: torch.Tensor, branch: Any, gain: torch.Tensor, total: torch.Tensor, normed: torch.Tensor,
             epsilon: float, *, WIDTH: int, **_: object) -> None:
    """`models.triton_training._add_norm`."""
    if branch is not None:
        total.copy_(hidden.float() + branch.float())
    normed.copy_(F.rms_norm(total.float(), (WIDTH,), gain.float(), epsilon))


def add_norm_backward(total: torch.Tensor, gain: torch.Tensor, grad_normed: torch.Tensor, grad_total: Any,
                      grad_hidden: torch.Tensor, grad_branch: Any, partial: Any, count: int, epsilon: float, *,
                      WIDTH: int, ROWS: int, **_: object) -> None:
    """`models.triton_training._add_norm_backward`."""
    scale = (total.float().square().mean(-1, keepdim=True) + epsilon).rsqrt()
    value, grad = total.float() * scale, grad_normed.float()
    if partial is not None:
        products = (grad * value).view(count, WIDTH)
        partial.copy_(F.pad(products, (0, 0, 0, len(partial) * ROWS - count)).view(-1, ROWS, WIDTH).sum(1))
    grad = grad * gain.float()
    grad = scale * (grad - value * (grad * value).mean(-1, keepdim=True))
    if grad_total is not None:
        grad = grad + grad_total.float()
    grad_hidden.copy_(grad)
    if grad_branch is not None:
        grad_branch.copy_(grad)


def rotate(queries: torch.Tensor, keys: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor,
           rotated_queries: torch.Tensor, rotated_keys: torch.Tensor, *given: int, HALF: int, INVERSE: bool,
           **_: object) -> None:
    """`models.triton_training._rotate`."""
    cosine, sine = cosines.transpose(1, 2).float(), sines.transpose(1, 2).float()
    if INVERSE:
        sine = sine.roll(HALF, -1)
    for vectors, made in ((queries, rotated_queries), (keys, rotated_keys)):
        made.copy_(vectors.float() * cosine + vectors.float().roll(HALF, -1) * sine)


def swiglu(gate: torch.Tensor, up: torch.Tensor, made: torch.Tensor, count: int, **_: object) -> None:
    """`models.triton_training._swiglu`."""
    made.copy_(F.silu(gate.float()) * up.float())


def swiglu_backward(gate: torch.Tensor, up: torch.Tensor, grad: torch.Tensor, grad_gate: torch.Tensor,
                    grad_up: torch.Tensor, count: int, **_: object) -> None:
    """`models.triton_training._swiglu_backward`."""
    value, sigmoid = gate.float(), gate.float().sigmoid()
    grad_gate.copy_(grad.float() * up.float() * sigmoid * (1 + value * (1 - sigmoid)))
    grad_up.copy_(grad.float() * value * sigmoid)


TRAINING = (add_norm, add_norm_backward, rotate, swiglu, swiglu_backward)


def patch_training(patch: pytest.MonkeyPatch) -> dict[str, Kernel]:
    """The part of `patch_triton` that concerns `models.triton_training`."""
    made = {compute.__name__: Kernel(compute) for compute in TRAINING}
    for name, kernel in made.items():
        patch.setattr(f"models.triton_training._{name}", kernel)
    return made


def patch_triton(patch: pytest.MonkeyPatch) -> dict[str, Kernel]:
    """Let all kernels be stood in for; they count their launches."""
    made = {compute.__name__: Kernel(compute) for compute in (
        linear, attend, sample, observe, normalise, rotate_pairs, snake, anti_aliased_snake)}
    for name, kernel in (("triton_kernels._few_rows", "linear"), ("triton_kernels._many_rows", "linear"),
                         ("triton_kernels._attend", "attend"), ("triton_sampling._sample", "sample"),
                         ("triton_sampling._observe", "observe"), ("triton_vocoder._normalise", "normalise"),
                         ("triton_vocoder._rotate_pairs", "rotate_pairs"), ("triton_vocoder._snake", "snake"),
                         ("triton_vocoder._anti_aliased_snake", "anti_aliased_snake")):
        patch.setattr(f"models.{name}", made[kernel])
    return made | patch_training(patch)
