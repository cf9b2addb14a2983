"""Joules of op classes and of layers: tables of what the energy model shares out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fathom.analysis.energy_model import OUTSIDE, STATIC, EnergyModel, MeteredRun, Share, fit, refusal
from fathom.analysis.energy_runs import INVALID, EnergyRuns
from fathom.analysis.finding import Cell, Table
from fathom.analysis.selection import capped, configuration, machine_name, told_apart
from fathom.core.formatting import listed
from fathom.core.record import OpRow, Profile, Record
from fathom.trace.taxonomy import GROUPS

SHOWN_LAYERS = 8  # of each run
NO_LAYER = "in no layer"
Fitted = tuple[EnergyModel, list[MeteredRun]]


@dataclass(frozen=True)
class OpEnergy:
    """The fitted models by machine, with the runs they share out, and why there is none on others."""

    models: dict[str, Fitted]
    refused: dict[str, str]
    invalid: int = 0  # of the measurements that are shared out

    @property
    def notes(self) -> list[str]:
        machines: dict[str, list[str]] = defaultdict(list)
        for machine, why in self.refused.items():
            machines[why].append(machine)
        found = [f"No joules by op class on {listed(names)}: {why}." for why, names in machines.items()]
        if self.invalid:
            found.append(f"Measurements whose joules are shared out although they are {INVALID}: {self.invalid}.")
        return [*found, *(_note(machine, model) for machine, (model, _) in self.models.items())]

    def tables(self) -> list[Table]:
        return (
            [class_table(self.models), layer_table(self.models), coefficient_table(self.models)] if self.models else []
        )


def op_energy(found: Sequence[EnergyRuns], records: Sequence[Record]) -> OpEnergy:
    """Per machine, precision, engine and set of meters a model of its own: a joule per FLOP is none for all of them."""
    profiles = _profiles(records)
    metered: dict[str, list[EnergyRuns]] = defaultdict(list)
    for runs in found:
        if not capped(runs.runs[0]):
            scopes = sorted({part.scope for energy in runs.energies for part in energy.parts})
            metered[f"{runs.machine} ({', '.join(scopes)})"].append(runs)
    groups = {machine: _with_profiles(own, profiles) for machine, own in metered.items()}
    refused = {machine: why for machine, runs in groups.items() if (why := refusal(runs))}
    models = {machine: (fit(runs), runs) for machine, runs in groups.items() if machine not in refused}
    shared = [runs for machine, own in metered.items() if machine in models for runs in own]
    return OpEnergy(models, refused, sum(runs.verdict == INVALID for runs in shared))


def _with_profiles(found: Sequence[EnergyRuns], profiles: dict[tuple[str, str], Profile]) -> list[MeteredRun]:
    """Those that have a profile of the same spec on the same machine."""
    keys = [(runs.machine, runs.spec.id) for runs in found]
    return [
        MeteredRun(runs.workload, name, runs.per_step_j, runs.step_s, profiles[key])
        for runs, name, key in zip(found, _names(found), keys, strict=True)
        if key in profiles
    ]


def _names(found: Sequence[EnergyRuns]) -> list[str]:
    """The workload, its phase, preset and batch, and whatever else tells two of them apart."""
    named = []
    for runs in found:
        batch = "" if runs.spec.batch is None else f", batch {runs.spec.batch}"
        named.append((f"{runs.workload} {runs.phase}, {runs.spec.preset}{batch}", configuration(runs.runs[0])))
    return told_apart(named)


def class_table(models: dict[str, Fitted]) -> Table:
    """Every run by op class; joules add up to those of its step."""
    rows = _rows(models, lambda row: row.group, lambda name: GROUPS.get(name, name), len(GROUPS) + 2)
    columns = ["workload", "machine", "class", "energy per step (J)", "share (%)", "from (%)", "to (%)"]
    columns.append("left-out error of the run (%)")
    return Table(title="Energy by op class", columns=columns, rows=rows)


def layer_table(models: dict[str, Fitted]) -> Table:
    rows = _rows(models, lambda row: row.layer or NO_LAYER, str, SHOWN_LAYERS)
    columns = ["workload", "machine", "layer", "energy per step (J)", "share (%)", "from (%)", "to (%)"]
    columns.append("left-out error of the run (%)")
    return Table(title="Energy by layer: those that cost the most", columns=columns, rows=rows)


def coefficient_table(models: dict[str, Fitted]) -> Table:
    rows: list[list[Cell]] = []
    for machine, (model, _) in models.items():
        for name, value in model.coefficients.items():
            unit, scale = (
                ("W", 1.0) if name == STATIC else ("pJ per FLOP" if name.startswith("FLOP") else "pJ per byte", 1e12)
            )
            every = [scale * fold.get(name, 0.0) for fold in model.left_out.values()]
            rows.append([machine, name, scale * value, min(every), max(every), unit])
    columns = ["machine", "term", "coefficient", "from", "to", "unit"]
    return Table(title="The energy model's coefficients", columns=columns, rows=rows)


def _rows(
    models: dict[str, Fitted], key: Callable[[OpRow], str], shown: Callable[[str], str], most: int
) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for machine, (model, runs) in models.items():
        for run in runs:
            shares = list(model.shares(run, key).items())
            rest = shares[most:]
            for name, share in shares[:most]:
                rows.append([run.name, machine, shown(name), *_cells(share, run), 100 * model.errors[run.name]])
            if rest:
                others = Share(*(sum(getattr(each, end) for _, each in rest) for end in ("joules", "low", "high")))
                name = f"{len(rest)} others"
                rows.append([run.name, machine, name, *_cells(others, run), 100 * model.errors[run.name]])
    return rows


def _cells(share: Share, run: MeteredRun) -> list[Cell]:
    return [share.joules, *(100 * value / run.step_j for value in (share.joules, share.low, share.high))]


def _profiles(records: Sequence[Record]) -> dict[tuple[str, str], Profile]:
    """Machine and configuration -> the profile with the most steps."""
    found: dict[tuple[str, str], Profile] = {}
    for record in records:
        profile = record.profile
        if record.outcome != "ok" or profile is None or capped(record) or not profile.rows:
            continue
        key = (machine_name(record), configuration(record).id)
        if key not in found or len(profile.step_s) > len(found[key].step_s):
            found[key] = profile
    return found


def _note(machine: str, model: EnergyModel) -> str:
    worst, error = model.worst
    return (
        f"No meter sees a single op. On {machine} the measured joules of a step are shared out by a fitted model "
        f"(static power {model.static_w:.3g} W times time, and joules per FLOP and per byte; {model.grain}), and "
        f"scaled to the measured total. On a workload that it was not fitted on, it is off by {100 * model.error:.2g} "
        f"% in the median and by {100 * error:+.2g} % at worst ({worst}). From and to are the least and the largest "
        f"share where one workload is left out of the fit. {OUTSIDE.capitalize()} has static power alone."
    )
