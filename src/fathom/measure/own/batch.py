"""A user's batch and outputs, in whatever containers they come: copied to the device, counted, handed to forward()."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from fathom.core.errors import BadOption

TARGETS = ("labels", "label", "targets", "target", "y")  # names that a batch may have its target under
NO_ROWS = "its batch has no tensor with a row an item: no other size can be made of it"
RAGGED = "items of its batch have several rows, or none: no other size can be made of it"
WHOLE = "a tuple of one element, (batch,), passes it whole"


@dataclass(frozen=True)
class Takes:
    """What a forward() takes."""

    names: tuple[str, ...] = ()  # that can be given by keyword
    required: tuple[str, ...] = ()
    most: float = math.inf  # by position
    keywords: bool = True  # any others, too

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Takes:
        """Anything, where the function does not say: a scripted module, say."""
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            return cls()
        kinds = {each.kind for each in parameters}
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        return cls(
            names=tuple(p.name for p in named),
            required=tuple(p.name for p in positional if p.default is p.empty),
            most=math.inf if inspect.Parameter.VAR_POSITIONAL in kinds else len(positional),
            keywords=inspect.Parameter.VAR_KEYWORD in kinds,
        )

    def __str__(self) -> str:
        return f"forward() takes {', '.join(self.names) or 'nothing'}"


@dataclass(frozen=True)
class Call:
    """One call of a model, and what its loss compares the output with."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    target: Any = None


def bind(takes: Takes, batch: Any, *, wants_target: bool) -> Call:
    """The batch as arguments: by name where its names are those of forward(), a tuple or list by position, else whole.

    A target is what a mapping has under one of TARGETS, or the last element of a tuple or list. It goes to the model
    as well where forward() has a parameter for it.
    """
    if batch is None:
        if takes.required:
            raise BadOption(f"forward() needs {', '.join(takes.required)}: give a batch")
        return Call()
    names = names_in(batch)
    if names:
        call = _by_name(takes, batch, names, wants_target)
    elif isinstance(batch, tuple | list) and not isinstance(batch, PackedSequence):
        call = _by_position(takes, batch, wants_target)
    else:
        call = Call((batch,))
    if wants_target and call.target is None:
        raise BadOption(
            f"the loss compares the output with a target, and the batch has none: a mapping needs one of "
            f"{', '.join(TARGETS)}, a tuple has it as its last element"
        )
    return call


def names_in(batch: Any) -> dict[str, Any]:
    """The named parts of a mapping, a NamedTuple or a dataclass; none of anything else."""
    if isinstance(batch, Mapping):
        return dict(batch) if all(isinstance(key, str) for key in batch) else {}
    if _is_named_tuple(batch):
        return dict(batch._asdict())
    if _is_dataclass(batch):
        return {each.name: getattr(batch, each.name) for each in dataclasses.fields(batch) if hasattr(batch, each.name)}
    return {}


def _by_name(takes: Takes, batch: Any, names: dict[str, Any], wants_target: bool) -> Call:
    called = next((name for name in TARGETS if name in names), None) if wants_target else None
    target = names.get(called) if called else None
    inputs = {name: value for name, value in names.items() if name != called or name in takes.names}
    known = [name for name in inputs if name in takes.names]
    if set(takes.required) <= set(inputs) and (len(known) == len(inputs) or takes.keywords):
        return Call((), inputs, target)
    if not known and len(takes.required) <= 1 <= takes.most:
        return Call((batch,), {}, target)  # a module that takes one mapping
    if not known and _is_named_tuple(batch) and len(takes.required) <= len(inputs) <= takes.most:
        return Call(tuple(inputs.values()), {}, target)
    raise BadOption(f"{takes}; the batch has {', '.join(names)}; {WHOLE}")


def _by_position(takes: Takes, batch: tuple[Any, ...] | list[Any], wants_target: bool) -> Call:
    inputs, target = list(batch), None
    if wants_target and len(inputs) > 1:
        target = inputs[-1]
        if len(inputs) != len(takes.required):
            inputs.pop()
        if len(inputs) == 1 and (names_in(inputs[0]) or isinstance(inputs[0], tuple | list)):
            return dataclasses.replace(bind(takes, inputs[0], wants_target=False), target=target)
    if len(inputs) > takes.most:
        raise BadOption(
            f"{takes}; the batch has {len(inputs)} elements: give the inputs alone, or a loss that takes the last one "
            f"as its target, such as cross_entropy; {WHOLE}"
        )
    return Call(tuple(inputs), {}, target)


def on_device(batch: Any, device: torch.device) -> Any:
    """A copy on the device: a step may change it, and the user's own stays as it was."""

    def moved(value: Any) -> Any:
        if isinstance(value, Tensor):
            there = value.detach().to(device, copy=True)
            return there.requires_grad_() if value.requires_grad else there
        if isinstance(value, nn.Module) or not callable(getattr(value, "to", None)) or isinstance(value, type):
            return value
        own: Any = value if isinstance(value, tuple) else copy.copy(value)  # some move themselves: a graph's batch does
        there = own.to(device)
        return own if there is None else there

    return rebuilt(batch, moved)


def rebuilt(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """The same containers, new, with leaf() of everything that they hold; a step may pop from one."""
    if isinstance(value, Mapping):
        items = {key: rebuilt(item, leaf) for key, item in value.items()}
        if not isinstance(value, MutableMapping):
            return items
        fresh = copy.copy(value)
        for key, item in items.items():
            fresh[key] = item
        return fresh
    if isinstance(value, tuple | list) and not isinstance(value, PackedSequence):
        parts = [rebuilt(item, leaf) for item in value]
        make: Callable[..., Any] = getattr(type(value), "_make", type(value))
        return make(parts)
    if _is_dataclass(value):
        fresh = copy.copy(value)
        for name, item in names_in(value).items():
            object.__setattr__(fresh, name, rebuilt(item, leaf))  # it may be frozen
        return fresh
    return leaf(value)


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor of a batch or an output, in order; an output may be an object with tensors as attributes."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, tuple | list):
        parts = list(value)
    elif _is_dataclass(value):
        parts = list(names_in(value).values())
    elif isinstance(value, nn.Module | type) or callable(value) or not hasattr(value, "__dict__"):
        return []
    else:
        parts = [part for part in vars(value).values() if isinstance(part, Tensor | Mapping | tuple | list)]
    return [tensor for part in parts for tensor in tensors_in(part)]


def items_in(batch: Any) -> int | None:
    """How many items a batch has: the first dimension of its first tensor, or the length of a list of tensors."""
    arguments = isinstance(batch, tuple | list) and not isinstance(batch, PackedSequence)
    parts = list(names_in(batch).values()) or (batch if arguments else [batch])
    return next((count for part in parts if (count := _count(part)) is not None), None)


def _count(part: Any) -> int | None:
    if isinstance(part, PackedSequence):
        return int(part.batch_sizes[0])
    if isinstance(part, Tensor):
        return len(part) if part.dim() else None
    if isinstance(part, list) and part:
        return len(part)
    return items_in(part) if isinstance(part, Mapping | tuple) and len(part) else None


def _is_named_tuple(value: Any) -> bool:
    plain = isinstance(value, tuple) and not isinstance(value, PackedSequence)  # which its own to() moves
    return plain and hasattr(value, "_asdict") and hasattr(value, "_make")


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
