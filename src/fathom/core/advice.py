"""Settings under which the same model may run, and what a trial of one beside another found."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from fathom.core.spec import SEPARATOR
from fathom.core.trial import Trial
from fathom.core.typed import typed


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is changed of how a model runs; None leaves it as it is, so that Setting() is the usual setting."""

    engine: str | None = None  # parts joined by "+"; None is eager
    precision: str | None = None
    batch: int | None = None
    threads: int | None = None
    workers: int | None = None  # processes that read the data

    def __post_init__(self) -> None:
        if self.engine is not None:  # in whatever order they are named
            object.__setattr__(self, "engine", SEPARATOR.join(sorted(set(self.engine.split(SEPARATOR)))))

    @property
    def changes(self) -> dict[str, Any]:
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    @property
    def engines(self) -> frozenset[str]:
        return frozenset(self.engine.split(SEPARATOR) if self.engine else ())

    def covers(self, other: Setting) -> bool:
        """Whether it changes what the other does, and more: engines together one of them alone, bf16 TF32."""
        if set(other.changes) == {"precision"}:
            return (other.precision, self.precision) == ("tf32", "bf16")
        return set(other.changes) == {"engine"} and other.engines < self.engines

    def __str__(self) -> str:
        plural = {"threads": "thread", "workers": "data worker"}
        said = {name: f"{value} {plural[name]}{'s' * (value != 1)}" if name in plural else str(value)
                for name, value in self.changes.items()}  # fmt: skip
        said |= {"batch": f"batch {self.batch}"} if self.batch is not None else {}
        return ", ".join(said.values()) or "as it is"

    def with_(self, other: Setting) -> Setting:
        """Both changes at once: engines are combined, of anything else the other's value counts."""
        engines = [each for each in (self.engine, other.engine) if each is not None]
        both = self.changes | other.changes | ({"engine": SEPARATOR.join(engines)} if engines else {})
        return Setting(**both)


USUAL = Setting()


@dataclass(frozen=True, kw_only=True)
class SettingTrial:
    """One setting beside another, mostly the usual one, in one process, in turns; or why there is no such trial."""

    setting: Setting
    against: Setting = USUAL
    items: int = 1  # of a step
    usual_items: int = 1  # of a step of what it is tried against
    trial: Trial | None = None  # its `eager` is what it is tried against, its `engine` the setting
    precision: str = "fp32"  # that agreement is judged by
    compared: bool = True  # whether results could be compared: a step of another batch has others
    disturbed: list[str] = dataclasses.field(default_factory=list)
    failed: str | None = None
    refused: bool = False  # known before anything ran: it does not apply

    @property
    def gains(self) -> list[float]:
        """Items per second over those of what it is tried against, turn by turn."""
        return [each * self.items / self.usual_items for each in self.trial.speedups] if self.trial else []

    @property
    def disagreement(self) -> str | None:
        """How its results differ by more than rounding explains; None where they agree or cannot be compared."""
        return self.trial.disagreement(self.precision) if self.trial and self.compared else None

    @property
    def agreement(self) -> str:
        """In words."""
        if not self.compared or self.trial is None:
            return "not compared"
        return "yes" if (why := self.disagreement) is None else f"no: {why}"

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SettingTrial:
        return typed(data, cls)
