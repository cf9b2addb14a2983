"""fathom study: the whole suite on this machine, and its report."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fathom.cli.commands import _hosts
from fathom.cli.commands._options import Json, Names, Out, Preset, Suite
from fathom.cli.commands._running import energy_in_words, own_store, run_again, run_all
from fathom.cli.commands.engines import trials
from fathom.cli.terminal import human, print_json, print_table, seconds, skipped
from fathom.core.errors import BadOption, DataError
from fathom.core.record import Record, moment
from fathom.core.spec import RunSpec
from fathom.core.store import Store, check_writable, read
from fathom.experiments import engines, study
from fathom.experiments.agent import serve
from fathom.experiments.checks import check
from fathom.experiments.hosts import MOST_HOSTS, SSH, TIMEOUT_S, command_line, hosts_of
from fathom.experiments.slurm import write_study
from fathom.workloads import catalogue


def command(
    names: Names = None,
    suite: Suite = catalogue.SUITE,
    preset: Preset = "small",
    device: Annotated[
        list[str] | None, typer.Option(help="Only this device; repeatable; default: every device of this machine.")
    ] = None,
    engine: Annotated[
        str,
        typer.Option(help="How steps are executed: eager, compile, ..., or best: try each and take the fastest."),
    ] = "eager",
    resume: Annotated[
        bool,
        typer.Option("--resume/--fresh", help="Resume: skip the runs that are in --out already. Fresh: repeat them."),
    ] = True,
    hosts: Annotated[
        str | None, typer.Option(help="Other machines, such as a,user@b: each measures itself, over ssh.")
    ] = None,
    via: Annotated[str, typer.Option(help="How --hosts are reached: ssh, or srun inside a Slurm allocation.")] = SSH,
    remote_command: Annotated[str, typer.Option(help="Command that starts fathom on a host.")] = "fathom",
    host_timeout: Annotated[
        float, typer.Option(min=1, max=86_400, help="Seconds without an answer after which a host is skipped.")
    ] = TIMEOUT_S,
    slurm: Annotated[
        Path | None, typer.Option(help="Write a Slurm batch file that runs this on --nodes or --hosts; run nothing.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=MOST_HOSTS, help="With --slurm: number of machines to request.")
    ] = None,
    agent: Annotated[bool, typer.Option("--agent", hidden=True, help="Measure for another machine.")] = False,
    out: Out = Path("records"),
    report: Annotated[Path, typer.Option(help="Report to write, a single HTML file.")] = Path("report.html"),
    as_json: Json = False,
) -> None:
    """Run every workload of a suite, training and inference, on every device, and write the report.

    Runs that other programs disturbed are repeated once at the end. Run it again to resume an interrupted study.
    """
    if agent:
        serve()
        return
    named = names or catalogue.suite(suite)
    if slurm or nodes:
        _write_batch_file(slurm, hosts, nodes)
        return
    if hosts is not None:
        best = engine == engines.BEST
        wanted = {"names": named, "preset": preset, "devices": device or [], "engine": "eager" if best else engine}
        settings = _hosts.Settings(via, remote_command, host_timeout, wanted, best, resume, out)
        _over_hosts(hosts_of(hosts), settings, report, as_json)
        return
    if via != SSH:
        raise BadOption("--via needs --hosts")
    planned = study.plan_here(named, preset, device or [], "eager" if engine == engines.BEST else engine)
    from fathom.report import write
    from fathom.report.runs import trust

    check_writable(report)
    store = own_store(out)
    if engine == engines.BEST:
        planned = _with_best_engines(planned, store)
    left = store.remaining(planned) if resume else planned
    if done := len(planned) - len(left):
        human.print(f"{done} of {len(planned)} runs are in {out} already; --fresh repeats them")
    begun = moment()
    run_all(left, store, "study")
    run_again(planned, store, since="" if resume else begun)
    records = _chosen(planned, store, begun)
    path = write(read([out], skipped), report)
    if as_json:
        print_json({"records": str(out), "report": str(path), "runs": [_row(record) for record in records]})
    else:
        rows = [list(_row(record).values()) for record in records]
        print_table("Study", list(_row(records[0])), rows, keys=5)  # threads too name a run
        human.print(trust(records), highlight=False)
        human.print(f"report: {path}")
    if any(record.outcome != "ok" for record in records):
        raise typer.Exit(1)


def _write_batch_file(path: Path | None, hosts: str | None, nodes: int | None) -> None:
    if path is None:
        raise BadOption("--nodes needs --slurm")
    if (hosts is None) == (nodes is None):
        raise BadOption("--slurm needs --nodes or --hosts, one of them")
    write_study(path, sys.argv[1:], hosts_of(hosts) if hosts is not None else nodes or 1)
    human.print(f"batch file: {path}; submit it with sbatch {path}")


def _over_hosts(names: Sequence[str], settings: _hosts.Settings, report: Path, as_json: bool) -> None:
    """Exit code 1 where a host was left out or a run failed; the report has what came."""
    command_line(settings.via, names[0], settings.command)  # refuses an unknown way
    for name in settings.wanted["names"]:
        if ":" not in name:  # a class of another package may be installed on the hosts alone
            check(RunSpec(workload=name, preset=settings.wanted["preset"], engine=settings.wanted["engine"]))
    check_writable(report)
    from fathom.report import write

    hosts = _hosts.measure(names, settings, _chosen)
    rows = [{"host": host.name, **_row(record)} for host in hosts for record in host.records]
    records = _hosts.named(hosts, settings.out)
    path = write(records, report) if records else None
    if as_json:
        left_out = {host.name: host.problem for host in hosts if host.problem}
        print_json({"records": str(settings.out), "report": path and str(path), "runs": rows, "left out": left_out})
    elif rows:
        print_table("Study", list(rows[0]), [list(row.values()) for row in rows])
    _hosts.print_left_out(hosts)
    human.print(f"report: {path}" if path else "no records: no report")
    if any(host.problem for host in hosts) or any(each.outcome != "ok" for host in hosts for each in host.records):
        raise typer.Exit(1)


def _with_best_engines(planned: Sequence[RunSpec], store: Store) -> list[RunSpec]:
    """Each profiled run with the engine that a short trial finds fastest; comparisons at equal work stay eager."""
    begun, chosen = time.perf_counter(), []
    for spec in planned:
        if not engines.chooses(spec):
            chosen.append(spec)
            continue
        chosen.append(engines.with_best(spec, trials(engines.trials_for(spec), store)))
        human.print(f"{spec.workload} {spec.phase} on {spec.device}: {chosen[-1].engine}", highlight=False)
    human.print(f"engines chosen in {seconds(time.perf_counter() - begun)}", highlight=False)
    return chosen


def _chosen(specs: Sequence[RunSpec], store: Store, begun: str, now: str | None = None) -> list[Record]:
    """One record of each planned run, in the order of the plan: the newest, of those made now the best one.

    A date in the future is of a clock that was wrong, and tells nothing: any other record is newer.
    """
    latest = now or moment()

    def rank(record: Record) -> tuple[object, ...]:
        when = record.started if record.started <= latest else ""
        made_now = when >= begun
        sound = (record.outcome == "ok", not record.disturbed) if made_now or not when else ()
        return made_now, bool(when), *sound, when

    best = {record.spec.id: record for record in sorted(store.records(), key=rank)}
    if gone := sum(spec.id not in best for spec in specs):
        raise DataError.at(store.folder, f"{gone} of {len(specs)} records were written and have vanished; run it again")
    return [best[spec.id] for spec in specs]


def _row(record: Record) -> dict[str, Any]:
    from fathom.analysis.step_time import bounds_in_words, step_time, throughput

    step = step_time([record]) if record.step_s else None
    median = step.median if step else None
    return {
        "workload": record.spec.workload,
        "phase": record.spec.phase,
        "device": record.device,
        "preset": record.spec.preset,  # a device may run two
        "threads": record.spec.threads,
        "step (ms)": median * 1e3 if median else None,
        "95 % interval (ms)": bounds_in_words(step, [record]) if step else None,
        "items/s": throughput([record]),
        "J/step": record.energy.per_step_j if record.energy else None,
        "energy": energy_in_words(record),
        "outcome": record.outcome if record.outcome == "ok" else f"failed: {record.reason}",
        "disturbed": "; ".join(record.disturbances) or None,
    }
