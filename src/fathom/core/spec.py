"""RunSpec: what to run, as plain frozen data with JSON in and out and a stable id."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os.path
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fathom.core.errors import BadOption, UnknownName

PHASES = ("train", "infer")
PRECISIONS = ("fp32", "tf32", "bf16")
LARGEST_SEED = 2**62  # every generator takes those below


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run of one workload. None leaves a choice to the preset or to the machine."""

    workload: str
    phase: str = "train"
    preset: str = "small"
    device: str = "auto"
    precision: str = "fp32"
    batch: int | None = None
    threads: int | None = None
    cores: tuple[int, ...] | None = None  # the worker is bound to these, by the system's numbers; None binds nothing
    warmup: int = 2
    steps: int = 10  # at most, where there is a budget
    budget_s: float | None = None  # stop earlier: when the median is known to 1 %, or this much time is spent
    profile: bool = False  # a profiled pass after the timed one
    learn: bool = False  # train to the workload's target instead of timing steps
    rounds: int | None = None  # of learning, at most; None is as its lesson says
    life: bool = False  # on a GPU: trace the whole program, context to last step, instead of timing steps
    data: str | None = None  # a folder of real data; None is synthetic
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)  # fields of the workload, changed

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise UnknownName.among("phase", self.phase, PHASES)
        if self.precision not in PRECISIONS:
            raise UnknownName.among("precision", self.precision, PRECISIONS)
        for name, least in (("batch", 1), ("threads", 1), ("rounds", 1), ("warmup", 0), ("steps", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise BadOption(f"{name} must be at least {least}, not {value}")
        if self.seed >= LARGEST_SEED:
            raise BadOption(f"seed must be below {LARGEST_SEED}, not {self.seed}")
        if self.budget_s is not None and not 0 < self.budget_s < math.inf:
            raise BadOption(f"a budget must be some seconds, not {self.budget_s}")
        if self.data:
            object.__setattr__(self, "data", os.path.normpath(self.data))  # "mnist/" is no other run than "mnist"
        if self.cores is not None:
            object.__setattr__(self, "cores", tuple(self.cores))  # JSON has lists alone
            if not self.cores or min(self.cores) < 0:
                raise BadOption("cores must be numbers of this machine's cores, such as 0,1")

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunSpec:
        known = {entry.name for entry in dataclasses.fields(cls)}
        for name in data:
            if name not in known:
                raise UnknownName.among("field of a run", name, known)
        return cls(**data)

    def said(self) -> dict[str, Any]:
        """Only what differs from the defaults: a Fathom that does not know a field understands a spec without it."""
        defaults = {entry.name: entry.default for entry in dataclasses.fields(self)}
        return {name: value for name, value in self.to_json().items() if value != defaults[name] and value != {}}

    @property
    def id(self) -> str:
        """Twelve hex digits that are the same for equal specs, on every machine.

        They are of what is said alone, so that a field added later leaves the old ids as they were.
        """
        return hashlib.sha256(json.dumps(self.said(), sort_keys=True).encode()).hexdigest()[:12]


def read_value(text: str) -> Any:
    """A value that somebody typed: a JSON number or switch where it reads as one, else a word."""
    try:
        return json.loads(text)
    except ValueError:
        return text
