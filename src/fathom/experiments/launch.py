"""One job of several ranks, started and restarted by torchrun, watched by its launcher: it ends, and says why.

torchrun (torch.distributed.launcher) starts the ranks, notices when one ends, ends the others, and starts all of them
again where that is wanted. The watch beside it reads the ranks' heartbeats: a rank that makes no progress for the
stated time is named, with what it was doing, and all are killed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from fathom.core import heartbeat
from fathom.core.errors import Refused
from fathom.core.events import OnProgress, no_progress
from fathom.core.heartbeat import Beat
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.experiments.rank import JOB, RECORD, error_path
from fathom.experiments.ranks import Launch
from fathom.machine.host import fingerprint
from fathom.measure.loop import recorded

POLL_S = 0.1
START_S = 60.0  # for a rank to begin, at least, whatever the time-out: a busy machine loads Python slowly
CHECKPOINTS = 5  # of a job that may be restarted
GRACE_S = 5  # from a failed rank to the end of the others
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # by torchrun, which does not put them back


class JobFailed(Exception):
    """A job that ended without a record; the text names the rank and the cause."""


def launched(spec: RunSpec, on_progress: OnProgress = no_progress) -> Record:
    """The job's record; a job that fails leaves a record that says which rank failed, and how."""
    return recorded(spec, partial(job, spec, Launch.from_environment(), on_progress))


def job(
    spec: RunSpec, settings: Launch, on_progress: OnProgress, program: Sequence[str] = ("-m", "fathom.experiments.rank")
) -> Record:
    """Runs the program as the ranks of the job; gives rank 0's record, or one of a failed job."""
    assert spec.ranks is not None
    settings = replace(settings, nodes=spec.nodes)
    with tempfile.TemporaryDirectory(prefix="fathom-ranks-", dir=settings.folder) as name:
        folder = Path(name)
        every = max(1, (spec.warmup + spec.steps) // CHECKPOINTS) if settings.max_restarts else None
        document = {"spec": spec.to_json(), "timeout_s": settings.timeout_s, "checkpoint_every": every}
        (folder / JOB).write_text(json.dumps(document))
        command = [sys.executable, *program, str(folder)]
        total = spec.warmup + spec.steps
        try:
            restarts = run(
                folder,
                command,
                spec.ranks // settings.nodes,
                settings,
                lambda done: on_progress(done, max(done, total)),
            )
        except JobFailed as error:
            return Record(spec=spec, machine=fingerprint(), device=spec.device, outcome="failed", reason=str(error))
        record = Record.from_json(json.loads((folder / RECORD).read_text()), "the record of rank 0")
    assert record.ranks is not None
    ranks = replace(record.ranks, timeout_s=settings.timeout_s, restarts=restarts)
    machine = fingerprint() if spec.nodes == 1 else record.machine  # which the nodes have agreed on
    return replace(record, machine=machine, ranks=ranks)


def run(
    folder: Path,
    command: Sequence[str],
    local_ranks: int,
    settings: Launch,
    on_step: Any = lambda done: None,
) -> int:
    """Runs the command as so many ranks on this node until all have ended; gives how often they were restarted.

    Raises JobFailed with the rank and the cause, or Refused where a rank says what the user can put right.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)
    watch = _Watch(folder, settings.timeout_s, on_step, range(local_ranks) if settings.nodes == 1 else ())
    try:
        with _signals_kept(), watch:
            elastic_launch(_config(folder, local_ranks, settings), command[0])(*command[1:])
    except ChildFailedError as error:
        exit_codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        local = {rank: failure.local_rank for rank, failure in error.failures.items()}
        raise _failure(folder, exit_codes, watch.verdict, local) from None
    except (RendezvousError, TimeoutError) as error:
        where = settings.rendezvous or "this machine"
        why = " ".join(str(error).split()).rstrip(".")
        raise JobFailed(f"cannot reach the rendezvous at {where} within {settings.timeout_s:g} s: {why}") from None
    return watch.restarts


def _config(folder: Path, local_ranks: int, settings: Launch) -> Any:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig

    timeout = int(settings.timeout_s)
    grace: dict[str, Any] = {"shutdown_timeout": GRACE_S} if "shutdown_timeout" in LaunchConfig.__annotations__ else {}
    return LaunchConfig(
        min_nodes=settings.nodes,
        max_nodes=settings.nodes,
        nproc_per_node=local_ranks,
        run_id=f"fathom-{settings.rendezvous or folder.name}",  # the same on all nodes
        rdzv_backend="c10d",
        rdzv_endpoint=settings.rendezvous or "localhost:0",
        rdzv_configs={"timeout": timeout, "join_timeout": timeout, "read_timeout": timeout},
        max_restarts=settings.max_restarts,
        monitor_interval=POLL_S,
        local_addr="localhost" if settings.local else None,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "output"), redirects=Std.ALL),
        **grace,  # where this torch has no such setting, it waits for 30 s
    )


def _failure(folder: Path, exit_codes: Mapping[int, int], verdict: str | None, local: Mapping[int, int]) -> Exception:
    """The cause: what the watch saw, a refusal, a signal, an error of a rank's own, and only then a lost connection."""
    if verdict:
        return JobFailed(verdict)
    errors = {rank: json.loads(path.read_text()) for rank in exit_codes if (path := error_path(folder, rank)).exists()}
    for rank, error in errors.items():
        if error["kind"] == "refused":
            text = error["text"]
            return Refused(text if text.startswith("rank ") else f"rank {rank}: {text}")
    for rank, code in exit_codes.items():
        if code < 0 and -code != signal.SIGTERM:  # by which torchrun ends the others
            return JobFailed(f"rank {rank}: killed by {signal.Signals(-code).name}{_why(folder, local[rank], -code)}")
    for kind in ("failure", "peer"):
        for rank, error in errors.items():
            if error["kind"] == kind:
                return JobFailed(f"rank {rank}: {error['text']}")
    rank, code = max(exit_codes.items(), key=lambda each: each[1])
    if code < 0:
        return JobFailed(f"rank {rank}: killed by {signal.Signals(-code).name}")
    last = _last_line(folder, local[rank])
    return JobFailed(f"rank {rank}: exited with code {code}{f': {last}' if last else ''}")


def _why(folder: Path, local_rank: int, ended_by: int) -> str:
    """What a library printed before it gave up by SIGABRT; other signals come without a word."""
    last = _last_line(folder, local_rank) if ended_by == signal.SIGABRT else ""
    return f": {last}" if last else ""


def _last_line(folder: Path, local_rank: int) -> str:
    """The last that a rank printed, by its number on this node."""
    for path in sorted(folder.glob(f"output/*/attempt_*/{local_rank}/stderr.log"), reverse=True):
        lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
        if lines:
            return lines[-1][:300]
    return ""


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in HANDLED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Watch:
    """A thread that reads the heartbeats of this node's ranks, and kills all of them when one makes no progress."""

    def __init__(self, folder: Path, timeout_s: float, on_step: Any, expected: Iterable[int]) -> None:
        self.folder, self.timeout_s, self.on_step = folder, timeout_s, on_step
        self.verdict: str | None = None
        self.restarts = 0
        self._expected, self._since_s = set(expected), time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)
        self._groups: set[int] = set()  # of processes, one for each rank that there was
        self._born: set[int] = set()  # ranks that have begun
        self._announced = False

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """What a rank has started and left behind is ended here: each rank leads a process group of its own."""
        self._stop.set()
        self._thread.join()
        self._beats()
        self._announce()
        left = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if os.getpgid(process.pid) in self._groups and process.pid != os.getpid():
                    process.kill()
                    left.append(process)
        psutil.wait_procs(left, timeout=GRACE_S)

    def _run(self) -> None:
        step, before = 0, dict[int, Beat]()
        while not self._stop.wait(POLL_S):
            beats = self._beats()
            self._announce()
            evaluates = any(beat.doing == heartbeat.EVALUATION for beat in beats.values())
            if beats and (beats != before or evaluates):  # collectives have no steps
                step, before = max(step, min(beat.step for beat in beats.values())), beats
                self.on_step(step)
            missing = self._expected - self._born  # which holds up all others
            now_s = time.monotonic()
            if verdict := self._unborn(min(missing)) if missing else stalled(beats, now_s, self.timeout_s):
                self.verdict = self.verdict or verdict  # of those that are killed, some end later than others
                self._kill()

    def _announce(self) -> None:
        """Says once that a rank has begun: a job that reports no progress at all could not start."""
        if self._born and not self._announced:
            self._announced = True
            self.on_step(0)

    def _beats(self) -> dict[int, Beat]:
        """Of ranks that have not ended."""
        found = {}
        for path in self.folder.glob("rank-*.beat"):
            beat, rank = heartbeat.read(path), int(path.stem.removeprefix("rank-"))
            if beat:
                self._groups.add(beat.pid)
                self._born.add(rank)
                if beat.attempt > self.restarts:  # what was wrong with the attempt before has ended with it
                    self.restarts, self.verdict, self._since_s = beat.attempt, None, time.monotonic()
            if beat and beat.doing != heartbeat.END and psutil.pid_exists(beat.pid):
                found[rank] = beat
        return found

    def _unborn(self, rank: int) -> str | None:
        """Of a rank that has not begun; on several nodes it is not known which ranks are here."""
        allowed_s = max(self.timeout_s, START_S)
        late = time.monotonic() - self._since_s > allowed_s
        return f"rank {rank}: did not start within {allowed_s:g} s" if late else None

    def _kill(self) -> None:
        """All ranks of this node, whether they have begun or not."""
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if str(self.folder) in process.cmdline():
                    process.kill()


def stalled(beats: Mapping[int, Beat], now_s: float, timeout_s: float) -> str | None:
    """Which rank holds the job up, and what it does; None while that rank makes progress.

    A rank that is in no collective operation holds up those that are: the one that has come least far. Where all are in
    one, it is the rank that has begun the fewest.
    """
    if not beats:
        return None
    computing = {rank: beat for rank, beat in beats.items() if not beat.waiting}
    rank, beat = min((computing or beats).items(), key=lambda each: (each[1].begun, each[1].step, each[1].since_s))
    if beat.doing == heartbeat.EVALUATION or now_s - beat.since_s <= timeout_s:
        return None
    others = [in_words(each, beats[each], now_s) for each in sorted(beats) if each != rank and beats[each].waiting]
    return "; ".join([in_words(rank, beats[rank], now_s), *others[:1]])


def in_words(rank: int, beat: Beat, now_s: float) -> str:
    """rank 1 waits in all-reduce 17 since 60 s."""
    if beat.waiting:
        return f"rank {rank} waits in {beat.doing} {beat.done + 1} since {now_s - beat.oldest_s:.0f} s"
    place = f"step {beat.step}" if beat.doing == heartbeat.STEP else beat.doing
    return f"rank {rank}: no progress for {now_s - beat.since_s:.0f} s in {place}"
