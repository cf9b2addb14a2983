"""package.module:function -> what it makes: a model and a batch, a ready step, or a Workload; and their profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from fathom.core import plugins
from fathom.core.errors import BadOption, FathomError
from fathom.core.record import Record
from fathom.engine.as_on_gpu import autocast_as_asked
from fathom.measure.own.errors import one_line, users_fault
from fathom.measure.own.profile import profile
from fathom.workloads.base import Workload

EXPECTED = "a model and a batch (then a loss, then an optimizer), a step (a function without arguments) or a Workload"
PARTS = ("model", "batch", "loss", "optimizer")  # of what the function returns, in this order


def imported(target: str) -> Any:
    """What the name stands for; a module that fails when it is imported is told in one line."""
    try:
        with autocast_as_asked():
            return plugins.named_object(target)
    except FathomError:
        raise
    except BaseException as error:
        raise one_line(target, error) from None


def from_target(target: str) -> dict[str, Any]:
    """What the function makes, as arguments of profile()."""
    make = imported(target)
    if not callable(make):
        raise BadOption(f"{target} is no function, but {type(make).__name__}")
    try:
        with autocast_as_asked():
            made = make()
    except BaseException as error:
        raise one_line(target, error) from None
    if isinstance(made, tuple) and 2 <= len(made) <= len(PARTS) and isinstance(made[0], nn.Module):
        return dict(zip(PARTS, made, strict=False))
    if isinstance(made, Workload) or (callable(made) and not isinstance(made, nn.Module | type)):
        return {"model": made}
    raise BadOption(f"{target} must return {EXPECTED}, not {_described(made)}")


def profile_target(target: str, *, trace_out: str | None = None, **settings: Any) -> Record:
    """The profile of what the function makes, which is nobody else's and needs no copy; every fault is one line.

    A loss or an optimizer in the settings goes before the function's own.
    """
    made = from_target(target)
    given = {name: value for name, value in settings.items() if value is not None}
    try:
        return profile(
            **(made | given), trace_out=None if trace_out is None else Path(trace_out), name=target, in_place=True
        )
    except BaseException as error:
        raise users_fault(target, error) from None


def _described(made: Any) -> str:
    if not isinstance(made, tuple):
        return type(made).__name__
    return f"a tuple of {', '.join(type(each).__name__ for each in made[:5])}"
