"""A user's own step, a function without arguments: timed and profiled as it is."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fathom.core.errors import BadOption
from fathom.core.spec import RunSpec
from fathom.engine.session import Session, Step
from fathom.machine.devices import resolve
from fathom.measure.own.batch import Takes
from fathom.workloads.base import Output, State


class StepSession(Session):
    """Runs the step and nothing else: no switch of torch is touched, and what the step changes stays changed."""

    state_is_whole: ClassVar[bool] = False  # the step's optimizer, and whatever else it holds

    def __init__(self, spec: RunSpec, step: Callable[[], Any], network: nn.Module, device: torch.device) -> None:
        self.spec, self.device = spec, device
        self._work, self._steps_done = step, 0
        self._settings = ExitStack()
        nothing: Any = iter(())
        self._state = State(
            model=network, device=device, source=None, batches=nothing, optimizer=None, autocast=nullcontext
        )

    def _setup(self) -> None:
        if self.spec.threads is not None:
            self._settings.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(self.spec.threads)

    def run(self, steps: int, on_step: Callable[[Step], Any] | None = None) -> list[float] | list[Output]:
        """The losses, where the step returns one number; else nothing.

        Whatever else it returns is let go of at once: an output would keep the graph of its step in memory.
        """
        results: list[float | Tensor | None] = []

        def work() -> Output:
            results.append(_number(self._work()))
            return {}

        for _ in range(steps):
            step = Step(self._steps_done, work)
            if on_step is not None:
                on_step(step)
            step.run()
            self._steps_done += 1
        numbers = [each for each in results if each is not None]
        return [float(each) for each in numbers] if len(numbers) == len(results) else []


def _number(result: Any) -> float | Tensor | None:
    """Not read yet: reading waits for the device."""
    if isinstance(result, Tensor) and result.numel() == 1:
        return result.detach()
    return result if isinstance(result, float) else None


LAZY = (inspect.isgeneratorfunction, inspect.isasyncgenfunction, inspect.iscoroutinefunction)


def check_step(step: Callable[..., Any]) -> None:
    if any(waits(step) for waits in LAZY):
        raise BadOption("a step does its work when it is called; a generator or a coroutine only begins to")
    if takes := Takes.of(step).required:
        raise BadOption(f"a step takes no arguments, and this one needs {', '.join(takes)}; for a module give a batch")


def network_of(step: Callable[..., Any]) -> nn.Module:
    """The modules that the step refers to, by the names it has for them; one alone is the network itself."""
    found = {name: value for name, value in _referred(step).items() if isinstance(value, nn.Module)}
    if len(found) == 1:
        return next(iter(found.values()))
    network = nn.Module()
    for name, module in found.items():
        network.add_module(name.replace(".", "_"), module)
    return network


def device_of(network: nn.Module, asked: str) -> torch.device:
    """The one that was asked for, else that of the parameters."""
    weight = next(network.parameters(), None)
    return resolve(str(weight.device) if asked == "auto" and weight is not None else asked)


def _referred(step: Any) -> dict[str, Any]:
    if isinstance(step, functools.partial):
        given = {f"argument_{number}": value for number, value in enumerate(step.args)}
        return {**_referred(step.func), **given, **step.keywords}
    if inspect.ismethod(step):
        own = step.__self__
        return {"model": own} if isinstance(own, nn.Module) else {**getattr(own, "__dict__", {})}
    if inspect.isfunction(step):
        found: dict[str, Any] = {}
        for each in (step, inspect.unwrap(step)):  # a decorated one refers to what the function in it does
            names = inspect.getclosurevars(each)
            found |= {**names.globals, **names.nonlocals}
        return found
    return dict(getattr(step, "__dict__", {}))
