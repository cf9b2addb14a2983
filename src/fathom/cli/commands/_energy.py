"""How the energy of a workload looks in a terminal and as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fathom.cli.terminal import human, print_facts, print_table, print_text, seconds, text
from fathom.core.errors import BadOption
from fathom.core.record import Record

if TYPE_CHECKING:  # the analyses load NumPy and SciPy
    from fathom.analysis.energy_runs import EnergyRuns
    from fathom.analysis.finding import Table
    from fathom.analysis.questions._time_energy import Sweep

ITEMS = 1_000_000  # that emissions and cost are given for: those of one item are too small to read


@dataclass(frozen=True)
class Rates:
    """What the user says of a kWh; nothing is guessed."""

    grams_per_kwh: float | None = None
    price_per_kwh: float | None = None

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if value is not None and not 0 <= value < math.inf:
                raise BadOption(f"--{name.replace('_', '-')} must be a number of 0 or more, not {value:g}")

    def of(self, joules: float) -> dict[str, float]:
        """Grams of CO2 and money, of those that were given."""
        kilowatt_hours = joules / 3.6e6
        given = {"co2_g": self.grams_per_kwh, "cost": self.price_per_kwh}
        return {name: kilowatt_hours * rate for name, rate in given.items() if rate is not None}


def print_measurement(runs: EnergyRuns, rates: Rates) -> None:
    """The facts of one setting, its verdict first, and the sections of its first trial."""
    from fathom.analysis.questions._power_trace import section_table

    spec = runs.spec
    batch = "" if spec.batch is None else f", batch {spec.batch}"
    print_facts(f"{runs.workload} {runs.phase} ({spec.preset}{batch}) on {runs.machine}", facts(runs, rates))
    table = section_table(runs)
    print_table(table.title, table.columns, table.rows)


def facts(runs: EnergyRuns, rates: Rates) -> list[tuple[str, str]]:
    from fathom.analysis.energy_runs import LARGEST_SPREAD, in_words, joules

    first = runs.energies[0]
    idle = "not measured" if runs.idle_w is None else f"{text(runs.idle_w)} W before the run; not subtracted"
    sampler = "" if first.sampler_cpu_s is None else f", taking {seconds(first.sampler_cpu_s)} of a core"
    rows = [
        ("verdict", in_words(runs)),
        ("energy per item", f"{joules(runs.per_item_j)} per {runs.item}"),
        ("energy per step", f"{joules(runs.per_step_j)} in {seconds(runs.step_s)}"),
        ("energy of the window", f"{joules(runs.total_j)} in {seconds(runs.window_s)}, {text(runs.steps)} steps"),
        ("average power", f"{text(runs.mean_w)} W"),
        ("peak power", "not shown by the meters" if runs.peak_w is None else f"{text(runs.peak_w)} W"),
        ("idle power", idle),
        ("EDP", f"{text(runs.step_edp)} J s per step, {text(runs.item_edp)} J s per {runs.item}"),
        ("counter", _cross_check(runs)),
        ("trials", f"{len(runs.runs)}{_spread(runs.spread, LARGEST_SPREAD)}"),
        ("metered by", ", ".join(f"{part.meter} of {part.scope} ({part.kind})" for part in first.parts)),
        ("sampled", f"every {seconds(first.period_s)}{sampler}"),
    ]
    names = {"co2_g": "CO2", "cost": "cost"}
    for name, value in rates.of(ITEMS * runs.per_item_j).items():
        unit = " g" if name == "co2_g" else ""
        rows.append((names[name], f"{text(value)}{unit} per {ITEMS:,} items, at the rate given"))
    return rows


def _cross_check(runs: EnergyRuns) -> str:
    if runs.gap is None:
        return "not cross-checked: no meter reads both energy and power"
    return f"integrated power is {100 * runs.gap:+.2g} % from the counter"


def _spread(spread: float | None, largest: float) -> str:
    if spread is None:
        return ": a single run has no spread"
    return f", {100 * spread:.2g} % apart ({'within' if spread <= largest else 'more than'} {100 * largest:g} %)"


def print_choices(sweep: Sweep, slower: float) -> None:
    from fathom.analysis.questions._time_energy import choice_table

    table = choice_table(sweep)
    print_table(table.title, table.columns, table.rows)
    for line in sweep.sentences(slower):
        print_text(line)


def print_op_energy(found: Sequence[EnergyRuns], known: Sequence[Record]) -> None:
    """Joules by op class and layer of what was measured now, by a model fitted on all that is known."""
    tables, notes = op_tables(found, known)
    for table in tables:
        print_table(table.title, table.columns, table.rows)
    for note in notes:
        human.print(f"· {note}", highlight=False, markup=False)


def op_tables(found: Sequence[EnergyRuns], known: Sequence[Record]) -> tuple[list[Table], list[str]]:
    """Rows of the workloads and phases that were measured; the model is fitted on all of them."""
    from fathom.analysis.energy_runs import metered
    from fathom.analysis.labels import labelled
    from fathom.analysis.questions._op_energy import op_energy

    records = labelled(known)
    ops = op_energy(metered(records), records)
    wanted = tuple(f"{runs.workload} {runs.phase}," for runs in found)
    return [
        dataclasses.replace(table, rows=[row for row in table.rows if str(row[0]).startswith(wanted)])
        for table in ops.tables()[:2]
    ], ops.notes


def document(
    found: Sequence[EnergyRuns], sweeps: Sequence[Sweep], known: Sequence[Record], rates: Rates, slower: float
) -> dict[str, Any]:
    tables, notes = op_tables(found, known) if found else ([], [])
    return {
        "settings": [_setting(runs, rates) for runs in found],
        "sweeps": [
            {
                "name": sweep.name,
                "settings": sweep.labels,
                "pareto_front": [sweep.labels[index] for index in sweep.front],
                "recommended": {aim: each.choice.setting for aim, each in sweep.recommended(slower).items()},
            }
            for sweep in sweeps
        ],
        "ops": [dataclasses.asdict(table) for table in tables],
        "notes": notes,
    }


def _setting(runs: EnergyRuns, rates: Rates) -> dict[str, Any]:
    spec = runs.spec
    names = ("per_item_j", "per_step_j", "total_j", "window_s", "step_s", "mean_w", "peak_w", "idle_w")
    more = ("step_edp", "item_edp", "gap", "spread", "estimated", "verdict", "reasons")
    choice = ("preset", "batch", "precision", "engine", "power_cap_w", "clock_cap_mhz")
    return {
        **{"workload": runs.workload, "phase": runs.phase, "machine": runs.machine},
        **{name: getattr(spec, name) for name in choice},
        **{name: getattr(runs, name) for name in (*names, *more)},
        "trials": len(runs.runs),
        "meters": [{"meter": part.meter, "scope": part.scope, "kind": part.kind} for part in runs.energies[0].parts],
        f"per_{ITEMS}_items": rates.of(ITEMS * runs.per_item_j),
    }
