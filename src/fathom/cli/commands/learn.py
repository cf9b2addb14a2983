"""fathom learn NAME: trains a workload to its quality target, and tells what it took."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress

from fathom.analysis.selection import last_attempts
from fathom.cli.commands._facts import aim
from fathom.cli.commands._options import Device, Json, Name, Out, Set, options_of
from fathom.cli.terminal import beside, count, human, print_json, print_table, progress_bar, text
from fathom.core import plugins
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments.isolate import isolated
from fathom.workloads.recipe import Lesson, Quality

if TYPE_CHECKING:
    from fathom.workloads.base import Workload

SAY_EVERY_S = 15.0  # where there is no bar to look at
TOOK = ("seconds", "items", "energy_j")
TO_TARGET = ("seconds_to_target", "items_to_target", "energy_j_to_target")  # a protocol may go on from there


def command(
    name: Name,
    data: Annotated[str | None, typer.Option(help="Folder of real data, as given or below FATHOM_DATA.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs, with one seed each; all of them are reported.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="The first seed; the others follow it.")] = 0,
    rounds: Annotated[int | None, typer.Option(min=1, help="At most so many rounds; the lesson's own number.")] = None,
    preset: Annotated[str | None, typer.Option(help="tiny, small or paper; the lesson's own.")] = None,
    device: Device = "auto",
    precision: Annotated[str | None, typer.Option(help="fp32, tf32 or bf16; on a CPU fp32, else the lesson's.")] = None,
    set_: Set = None,
    out: Out = Path("records"),
    as_json: Json = False,
) -> None:
    """Trains a workload until its target is reached; a run that was killed goes on when it is started again."""
    spec = _spec(name, data, rounds, preset, device, precision, options_of(set_ or []))
    specs = [RunSpec.from_json({**spec.to_json(), "seed": seed + number}) for number in range(runs)]
    from fathom.workloads.base import workload_class

    quality = workload_class(name).taught(data, spec.options).quality
    seeds = ", ".join(str(each.seed) for each in specs)
    invented = data is None and not workload_class(name).plays
    of = f"{name} on synthetic data" if invented else name
    _say(f"{of}: {count(runs, 'run')}, seed{'s' if runs > 1 else ''} {seeds}; {aim(quality)}")
    store = Store(out)
    left = store.left(specs, partial(_of_this_lesson, quality))
    if done := len(specs) - len(left):
        _say(f"{done} of {count(runs, 'run')} in {out} already; another --out learns anew")
    for each in left:
        _learn(each, quality, store, several=runs > 1)
    found = {record.spec.id: record for record in last_attempts(store.records())}
    records = [found[each.id] for each in specs]
    _tell(records, quality, as_json)
    if any(record.outcome != "ok" for record in records):
        raise typer.Exit(1)


def _spec(
    name: str,
    data: str | None,
    rounds: int | None,
    preset: str | None,
    device: str,
    precision: str | None,
    options: Mapping[str, Any],
) -> RunSpec:
    """The lesson, and what was said otherwise; a mistake is told now."""
    from fathom.machine.devices import resolve

    plugins.check("workloads", name)
    from fathom.workloads.base import workload_class

    workload = workload_class(name)
    lesson = workload.taught(data, options)
    here = resolve(device)
    spec = RunSpec(
        workload=name,
        kind="training",
        evaluations=rounds,
        preset=preset or lesson.preset,
        device=str(here),
        precision=precision or ("fp32" if here.type == "cpu" else lesson.precision),
        data=data,
        options={**_changed(lesson, workload, preset or lesson.preset), **options},
    )
    workload.configured(spec.preset, **spec.options)
    return spec


def _of_this_lesson(quality: Quality, record: Record) -> bool:
    """Whether a record of before was judged as the lesson says now: another version may have had another lesson."""
    return record.learning is not None and record.learning.protocol.startswith(quality.protocol)


def _changed(lesson: Lesson, workload: type[Workload], preset: str) -> dict[str, Any]:
    """What the lesson changes of a preset. One that is not its own keeps its sizes: whoever asks for tiny means it.

    A word says what is learnt, such as the game that is played, and stays the lesson's.
    """
    sizes = workload.presets.get(preset, {}) if preset != lesson.preset else {}
    return {name: value for name, value in lesson.options.items() if name not in sizes or isinstance(value, str)}


def _learn(spec: RunSpec, quality: Quality, store: Store, several: bool) -> None:
    """One run before somebody's eyes, and its record kept; what the worker refuses is the user's mistake, not a run."""
    from fathom.training.run import FOLDER

    checkpoints = store.folder / "checkpoints"
    try:
        with progress_bar() as bar:
            view = View(spec, quality, bar, several)
            with store.turn(partial(_say, f"waiting: another run holds {store.folder}")):
                if not store.take(spec):
                    view.start()
                    record = isolated(spec, view.told, hear=view.hear, environment={FOLDER: str(checkpoints)})
                    store.add(record)
                    if record.outcome == "ok":
                        _forget(checkpoints, spec)
    except BaseException as stop:
        if not isinstance(stop, Exception) and any(checkpoints.glob(f"*-{spec.id}.pt")):  # a signal, and not too early
            _say(f"seed {spec.seed}: start it again to go on from the last round that was kept")
        raise


def _forget(checkpoints: Path, spec: RunSpec) -> None:
    """Nobody goes on from a run that is over, and its checkpoint may be a gigabyte."""
    for path in checkpoints.glob(f"*-{spec.id}.pt"):
        path.unlink(missing_ok=True)


def _say(line: str) -> None:
    """Above the bar where there is one; a line stays a line, however narrow the terminal."""
    human.print(line, highlight=False, soft_wrap=True)


class View:
    """What is seen of a run: a line for each round, and the bar; in a log, now and then, how far it is."""

    def __init__(self, spec: RunSpec, quality: Quality, bar: Progress, several: bool) -> None:
        self._quality, self._bar = quality, bar
        self._who = f"seed {spec.seed}"
        self._lead = f"{self._who}, " if several else ""
        from fathom.workloads.base import workload_class

        self._item = workload_class(spec.workload).item
        self._task = bar.add_task(f"{spec.workload}, {self._who}", total=None, state="")
        self._begun = self._said = time.perf_counter()
        self._first: tuple[int, float] | None = None  # the first step told of, and when: a run may have been resumed
        self._round: tuple[int, float] | None = None  # the same of this round
        self._done, self._total = 0, 0
        self._items = 1  # a step; the trainer says how many before the first
        self._last = ""  # what the last round came to

    def start(self) -> None:
        """Time counts from here, when others have been waited for."""
        self._begun = self._said = time.perf_counter()

    def told(self, done: int, total: int) -> None:
        now = time.perf_counter()
        self._first = self._first or (done, now)
        self._round = self._round or (done, now)
        self._done, self._total = done, total
        self._bar.update(self._task, completed=done, total=total)
        if done > self._round[0]:
            speed = self._items * (done - self._round[0]) / (now - self._round[1])
            self._show(f"{text(speed)} {self._item}s/s")
        if self._bar.disable and now - self._said >= SAY_EVERY_S:
            self._said = now
            _say(f"{self._lead}step {done:,} of at most {total:,}, {self._times(now)}")

    def hear(self, news: Mapping[str, Any]) -> None:
        match news:
            case {"items_per_step": items}:
                self._items = items
            case {"resumed": done}:
                _say(f"{self._who} goes on after round {done}")
            case {"unkept": why}:
                _say(f"{self._lead}{why}")
            case {"looking": _}:
                self._show("looking at held-out data")
            case {"round": number, "rounds": most, "loss": loss, "quality": quality, "items_per_s": speed}:
                now = self._said = time.perf_counter()
                found = f"quality {beside(quality, self._quality.target)} {self._quality.unit}"
                self._last = f"loss {text(loss)}, {found}, {text(speed)} {self._item}s/s"
                self._round = None
                self._show("")
                _say(f"{self._lead}round {number} of at most {most}: {self._last}, {self._times(now)}")

    def _show(self, doing: str) -> None:
        """Below the bar: what it does now, and what the last round came to."""
        last = f"last round: {self._last}" if self._last else ""
        self._bar.update(self._task, state="; ".join(filter(None, (last, doing))))

    def _times(self, now: float) -> str:
        """How long it has taken; and where no bar says it, how long it may still take at the speed so far."""
        spent = f"{now - self._begun:.0f} s"
        if not self._bar.disable or self._first is None or self._done == self._first[0]:
            return spent
        done, since = self._first
        left = (self._total - self._done) * (now - since) / (self._done - done)
        return f"{spent}, at most {left:.0f} s left"


def _tell(records: Sequence[Record], quality: Quality, as_json: bool) -> None:
    rows = [_row(record, quality) for record in records]
    if as_json:
        print_json({"runs": rows, "summary": _summary(rows)} if len(rows) > 1 else rows[0])
        return
    went_on = any(row["items_to_target"] not in (None, row["items"]) for row in rows)
    columns = ["quality", "target", "reached", *TOOK, *(TO_TARGET if went_on else ())]
    cells = [_cells(f"seed {row['seed']}", row, columns) for row in rows]
    if len(rows) > 1:
        cells += [_cells(name, row, columns) for name, row in _spread_rows(_summary(rows), quality).items()]
    print_table(f"{records[0].spec.workload}: {quality.metric} ({quality.unit})", ["run", *columns], cells)
    for row in rows:
        if row["outcome"] != "ok":
            _say(f"seed {row['seed']}: {row['outcome']}")


def _row(record: Record, quality: Quality) -> dict[str, Any]:
    """What scripts are told of a run; of one that never began, what it should have come to."""
    learning = record.learning
    stood = learning and learning.to_target
    return {
        "workload": record.spec.workload,
        "seed": record.spec.seed,
        "data": record.spec.data,
        **{key: getattr(learning or quality, key) for key in ("metric", "unit", "target")},
        **{key: getattr(learning, key, None) for key in ("quality", "reached", *TOOK, "resumed")},
        **{key: getattr(stood, total, None) for key, total in zip(TO_TARGET, TOOK, strict=True)},
        "outcome": record.outcome if record.outcome == "ok" else f"failed: {record.reason}",
    }


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Over the seeds: how many reached the target, and of the runs that did not fail the middle and the ends."""
    good = [row for row in rows if row["outcome"] == "ok"]
    aimed = any(row["target"] is not None for row in rows)
    return {
        "runs": len(rows),
        "reached": sum(bool(row["reached"]) for row in rows) if aimed else None,
        **{key: _spread([row[key] for row in good]) for key in ("quality", *TOOK, *TO_TARGET)},
    }


def _spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """None where there is nothing; of is how many there are, as not every run comes to its target."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"median": statistics.median(known), "least": min(known), "most": max(known), "of": len(known)}


def _spread_rows(summary: Mapping[str, Any], quality: Quality) -> dict[str, dict[str, Any]]:
    """The summary as rows below those of the runs."""
    reached = None if summary["reached"] is None else f"{summary['reached']} of {summary['runs']}"
    rows = {}
    for which in ("median", "least", "most"):
        values = {key: summary[key] and summary[key][which] for key in ("quality", *TOOK, *TO_TARGET)}
        rows[which] = {**values, "target": quality.target, "reached": reached if which == "median" else ""}
    return rows


def _cells(name: str, row: Mapping[str, Any], columns: Sequence[str]) -> list[Any]:
    told = {**row, "quality": beside(row["quality"], row["target"])}
    return [name, *(told[column] for column in columns)]
