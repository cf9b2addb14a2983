"""An op call as a point among calls of its kind: near points do the same work on nearly the same sizes.

Coordinates are octaves: doubling a size is a distance of 1, and another layout or option about as much as four
doublings. A call that was timed has all its arguments in its spec (engine/call_specs.py); an op row has shapes alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from fathom.predict.features import WIDTHS, shapes_of
from fathom.predict.spectra import NONE, Spectra, spectra_of
from fathom.trace.step_work import OpWork

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
ADDED = ("aten::addmm", "aten::baddbmm")
GRADIENTS = 3  # of a convolution: input, weight, bias
CONVOLUTIONS = ("aten::convolution", "aten::convolution_backward")
APART = 4.0  # octaves between a call and one with another layout or option
NEAR = 2.0  # ... where that matters less
SMALL_INPUT, SMALL_KERNEL = 20480, 3  # up to both, torch convolves one item on a CPU by its own loops (use_mkldnn)
VECTOR = 4  # numbers that a CPU without wider vectors multiplies at once
PAGE = 1024  # numbers of four bytes
MAPPED_BYTES = 32 * 2**20  # from which a result is mapped anew by the system at each call: glibc's largest threshold
OPERANDS = 3  # of an op that is neither product nor convolution, so many have coordinates


class Operand(NamedTuple):
    dtype: str
    shape: list[int]
    strides: list[int]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def is_turned(self) -> bool:
        """Whether its rows are contiguous where columns would be: a transposed matrix."""
        return len(self.shape) >= 2 and not self.is_contiguous and self.strides[-2] == 1

    @property
    def layout(self) -> float:
        if self.is_contiguous:
            return 0.0
        expanded = any(stride == 0 and size > 1 for size, stride in zip(self.shape, self.strides, strict=True))
        return 2.0 if expanded else 1.0 if self.is_turned else 3.0


Point = tuple[str, tuple[float, ...]]  # the kind of call, within which distances mean something; its coordinates


@dataclass(frozen=True)
class Product:
    """A matrix product, or a stack of them."""

    stack: int
    rows: int
    columns: int
    inner: int
    first_turned: bool
    second_turned: bool
    added: bool
    stacked: bool
    family: str = "product"

    @property
    def layout(self) -> str:
        return f"{self.first_turned:d}{self.second_turned:d}{self.stacked:d}"

    @property
    def is_aliased(self) -> bool:
        """Whether rows of the second factor begin whole pages apart, so that they contend for the same cache lines."""
        return (self.inner if self.second_turned else self.columns) % PAGE == 0

    @property
    def place(self) -> tuple[float, ...]:
        flags = (self.first_turned, self.second_turned, self.added, self.stacked)
        vectors = (self.rows == 1, self.columns == 1, self.inner == 1, self.is_aliased)
        sizes = (self.stack, self.rows, self.columns, self.inner)
        return (*map(_octaves, sizes), *(APART * flag for flag in flags), *(NEAR * flag for flag in vectors))


@dataclass(frozen=True)
class Convolution:
    """A convolution, or the gradients of one."""

    items: int
    channels: int
    outputs: int
    places: float  # of one item's output
    kernel: int
    groups: int
    input_size: int
    weight_size: int
    flop: float
    stepped: float  # places of the input for each of the output
    turned: bool  # whether input or weight have their channels last: torch then convolves both so
    wanted: tuple[bool, ...]  # gradients: of input, weight and bias; none of a forward pass
    family: str
    spectra: Spectra = NONE  # how a library for GPUs may make it

    @property
    def layout(self) -> str:
        return f"{self.wanted[:2]} {self.turned} {self.groups > 1} {self.is_small}"

    @property
    def is_small(self) -> bool:
        """Whether torch takes another implementation on a CPU, in which it calls no library of convolutions."""
        kernel = self.kernel <= SMALL_KERNEL**2
        return self.items == 1 and self.groups == 1 and kernel and self.input_size <= SMALL_INPUT

    @property
    def by_spectra(self) -> bool:
        return self.spectra.are_used(backward=any(self.wanted))

    @property
    def place_on_gpu(self) -> tuple[float, ...]:
        """Coordinates beside those of its place."""
        return APART * _octaves(self.spectra.gain), APART * self.by_spectra

    @property
    def is_ragged(self) -> bool:
        """Whether a group's outputs do not fill whole vectors; without groups the library fills them up."""
        return self.groups > 1 and self.outputs // self.groups % VECTOR != 0

    @property
    def place(self) -> tuple[float, ...]:
        sizes = (self.items, self.channels, self.outputs, self.places, self.kernel)
        return (
            *map(_octaves, sizes),
            *(NEAR * _octaves(each) for each in (self.stepped, self.groups)),
            *(NEAR * flag for flag in (self.turned, self.is_ragged)),
            *(APART * flag for flag in (*self.wanted, self.is_small)),
        )


@lru_cache(maxsize=1 << 16)
def point_of(op: OpWork, gpu: bool = False) -> Point:
    arguments = _arguments(op)
    operands = _operands(arguments)
    dtype = operands[0].dtype if operands else ""
    layer = layer_of(op)
    if layer is not None:
        more = layer.place_on_gpu if gpu and isinstance(layer, Convolution) else ()
        return f"{layer.family} {dtype}", (*layer.place, *more)
    dims = len(operands[0].shape) if operands else 0
    return f"{op.op.removesuffix('_')} {dtype} {dims}", _other(op, arguments, operands)


@lru_cache(maxsize=1 << 16)
def mapped_bytes(op: OpWork) -> float:
    """Of a result so large that a CPU's allocator has it mapped anew, a page at a time as it is written."""
    if op.op.endswith("_"):
        return 0.0
    read = sum(each.size * WIDTHS.get(each.dtype, 4) for each in _operands(_arguments(op)))
    written = (op.bytes or 0.0) - read
    return written if written > MAPPED_BYTES else 0.0


@lru_cache(maxsize=1 << 16)
def layer_of(op: OpWork) -> Product | Convolution | None:
    """What a matrix product or convolution computes; None of any other op."""
    name = op.op.removesuffix("_")
    if name not in PRODUCTS and name not in CONVOLUTIONS:
        return None
    arguments = _arguments(op)
    operands = _operands(arguments)
    if sum(len(each.shape) >= 2 for each in operands) < 2:
        return None
    return _product(name, operands) if name in PRODUCTS else _convolution(op, name, arguments, operands)


def _product(name: str, operands: Sequence[Operand]) -> Product:
    """Factors come after what is added to the product, and before where it is written to."""
    added = name in ADDED
    first, second = operands[1:3] if added and len(operands) > 2 else operands[:2]
    *stack, rows, inner = first.shape
    return Product(
        math.prod(stack), rows, second.shape[-1], inner, first.is_turned, second.is_turned, added, bool(stack)
    )


def _convolution(op: OpWork, name: str, arguments: list[Any], operands: Sequence[Operand]) -> Convolution:
    backward = name.endswith("backward")
    data, weight = operands[1:3] if backward and len(operands) > 2 else operands[:2]
    last = arguments[-1] if backward and isinstance(arguments[-1], list) else []
    asked = len(last) == GRADIENTS and all(isinstance(each, bool) for each in last)
    wanted = tuple(last) if asked else (backward,) * GRADIENTS
    passes = max(1, wanted[0] + wanted[1])
    flop = op.flop or 0.0
    places = max(1.0, flop / max(1.0, 2.0 * passes * weight.size * data.shape[0]))
    return Convolution(
        items=data.shape[0],
        channels=data.shape[1],
        outputs=weight.shape[0],
        places=places,
        kernel=math.prod(weight.shape[2:]),
        groups=max(1, data.shape[1] // max(1, weight.shape[1])),
        input_size=data.size,
        weight_size=weight.size,
        flop=flop,
        stepped=math.prod(data.shape[2:]) / places,
        turned=not data.is_contiguous or not weight.is_contiguous,
        wanted=wanted,
        family=name,
        spectra=_spectra(arguments[4:8] if backward else arguments[3:7], data, weight),
    )


def _spectra(how: Sequence[Any], data: Operand, weight: Operand) -> Spectra:
    """`how` are stride, padding, dilation and whether it is transposed; op rows do not have them."""
    if len(how) < 4 or how[3] or max(how[2]) > 1 or data.dtype != "float":
        return NONE
    return spectra_of(data.shape[2:], weight.shape[2:], how[0], how[1])


def _other(op: OpWork, arguments: list[Any], operands: Sequence[Operand]) -> tuple[float, ...]:
    found = [_octaves(op.bytes or 0.0), _octaves(op.flop or 0.0), _octaves(len(operands))]
    for at in range(OPERANDS):
        if at < len(operands):
            each = operands[at]
            found += [_octaves(each.size), 0.5 * _octaves(each.shape[-1] if each.shape else 0), NEAR * each.layout]
        else:
            found += [0.0] * 3
    numbers = [each for each in arguments if isinstance(each, list) and each and isinstance(each[0], int)]
    return (*found, sum(_octaves(abs(number)) for number in (numbers[0] if numbers else [])))


def _arguments(op: OpWork) -> list[Any]:
    if op.spec.startswith('["'):
        found: list[Any] = json.loads(op.spec)[1:]
        return [found[each[1]] if isinstance(each, list) and each[:1] == ["S"] else each for each in found]
    dtypes = [*op.dtypes.split(), "float"]
    return [_plain(shape, dtypes[min(at, len(dtypes) - 1)]) for at, shape in enumerate(shapes_of(op.shapes))]


def _plain(shape: list[Any], dtype: str) -> list[Any]:
    """An operand as a spec has it, contiguous."""
    if shape and isinstance(shape[0], list):
        return ["L", *(_plain(each, dtype) for each in shape)]
    strides = [math.prod(shape[at + 1 :]) for at in range(len(shape))]
    return ["T", dtype, shape, strides]


def _operands(arguments: Sequence[Any]) -> list[Operand]:
    found = []
    for each in arguments:
        if isinstance(each, list) and each and each[0] == "T":
            found.append(Operand(*each[1:]))
        elif isinstance(each, list) and each and each[0] == "L":
            found += _operands(each[1:])
    return found


def _octaves(value: float) -> float:
    return math.log2(1.0 + max(0.0, value))
