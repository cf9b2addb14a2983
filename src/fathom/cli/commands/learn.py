"""fathom learn NAME: trains a workload to its quality target, and tells what it took."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress

from fathom.analysis.selection import last_attempts
from fathom.cli.commands._options import MOST_RUNS, Device, Json, Name, Out, Set, options_of
from fathom.cli.commands._recipe_options import recipe_options
from fathom.cli.commands._recipes import aim
from fathom.cli.commands._running import own_store
from fathom.cli.terminal import beside, count, human, print_json, print_table, progress_bar, text
from fathom.core import plugins
from fathom.core.errors import DataError
from fathom.core.files import held
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import LOCK, Store
from fathom.experiments.checks import check_directory
from fathom.experiments.isolate import isolated

if TYPE_CHECKING:
    from fathom.workloads.recipe import Recipe

RENAMED = {"--rounds": "--evaluations"}
SAY_EVERY_S = 15.0  # where there is no bar to look at
EVALUATED_ON = {"validation": "validation quality", "train": "quality on training data"}
TOOK = ("seconds", "items", "energy_j")
MIXED = "its time and energy are of no one machine"
TO_TARGET = ("seconds_to_target", "items_to_target", "energy_j_to_target")  # a recipe may go on from there


def command(
    name: Name,
    data: Annotated[str | None, typer.Option(help="Folder of real data, or its name below FATHOM_DATA.")] = None,
    runs: Annotated[int, typer.Option(min=1, max=MOST_RUNS, help="Runs, one seed each; all are reported.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="The first seed; the others count up from it.")] = 0,
    evaluations: Annotated[
        int | None, typer.Option(min=1, help="Largest number of evaluations; default: the recipe's.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="tiny, small or paper; default: the recipe's.")] = None,
    device: Device = "auto",
    precision: Annotated[
        str | None, typer.Option(help="fp32, tf32 or bf16; default: fp32 on a CPU, else the recipe's.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="eager, cudagraph, ...; default: eager on a CPU, else the recipe's.")
    ] = None,
    set_: Set = None,
    out: Out = Path("records"),
    as_json: Json = False,
) -> None:
    """Trains a workload to its target quality and reports time, items and energy; resumes an interrupted run."""
    plugins.check("workloads", name)
    check_directory()
    asked = {"preset": preset, "precision": precision, "engine": engine}
    recipe, spec = _planned(name, data, evaluations, device, asked, options_of(set_ or []))
    specs = [replace(spec, seed=seed + number) for number in range(runs)]
    is_same = _same_task(spec, recipe, out)
    _announce(spec, recipe, specs)
    store = own_store(out)
    left = store.remaining(specs, is_same)
    if done := len(specs) - len(left):
        _say(f"{done} of {count(runs, 'run')} in {out} already; another --out trains again")
    for each in left:
        _train(each, recipe, store, several=runs > 1)
    own = [record for record in store.records() if record.outcome != "ok" or is_same(record)]
    found = {record.spec.id: record for record in last_attempts(own)}
    if gone := sum(each.id not in found for each in specs):
        raise DataError.at(out, f"{gone} of {runs} records were written and have vanished; run it again")
    records = [found[each.id] for each in specs]
    _tell(records, recipe, as_json)
    if any(record.outcome != "ok" for record in records):
        raise typer.Exit(1)


def _planned(
    name: str,
    data: str | None,
    evaluations: int | None,
    device: str,
    asked: Mapping[str, str | None],
    options: Mapping[str, Any],
) -> tuple[Recipe[Any], RunSpec]:
    """The recipe, and the run that follows it but for what was asked for; a mistake is told now."""
    from fathom.engine.session import Session
    from fathom.machine.devices import resolve
    from fathom.training.trainer import recipe_for

    recipe = recipe_for(RunSpec(workload=name, kind="training", data=data, options=options))
    here = resolve(device)
    on_cpu = {"precision": "fp32", "engine": "eager"} if here.type == "cpu" else {}
    usual: dict[str, Any] = {"preset": recipe.preset, "precision": recipe.precision, "engine": recipe.engine, **on_cpu}
    chosen = usual | {key: value for key, value in asked.items() if value is not None}
    spec = RunSpec(
        workload=name,
        kind="training",
        evaluations=evaluations,
        device=str(here),
        data=data,
        options={**recipe_options(recipe, name, chosen["preset"]), **options},
        **chosen,
    )
    Session(spec)  # refuses what every run would be refused for
    return recipe, spec


def _same_task(spec: RunSpec, recipe: Recipe[Any], out: Path) -> Callable[[Record], bool]:
    """Whether a run of this spec was of this recipe and of the data as they are now."""
    from fathom.training.data_id import check_apart, data_id

    check_apart(spec, out)
    files = data_id(spec)

    def same(record: Record) -> bool:
        learning = record.learning
        return learning is not None and learning.recipe == recipe.id and learning.data_id in (None, files)

    return same


def _announce(spec: RunSpec, recipe: Recipe[Any], specs: Sequence[RunSpec]) -> None:
    from fathom.workloads.base import workload_class

    kind = workload_class(spec.workload)
    synthetic = spec.data is None and not kind.interactive
    what = f"{spec.workload} on synthetic data" if synthetic else spec.workload
    seeds = ", ".join(str(each.seed) for each in specs)
    runs = f"{count(len(specs), 'run')} of at most {count(spec.evaluations or recipe.evaluations, 'evaluation')}"
    _say(f"{what}: {runs}, seed{'s' if len(specs) > 1 else ''} {seeds}; {aim(vars(recipe))}")
    if recipe.taken:
        sized = kind.recipe is None or recipe.options != kind.recipe.options
        kept = f"; but preset {spec.preset} keeps its own sizes" if sized and spec.preset != recipe.preset else ""
        _say(f"from the data: {recipe.taken}{kept}")


def _train(spec: RunSpec, recipe: Recipe[Any], store: Store, several: bool) -> None:
    """One run before somebody's eyes, and its record kept; what the worker refuses is the user's mistake, not a run."""
    from fathom.training.checkpoint import FOLDER

    checkpoints = store.folder / "checkpoints"
    try:
        with progress_bar() as bar:
            view = View(spec, recipe, bar, several)
            with store.lock(partial(_say, f"waiting: another run holds {store.folder}")):
                if not store.claim(spec):
                    with held(checkpoints / f"{LOCK}-{spec.id}") as own:
                        if not own:
                            _say(f"seed {spec.seed}: another machine is at this run: no checkpoint is read or written")
                        view.start()
                        where = {FOLDER: str(checkpoints)} if own else {}
                        record = isolated(spec, view.told, on_event=view.hear, environment=where)
                        store.add(record)
                        if own and record.outcome == "ok":
                            _forget(checkpoints, spec)
    except BaseException as stop:
        if not isinstance(stop, Exception) and any(checkpoints.glob(f"*-{spec.id}.pt")):  # a signal, and not too early
            _say(f"seed {spec.seed}: run the command again to resume from the last checkpoint")
        raise


def _forget(checkpoints: Path, spec: RunSpec) -> None:
    """A run that is over is not resumed, and its checkpoint may be a gigabyte."""
    for path in checkpoints.glob(f"*-{spec.id}.pt"):
        path.unlink(missing_ok=True)


def _say(line: str) -> None:
    """Above the bar where there is one; a line stays a line, however narrow the terminal."""
    human.print(line, highlight=False, soft_wrap=True)


class View:
    """What is seen of a run: a line for each evaluation, and the bar; in a log, now and then, how far it is."""

    def __init__(self, spec: RunSpec, recipe: Recipe[Any], bar: Progress, several: bool) -> None:
        self._recipe, self._bar = recipe, bar
        self._who = f"seed {spec.seed}"
        self._lead = f"{self._who}, " if several else ""
        from fathom.workloads.base import workload_class

        self._item = workload_class(spec.workload).item
        self._task = bar.add_task(f"{spec.workload}, {self._who}", total=None, state="")
        self._begun = self._said = time.perf_counter()
        self._first: tuple[int, float] | None = None  # the first step told of, and when: a run may have been resumed
        self._interval: tuple[int, float] | None = None  # the same of this interval
        self._done, self._total = 0, 0
        self._items = 1  # a step; the trainer says how many before the first
        self._last = ""  # what the last evaluation gave

    def start(self) -> None:
        """Time counts from here, when others have been waited for."""
        self._begun = self._said = time.perf_counter()

    def told(self, done: int, total: int) -> None:
        now = time.perf_counter()
        self._first = self._first or (done, now)
        self._interval = self._interval or (done, now)
        self._done, self._total = done, total
        self._bar.update(self._task, completed=done, total=total)
        if done > self._interval[0]:
            speed = self._items * (done - self._interval[0]) / (now - self._interval[1])
            self._show(f"{text(speed)} {self._item}s/s")
        if self._bar.disable and now - self._said >= SAY_EVERY_S:
            self._said = now
            _say(f"{self._lead}step {done:,} of at most {total:,}, {self._times(now)}")

    def hear(self, news: Mapping[str, Any]) -> None:
        match news:
            case {"items_per_step": items}:
                self._items = items
            case {"resumed": done, "left": str(other)}:
                _say(f"{self._who} resumes after evaluation {done}, made on another machine ({other}): {MIXED}")
            case {"resumed": done}:
                _say(f"{self._who} resumes after evaluation {done}")
            case {"no_checkpoint": why}:
                _say(f"{self._lead}{why}")
            case {"evaluating": _}:
                self._show("evaluating")
            case {"evaluation": number, "evaluations": most, "loss": loss, "quality": quality, "items_per_s": speed}:
                now = self._said = time.perf_counter()
                recipe = self._recipe
                found = f"{EVALUATED_ON[recipe.validated_on]} {beside(quality, recipe.target)} {recipe.unit}"
                self._last = f"loss {text(loss)}, {found}, {text(speed)} {self._item}s/s"
                self._interval = None
                self._show("")
                _say(f"{self._lead}evaluation {number} of at most {most}: {self._last}, {self._times(now)}")

    def _show(self, doing: str) -> None:
        """Below the bar: what it does now, and what the last evaluation gave."""
        last = f"last evaluation: {self._last}" if self._last else ""
        self._bar.update(self._task, state="; ".join(filter(None, (last, doing))))

    def _times(self, now: float) -> str:
        """How long it has taken; and where no bar says it, how long it may still take at the speed so far."""
        spent = f"{now - self._begun:.0f} s"
        if not self._bar.disable or self._first is None or self._done == self._first[0]:
            return spent
        done, since = self._first
        left = max(0, self._total - self._done) * (now - since) / (self._done - done)
        return f"{spent}, at most {left:.0f} s left"


def _tell(records: Sequence[Record], recipe: Recipe[Any], as_json: bool) -> None:
    rows = [_row(record, recipe) for record in records]
    if as_json:
        print_json({"runs": rows, "summary": _summary(rows)} if len(rows) > 1 else rows[0])
        return
    went_on = any(row["items_to_target"] not in (None, row["items"]) for row in rows)
    columns = ["quality", "target", "reached", *TOOK, *(TO_TARGET if went_on else ())]
    cells = [_cells(f"seed {row['seed']}", row, columns) for row in rows]
    if len(rows) > 1:
        cells += [_cells(name, row, columns) for name, row in _spread_rows(_summary(rows), recipe).items()]
    title = f"{records[0].spec.workload}: {recipe.metric} ({recipe.unit}), {recipe.split} data"
    print_table(title, ["run", *columns], cells)
    for row in rows:
        if row["outcome"] != "ok":
            _say(f"seed {row['seed']}: {row['outcome']}")
        if row["earlier_machines"]:
            _say(f"seed {row['seed']} began on {' and '.join(row['earlier_machines'])}: {MIXED}")


def _row(record: Record, recipe: Recipe[Any]) -> dict[str, Any]:
    """What scripts are told of a run; of one that never began, what it should have come to."""
    learning = record.learning
    stood = learning.to_target if learning and learning.reached else None
    return {
        "workload": record.spec.workload,
        "seed": record.spec.seed,
        "data": record.spec.data,
        **{key: getattr(learning or recipe, key) for key in ("metric", "unit", "target")},
        **{key: getattr(learning, key, None) for key in ("quality", "reached", *TOOK, "resumed")},
        **{key: getattr(stood, total, None) for key, total in zip(TO_TARGET, TOOK, strict=True)},
        "earlier_machines": [each.name for each in learning.earlier] if learning else [],
        "outcome": record.outcome if record.outcome == "ok" else f"failed: {record.reason}",
    }


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Over the seeds: how many reached the target, and of the runs that did not fail the middle and the ends."""
    good = [row for row in rows if row["outcome"] == "ok"]
    timed = [row for row in good if not row["earlier_machines"]]  # on one machine throughout
    everywhere = ("quality", "items", "items_to_target")
    aimed = any(row["target"] is not None for row in rows)
    return {
        "runs": len(rows),
        "reached": sum(bool(row["reached"]) for row in rows) if aimed else None,
        **{
            key: _spread([row[key] for row in (good if key in everywhere else timed)])
            for key in ("quality", *TOOK, *TO_TARGET)
        },
    }


def _spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """None where there is nothing; of is how many there are, as not every run comes to its target."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"median": statistics.median(known), "least": min(known), "most": max(known), "of": len(known)}


def _spread_rows(summary: Mapping[str, Any], recipe: Recipe[Any]) -> dict[str, dict[str, Any]]:
    """The summary as rows below those of the runs."""
    reached = None if summary["reached"] is None else f"{summary['reached']} of {summary['runs']}"
    rows = {}
    for which in ("median", "least", "most"):
        values = {key: summary[key] and summary[key][which] for key in ("quality", *TOOK, *TO_TARGET)}
        rows[which] = {**values, "target": recipe.target, "reached": reached if which == "median" else ""}
    return rows


def _cells(name: str, row: Mapping[str, Any], columns: Sequence[str]) -> list[Any]:
    told = {**row, "quality": beside(row["quality"], row["target"])}
    return [name, *(told[column] for column in columns)]
