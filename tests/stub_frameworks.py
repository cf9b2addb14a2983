"""Frameworks that go wrong in every way, for tests: they run the fully connected network in NumPy."""

from __future__ import annotations

import os
import signal
import threading
from typing import ClassVar

import numpy as np

from fathom.frameworks.framework import Framework, Step, Work
from fathom.frameworks.network import Array


def logits(work: Work, kind: type = np.float32) -> Array:
    """The fully connected network, written out."""
    x: Array = work.inputs.astype(kind)
    for layer in work.network.layers():
        weights = work.weights[layer.name]
        x = x @ weights["weight"].astype(kind).T + weights["bias"].astype(kind)
        if layer.name != "logits":
            x = 1 / (1 + np.exp(-x))
    return x


class Numpy(Framework):
    """Right, and it reports the CPUs that it may use."""

    title: ClassVar[str] = "NumPy"
    requires: ClassVar[tuple[str, ...]] = ("numpy",)

    def start(self, threads: int) -> dict[str, str]:
        return {"affinity": str(sorted(os.sched_getaffinity(0))), "OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"]}

    def build(self, work: Work, threads: int) -> tuple[Step, dict[str, str]]:
        return (lambda: logits(work)), {"threads": str(threads)}


class Wrong(Numpy):
    """One logit is off by a thousandth of the largest."""

    def build(self, work: Work, threads: int) -> tuple[Step, dict[str, str]]:
        made = logits(work)
        made[0, 0] += 1e-3 * np.max(np.abs(made))
        return (lambda: made), {}


class NotFinite(Numpy):
    def build(self, work: Work, threads: int) -> tuple[Step, dict[str, str]]:
        made = logits(work) * np.float32(np.nan)
        return (lambda: made), {}


class OtherShape(Numpy):
    def build(self, work: Work, threads: int) -> tuple[Step, dict[str, str]]:
        return (lambda: logits(work)[:1]), {}


class WrongLater(Numpy):
    """Right at first: a buffer that is used again may be wrong from some step on."""

    right: ClassVar[int] = 1  # steps
    added: ClassVar[float] = 1.0

    def build(self, work: Work, threads: int) -> tuple[Step, dict[str, str]]:
        made, left = logits(work), [0.0] * self.right
        return (lambda: made + np.float32(left.pop() if left else self.added)), {}


class WrongWhenTimed(WrongLater):
    right: ClassVar[int] = 5  # the checked steps, and more


class NotFiniteLater(WrongLater):
    added: ClassVar[float] = float("nan")


class Trained(Numpy):
    """Training whose losses are those that the test writes as the reference."""

    losses: ClassVar[list[float]] = [3.0, 2.9, 2.8]

    def build(self, work: Work, threads: int) -> tuple[Step, dict[str, str]]:
        left = list(self.losses)
        return (lambda: left.pop(0) if left else 2.0), {}


class WrongGradient(Trained):
    """The loss falls half as fast."""

    losses: ClassVar[list[float]] = [3.0, 2.95, 2.9]


class Diverging(Trained):
    def build(self, work: Work, threads: int) -> tuple[Step, dict[str, str]]:
        left = list(self.losses)
        return (lambda: left.pop(0) if left else float("inf")), {}


class Crashing(Numpy):
    def start(self, threads: int) -> dict[str, str]:
        os.kill(os.getpid(), signal.SIGSEGV)
        return {}


class Raising(Numpy):
    def build(self, work: Work, threads: int) -> tuple[Step, dict[str, str]]:
        raise RuntimeError("operator Sigmoid is not supported")


class Hanging(Numpy):
    def start(self, threads: int) -> dict[str, str]:
        threading.Event().wait()
        return {}


class Missing(Numpy):
    title: ClassVar[str] = "Missing"
    requires: ClassVar[tuple[str, ...]] = ("no_such_module",)
    extra: ClassVar[str | None] = "nothing"
