"""Many runs with progress on the terminal: what is running, what is done, how long it will take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from fathom.cli.terminal import count, human, progress_bar, seconds
from fathom.core.events import OnProgress
from fathom.core.formatting import listed
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments import study
from fathom.machine.host import fingerprint

Run = Callable[[RunSpec, OnProgress], Record]


def own_store(folder: Path) -> Store:
    """The folder as this machine's: what another machine has measured does not count as done here, and is kept."""
    store = Store(folder, fingerprint())
    if others := store.elsewhere():
        names = listed(list(dict.fromkeys(record.machine.cpu.label for record in others)))
        human.print(
            f"{folder} holds runs of another machine ({names}; {count(len(others), 'run')}): they are kept and not "
            "counted; this machine is measured apart",
            highlight=False,
            soft_wrap=True,
        )
    return store


def run_all(specs: Sequence[RunSpec], store: Store, job: str, run: Run | None = None) -> None:
    """One bar for the job and one for the current run; above them, a line for each finished run.

    Exit code 1 where the first runs could not start; their records are kept.
    """
    how, stopped = {} if run is None else {"run": run}, list[str]()
    with progress_bar() as bar:
        whole = bar.add_task(job, total=len(specs))
        current = bar.add_task("")

        def watch(index: int, spec: RunSpec) -> OnProgress:
            bar.update(whole, completed=index)
            bar.reset(current, description=f"{named(spec)} on {spec.device}", total=None)
            return lambda done, total: bar.update(current, completed=done, total=total)

        def on_wait() -> None:
            bar.console.print(f"waiting: another process is measuring into {store.folder}", highlight=False)

        made = study.run_all(specs, store, watch, on_wait=on_wait, on_stop=stopped.append, **how)
        for number, (record, _) in enumerate(made, start=1):
            bar.console.print(f"{number:3} of {len(specs)}  {line(record)}", highlight=False)
    for reason in stopped:
        human.print(f"stopped: {reason}; records are kept", highlight=False, soft_wrap=True)
    if stopped:
        raise typer.Exit(1)


def run_again(planned: Sequence[RunSpec], store: Store, since: str = "", run: Run | None = None) -> None:
    """Disturbed runs once more, after all others; both records are kept. Those older than `since` are not counted."""
    again = study.to_run_again(planned, [record for record in store.records() if record.started >= since])
    if study.is_busy(planned, again):
        human.print(f"{len(again)} of {len(planned)} runs were disturbed: other programs keep this machine busy")
    elif again:
        human.print(f"{count(len(again), 'disturbed run')} to run again")
        run_all(again, store, "disturbed runs again", run)


def result(record: Record) -> str:
    """The result of a run in a few words."""
    if record.outcome != "ok":
        return f"failed: {record.reason}"
    if record.program:
        return "whole program traced"
    if record.trial:
        trial = record.trial
        steps = f"{seconds(trial.engine.step_s)} per step, eager {seconds(trial.eager.step_s)}"
        from fathom.analysis.engine_trials import speedup

        found = speedup([record])
        return (
            f"{steps}: {found.median:.3g} times as fast (95 % interval {found.low:.3g} to {found.high:.3g} over turns)"
        )
    if record.learning and record.learning.quality is not None:
        learning = record.learning
        reached = f"{learning.quality:.4g} {learning.unit}, {learning.split} data"
        return f"{learning.metric} {reached}, in {seconds(learning.seconds)}{disturbed(record)}"
    if record.spec.kind == "collectives":
        timed = record.ranks.collectives if record.ranks else []
        operations, sizes = {each.operation for each in timed}, {each.message_bytes for each in timed}
        return f"{count(len(operations), 'operation')} over {count(len(sizes), 'size')} timed{disturbed(record)}"
    from fathom.analysis.step_time import UNSTEADY, levels, step_time

    mark = f", {UNSTEADY}" if levels(record) else ""
    return f"{seconds(step_time([record]).median)} per step{mark}{disturbed(record)}"


def disturbed(record: Record) -> str:
    """What disturbed a run, to be put after its result; nothing for an undisturbed one."""
    return f" (disturbed: {', '.join(record.disturbances)})" if record.disturbed else ""


def energy_in_words(record: Record) -> str:
    """Whether the energy is to be trusted, or that there is none."""
    energy = record.energy
    if energy is None:
        return "not metered"
    invalid = energy.invalid
    return ("estimated" if energy.estimated else "valid") if not invalid else f"INVALID: {'; '.join(invalid)}"


def named(spec: RunSpec) -> str:
    """The workload and its phase; messages between ranks have none."""
    return spec.workload if spec.source == "ranks" else f"{spec.workload} {spec.phase}"


def line(record: Record) -> str:
    """What was run, and its result."""
    spec = record.spec
    what = f"{named(spec)} on {record.device}"
    what += f", {spec.engine}" if "engine" in spec.non_defaults() else ""
    what += f", {count(len(spec.cores), 'core')}" if spec.cores else ""
    what += f", {count(spec.ranks, 'rank')}" if spec.ranks else ""
    what += f", {count(spec.threads, 'thread')}{' each' if spec.ranks else ''}" if spec.threads else ""
    what += f", {spec.feeding.readers if record.device == 'cpu' else spec.feeding}" if spec.feeding else ""
    return f"{what}: {result(record)}"
