"""An op call written down with all its arguments, so that it can be made again on any device.

The text is JSON: the op with its overload, then an entry for each argument in the order of its schema. Two calls with
equal texts do the same work, up to the values in their tensors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fathom.engine.op_calls import DTYPES

TENSOR, TENSORS, SAME, DTYPE, OMITTED = "T", "L", "S", "D", "-"  # tags of what JSON has no value for
OMIT = object()  # an argument that was not given: the schema's default
BY_NAME = {name: dtype for dtype, name in DTYPES.items()}
INDEX_BOUND = {  # op -> (the tensor, its dimension) that its integer tensors point into
    "embedding": (0, 0),
    "index_select": (0, None),  # the dimension is the op's second argument
    "gather": (0, None),
    "scatter": (0, None),
    "scatter_add": (0, None),
    "nll_loss_forward": (0, 1),
    "nll_loss_backward": (1, 1),
    "nll_loss2d_forward": (0, 1),
    "nll_loss2d_backward": (1, 1),
}
EVERY_DIMENSION = ("index", "index_put", "_unsafe_index", "_index_put_impl")  # an index into each of several dimensions


def encode(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Keyword arguments are put in their places; devices are left out, since another one is the point."""
    given = [
        args[at] if at < len(args) else kwargs.get(each.name, OMIT) for at, each in enumerate(func._schema.arguments)
    ]
    name = f"{func._schema.name}.{func._overloadname}"
    return json.dumps([name, *_entries(given)], separators=(",", ":"))


def _entries(given: Sequence[Any]) -> list[Any]:
    """A tensor that is there a second time is told: an op that writes to one of its operands has less to copy."""
    found: list[Any] = []
    for value in given:
        first = next((at for at, each in enumerate(given) if each is value), 0) if isinstance(value, Tensor) else None
        found.append(_entry(value) if first in (None, len(found)) else [SAME, first])
    return found


def _entry(value: Any) -> Any:
    if isinstance(value, Tensor):
        return [TENSOR, DTYPES.get(value.dtype, "float"), list(value.shape), list(value.stride())]
    if isinstance(value, list | tuple) and value and isinstance(value[0], Tensor | None):
        return [TENSORS, *(_entry(each) for each in value)]
    if isinstance(value, torch.dtype):
        return [DTYPE, DTYPES.get(value, "float")]
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, list | tuple) and all(isinstance(each, bool | int | float) for each in value):
        return list(value) if value else []
    return [OMITTED]


def decode(text: str, device: torch.device, generator: torch.Generator | None = None) -> tuple[Any, list[Any], Any]:
    """The op, its positional and its keyword arguments, with new tensors on the device."""
    name, *entries = json.loads(text)
    full, _, overload = name.partition(".")
    namespace, _, plain = full.partition("::")
    func = getattr(getattr(getattr(torch.ops, namespace), plain), overload or "default")
    bound = _bound(plain, entries)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    made: list[Any] = []
    for each, entry in zip(func._schema.arguments, entries, strict=True):
        made.append(made[entry[1]] if _is_same(entry) else _value(entry, device, bound, generator))
        if entry == [OMITTED]:
            if each.name == "device":
                kwargs["device"] = device
            continue
        value = made[-1]
        if each.kwarg_only or len(args) < func._schema.arguments.index(each):
            kwargs[each.name] = value
        else:
            args.append(value)
    return func, args, kwargs


def _is_same(entry: Any) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and entry[0] == SAME


def _value(entry: Any, device: torch.device, bound: int, generator: torch.Generator | None) -> Any:
    if not isinstance(entry, list) or not entry or entry[0] not in (TENSOR, TENSORS, DTYPE):
        return entry
    if entry[0] == DTYPE:
        return BY_NAME[entry[1]]
    if entry[0] == TENSORS:
        return [_value(each, device, bound, generator) for each in entry[1:]]
    return _tensor(BY_NAME[entry[1]], entry[2], entry[3], device, bound, generator)


def _tensor(
    dtype: torch.dtype,
    shape: Sequence[int],
    strides: Sequence[int],
    device: torch.device,
    bound: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Random numbers in memory laid out as they were; integers are indices below the bound."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if 0 not in shape else 0
    if dtype.is_floating_point or dtype.is_complex:
        flat = torch.empty(span, dtype=dtype, device=device)
        if span:
            flat.uniform_(0.1, 1.0, generator=generator)  # positive, so that logarithms and roots are no special case
    else:
        high = 2 if dtype == torch.bool else max(1, bound)
        flat = torch.randint(0, high, (span,), device=device, generator=generator).to(dtype)
    return flat.as_strided(tuple(shape), tuple(strides))


def _bound(plain: str, entries: list[Any]) -> int:
    """Indices below it are valid."""
    name = plain.removesuffix("_")
    if name == "embedding_dense_backward":
        return int(entries[2])
    if name in EVERY_DIMENSION:
        return min(entries[0][2], default=1)
    if name not in INDEX_BOUND:
        return 1  # what they point into is not known; 0 is always there
    at, dim = INDEX_BOUND[name]
    shape = entries[at][2]
    chosen = entries[1] if dim is None else dim
    return int(shape[chosen]) if shape else 1
