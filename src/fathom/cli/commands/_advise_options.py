"""What is typed after `fathom advise`, checked and made into what its two kinds of advice take."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fathom.cli.commands._options import values_in
from fathom.core.errors import BadOption
from fathom.core.spec import OWN, RANGES, RunSpec
from fathom.experiments.checks import check, check_device, check_threads
from fathom.experiments.engines import TIMEOUT_S

if TYPE_CHECKING:
    from fathom.workloads.base import Workload

Value = TypeVar("Value", int, str)
PLANNED = "paper"  # the preset of what is only simulated


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line says about a slow model."""

    name: str
    own: bool  # package.module:function; else a workload
    spec: RunSpec
    loss: str | None = None
    optimizer: str | None = None
    verify: bool = False
    keep_batch: bool = False
    trial_s: float | None = None
    timeout_s: float = TIMEOUT_S
    out: Path = Path("records")
    calibration: Path = Path("calibration")

    @property
    def given(self) -> dict[str, Any]:
        """Of a user's model, for a worker."""
        both = {"loss": self.loss, "optimizer": self.optimizer}
        named = {name: value for name, value in both.items() if value is not None}
        return {"target": self.name, **named} if self.own else {}


@dataclass(frozen=True, kw_only=True)
class Given:
    """The options that do not depend on what is advised."""

    phase: str
    preset: str | None
    device: str
    threads: int | None
    loss: str | None
    optimizer: str | None
    data: str | None
    options: Mapping[str, Any]
    batches: Sequence[int]
    precisions: Sequence[str]
    keep_batch: bool
    trial_s: float | None
    timeout_s: float
    out: Path
    calibration: Path

    def asked(self, name: str, verify: bool) -> Asked:
        """Of a slow model, which is run here."""
        return self._asked(name, verify, "small", only(self.batches, "--batch"), only(self.precisions, "--precision"))

    def asked_of_plan(self, name: str) -> Asked:
        """Of the machine at hand, where the choices of a plan are verified: at the workload's own batch, in fp32."""
        return self._asked(name, True, PLANNED, None, None)

    def _asked(self, name: str, verify: bool, preset: str, batch: int | None, precision: str | None) -> Asked:
        own = is_function(name)
        self._check(own)
        return Asked(
            name=name,
            own=own,
            spec=self._spec(name, own, self.preset or preset, batch, precision),
            loss=self.loss,
            optimizer=self.optimizer,
            verify=verify,
            keep_batch=self.keep_batch,
            trial_s=self.trial_s,
            timeout_s=self.timeout_s,
            out=self.out,
            calibration=self.calibration,
        )

    def workload(self, name: str) -> Workload:
        """To be simulated; nothing of it is run."""
        own = is_function(name)
        self._check(own)
        if not own:
            check(RunSpec(workload=name, preset=self.preset or PLANNED, options=self.options))
        from fathom.measure.own.cost import workload_on_meta
        from fathom.measure.own.errors import users_fault
        from fathom.workloads.base import workload_class

        if own:
            try:
                return workload_on_meta(name, self.loss, self.optimizer)
            except Exception as error:
                raise users_fault(name, error) from None
        return workload_class(name).configured(self.preset or PLANNED, **self.options)

    def _check(self, own: bool) -> None:
        if own and (self.data is not None or self.options or self.preset):
            raise BadOption("a model of your own brings its own batch; --data, --set and --preset are for workloads")
        if not own and (self.loss or self.optimizer):
            raise BadOption("--loss and --optimizer are for a model of your own")
        check_threads(self.threads)

    def _spec(self, name: str, own: bool, preset: str, batch: int | None, precision: str | None) -> RunSpec:
        check_device(self.device, precision)
        if own and batch is not None:
            raise BadOption("a model of your own brings its own batch; --batch is for workloads")
        if own:
            return RunSpec(
                workload=name,
                source="model",
                preset=OWN,
                seed=None,
                phase=self.phase,
                device=self.device,
                precision=precision,
                threads=self.threads,
            )
        spec = RunSpec(
            workload=name,
            phase=self.phase,
            preset=preset,
            device=self.device,
            precision=precision or "fp32",
            batch=batch,
            threads=self.threads,
            data=self.data,
            options=self.options,
        )
        check(spec)
        return spec


def single(names: Sequence[str] | None) -> str:
    if not names:
        raise BadOption("name a workload of `fathom list`, or package.module:function")
    if len(names) > 1:
        raise BadOption(f"advice is for one model at a time, not {len(names)}; --html takes several")
    return names[0]


def only(values: Sequence[Value], option: str) -> Value | None:
    if len(values) > 1:
        raise BadOption(f"{option} takes one value here; several are compared with --items")
    return values[0] if values else None


def listed_in(text: str | None, option: str, kind: type[Value]) -> list[Value]:
    """The values between commas, each once; numbers are positive and whole."""
    parts = values_in(text, option)
    if kind is not int:
        return parts  # type: ignore[return-value]
    smallest, largest = RANGES["batch"]
    for part in parts:
        if not (part.isascii() and part.isdecimal() and len(part) < 20 and smallest <= int(part) <= largest):
            raise BadOption(f"{option} takes whole numbers from {smallest} to {largest:,}, not {part[:40]!r}")
    return [int(part) for part in parts]  # type: ignore[misc]


def is_function(name: str) -> bool:
    """package.module:function, or else a workload class; the module is imported only where a class has that name.

    A user's module may do anything when it is imported: that is left to the process that profiles it.
    """
    if ":" not in name:
        return False
    where, _, called = name.partition(":")
    if not _defines_class(where, called):
        return True
    from fathom.measure.own.target import imported
    from fathom.workloads.base import Workload  # torch

    found = imported(name)

    return not (isinstance(found, type) and issubclass(found, Workload))


def _defines_class(module: str, name: str) -> bool:
    """Read off the file; False where there is none, which the worker reports."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        spec = importlib.util.find_spec(module)
        path = Path(spec.origin) if spec and spec.origin else None
        tree = ast.parse(path.read_bytes()) if path else None
    except Exception:  # importing a parent package may do anything
        return False
    return any(isinstance(node, ast.ClassDef) and node.name == name for node in (tree.body if tree else []))
