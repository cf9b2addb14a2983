"""The arguments of one op call in a trace: dimensions, strides, dtypes and the values of non-tensors.

Anything that the trace does not say, or says in a malformed way, raises NotInTrace where it is asked for: a count that
needs it is then not known. A trace lacks the dtypes of tensors in a list, the dimensions of lists of more than 30
tensors, the indices of aten::index and index_put, and string arguments.
"""

from __future__ import annotations

import json
from math import prod
from typing import Annotated, Any, TypeGuard

import msgspec

from fathom.trace.event import OpArgs

WIDTH = {"double": 8, "float": 4, "c10::BFloat16": 2, "c10::Half": 2}
FLOATING = frozenset(WIDTH)
WIDTH |= {"long int": 8, "long": 8, "int": 4, "short int": 2, "signed char": 1, "unsigned char": 1, "bool": 1}
WIDTH |= {"unsigned short": 2, "short unsigned int": 2, "unsigned int": 4, "unsigned long": 8, "long unsigned int": 8}
WIDTH |= {"c10::complex<c10::Half>": 4, "c10::complex<float>": 8, "c10::complex<double>": 16}
WIDTH |= {"c10::qint8": 1, "c10::quint8": 1, "c10::qint32": 4}
WIDTH |= {f"c10::Float8_{kind}": 1 for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")}
PACKED_FLOAT4 = "c10::Float4_e2m1fn_x2"  # two values in a byte
WIDTH[PACKED_FLOAT4] = 1

DEFAULT_WIDTH = 4  # bytes of torch's default dtype, float32
INT64 = 8  # bytes of an index
# bytes by c10::ScalarType number, as a dtype argument appears in a trace: uint8, int8, int16, int32, int64, half,
# float, double, complex of these three, bool, qint8, quint8, qint32, bfloat16; four float8; uint16, uint32, uint64
SCALAR_TYPE_WIDTH = dict(enumerate((1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 1, 1, 4, 2)))
SCALAR_TYPE_WIDTH |= dict.fromkeys(range(23, 27), 1) | {27: 2, 28: 4, 29: 8, 44: 1, 45: 1}

Shape = list[int]
_decode_strings = msgspec.json.Decoder(list[str]).decode
_decode_shapes = msgspec.json.Decoder(list[list[Annotated[int, msgspec.Meta(ge=0)]]]).decode


class NotInTrace(LookupError):
    """The trace does not say what a count needs."""


class TracedCall(msgspec.Struct, frozen=True, gc=False):
    """One op call. An argument is addressed by its position in the op's schema."""

    op: str
    dims: list[Any]  # per argument: a shape, a list of shapes, [] for a number, None where malformed
    types: list[str]
    concrete: list[str]
    strides: list[Any] | None  # as dims; None where the trace has no strides
    list_width: int | None  # bytes per element of the tensors in lists; None where not known

    @classmethod
    def from_args(cls, op: str, args: OpArgs, list_width: int | None = DEFAULT_WIDTH) -> TracedCall:
        """From the args of a trace event; a malformed entry is as good as none."""
        return cls(
            op=op,
            dims=_shapes(args.dims) or [],
            types=_strings(args.types),
            concrete=_strings(args.concrete),
            strides=_shapes(args.strides),
            list_width=list_width,
        )

    def of(self, op: str, list_width: int | None) -> TracedCall:
        """The same arguments of a certain op."""
        return TracedCall(op, self.dims, self.types, self.concrete, self.strides, list_width)

    @property
    def name(self) -> str:
        """The op's name without "aten::" and without the "_" of an in-place variant."""
        return self.op.removeprefix("aten::").removesuffix("_")

    @property
    def is_in_place(self) -> bool:
        return self.op.endswith("_")

    @property
    def arguments(self) -> int:
        return max(len(self.dims), len(self.types), len(self.concrete))

    def shown(self) -> tuple[str, str]:
        """The shapes of the inputs and their dtypes, as op rows show them."""
        shown = [(str(dims), self.dtype(at).removeprefix("c10::") or "?") for at, dims in enumerate(self.dims) if dims]
        return " ".join([shape for shape, _ in shown]), " ".join([dtype for _, dtype in shown])

    def dtype(self, index: int) -> str:
        """The dtype of an argument; "" if the trace has none, as for None or a string."""
        return self.types[index] if index < len(self.types) else ""

    def is_tensor(self, index: int) -> bool:
        return self.dtype(index) in WIDTH

    def shape(self, index: int) -> Shape:
        """The dimensions of a dense tensor argument; a sparse one has no strides, and its non-zeros are not known."""
        found = self.dims[index] if index < len(self.dims) else None
        if not _is_flat(found) or (not found and not self.is_tensor(index)):
            raise NotInTrace(f"{self.op}: no shape of argument {index}")
        if found and self.strides is not None and len(self._strides(index)) != len(found):
            raise NotInTrace(f"{self.op}: argument {index} has no strides")
        return list(found)

    def elements(self, index: int) -> int:
        """Elements in memory: an expanded dimension (stride 0) repeats what is already counted."""
        shape = self.shape(index)
        if self.strides is None or 0 in shape:
            return prod(shape)
        pairs = list(zip(shape, self._strides(index), strict=True))
        span = 1 + sum((size - 1) * stride for size, stride in pairs)
        return min(span, prod(size for size, stride in pairs if stride))

    def _strides(self, index: int) -> Shape:
        found = self.strides[index] if self.strides and index < len(self.strides) else None
        return list(found) if _is_flat(found) else []

    def width(self, index: int) -> int:
        """Bytes per element of a tensor argument."""
        if not self.is_tensor(index):
            raise NotInTrace(f"{self.op}: no dtype of argument {index}")
        return WIDTH[self.dtype(index)]

    def nbytes(self, *indices: int) -> int:
        """Bytes in memory of tensor arguments."""
        return sum(self.elements(index) * self.width(index) for index in indices)

    def optional_nbytes(self, *indices: int) -> int:
        """The same; an argument that is None has 0."""
        return self.nbytes(*(index for index in indices if self.dtype(index)))

    def shapes(self, index: int) -> list[Shape]:
        """The shapes of a tensor-list argument; an empty list is as good as one that is too long for the trace."""
        found = self.dims[index] if index < len(self.dims) else None
        if not found or not _are_shapes(found):
            raise NotInTrace(f"{self.op}: no shapes of list {index}")
        return [list(shape) for shape in found]

    def has_shapes(self, index: int) -> bool:
        found = self.dims[index] if index < len(self.dims) else None
        return bool(found) and _are_shapes(found)

    def optional_shapes(self, index: int) -> list[Shape | None]:
        """The same of a list in which None may be; a trace has no shapes of such a list."""
        found = self.dims[index] if index < len(self.dims) else None
        if not found:
            raise NotInTrace(f"{self.op}: no shapes of list {index}")
        return list(found)

    def list_elements(self, *indices: int) -> int:
        return sum(prod(shape) for index in indices for shape in self.shapes(index))

    def list_bytes(self, *indices: int) -> int:
        if self.list_width is None:
            raise NotInTrace(f"{self.op}: no dtype of the tensors in a list")
        return self.list_elements(*indices) * self.list_width

    def value(self, index: int) -> Any:
        """The value of a number, bool or list argument; None if it is None, a tensor or a string."""
        if index >= len(self.concrete):
            raise NotInTrace(f"{self.op}: no value of argument {index}")
        text = self.concrete[index]
        try:
            if text.endswith("."):  # torch writes 0.0 as "0."
                return float(text)
            return json.loads(text.replace("True", "true").replace("False", "false"))
        except (ValueError, RecursionError):
            return None

    def number(self, index: int) -> float:
        found = self.value(index)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise NotInTrace(f"{self.op}: argument {index} is no number")
        return found

    def integer(self, index: int) -> int:
        found = self.value(index)
        if type(found) is not int:
            raise NotInTrace(f"{self.op}: argument {index} is no whole number")
        return found

    def integers(self, index: int) -> list[int]:
        found = self.value(index)
        if not isinstance(found, list) or not all(type(each) is int for each in found):
            raise NotInTrace(f"{self.op}: argument {index} is no list of whole numbers")
        return found

    def mask(self, index: int, length: int) -> list[bool]:
        """A list of bools, such as which gradients are asked for."""
        found = self.value(index)
        if not isinstance(found, list) or len(found) != length or not all(isinstance(each, bool) for each in found):
            raise NotInTrace(f"{self.op}: argument {index} is no list of {length} bools")
        return found

    def dtype_width(self, index: int, default: int) -> int:
        """Bytes per element that a dtype argument gives; the default where it is None."""
        found = self.value(index) if index < len(self.concrete) else None
        return default if found is None else SCALAR_TYPE_WIDTH[found]


def _decoded(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.MsgspecError:
        return None


def _shapes(raw: msgspec.Raw) -> list[Any] | None:
    """The shape, or shapes, of each argument; None where there is no list of them."""
    if not raw:
        return None
    try:
        return _decode_shapes(raw)  # of tensors and numbers alone, as most ops have
    except msgspec.MsgspecError:
        entries = _decoded(raw)
    if not isinstance(entries, list):
        return None
    return [entry if _is_shape(entry) or _are_shapes(entry) else None for entry in entries]


def _is_shape(entry: Any) -> TypeGuard[Shape]:
    return isinstance(entry, list) and all(type(size) is int and size >= 0 for size in entry)


def _is_flat(entry: Any) -> TypeGuard[Shape]:
    """Of an entry that was decoded here, which is a shape, a list of shapes or None: whether it is a shape."""
    return isinstance(entry, list) and (not entry or type(entry[0]) is int)


def _are_shapes(entry: Any) -> bool:
    return isinstance(entry, list) and all(map(_is_shape, entry))


def _strings(raw: msgspec.Raw) -> list[str]:
    if not raw:
        return []
    try:
        return _decode_strings(raw)
    except msgspec.MsgspecError:
        entries = _decoded(raw)
    return [entry if isinstance(entry, str) else "" for entry in entries] if isinstance(entries, list) else []
