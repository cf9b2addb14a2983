"""Op calls as a trace has them, from named arguments: their positions are those of the installed torch's schemas."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from fathom.trace.call import TracedCall
from fathom.trace.event import OpArgs

# ops that not every supported torch has
RECENT = {"_scaled_mm_v2", "_scaled_grouped_mm_v2", "_cudnn_attention_forward", "_cudnn_attention_backward"}
SCALAR_TYPES = {torch.bfloat16: 15, torch.float32: 6, torch.int32: 3, torch.float16: 5, torch.int64: 4}


@dataclass(frozen=True)
class T:
    """A tensor argument; contiguous unless strides are given."""

    shape: tuple[int, ...]
    dtype: str = "float"
    strides: tuple[int, ...] | None = None

    def all_strides(self) -> list[int]:
        if self.strides is not None:
            return list(self.strides)
        return [prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]


def f32(*shape: int) -> T:
    return T(shape)


def bf16(*shape: int) -> T:
    return T(shape, "c10::BFloat16")


def i64(*shape: int) -> T:
    return T(shape, "long int")


def of(dtype: str, *shape: int) -> T:
    return T(shape, dtype)


def trace_args(op: str, given: dict[str, Any]) -> dict[str, Any]:
    """The args of a trace event for a call with these arguments; others have the schema's defaults."""
    columns = [_entry(given.get(each.name, each.default_value)) for each in _schema(op, given).arguments]
    names = ("Input Dims", "Input type", "Concrete Inputs", "Input Strides")
    return {name: [column[index] for column in columns] for index, name in enumerate(names)}


def traced(op: str, **given: Any) -> TracedCall:
    return TracedCall.from_args(f"aten::{op}", OpArgs.of(trace_args(op, given)))


def _schema(op: str, given: dict[str, Any]) -> Any:
    """The overload that takes these arguments and needs no others, with the fewest arguments."""
    fitting = []
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{op}"):
        names = {each.name for each in schema.arguments}
        needed = {each.name for each in schema.arguments if not each.has_default_value()}
        if given.keys() <= names and needed <= given.keys() and _types_fit(schema, given):
            fitting.append(schema)
    assert fitting, f"{op} takes no such arguments: {list(given)}"
    return min(fitting, key=lambda schema: len(schema.arguments))


def _types_fit(schema: Any, given: dict[str, Any]) -> bool:
    kinds = {each.name: str(each.type) for each in schema.arguments}
    return all("Tensor" in kinds[name] for name, value in given.items() if isinstance(value, T))


def _entry(value: Any) -> tuple[Any, str, str, Any]:
    """Dimensions, type, concrete value and strides, as torch.profiler writes them."""
    if isinstance(value, T):
        return list(value.shape), value.dtype, "", value.all_strides()
    if isinstance(value, list) and value and isinstance(value[0], T):
        return [list(each.shape) for each in value], "TensorList", "", [each.all_strides() for each in value]
    if value is None or isinstance(value, str):
        return [], "", "", []
    if isinstance(value, torch.dtype):
        return [], "Scalar", str(SCALAR_TYPES[value]), []
    if isinstance(value, list):
        return [], "ScalarList", str(value), []
    text = f"{value:.0f}." if isinstance(value, float) and value == int(value) else json.dumps(value)
    return [], "Scalar", str(value) if isinstance(value, bool) else text, []
