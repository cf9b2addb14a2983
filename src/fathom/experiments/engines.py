"""Engines compared: each beside eager in a process of its own, and the fastest that agrees with eager."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fathom.core import plugins
from fathom.core.errors import BadOption, FathomError, UnknownName
from fathom.core.record import Record
from fathom.core.spec import EAGER, RunSpec

BEST = "best"  # of the candidates, by a trial
COMBINED = ("compile+cudagraph", "channels_last+compile", "channels_last+compile+cudagraph", "compile+fused")
TRIAL_S = 2.0  # of timed steps, for each engine that `best` tries
TIMEOUT_S = 600.0  # without progress: a compiler may take minutes, and one that hangs never ends


def candidates() -> list[str]:
    """Every engine but eager, and the combinations that have been of use."""
    return [name for name in plugins.names("engines") if name != EAGER] + list(COMBINED)


def plan(base: RunSpec, names: Sequence[str], phases: Sequence[str], engines: Sequence[str]) -> list[RunSpec]:
    """A trial of each engine, for each workload and phase; one that is named twice is one."""
    work = [replace(base, kind="trial", workload=name, phase=phase) for name in names for phase in phases]
    specs = [replace(spec, engine=engine) for spec in work for engine in engines]
    return list({spec.id: spec for spec in specs}.values())


def chooses(spec: RunSpec) -> bool:
    """Whether `best` tries engines for this run of a study; comparisons at equal work stay eager."""
    return spec.kind == "profiled" and spec.threads is None


def trials_for(spec: RunSpec) -> list[RunSpec]:
    """A short trial of every engine with the work of this run."""
    base = replace(spec, kind="trial", steps=RunSpec.steps, budget_s=TRIAL_S)
    return plan(base, [spec.workload], [spec.phase], candidates())


def with_best(spec: RunSpec, trials: Iterable[Record]) -> RunSpec:
    """The run with the engine that its trials found fastest."""
    found = best(trials)
    return replace(spec, engine=found.spec.engine) if found else spec


def refusal(spec: RunSpec) -> str | None:
    """Why the engine cannot run this at all, known before any run; loads torch.

    A wrong name or value is raised: it is wrong with every engine. A workload or engine that fails in another way is
    left to the run, which records how.
    """
    from fathom.engine.session import Session

    try:
        Session(spec)
    except (BadOption, UnknownName):
        raise
    except FathomError as error:
        return str(error)
    except Exception:
        return None
    return None


def best(trials: Iterable[Record]) -> Record | None:
    """The trial of the fastest engine that agrees with eager; None where none is shown to be faster."""
    from fathom.analysis.engine_trials import fastest  # SciPy, which takes a second

    found = fastest([[record] for record in trials if record.outcome == "ok"])
    return found[0] if found else None
