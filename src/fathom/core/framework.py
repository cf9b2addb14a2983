"""FrameworkRecord: one network, run by one framework with so many threads, in one process: what it left behind.

It is a record of its own kind, beside core/record.py: other frameworks have no op rows, recipes or presets of ours. It
is written and decoded in the same way.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from fathom.core.disturbance import Disturbance
from fathom.core.errors import BadOption, DataError, FathomError, UnknownName
from fathom.core.fingerprint import Machine
from fathom.core.record import moment
from fathom.core.spec import PHASES, RANGES, number_in_words
from fathom.core.typed import typed
from fathom.core.validation import check_values

SCHEMA = 1
PRESETS = ("paper", "tiny")  # sizes as published, or small enough for a test
Outcome = Literal["ok", "wrong", "failed", "not installed"]
_WRONG = (
    *(TypeError, KeyError, ValueError, AttributeError, ArithmeticError, RecursionError),
    *(msgspec.MsgspecError, FathomError),
)


@dataclass(frozen=True, kw_only=True)
class FrameworkSpec:
    """One cell of the table. Equal work has an equal id."""

    network: str
    framework: str
    phase: str = "train"
    threads: int = 1
    batch: int
    preset: str = "paper"
    steps: int = 50  # timed, at most
    budget_s: float = 5.0  # for the timed steps: they end earlier where the median is known to 1 %
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in {"phase": PHASES, "preset": PRESETS}.items():
            if getattr(self, name) not in known:
                raise UnknownName.among(name, str(getattr(self, name)), known)
        for name in ("threads", "batch", "steps", "seed"):
            value, (smallest, largest) = getattr(self, name), RANGES[name]
            if not smallest <= value <= largest:
                raise BadOption(f"{name} must be {smallest} to {largest:,}, not {number_in_words(value)}")
        if not 0 < self.budget_s < 86_400:
            raise BadOption(f"a budget must be some seconds, less than a day, not {self.budget_s:g}")

    @property
    def id(self) -> str:
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        """fcn5 train, keras_jax, 2 threads"""
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        return f"{self.network} {self.phase}, {self.framework}, {threads}"


@dataclass(frozen=True, kw_only=True)
class FrameworkRecord:
    spec: FrameworkSpec
    machine: Machine
    outcome: Outcome
    reason: str | None = None  # why it failed, what is wrong, or how to install it
    versions: dict[str, str] = field(default_factory=dict)  # of the libraries it needs
    settings: dict[str, str] = field(default_factory=dict)  # of threads and precision, as the framework reports them
    cpus: list[int] = field(default_factory=list)  # that the process was bound to, by the system's numbers
    import_s: float | None = None  # of the framework
    build_s: float | None = None  # network, weights; of an inference engine also export and compilation
    warmup_s: list[float] = field(default_factory=list)  # the first step, which compiles, and those checked after it
    step_s: list[float] = field(default_factory=list)
    cpu_s: float | None = None  # CPU time of all threads of the process during the timed steps
    losses: list[float] = field(default_factory=list)  # of the checked training steps
    error: float | None = None  # against the float64 reference; None where nothing could be compared
    tolerance: float | None = None  # of that error
    parameters: int | None = None
    peak_host_bytes: int | None = None
    disturbance: Disturbance = field(default_factory=Disturbance)
    started: str = field(default_factory=moment)
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    schema: int = SCHEMA
    kind: Literal["framework"] = "framework"

    @property
    def cores_used(self) -> float | None:
        """CPU time over wall time of the timed steps: whether the thread limit held, whatever the settings say."""
        elapsed_s = sum(self.step_s)
        return self.cpu_s / elapsed_s if self.cpu_s is not None and elapsed_s else None

    @property
    def first_step_s(self) -> float | None:
        return self.warmup_s[0] if self.warmup_s else None

    @property
    def disturbed(self) -> bool:
        return bool(self.disturbance.reasons)

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document

    @classmethod
    def from_json(cls, data: Any, origin: str = "record") -> FrameworkRecord:
        """A record read back; anything else is refused with its origin."""
        if not isinstance(data, dict) or data.get("kind") != "framework":
            raise DataError(f"{origin}: not a record of fathom frameworks")
        if data.get("schema") != SCHEMA:
            found = " ".join(str(data.get("schema")).split())[:40]
            raise DataError(f"{origin}: schema {found}, this Fathom reads schema {SCHEMA} of framework records")
        try:
            if unknown := data.keys() - cls.__dataclass_fields__.keys():
                raise TypeError(f"unknown field {min(unknown)}")
            record = typed(data, cls)
            check_values(record, failed=record.outcome == "failed")
            if record.outcome == "ok" and not record.step_s:
                raise ValueError("outcome ok, but no timed steps")
        except _WRONG as error:
            raise DataError(
                f"{origin}: not a record of fathom frameworks: {' '.join(str(error).split())[:300]}"
            ) from None
        return record
