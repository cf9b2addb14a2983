"""fathom study --hosts: every host measures itself, all at once; records come into one folder, and one report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import Any

from rich.progress import Progress, TaskID

from fathom import __version__
from fathom.cli.commands import _running
from fathom.cli.terminal import count, human, progress_bar, skipped
from fathom.core.errors import FathomError, Refused
from fathom.core.events import OnProgress
from fathom.core.record import Record, moment
from fathom.core.spec import RunSpec
from fathom.core.stopping import Stopped, unwinding
from fathom.core.store import Store, read
from fathom.experiments import engines, study
from fathom.experiments.hosts import GRACE_PERIOD_S, Connection, Hello, Lost, command_line, named_twice, told_apart
from fathom.machine.host import commit as commit_here

WRITING_S = 5.0  # from the end of all connections to that of the threads that read them


@dataclass(frozen=True)
class Settings:
    """How hosts are reached, and what each of them shall measure."""

    via: str
    command: str
    timeout_s: float
    wanted: dict[str, Any]  # the arguments of study.plan_here()
    best: bool  # whether each host tries engines, and takes the fastest for each run
    resume: bool
    out: Path


@dataclass
class Host:
    """One host, and what came of it."""

    name: str
    hello: Hello | None = None
    planned: list[RunSpec] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)  # one of each planned run
    latest: str = ""  # when its newest run began, by its own clock
    problem: str | None = None  # why it was left out, or not to its end


def measure(names: Sequence[str], settings: Settings, chosen: Callable[..., list[Record]]) -> list[Host]:
    """Every host in a thread of its own. chosen() picks one record of each planned run from a store."""
    hosts = [Host(name) for name in names]
    connections: dict[str, Connection] = {}
    threads: list[Thread] = []
    store, commit = Store(settings.out), commit_here()
    store.check_writable()
    try:
        with unwinding(), progress_bar() as bar:
            try:
                for host in hosts:
                    _connect(host, connections, settings)
                task = bar.add_task("connecting", total=len(connections))
                _all(hosts, threads, lambda host: _greet(host, connections[host.name], lambda: bar.advance(task)))
                bar.remove_task(task)
                _tell_apart(hosts, connections, store)
                for host in hosts:
                    if line := _first_line(host, commit):
                        bar.console.print(f"{host.name}: {line}", highlight=False, soft_wrap=True)
                _all(hosts, threads, lambda host: _study(host, connections[host.name], settings, bar, chosen))
            finally:
                _end(list(connections.values()), threads)
    finally:
        for connection in connections.values():
            connection.close()
    return hosts


def _first_line(host: Host, commit: str | None) -> str | None:
    """What is to be said of a host before it measures."""
    if host.problem:
        return f"{host.problem}; left out"
    return host.hello.difference(__version__, commit) if host.hello else None


def _connect(host: Host, connections: dict[str, Connection], settings: Settings) -> None:
    try:
        line = command_line(settings.via, host.name, settings.command)
        connections[host.name] = Connection(host.name, line, settings.timeout_s)
    except Lost as lost:
        host.problem = str(lost)


def _all(hosts: Sequence[Host], threads: list[Thread], work: Callable[[Host], None]) -> None:
    """On every host without a problem, in a thread each, and waits for all."""
    faults: list[BaseException] = []

    def guarded(host: Host) -> None:
        try:
            work(host)
        except BaseException as error:
            faults.append(error)

    threads[:] = [Thread(target=guarded, args=[host], daemon=True) for host in hosts if not host.problem]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]  # ours, not a host's


def _end(connections: Sequence[Connection], threads: Sequence[Thread]) -> None:
    """Every agent ends its run first; then the connections are ended, and with them the threads that read them.

    A record that has come is still written. A thread that waits for another process's lock is not waited for.
    """
    for connection in connections:
        connection.leave()
    deadline = time.monotonic() + GRACE_PERIOD_S
    for connection in connections:
        connection.wait(max(0.0, deadline - time.monotonic()))
        connection.kill()
    deadline = time.monotonic() + WRITING_S
    for thread in threads:
        if thread.ident is not None:
            thread.join(max(0.0, deadline - time.monotonic()))


def _greet(host: Host, connection: Connection, on_done: Callable[[], None]) -> None:
    try:
        host.hello = connection.hello()
    except (Lost, Refused) as lost:
        host.problem = str(lost)
        connection.kill()  # one that hangs is not waited for again at the end
    on_done()


def _tell_apart(hosts: Sequence[Host], connections: dict[str, Connection], store: Store) -> None:
    found = {host.name: host.hello for host in hosts if host.hello}
    twice = named_twice(found)
    identities = {record.machine.identity for record in store.records()}
    different = {name: hello for name, hello in found.items() if name not in twice}
    ids = told_apart(different, lambda machine: machine.identity in identities)
    for host in hosts:
        if host.name in twice:
            host.problem, host.hello = f"skipped: the same machine as {twice[host.name]}", None
        elif host.hello:
            connections[host.name].host_id = ids[host.name]
            host.hello = replace(host.hello, machine=connections[host.name].own(host.hello.machine))


def _study(
    host: Host, connection: Connection, settings: Settings, bar: Progress, chosen: Callable[..., list[Record]]
) -> None:
    """What `fathom study` does on its own machine, with runs that are made on this one."""
    assert host.hello is not None
    store, task = Store(settings.out, host.hello.machine), bar.add_task(host.name, total=None)
    begun = host.hello.now
    try:
        host.planned = connection.plan(**settings.wanted)
        if settings.best:
            host.planned = [_best(host, connection, spec, store, bar, task) for spec in host.planned]
        left = store.remaining(host.planned) if settings.resume else host.planned
        if done := len(host.planned) - len(left):
            bar.console.print(f"{host.name}: {done} of {len(host.planned)} runs are in {settings.out} already")
        _run(host, connection, left, store, bar, task)
        since = "" if settings.resume else begun
        again = study.to_run_again(host.planned, [each for each in store.records() if each.started >= since])
        if study.is_busy(host.planned, again):
            bar.console.print(f"{host.name}: {len(again)} of {len(host.planned)} runs were disturbed: a busy machine")
        else:
            _run(host, connection, again, store, bar, task)
        host.records = chosen(host.planned, store, begun, max(moment(), host.latest))
    except (Lost, FathomError) as lost:
        if connection.left:
            return  # interrupted: the agent ended because it was told to
        connection.leave()
        if isinstance(lost, Lost):
            connection.kill()
        made = len(host.planned) - len(store.remaining(host.planned))
        came = f"; {made} of {count(len(host.planned), 'run')} kept" if host.planned else ""
        host.problem = f"{lost}{came}"
        bar.console.print(f"{host.name}: {host.problem}", highlight=False, soft_wrap=True)
    except Stopped:
        pass  # the main thread has been told, too
    finally:
        bar.remove_task(task)
        connection.leave()


def _best(host: Host, connection: Connection, spec: RunSpec, store: Store, bar: Progress, task: TaskID) -> RunSpec:
    """The run with the engine that is fastest on that host; trials that are in the folder are not repeated."""
    if not engines.chooses(spec):
        return spec
    trials = connection.trials(spec)
    _run(host, connection, store.remaining(trials), store, bar, task)
    newest = {record.spec.id: record for record in store.records()}
    chosen = engines.with_best(spec, [newest[trial.id] for trial in trials if trial.id in newest])
    words = f"{host.name}: {spec.workload} {spec.phase} on {spec.device}: {chosen.engine}"
    bar.console.print(words, highlight=False, soft_wrap=True)
    return chosen


def _run(
    host: Host, connection: Connection, specs: Sequence[RunSpec], store: Store, bar: Progress, task: TaskID
) -> None:
    def watch(index: int, spec: RunSpec) -> OnProgress:
        bar.update(task, description=f"{host.name}: {spec.workload} {spec.phase} on {spec.device}")
        bar.update(task, completed=index, total=len(specs))
        return lambda done, total: bar.update(task, completed=index + done / max(1, total))

    def on_wait() -> None:
        bar.console.print(f"{host.name}: waiting: another process is measuring it into {store.folder}")

    def on_stop(reason: str) -> None:
        raise Refused(reason)

    runs = study.run_all(specs, store, watch, run=connection.run, on_wait=on_wait, on_stop=on_stop)
    for number, (record, _) in enumerate(runs, start=1):
        host.latest = max(host.latest, record.started)
        line = f"{host.name}: {number:3} of {len(specs)}  {_running.line(record)}"
        bar.console.print(line, highlight=False, soft_wrap=True)


def named(hosts: Sequence[Host], out: Path) -> list[Record]:
    """All records of the folder, those of a host with its name as their origin: the report labels machines by it."""
    names = {host.hello.machine.identity: host.name for host in hosts if host.hello}
    return [
        replace(record, origin=names.get(record.machine.identity, record.origin)) for record in read([out], skipped)
    ]


def print_left_out(hosts: Sequence[Host]) -> None:
    for host in hosts:
        if host.problem:
            human.print(f"not complete: {host.name}: {host.problem}", style="yellow", highlight=False, soft_wrap=True)
