"""fathom frameworks: the guide's networks in several frameworks on 1, 2, 4, ... threads, outputs checked equal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fathom.analysis.finding import analyse
from fathom.cli.commands._options import Json, Out, values_in
from fathom.cli.terminal import count, human, print_json, print_table, print_text, progress_bar, seconds, skipped
from fathom.core import framework_store, plugins
from fathom.core.errors import BadOption
from fathom.core.events import OnProgress
from fathom.core.framework import FrameworkRecord, FrameworkSpec
from fathom.core.spec import PHASES
from fathom.core.store import Store
from fathom.experiments import frameworks as table
from fathom.machine.host import fingerprint


def command(
    networks: Annotated[
        list[str] | None, typer.Argument(help=f"Of {', '.join(plugins.names('networks'))}; default: all.")
    ] = None,
    threads: Annotated[
        str | None, typer.Option(help="Numbers of threads, such as 1,2,4; default: powers of two up to all cores.")
    ] = None,
    frameworks: Annotated[
        str | None, typer.Option(help=f"Of {','.join(plugins.names('frameworks'))}; default: all.")
    ] = None,
    phase: Annotated[str | None, typer.Option(help="train or infer; default: both, where the framework can.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Batch size; default: each network's own.")] = None,
    preset: Annotated[str, typer.Option(help="paper (published sizes) or tiny (seconds).")] = "paper",
    steps: Annotated[int, typer.Option(help="Largest number of timed steps per process.")] = 50,
    budget: Annotated[float, typer.Option(help="Time budget in seconds for the timed steps of a process.")] = 5.0,
    runs: Annotated[
        int,
        typer.Option(min=1, max=1000, help="Processes per cell (network, framework and thread count), interleaved."),
    ] = table.REPEATS,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds without a step after which a cell has failed.")] = (
        table.TIMEOUT_S
    ),
    out: Out = Path("records"),
    as_json: Json = False,
) -> None:
    """Run the same networks in several frameworks and thread counts, and compare with a published table.

    Each cell is a fresh process bound to as many CPUs as it has threads. Weights and inputs are equal, and outputs are
    checked against a float64 reference. The published table is Table I of A Beginners Guide to Performance Factors of
    Machine Learning Applications. Run it again to resume: completed cells of this machine are kept, disturbed ones are
    repeated once.
    """
    planned = table.plan(
        networks or (),
        values_in(frameworks, "--frameworks"),
        _counts(threads),
        (phase,) if phase else PHASES,
        **{"batch": batch, "preset": preset, "steps": steps, "budget_s": budget},
    )
    Store(out).check_writable()
    missing = table.not_installed(planned)
    absent = {record.spec.framework: record.reason for record in missing}
    for name, line in absent.items():
        human.print(f"{name}: {line}", highlight=False, soft_wrap=True)
    specs = table.order([spec for spec in planned if spec.framework not in absent], runs)
    machine = fingerprint()
    left = framework_store.remaining(specs, framework_store.read([out], skipped), machine)
    if done := len(specs) - len(left):
        human.print(f"{done} of {len(specs)} cells are in {out} already; another --out repeats them")
    _run(left, out, timeout)
    _add_new(missing, out)
    wanted = {spec.id for spec in planned}
    found = [record for record in framework_store.read([out], skipped) if record.spec.id in wanted]
    _print(found, out, as_json=as_json)
    own = [record for record in found if record.machine.identity == machine.identity]
    if {spec.id for spec in specs} - {record.spec.id for record in own if record.outcome in ("ok", "wrong")}:
        raise typer.Exit(1)


def _counts(text: str | None) -> Sequence[int]:
    try:
        return [int(number) for number in values_in(text, "--threads")]
    except ValueError:
        raise BadOption(f"--threads takes numbers such as 1,2,4, not {text!r}") from None


def _run(specs: Sequence[FrameworkSpec], out: Path, timeout_s: float) -> None:
    """One bar for all cells and one for the steps of the current one; above them, a line for each that has ended."""
    with progress_bar() as bar:
        whole = bar.add_task("frameworks", total=len(specs))
        current = bar.add_task("")

        def watch(index: int, spec: FrameworkSpec) -> OnProgress:
            bar.update(whole, completed=index)
            bar.reset(current, description=str(spec), total=None)
            return lambda done, total: bar.update(current, completed=done, total=total)

        for number, record in enumerate(table.run_all(specs, out, watch, timeout_s), start=1):
            line = f"{number:3} of {len(specs)}  {record.spec}: {_result(record)}"
            bar.console.print(line, highlight=False, soft_wrap=True)


def _result(record: FrameworkRecord) -> str:
    if record.outcome == "failed":
        return f"failed: {record.reason}"
    from fathom.analysis.step_time import step_time

    shown = f"{seconds(step_time([record]).median)} per step"
    shown += f" (wrong: {record.reason})" if record.outcome == "wrong" else ""
    return shown + (f" (disturbed: {', '.join(record.disturbance.reasons)})" if record.disturbed else "")


def _add_new(missing: Sequence[FrameworkRecord], out: Path) -> None:
    """What is not installed is on record once, however often the command is started."""
    noted = {
        (record.spec.id, record.machine.identity)
        for record in framework_store.read([out], skipped)
        if record.outcome == "not installed"
    }
    for record in missing:
        if (record.spec.id, record.machine.identity) not in noted:
            framework_store.add(out, record)


def _print(records: Sequence[FrameworkRecord], out: Path, *, as_json: bool) -> None:
    finding = analyse("frameworks", [], records)
    if as_json:
        print_json({"records": str(out), **finding.to_json()})
        return
    for each in finding.tables:
        print_table(each.title, each.columns, each.rows)
    print_text(finding.summary)
    for note in finding.notes:
        human.print(note, style="dim", soft_wrap=True)
    human.print(f"{count(len(records), 'record')} in {out}")
