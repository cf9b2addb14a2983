"""An op as a dispatch mode sees it, in the form that the formulas of a trace take: one set of formulas for both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fathom.trace.call import TracedCall

DTYPES = {
    torch.float64: "double",
    torch.float32: "float",
    torch.bfloat16: "c10::BFloat16",
    torch.float16: "c10::Half",
    torch.int64: "long int",
    torch.int32: "int",
    torch.int16: "short int",
    torch.int8: "signed char",
    torch.uint8: "unsigned char",
    torch.bool: "bool",
    torch.complex64: "c10::complex<float>",
    torch.complex128: "c10::complex<double>",
}
Entry = tuple[Any, str, str, Any]  # dims, type, concrete value and strides of one argument
NOT_TOLD: Entry = ([], "", "", [])
INDICES = "List[Optional[Tensor]]"  # the type of an argument
MASKS = (torch.bool, torch.uint8)


def call_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TracedCall:
    """The call with its arguments in the order of the op's schema, defaults included."""
    schema = func._schema.arguments
    given = [
        args[index] if index < len(args) else kwargs.get(each.name, each.default_value)
        for index, each in enumerate(schema)
    ]
    columns = [
        _indices(value) if isinstance(value, list | tuple) and str(each.type) == INDICES else _entry(value)
        for each, value in zip(schema, given, strict=True)
    ]
    return TracedCall(
        op=func._schema.name,
        dims=[column[0] for column in columns],
        types=[column[1] for column in columns],
        concrete=[column[2] for column in columns],
        strides=[column[3] for column in columns],
        list_width=_list_width(given),
    )


def _entry(value: Any) -> Entry:
    if isinstance(value, Tensor):
        return list(value.shape), DTYPES.get(value.dtype, ""), "", list(value.stride())
    if isinstance(value, list | tuple) and value and isinstance(value[0], Tensor):
        tensors = [each for each in value if isinstance(each, Tensor)]
        return [list(each.shape) for each in tensors], "TensorList", "", [list(each.stride()) for each in tensors]
    if isinstance(value, list | tuple):
        return [], "ScalarList", str(list(value)), []
    if isinstance(value, bool | int | float):
        return [], "Scalar", str(value), []
    return NOT_TOLD


def _indices(tensors: Sequence[Tensor | None]) -> Entry:
    """None for a dimension that is taken whole. Of a mask nothing: how much it chooses is in its values."""
    if any(each is not None and each.dtype in MASKS for each in tensors):
        return NOT_TOLD
    return [None if each is None else list(each.shape) for each in tensors], "TensorList", "", []


def _list_width(given: list[Any]) -> int | None:
    """Bytes per element of the tensors in lists: those of the first."""
    lists = (value for value in given if isinstance(value, list | tuple))
    return next((each.element_size() for value in lists for each in value if isinstance(each, Tensor)), None)
