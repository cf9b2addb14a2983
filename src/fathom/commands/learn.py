"""fathom learn NAME: trains a workload to its quality target, and tells what it took."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from fathom import registry, study
from fathom.commands._options import Device, Json, Name, Out, Set, options_of
from fathom.isolate import isolated
from fathom.progress import Progress as Told
from fathom.record import Record
from fathom.spec import RunSpec
from fathom.store import Store
from fathom.terminal import count, human, print_json, print_table, progress_bar

SAY_EVERY_S = 15.0  # where there is no bar to look at


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
    from fathom.learn import FOLDER

    spec = _spec(name, data, rounds, preset, device, precision, options_of(set_ or []))
    specs = [RunSpec.from_json({**spec.to_json(), "seed": seed + number}) for number in range(runs)]
    quality = registry.workload(name).taught(data, spec.options).quality
    seeds = ", ".join(str(each.seed) for each in specs)
    aim = f"{quality.metric} of {quality.target:g} {quality.unit} or {quality.better}"
    human.print(f"{name}: {count(runs, 'run')}, seed{'s' if runs > 1 else ''} {seeds}; the target is a {aim}")
    store, keep = Store(out), {FOLDER: str(out / "checkpoints")}
    for each in store.left(specs):
        _run(each, store, keep)
    wanted = {each.id for each in specs}
    records = [record for record in store.records() if record.spec.id in wanted]
    _tell(records, as_json)
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
    from fathom.devices import resolve

    registry.check("workloads", name)
    workload = registry.workload(name)
    lesson = workload.taught(data, options)
    here = resolve(device)
    spec = RunSpec(
        workload=name,
        learn=True,
        rounds=rounds,
        preset=preset or lesson.preset,
        device=str(here),
        precision=precision or ("fp32" if here.type == "cpu" else lesson.precision),
        data=data,
        options={**lesson.options, **options},
    )
    workload.configured(spec.preset, **spec.options)
    return spec


def _run(spec: RunSpec, store: Store, environment: Mapping[str, str]) -> None:
    """One run before somebody's eyes."""
    with progress_bar() as bar:
        view = View(spec, bar)
        run = partial(isolated, hear=view.hear, environment=environment)
        wait = partial(view.say, f"waiting: another run holds {store.folder}")
        list(study.conduct([spec], store, view.watch, run=run, wait=wait))  # which keeps the record


class View:
    """What is seen of a run: a line for each round, and the bar; in a log, now and then, how far it is."""

    def __init__(self, spec: RunSpec, bar: Progress) -> None:
        self._bar = bar
        self._name = f"{spec.workload}, seed {spec.seed}"
        self._item = registry.workload(spec.workload).item
        self._task = bar.add_task(self._name, total=None)
        self._begun = self._said = time.perf_counter()
        self._first: tuple[int, float] | None = None  # the first step told of, and when: a run may have been resumed
        self._done, self._total = 0, 0

    def say(self, line: str) -> None:
        self._bar.console.print(line, highlight=False, soft_wrap=True)

    def watch(self, index: int, spec: RunSpec) -> Told:
        """Time counts from here, when others have been waited for."""
        self._begun = self._said = time.perf_counter()
        return self.told

    def told(self, done: int, total: int) -> None:
        now = time.perf_counter()
        self._first = self._first or (done, now)
        self._done, self._total = done, total
        self._bar.update(self._task, completed=done, total=total)
        if self._bar.disable and now - self._said >= SAY_EVERY_S:
            self._said = now
            self.say(f"step {done:,} of at most {total:,}, {self._times(now)}")

    def hear(self, news: Mapping[str, Any]) -> None:
        now = self._said = time.perf_counter()
        found = f"loss {news['loss']:.4g}, quality {news['quality']:.4g}"
        self._bar.update(self._task, description=f"{self._name}: {found}")
        where = f"round {news['round']} of at most {news['rounds']}"
        self.say(f"{where}: {found}, {news['items_per_s']:,.0f} {self._item}s/s, {self._times(now)}")

    def _times(self, now: float) -> str:
        """How long it has taken; and where no bar says it, how long it may still take at the speed so far."""
        spent = f"{now - self._begun:.0f} s"
        if not self._bar.disable or self._first is None or self._done == self._first[0]:
            return spent
        done, since = self._first
        left = (self._total - self._done) * (now - since) / (self._done - done)
        return f"{spent}, at most {left:.0f} s left"


def _tell(records: list[Record], as_json: bool) -> None:
    rows = [_row(record) for record in records]
    if as_json:
        print_json({"runs": rows} if len(rows) != 1 else rows[0])
        return
    columns = ["seed", "quality", "target", "reached", "seconds", "items", "energy_j"]
    title = f"{records[0].spec.workload}: {rows[0]['metric']}"
    print_table(title, columns, [[row[column] for column in columns] for row in rows])
    for row in rows:
        if row["outcome"] != "ok":
            human.print(f"seed {row['seed']}: {row['outcome']}")


def _row(record: Record) -> dict[str, Any]:
    keys = ("metric", "unit", "quality", "target", "reached", "seconds", "items", "energy_j", "resumed")
    outcome = record.outcome if record.outcome == "ok" else f"failed: {record.reason}"
    found = {key: getattr(record.learning, key, None) for key in keys}
    return {"workload": record.spec.workload, "seed": record.spec.seed, **found, "outcome": outcome}
