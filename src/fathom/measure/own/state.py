"""Leaves a user's module as it was: a copy of it is profiled, or itself where that cannot be copied, and put back."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from fathom.core.errors import BadOption


def independent_copy(module: nn.Module) -> nn.Module | None:
    """A copy that shares nothing with the module; None where there is none."""
    made = independent_copies(module)
    return None if made is None else made[0]


def independent_copies(module: nn.Module, *beside: Any) -> tuple[Any, ...] | None:
    """Of a module and what belongs to it, its optimizer and loss: copies that know each other and nothing else of it.

    None where there are none. Tensors with a history (weight normalisation, caches), locks and open files cannot be
    copied. A function that a module holds is copied as it is, and may still call the module that it was made for.
    """
    memo: dict[int, Any] = {}
    try:
        made = copy.deepcopy((module, *beside), memo)
        for old, new in zip(beside, made[1:], strict=True):
            if isinstance(old, Optimizer):
                _complete(old, new, memo)
    except Exception:
        return None
    new_weights = made[0].parameters()
    if any(new.is_leaf < old.is_leaf for new, old in zip(new_weights, module.parameters(), strict=True)):
        return None  # a scripted module's copy is no leaf of autograd's
    theirs = {id(part) for each in (module, *beside) for part in _parts(each)}
    return None if any(id(part) in theirs for each in made for part in [*_parts(each), *_held(each)]) else made


def _complete(old: Optimizer, new: Optimizer, memo: dict[int, Any]) -> None:
    """With its hooks and what a class of the user's own keeps: torch copies settings and state alone."""
    for name, value in vars(old).items():
        if name not in ("defaults", "state", "param_groups"):
            setattr(new, name, copy.deepcopy(value, memo))


def _parts(each: Any) -> Iterator[Any]:
    if isinstance(each, nn.Module):
        yield from each.modules()
        yield from each.parameters()
        yield from each.buffers()
    elif isinstance(each, Optimizer):
        yield each


def _held(each: Any) -> Iterator[Any]:
    """What the functions in a module or an optimizer hold on to: hooks, activations, a forward that was replaced."""
    yield from _captured(each)
    for part in each.modules() if isinstance(each, nn.Module) else [each] if isinstance(each, Optimizer) else []:
        for value in vars(part).values():
            for function in [value, *(value.values() if isinstance(value, dict) else ())]:
                yield from _captured(function)


def _captured(function: Any) -> Iterator[Any]:
    if isinstance(function, MethodType):
        yield function.__self__
    elif isinstance(function, partial):
        yield from (*function.args, *function.keywords.values())
        yield from _captured(function.func)
    elif isinstance(function, FunctionType):
        yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        for cell in function.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not filled yet
                continue


@dataclass
class _Tensor:
    """A tensor as it was found."""

    tensor: Tensor
    data: Tensor  # its storage
    values: Tensor
    gradient: Tensor | None
    gradient_values: Tensor | None
    trained: bool

    @classmethod
    def of(cls, tensor: Tensor) -> _Tensor:
        gradient = tensor.grad if tensor.is_leaf else None
        kept = None if gradient is None else gradient.detach().clone()
        return cls(tensor, tensor.detach(), tensor.detach().clone(), gradient, kept, tensor.requires_grad)

    def put_back(self) -> None:
        with torch.inference_mode(self.tensor.is_inference()), torch.no_grad():
            if not _same_values(self.data, self.values):
                self.data.copy_(self.values)
            moved = self.tensor.device != self.data.device or not _same_memory(self.tensor, self.data)
            if moved or self.tensor.dtype != self.data.dtype:
                self.tensor.data = self.data
            if self.tensor.is_leaf:
                self.tensor.requires_grad_(self.trained)
                self.tensor.grad = self.gradient
            if self.gradient is not None and self.gradient_values is not None:
                self.gradient.copy_(self.gradient_values)


def _same_values(one: Tensor, other: Tensor) -> bool:
    """False for layouts that cannot be compared: these are copied, whatever they hold."""
    return one.layout == torch.strided and torch.equal(one, other)


def _same_memory(one: Tensor, other: Tensor) -> bool:
    """Values of a sparse tensor are one of its parts."""
    if one.layout != other.layout:
        return False
    parts = (one._values(), other._values()) if one.layout == torch.sparse_coo else (one, other)
    return one.layout not in (torch.strided, torch.sparse_coo) or parts[0].data_ptr() == parts[1].data_ptr()


def _rewinding(value: Any) -> Callable[[], object] | None:
    """What puts a generator of random numbers back; None for anything else."""
    if isinstance(value, torch.Generator):
        return partial(value.set_state, value.get_state())
    if isinstance(value, np.random.Generator):
        return partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return partial(value.set_state, value.get_state())
    return partial(value.setstate, value.getstate()) if isinstance(value, random.Random) else None


class PutBack(AbstractContextManager[None]):
    """All that modules and optimizers hold, put back at the end: tensors, gradients, attributes, modes, hooks, draws.

    Plain containers are followed; other objects are left alone.
    """

    def __init__(self, *roots: nn.Module | Optimizer) -> None:
        self._seen: dict[int, Any] = {}
        self._tensors: list[_Tensor] = []
        self._contents: list[tuple[Any, Any]] = []
        self._rewinding: list[Callable[[], object]] = []
        for root in roots:
            self._look(root)

    def _look(self, value: Any) -> None:
        if id(value) in self._seen:
            return
        if isinstance(value, nn.Module | Optimizer):
            self._seen[id(value)] = value
            self._look(vars(value))
        elif isinstance(value, Tensor) and is_lazy(value):
            raise BadOption("the model has lazy layers and cannot be copied; call it once, then profile it")
        elif isinstance(value, Tensor):
            self._seen[id(value)] = value
            self._tensors.append(_Tensor.of(value))
        elif isinstance(value, dict | list | set | deque | tuple):
            self._seen[id(value)] = value
            if not isinstance(value, tuple):
                self._contents.append((value, copy.copy(value)))
            for item in list(value.values() if isinstance(value, dict) else value):
                self._look(item)
        elif (rewind := _rewinding(value)) is not None:
            self._seen[id(value)] = value
            self._rewinding.append(rewind)

    def __enter__(self) -> None:
        for kept in self._tensors:
            if kept.tensor.is_leaf:
                kept.tensor.grad = None  # moving a module moves its gradients along

    def __exit__(self, *_: object) -> None:
        for container, content in self._contents:
            container.clear()
            container.extend(content) if isinstance(container, list | deque) else container.update(content)
        for kept in self._tensors:
            kept.put_back()
        for rewind in self._rewinding:
            rewind()


class RandomStates(AbstractContextManager[None]):
    """Every generator that a step may draw from: torch's on all devices, NumPy's and Python's."""

    def __enter__(self) -> None:
        self._python, self._numpy, self._torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]

    def __exit__(self, *_: object) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
