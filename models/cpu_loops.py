"""Loops over the weights and the cache of a decoding step on a CPU, which Numba compiles for the processor at hand.

A step of a few rows takes as long as its weights take to be read, so a loop reads them once, a little ahead,
and what else the layer asks for is done beside it. Two rows by 4096 x 1024 on two cores of an EPYC without
AVX-512: 0.6 ms in float32, where MKL takes 1.5 to 2.3 and oneDNN 0.9 to 1.3; 0.15 to 0.2 ms in int8, where torch's own
kernel takes 0.4 (in parts of 64 kB; larger ones were faster with AVX-512). Any number of rows by int8 weights take the
loops, and up to 47 in float32: see `models.matmul_backends`.

Weights of bfloat16 are widened to float32, which gives the bits of the same weights in float32.

With int8 weights, rows are multiplied as 16-bit integers with one scale a row. Their sums are exact: only the weights
and the rows are rounded, the rows to one part in 32,767 of their largest value (26,420 at a width of 5120). The result
of a row does not depend on the other rows.

Threads are those of torch's OpenMP, as many as torch uses; each takes the next part that is left. Without it (macOS,
Windows) the loops run on one thread. Threads get the address of a *job*: an array of integers, counts and addresses of
tensors. Compiled code is kept on disk beside this file or in the user's cache.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from itertools import chain
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import carray, cfunc, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

PLAIN, GELU, SWIGLU = 0, 1, 2  # activations
MAX_WEIGHT = 127
WIDTH_UNIT = 64  # widths of int8 weights are a multiple of it; widths of other weights are a multiple of half of it
_AHEAD, _BLOCK_AHEAD = 4096, 8192  # bytes that weights are fetched ahead; the minimum if several rows are read at once
# Bytes of weights that a thread takes at a time, if there are eight such parts for each thread, else fewer. The first
# `_AHEAD` of a part are not read ahead, so that large parts are faster; a part that more rows make a thread read again
# has to stay in the second-level cache.
_LEAST_PART, _PART, _REPEATED_PART = 2**16, 2**19, 2**18
# A float32 sum of at least twice `_PRODUCTS_OF_A_SUM` products is a sum of sums of so many. So several rows can be
# multiplied with a piece of their width at a time: numbers of all of them that fill half a first-level cache of 32 kB.
_PRODUCTS_OF_A_SUM, _NUMBERS_OF_A_PIECE = 1024, 4096
_NONE = np.empty(0, np.float32)
_NO_INTEGERS = np.empty(0, np.int16)
f32, i32 = np.float32, np.int32
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"reassoc", "contract", "arcp", "nsz"}}

_F32, _I8, _I16, _I32, _I64 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The function by Numba, with sums in any order, so that they are vectors; NaN and infinity stay what they are."""
    options = {"nogil": True, **_OPTIONS, **options}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # neither the folder of this file nor the user's can be written: each process compiles
        return njit(**options)(function)


def _compiled_strictly(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function by Numba, each operation rounded by itself: the same bits wherever it is called."""
    return _compiled(function, fastmath=False)


_compiled_functions: list[Any] = []  # compiled functions live as long as the process


def _thread_function(function: Callable[..., Any]) -> Callable[[], int]:
    """Compiles `function` at the first call; returns its address. Threads call it with the address of a job."""
    @lru_cache(maxsize=1)
    def address() -> int:
        try:
            compiled = cfunc("void(int64)", cache=True, **_OPTIONS)(function)
        except RuntimeError:
            compiled = cfunc("void(int64)", **_OPTIONS)(function)
        _compiled_functions.append(compiled)
        return int(compiled.address)

    return address


def _openmp() -> int:
    """The address of the function by which compilers for OpenMP start threads; 0 where torch has another runtime."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value or 0
    except (AttributeError, OSError, TypeError):
        return 0


_OPENMP = _openmp()


@intrinsic
def _enter(_context, _start, _function, _job, _threads):
    """Let threads of OpenMP call the function at an address with the address of a job; one thread without OpenMP."""
    def generate(_c, builder, _s, arguments):
        start, function, job, threads = arguments
        with builder.if_else(builder.icmp_signed("==", start, ir.Constant(_I64, 0))) as (alone, together):
            with alone:
                plain = ir.FunctionType(ir.VoidType(), [_I64])
                builder.call(builder.inttoptr(function, plain.as_pointer()), [job])
            with together:
                parallel = ir.FunctionType(ir.VoidType(), [_I64, _I64, _I32, _I32])
                builder.call(builder.inttoptr(start, parallel.as_pointer()),
                             [function, job, builder.trunc(threads, _I32), ir.Constant(_I32, 0)])
        return ir.Constant(_I64, 0)

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def _take_next(_context, _address):
    """The integer at an address, which counts up by one for all threads."""
    def generate(_c, builder, _s, arguments):
        counter = builder.inttoptr(arguments[0], _I64.as_pointer())
        return builder.atomic_rmw("add", counter, ir.Constant(_I64, 1), "monotonic")

    return types.int64(types.int64), generate


@intrinsic
def _pointer(_context, _address):
    return types.voidptr(types.int64), lambda _c, builder, _s, argument: builder.inttoptr(*argument, _I8.as_pointer())


@intrinsic
def _float_of_bits(_context, _bits):
    """The float32 with the bits of an int32."""
    return types.float32(types.int32), lambda _c, builder, _s, argument: builder.bitcast(*argument, _F32)


@intrinsic
def _bits_of_float(_context, _value):
    """The bits of a float32 as an int32."""
    return types.int32(types.float32), lambda _c, builder, _s, argument: builder.bitcast(*argument, _I32)


@intrinsic
def _float_of(_context, number):
    """The float32 of a number of a cache: float32, or the bits of a bfloat16, which are its upper half."""
    def generate(_c, builder, _s, argument):
        if number == types.float32:
            return argument[0]
        return builder.bitcast(builder.shl(builder.zext(argument[0], _I32), ir.Constant(_I32, 16)), _F32)

    return types.float32(number), generate


@intrinsic
def _number_like(_context, _value, numbers):
    """A float32 as a number of the array `numbers`: itself, or the bits of the nearest bfloat16, as torch rounds."""
    def generate(_c, builder, _s, arguments):
        value, _ = arguments
        if numbers.dtype == types.float32:
            return value
        bits = builder.bitcast(value, _I32)
        odd = builder.and_(builder.lshr(bits, ir.Constant(_I32, 16)), ir.Constant(_I32, 1))
        bits = builder.lshr(builder.add(builder.add(bits, ir.Constant(_I32, 0x7FFF)), odd), ir.Constant(_I32, 16))
        is_nan = builder.fcmp_unordered("uno", value, value)
        return builder.trunc(builder.select(is_nan, ir.Constant(_I32, 0x7FC0), bits), _I16)

    return numbers.dtype(types.float32, numbers), generate


def _vector_bytes(context: Any) -> int:
    """The bytes of a vector of the processor that code is made for."""
    features = context.codegen()._tm_features  # features of the processor at hand, or NUMBA_CPU_FEATURES
    return 64 if "+avx512bw" in features else 32 if "+avx2" in features else 16


def _columns_of_block(context: Any) -> int:
    """Rows of weights that a block takes: as many as there are registers for."""
    return 4 if _vector_bytes(context) == 64 else 2


@intrinsic
def _block_columns(_context):
    return types.int64(), lambda context, *_: ir.Constant(_I64, _columns_of_block(context))


def _products_of_rows(weight_size: int, count: int, block: bool = False, prefetches: bool = True) -> Any:
    """A loop over a row of weights, or a `block` of rows, multiplied with `count` rows, added to float32 at an address.

    A weight has four bytes, float32, two, bfloat16, or one, int8. Rows are float32, for int8 16-bit integers.

    Its arguments are addresses and strides in bytes: rows, their stride, weights, their stride, the width, products,
    the stride of the products of one row, and how far ahead weights are fetched.
    """
    rows_at, integers = range(count), weight_size == 1
    stored = {4: _F32, 2: _I16, 1: _I8}[weight_size]

    @intrinsic
    def loop(_context, _rows, _row_stride, _weights, _weight_stride, _width, _products, _product_stride, _ahead):
        def generate(context, builder, _s, arguments):
            rows, row_stride, weights, weight_stride, width, products, product_stride, ahead = arguments
            vector = _vector_bytes(context)
            columns_at = range(_columns_of_block(context) if block else 1)
            size = vector // (2 if integers else 4)  # numbers in a vector
            sums = ir.VectorType(_I32, size // 2) if integers else ir.VectorType(_F32, size)
            # Two vectors are used in turn where registers allow it, so that additions need not wait for each other.
            halves = range(1 if block and vector > 16 else 2)

            entry, exit_block = builder.block, builder.append_basic_block("products")
            body = builder.append_basic_block("weights")
            builder.branch(body)
            builder.position_at_end(body)
            position = builder.phi(_I64)
            position.add_incoming(ir.Constant(_I64, 0), entry)

            def columns_of(values: Callable[[], Any]) -> list[list[Any]]:
                columns = []
                for _ in columns_at:
                    columns.append([values() for _ in halves])
                return columns

            totals = [columns_of(lambda: builder.phi(sums)) for _ in rows_at]

            def load(start, stride, index: int, number: Any, half: int) -> Any:
                bytes_each = number.width // 8 if isinstance(number, ir.IntType) else 4
                number_index = builder.add(position, ir.Constant(_I64, half * size))
                offset = builder.mul(number_index, ir.Constant(_I64, bytes_each))
                address = builder.add(builder.add(start, builder.mul(stride, ir.Constant(_I64, index))), offset)
                value = builder.load(builder.inttoptr(address, ir.VectorType(number, size).as_pointer()))
                value.align = bytes_each
                return address, value

            sums_after: list[list[list[Any]]] = [columns_of(lambda: None) for _ in rows_at]

            # The body loads a vector of each row of weights, and multiplies it with a vector of each input row.
            for half in halves:
                matrix = []
                for column in columns_at:
                    address, value = load(weights, weight_stride, column, stored, half)
                    if prefetches and (half == 0 or weight_size == 4):
                        _prefetch(builder, builder.add(address, ahead))
                    if integers:
                        value = builder.sext(value, ir.VectorType(_I16, size))
                    elif weight_size == 2:  # the upper half of a float32
                        wide = ir.VectorType(_I32, size)
                        value = builder.shl(builder.zext(value, wide), ir.Constant(wide, [16] * size))
                        value = builder.bitcast(value, sums)
                    matrix.append(value)
                for row in rows_at:
                    _, value = load(rows, row_stride, row, _I16 if integers else _F32, half)
                    for column in columns_at:
                        total = totals[row][column][half]
                        if integers:
                            total = builder.add(total, _add_pairs(context, builder, value, matrix[column], size))
                        else:  # fused where the processor can
                            multiply_add = _llvm(builder, f"llvm.fmuladd.v{size}f32", sums, [sums] * 3)
                            total = builder.call(multiply_add, [value, matrix[column], total])
                        sums_after[row][column][half] = total
            following = builder.add(position, ir.Constant(_I64, len(halves) * size))
            position.add_incoming(following, body)

            # The sums begin with zeros, and continue with those of the last turn.
            zeros = ir.Constant(sums, None)
            for row in rows_at:
                for column in columns_at:
                    for half in halves:
                        totals[row][column][half].add_incoming(zeros, entry)
                        totals[row][column][half].add_incoming(sums_after[row][column][half], body)
            builder.cbranch(builder.icmp_signed("<", following, width), body, exit_block)
            builder.position_at_end(exit_block)
            # Eight sums of integers are added as float64, without rounding, so that no result depends on the vectors.
            number, mark = (ir.DoubleType(), "f64") if integers else (_F32, "f32")
            numbers = ir.VectorType(number, min(size // 2, 8) if integers else size)
            add_all = _llvm(builder, f"llvm.vector.reduce.fadd.v{numbers.count}{mark}", number, [number, numbers])
            for row in rows_at:
                for column in columns_at:
                    parts = sums_after[row][column]
                    if integers:
                        parts = [builder.sitofp(part, numbers) for part in _eight_sums(builder, parts)]
                    total_vector = reduce(builder.fadd, parts)
                    total = builder.call(add_all, [ir.Constant(number, 0.0), total_vector], fastmath=("reassoc",))
                    address = builder.add(products, builder.mul(product_stride, ir.Constant(_I64, row)))
                    address = builder.add(address, ir.Constant(_I64, 4 * column))
                    total = builder.fptrunc(total, _F32) if integers else total
                    place = builder.inttoptr(address, _F32.as_pointer())
                    builder.store(builder.fadd(builder.load(place), total), place)
            return ir.Constant(_I64, 0)

        return types.int64(*[types.int64] * 8), generate

    return loop


def _llvm(builder: ir.IRBuilder, name: str, result: Any, arguments: list[Any]) -> Any:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


def _prefetch(builder: ir.IRBuilder, address: Any) -> None:
    """Into the second-level cache: with prefetches into the first, an EPYC with AVX-512 did not read meanwhile."""
    text = _I8.as_pointer()
    prefetch = _llvm(builder, "llvm.prefetch.p0", ir.VoidType(), [text, _I32, _I32, _I32])
    builder.call(prefetch, [builder.inttoptr(address, text), *(ir.Constant(_I32, part) for part in (0, 2, 1))])


def _add_pairs(context: Any, builder: ir.IRBuilder, left_values: Any, right_values: Any, size: int) -> Any:
    """The products of 16-bit integers, neighbours added: vectors of `size` to half as many 32-bit integers."""
    name = {64: "avx512.pmaddw.d.512", 32: "avx2.pmadd.wd", 16: "sse2.pmadd.wd"}[_vector_bytes(context)]
    sums, numbers = ir.VectorType(_I32, size // 2), ir.VectorType(_I16, size)
    if _is_x86(builder):
        return builder.call(_llvm(builder, f"llvm.x86.{name}", sums, [numbers, numbers]), [left_values, right_values])
    parts = []
    for start in range(2):
        places = ir.Constant(ir.VectorType(_I32, size // 2), list(range(start, size, 2)))
        parts.append(builder.mul(*(
            builder.sext(builder.shuffle_vector(value, ir.Constant(numbers, ir.Undefined), places), sums)
            for value in (left_values, right_values))))
    return builder.add(*parts)


def _eight_sums(builder: ir.IRBuilder, parts: list[Any]) -> list[Any]:
    """Vectors of 32-bit integers, added to eight sums: one vector, or two of four sums."""
    if len(parts) == 2 and parts[0].type.count >= 8:
        parts = [builder.add(*parts)]
    if parts[0].type.count == 16:
        undefined = ir.Constant(parts[0].type, ir.Undefined)
        halves = [ir.Constant(ir.VectorType(_I32, 8), list(range(start, start + 8))) for start in (0, 8)]
        parts = [builder.add(*(builder.shuffle_vector(parts[0], undefined, half) for half in halves))]
    return parts


def _is_x86(builder: ir.IRBuilder) -> bool:
    return builder.module.triple.startswith(("x86", "i686"))


_float_1, _float_2, _float_4 = (_products_of_rows(4, count) for count in (1, 2, 4))
_half_1, _half_2, _half_4 = (_products_of_rows(2, count) for count in (1, 2, 4))
_integer_1, _integer_2, _integer_4 = (_products_of_rows(1, count) for count in (1, 2, 4))
# The second where the weights are in a cache already.
_integer_block, _integer_block_again = (_products_of_rows(1, 4, True, prefetches) for prefetches in (True, False))

# The fields of a job of products; an address is 0 where there is nothing.
(_NEXT, _INPUT, _INPUT_WIDTH, _NORM_WEIGHT, _NORM_BIAS, _EPSILON, _ROWS, _COUNT, _WIDTH, _LARGEST, _SIZE_OF_WEIGHT,
 _LIMIT, _OUTPUTS, _RESIDUAL, _RESULT, _ACTIVATION, _MATRICES, _PART_ROWS) = range(18)
_WEIGHTS, _SCALES, _BIASES, _FIELDS = 18, 19, 20, 27  # three fields for each matrix
_PADDING = {count: (0,) * (9 - 3 * count) for count in (1, 2, 3)}
_TILE = 8  # rows that are multiplied with a part of the weights before the next rows are


def multiply(rows: torch.Tensor, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None],
             scales: Sequence[torch.Tensor] = (), norm: tuple[torch.Tensor, torch.Tensor | None, float] | None = None,
             residual: torch.Tensor | None = None, activation: int = PLAIN) -> torch.Tensor:
    """Rows (B, width) by up to three matrices (outputs, width) of float32, bfloat16, or int8 with `scales` (outputs,).

    All tensors are contiguous, all but weights float32. The result is (B, matrices * outputs). `SWIGLU` needs two
    matrices, or one with the outputs of both; the result is (B, outputs) then. `norm` is applied to the rows before:
    weight, bias and epsilon of a layer normalisation, or of a root-mean-square normalisation without a bias. `residual`
    is added to the result. Width: see `WIDTH_UNIT`; rows may be narrower than int8 weights, whose padding is zero.
    """

    # Check types and sizes here, because the loops read raw addresses.
    (count, input_width), (outputs, width) = rows.shape, weights[0].shape
    matrices, integers, kind = len(weights), bool(scales), weights[0].dtype
    size = kind.itemsize  # bytes of a weight
    assert kind is torch.int8 if integers else kind in (torch.float32, torch.bfloat16), kind
    assert 0 <= width - input_width < (WIDTH_UNIT if integers else 1)
    assert not width % (WIDTH_UNIT if integers else WIDTH_UNIT // 2)
    addresses: list[tuple[int, ...]] = [
        (_address(matrix, outputs * width, kind),
         _address(scales[index], outputs) if integers else 0, _address(biases[index], outputs))
        for index, matrix in enumerate(weights)]

    # A matrix with the outputs of both parts is read as two matrices.
    if activation == SWIGLU and matrices == 1:
        outputs, matrices = outputs // 2, 2
        weight_address, *other_addresses = addresses[0]
        second = (address and address + 4 * outputs for address in other_addresses)
        addresses.append((weight_address + outputs * width * size, *second))

    # Threads take parts of the weights that fit into a cache.
    result = torch.empty(count, outputs if activation == SWIGLU else outputs * matrices)
    weight, bias, epsilon = (None, None, 0.0) if norm is None else norm
    threads = torch.get_num_threads()
    share = outputs * width * size * matrices // (8 * threads)
    is_read_once = count in (1, 2, 4) or (integers and count == _TILE)
    part_bytes = min(_PART if is_read_once else _REPEATED_PART, max(_LEAST_PART, share))
    part = max(2, part_bytes // (width * size) // 2 * 2)
    # A sum is of an eighth of the products, at most, in 32 bits: see `_eight_sums`.
    limit = min(32_767, (2**31 - 1) // (MAX_WEIGHT * (width // 8)))

    # All addresses and sizes are handed over in one array of integers.
    job = array("q", (0, _address(rows, count * input_width), input_width, _address(weight, input_width),
                      _address(bias, input_width), 0, 0, count, width, 0, size, limit, outputs,
                      _address(residual, result.numel()), result.data_ptr(), activation, matrices, part,
                      *chain.from_iterable(addresses), *_PADDING[matrices]))
    if count and outputs:
        _multiply(job.buffer_info()[0], epsilon, _OPENMP, _prepare_rows(), _multiply_parts(), threads)
    return result


def normalize(rows: torch.Tensor, norm: tuple[torch.Tensor, torch.Tensor | None, float]) -> torch.Tensor:
    """Rows (B, width) by the norm of `multiply`, and with the same bits: both call the same compiled function."""
    weight, bias, epsilon = norm
    (count, width), result = rows.shape, torch.empty_like(rows)
    job = array("q", (0, _address(rows, count * width), width, _address(weight, width), _address(bias, width), 0,
                      result.data_ptr(), count, width, *(0,) * (_FIELDS - _LARGEST)))
    _normalize(job.buffer_info()[0], epsilon, _prepare_rows())
    return result


def finish(products: Sequence[torch.Tensor], activation: int, residual: torch.Tensor | None) -> torch.Tensor:
    """The activation and residual of `multiply`, and with the same bits, for products (B, outputs) of each matrix."""
    first_product, second_product = products if activation == SWIGLU else (torch.cat(list(products), -1), products[0])
    result = torch.empty_like(first_product, memory_format=torch.contiguous_format)
    _finish(first_product.reshape(-1).numpy(), second_product.reshape(-1).numpy(), activation,
            _NONE if residual is None else residual.reshape(-1).numpy(), result.view(-1).numpy())
    return result


def _address(tensor: torch.Tensor | None, count: int, dtype: torch.dtype = torch.float32) -> int:
    """The address of `count` numbers in their order on the CPU; 0 for None."""
    if tensor is None:
        return 0
    assert _is_valid(tensor, count, dtype), (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
    return tensor.data_ptr()


def _is_valid(tensor: torch.Tensor, count: int, dtype: torch.dtype) -> bool:
    return tensor.numel() == count and tensor.dtype is dtype and tensor.is_cpu and tensor.is_contiguous()


@_compiled
def _normalize_row(row, weight, bias, epsilon, output):
    """One row (width,): layer normalisation if there is a bias, else root-mean-square; a copy without weights."""
    mean, squares = f32(0), f32(0)
    if len(weight) == 0:
        output[:] = row
        return
    if len(bias):
        for i in range(len(row)):
            mean += row[i]
        mean /= f32(len(row))
    for i in range(len(row)):
        squares += (row[i] - mean) * (row[i] - mean)
    factor = f32(1) / np.sqrt(squares / f32(len(row)) + f32(epsilon))
    if len(bias):
        for i in range(len(row)):
            output[i] = (row[i] - mean) * factor * weight[i] + bias[i]
    else:
        for i in range(len(row)):
            output[i] = row[i] * factor * weight[i]


@_compiled
def _round_row(row, limit, rounded):
    """A row (width,) as integers of at most `limit`, and zeros behind them; returns its largest magnitude."""
    # Bits of positive numbers are in the order of the numbers, and those of NaN above them.
    bits = i32(0)
    for i in range(len(row)):
        bits = max(bits, _bits_of_float(abs(row[i])))
    largest = _float_of_bits(bits)
    factor = f32(limit) / largest if bits else f32(0)
    for i in range(len(row)):
        rounded[i] = np.int16(i32(np.floor(row[i] * factor + f32(0.5))))
    rounded[len(row):] = 0
    return largest


@_compiled
def _floats(address, count):
    """The float32 numbers at an address, none at 0."""
    return carray(_pointer(address), count if address else 0, f32)


@_compiled
def _normalize(address, epsilon, prepare):
    carray(_pointer(address), _FIELDS, np.int64)[_EPSILON] = _bits_of_float(f32(epsilon))
    _enter(0, prepare, address, 1)


@_compiled
def _multiply(address, epsilon, start, prepare, multiply, threads):
    job = carray(_pointer(address), _FIELDS, np.int64)
    count, width = job[_COUNT], job[_WIDTH]
    job[_EPSILON] = _bits_of_float(f32(epsilon))
    normalized, rounded, largest = _NONE, _NO_INTEGERS, _NONE
    # Weights in int8 are multiplied with rounded rows, others with normalised rows or with the input itself.
    if job[_SIZE_OF_WEIGHT] == 1:
        rounded, largest = np.empty(count * width, np.int16), np.empty(count, f32)
        job[_ROWS], job[_LARGEST] = rounded.ctypes.data, largest.ctypes.data
    elif job[_NORM_WEIGHT]:
        normalized = np.empty(count * width, f32)
        job[_ROWS] = normalized.ctypes.data
    else:
        job[_ROWS] = job[_INPUT]
    if job[_ROWS] != job[_INPUT]:
        _enter(start if count >= _TILE else 0, prepare, address, threads)
    # The rows are ready, and the threads take parts of the weights.
    job[_NEXT] = 0
    _enter(start, multiply, address, threads)
    # Their lengths are read here, so that the arrays live until now.
    return len(normalized) + len(rounded) + len(largest)


@_compiled
def _multiply_part(job, matrix, first_row, size, row, count, products):
    """Products of up to `_TILE` rows with rows of a matrix, scaled and with its bias."""
    size_of_weight, width = job[_SIZE_OF_WEIGHT], job[_WIDTH]
    integers = size_of_weight == 1
    row_stride, weight_stride = width * (2 if integers else 4), width * size_of_weight
    rows, weights = job[_ROWS] + row * row_stride, job[_WEIGHTS + 3 * matrix] + first_row * weight_stride
    results, stride = products.ctypes.data, products.strides[0]
    products[:count, :size] = 0

    column, rows_done = 0, 0

    # A tile of eight rows is multiplied with blocks of columns, whose weights stay in registers.
    if integers and count == _TILE:
        columns = _block_columns()
        ahead = max(_BLOCK_AHEAD, columns * weight_stride)
        while column + columns <= size:
            weight, result, lower = weights + column * weight_stride, results + 4 * column, rows + 4 * row_stride
            if row == 0:
                _integer_block(rows, row_stride, weight, weight_stride, width, result, stride, ahead)
            else:
                _integer_block_again(rows, row_stride, weight, weight_stride, width, result, stride, 0)
            _integer_block_again(lower, row_stride, weight, weight_stride, width, result + 4 * stride, stride, 0)
            column += columns

    # The remaining columns and rows are multiplied in groups of four, two or one row.
    is_split = width >= 2 * _PRODUCTS_OF_A_SUM
    products_of_sum = _PRODUCTS_OF_A_SUM if is_split else width
    while rows_done < count:
        group = 4 if count - rows_done >= 4 else 2 if count - rows_done >= 2 else 1
        row_at, result = rows + rows_done * row_stride, results + rows_done * stride
        if integers:
            for output in range(column, size):
                weight, total = weights + output * weight_stride, result + 4 * output
                if group == 4:
                    _integer_4(row_at, row_stride, weight, weight_stride, width, total, stride, _AHEAD)
                elif group == 2:
                    _integer_2(row_at, row_stride, weight, weight_stride, width, total, stride, _AHEAD)
                else:
                    _integer_1(row_at, row_stride, weight, weight_stride, width, total, stride, _AHEAD)
        else:
            piece = _NUMBERS_OF_A_PIECE // group if is_split and group > 1 else width
            for start in range(0, width, piece):
                for output in range(size):
                    total, ahead = result + 4 * output, _AHEAD
                    # Next comes the same piece of the following weights, or the following piece of the first ones.
                    if piece < width:
                        ahead = weight_stride if output + 1 < size else piece * size_of_weight - output * weight_stride
                    for start_of_sum in range(start, min(start + piece, width), products_of_sum):
                        numbers, length = row_at + 4 * start_of_sum, min(products_of_sum, width - start_of_sum)
                        weight = weights + output * weight_stride + start_of_sum * size_of_weight
                        if size_of_weight == 2 and group == 4:
                            _half_4(numbers, row_stride, weight, weight_stride, length, total, stride, ahead)
                        elif size_of_weight == 2 and group == 2:
                            _half_2(numbers, row_stride, weight, weight_stride, length, total, stride, ahead)
                        elif size_of_weight == 2 and group == 1:
                            _half_1(numbers, row_stride, weight, weight_stride, length, total, stride, ahead)
                        elif group == 4:
                            _float_4(numbers, row_stride, weight, weight_stride, length, total, stride, ahead)
                        elif group == 2:
                            _float_2(numbers, row_stride, weight, weight_stride, length, total, stride, ahead)
                        else:
                            _float_1(numbers, row_stride, weight, weight_stride, length, total, stride, ahead)
        rows_done += group

    # Scale the products and add the bias.
    bias = _floats(job[_BIASES + 3 * matrix] + 4 * first_row if job[_BIASES + 3 * matrix] else 0, size)
    scale = _floats(job[_SCALES + 3 * matrix] + 4 * first_row if integers else 0, size)
    largest = _floats(job[_LARGEST], job[_COUNT])
    for i in range(count):
        _scale(products[i, :size], scale, largest[row + i] if integers else f32(1), bias)


@_compiled_strictly
def _scale(products, scale, largest, bias):
    """Products (N,) by the scales of weights (N,) and row, plus bias (N,), in place; without where these are empty."""
    if len(scale):
        for i in range(len(products)):
            products[i] *= scale[i] * largest
    if len(bias):
        for i in range(len(products)):
            products[i] += bias[i]


@_compiled_strictly
def _power_of_two(power):
    """2^power of a float32, to 7.5e-8 from -126 to 126; without branches, as vectors need it."""
    power = min(max(power, f32(-126)), f32(126))
    integer_part = np.floor(power)
    # The minimax polynomial on [0, 1), fitted by Lawson's iteration.
    part = power - integer_part
    result = f32(1.87757666e-3)
    result = result * part + f32(8.98934013e-3)
    result = result * part + f32(5.5826318e-2)
    result = result * part + f32(2.40153617e-1)
    result = result * part + f32(6.93153073e-1)
    result = result * part + f32(9.99999925e-1)
    return result * _float_of_bits((i32(integer_part) + i32(127)) << i32(23))


@_compiled_strictly
def _sigmoid(value):
    """Of a float32, to 4e-7 up to values of 4 and 4e-6 at 80, at least 1e-38."""
    return f32(1) / (f32(1) + _power_of_two(value * f32(-1.442695041)))


@_compiled_strictly
def _finish(products, gates, activation, residual, result):
    """The activation of products (N,), those of the second matrix beside them, plus the residual, if there is one."""
    if activation == SWIGLU:
        for i in range(len(result)):
            result[i] = products[i] * _sigmoid(products[i]) * gates[i]
    elif activation == GELU:
        # GPT-2 approximates GELU by tanh, and tanh(x) is 2 sigmoid(2 x) - 1.
        for i in range(len(result)):
            value = products[i]
            result[i] = value * _sigmoid(f32(1.5957691216) * (value + f32(0.044715) * value * value * value))
    else:
        result[:] = products
    if len(residual):
        for i in range(len(result)):
            result[i] += residual[i]


@_thread_function
def _prepare_rows(address):
    """Normalise rows, and round them for integers, until none is left."""
    job = carray(_pointer(address), _FIELDS, np.int64)
    input_width, width = job[_INPUT_WIDTH], job[_WIDTH]
    weight, bias = _floats(job[_NORM_WEIGHT], input_width), _floats(job[_NORM_BIAS], input_width)
    buffer, largest = np.empty(input_width, f32), _floats(job[_LARGEST], job[_COUNT])
    while True:
        index = _take_next(address)
        if index >= job[_COUNT]:
            return
        row = _floats(job[_INPUT] + 4 * input_width * index, input_width)
        address_of_row = buffer.ctypes.data if job[_SIZE_OF_WEIGHT] == 1 else job[_ROWS] + 4 * width * index
        normalized = _floats(address_of_row, input_width)
        _normalize_row(row, weight, bias, _float_of_bits(i32(job[_EPSILON])), normalized)
        # Weights in int8 are multiplied with rounded rows.
        if job[_SIZE_OF_WEIGHT] == 1:
            rounded = carray(_pointer(job[_ROWS] + 2 * width * index), width, np.int16)
            largest[index] = _round_row(normalized, job[_LIMIT], rounded) / f32(job[_LIMIT])


@_thread_function
def _multiply_parts(address):
    """Multiply all rows with a part of the weights, and finish them, until no part is left."""
    job = carray(_pointer(address), _FIELDS, np.int64)
    count, outputs, part, swiglu = job[_COUNT], job[_OUTPUTS], job[_PART_ROWS], job[_ACTIVATION] == SWIGLU
    if swiglu:
        part //= 2

    parts = (outputs + part - 1) // part
    products = np.empty((2, _TILE, part), f32)
    result_width = outputs if swiglu else outputs * job[_MATRICES]

    # Threads take parts until none is left.
    while True:
        index = _take_next(address)
        matrix, first_row = (0, index * part) if swiglu else (index // parts, index % parts * part)
        if (index >= parts) if swiglu else (matrix >= job[_MATRICES]):
            return
        size = min(part, outputs - first_row)
        for row in range(0, count, _TILE):
            tile = min(_TILE, count - row)
            _multiply_part(job, matrix, first_row, size, row, tile, products[0])
            if swiglu:
                _multiply_part(job, 1, first_row, size, row, tile, products[1])
            for tile_row in range(tile):
                start = 4 * ((row + tile_row) * result_width + matrix * outputs + first_row)
                residual = _floats(job[_RESIDUAL] + start if job[_RESIDUAL] else 0, size)
                _finish(products[0, tile_row, :size], products[1, tile_row, :size], job[_ACTIVATION], residual,
                        _floats(job[_RESULT] + start, size))


# The fields of a job of attention; the first one counts the parts that are taken, as in all jobs.
(_JOINED, _COSINES, _SINES, _POSITIONS, _QUERIES, _KEYS, _VALUES, _ROW_STRIDE, _HEAD_STRIDE, _MIXED, _ROW_COUNT, _HEADS,
 _SIZE, _NUMBER_BYTES) = range(1, 15)


def attend(joined: torch.Tensor, heads: int, rotation: tuple[torch.Tensor, torch.Tensor] | None, storage: torch.Tensor,
           positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Store keys and values of one position, and attend to it and what is before it: results (B, width), and queries.

    `joined` (B, 3 * width) are queries, keys and values, `rotation` cosines and signed sines (B, head size), `storage`
    (2, B, heads, capacity, head size) those of keys and values, float32 or bfloat16, `positions` (B,) int64. All are
    float32 else, and contiguous; rows and heads of the storage may lie apart. Queries (B, heads, 1, head size) are
    rotated.
    """
    rows, capacity, size = len(joined), storage.shape[-2], storage.shape[-1]
    queries, mixed = torch.empty(rows, heads, 1, size), torch.empty(rows, heads * size)
    cosines, sines = rotation or (None, None)

    # The loops read raw addresses, so shapes are checked here.
    assert (storage.shape[1:3], storage.stride()[-2:]) == ((rows, heads), (size, 1))
    assert storage.is_cpu
    assert storage.dtype in (torch.float32, torch.bfloat16), storage.dtype
    (keys, values), number = storage, storage.itemsize
    job = array("q", (0, _address(joined, 3 * mixed.numel()), _address(cosines, rows * size),
                      _address(sines, rows * size), _address(positions, rows, torch.int64), queries.data_ptr(),
                      keys.data_ptr(), values.data_ptr(), number * keys.stride(0), number * keys.stride(1),
                      mixed.data_ptr(), rows, heads, size, number))
    if rows:
        inside = _attend(job.buffer_info()[0], capacity, _OPENMP, _attend_heads(), torch.get_num_threads())
        assert inside, f"A position is not below the {capacity} of the cache."
    return mixed, queries


@_compiled
def _attend(address, capacity, start, attend, threads):
    job = carray(_pointer(address), _NUMBER_BYTES + 1, np.int64)
    positions = carray(_pointer(job[_POSITIONS]), job[_ROW_COUNT], np.int64)
    inside = positions.min() >= 0 and positions.max() < capacity
    if inside:
        _enter(start, attend, address, threads)
    return inside


@_compiled
def _rotate(vector, cosine, sine, rotated):
    """A vector (size,) by the rotation of its position, or as it is."""
    half = len(vector) // 2
    if len(cosine) == 0:
        rotated[:] = vector
        return
    for i in range(half):
        rotated[i] = vector[i] * cosine[i] + vector[half + i] * sine[i]
        rotated[half + i] = vector[half + i] * cosine[half + i] + vector[i] * sine[half + i]


@_compiled
def _attend_head(query, keys, values, scale, weights, mixed):
    """A query (size,) to keys and values (T, size); four positions at a time."""
    count, size = keys.shape
    # Scores of the query with every key.
    i = 0
    while i + 4 <= count:
        score_1, score_2, score_3, score_4 = f32(0), f32(0), f32(0), f32(0)
        key_1, key_2, key_3, key_4 = keys[i], keys[i + 1], keys[i + 2], keys[i + 3]
        for place in range(size):
            score_1 += query[place] * _float_of(key_1[place])
            score_2 += query[place] * _float_of(key_2[place])
            score_3 += query[place] * _float_of(key_3[place])
            score_4 += query[place] * _float_of(key_4[place])
        weights[i], weights[i + 1], weights[i + 2], weights[i + 3] = score_1, score_2, score_3, score_4
        i += 4
    while i < count:
        score_1 = f32(0)
        for place in range(size):
            score_1 += query[place] * _float_of(keys[i, place])
        weights[i] = score_1
        i += 1

    # Softmax, with the largest score subtracted.
    largest = f32(-np.inf)
    for i in range(count):
        largest = max(largest, weights[i])
    total = f32(0)
    for i in range(count):
        weights[i] = _power_of_two((weights[i] - largest) * (scale * f32(1.442695041)))
        total += weights[i]

    # The weighted sum of the values.
    mixed[:] = f32(0)
    i = 0
    while i + 4 <= count:
        value_1, value_2, value_3, value_4 = values[i], values[i + 1], values[i + 2], values[i + 3]
        for place in range(size):
            mixed[place] += (weights[i] * _float_of(value_1[place]) + weights[i + 1] * _float_of(value_2[place])
                             + weights[i + 2] * _float_of(value_3[place])
                             + weights[i + 3] * _float_of(value_4[place]))
        i += 4
    while i < count:
        for place in range(size):
            mixed[place] += weights[i] * _float_of(values[i, place])
        i += 1
    for place in range(size):
        mixed[place] /= total


@_compiled
def _store_and_attend(query, key, value, keys, values, scale, weights, mixed):
    """Store a key and a value (size,) at the end of keys and values (T * size,), and attend to them."""
    size = len(query)
    last = len(keys) - size
    for i in range(size):
        keys[last + i] = _number_like(key[i], keys)
        values[last + i] = _number_like(value[i], values)
    count = len(keys) // size
    _attend_head(query, keys.reshape(count, size), values.reshape(count, size), scale, weights, mixed)


@_thread_function
def _attend_heads(address):
    """Rotate, store and attend for one head of a row, until none is left."""
    job = carray(_pointer(address), _NUMBER_BYTES + 1, np.int64)
    heads, size = job[_HEADS], job[_SIZE]
    scale = f32(1) / np.sqrt(f32(size))
    positions = carray(_pointer(job[_POSITIONS]), job[_ROW_COUNT], np.int64)
    weights, key = np.empty(positions.max() + 4, f32), np.empty(size, f32)

    # Threads take heads until none is left.
    while True:
        index = _take_next(address)
        row, head = index // heads, index % heads
        if row >= job[_ROW_COUNT]:
            return
        joined = job[_JOINED] + 4 * size * (3 * heads * row + head)
        cosine = _floats(job[_COSINES] + 4 * size * row if job[_COSINES] else 0, size)
        sine = _floats(job[_SINES] + 4 * size * row if job[_SINES] else 0, size)
        query = _floats(job[_QUERIES] + 4 * size * index, size)
        place = row * job[_ROW_STRIDE] + head * job[_HEAD_STRIDE]
        count = positions[row] + 1

        _rotate(_floats(joined, size), cosine, sine, query)
        _rotate(_floats(joined + 4 * size * heads, size), cosine, sine, key)
        value, mixed = _floats(joined + 8 * size * heads, size), _floats(job[_MIXED] + 4 * size * index, size)

        # The cache holds float32, or bfloat16 as 16-bit integers.
        if job[_NUMBER_BYTES] == 4:
            keys, values = _floats(job[_KEYS] + place, count * size), _floats(job[_VALUES] + place, count * size)
            _store_and_attend(query, key, value, keys, values, scale, weights, mixed)
        else:
            half_keys = carray(_pointer(job[_KEYS] + place), count * size, np.uint16)
            half_values = carray(_pointer(job[_VALUES] + place), count * size, np.uint16)
            _store_and_attend(query, key, value, half_keys, half_values, scale, weights, mixed)
