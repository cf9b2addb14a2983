"""The other side of isolate.py: the worker that does one job, and its supervisor, which leaves no process behind.

Started as `python -m fathom.worker FD PARENT JOB`, it reports JSON lines on the pipe FD. The job is the spec of a run,
or the `target` of a profile, package.module:function, with the settings of profile(), or a cell of the table of
frameworks, or the trial of a `setting`. The results of the last two are no Record: they are reported as an event.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import psutil

from fathom.core.errors import BadOption, EngineError, FathomError
from fathom.core.events import OnEvent, OnProgress
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.measure.loop import measure

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of Linux's prctl
SIGNALS = (signal.SIGINT, signal.SIGTERM)
POLL_S = 0.002
LONGEST_REASON = 300  # characters


def supervise(parent: int, pipe: int) -> None:
    """Forks, and returns only in the worker. The first process stays as its supervisor.

    When the worker ends, when the parent asks (SIGTERM) or when the parent is gone, the supervisor kills every process
    that the worker started, and exits.
    """

    def stop(number: int, _: object) -> None:
        _kill_descendants()
        os._exit(128 + number)

    for number in SIGNALS:
        signal.signal(number, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # fathom/worker.py blocked them
    _prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans of the worker become children of the supervisor, whatever their session
    signal_at_death_of(parent, signal.SIGTERM)
    supervisor, worker = os.getpid(), os.fork()
    if worker == 0:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)  # no exception: it could be lost, or crash, while torch is imported
        signal_at_death_of(supervisor, signal.SIGKILL)
        return
    os.close(pipe)
    while (ended := os.wait())[0] != worker:
        pass  # an orphan
    _kill_descendants()
    code = os.waitstatus_to_exitcode(ended[1])
    os._exit(code if code >= 0 else 128 - code)  # a signal as a shell reports it


def signal_at_death_of(parent: int, number: signal.Signals) -> None:
    """On Linux the kernel sends this signal when the parent ends, however that happens."""
    _prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)  # it was gone before the kernel was asked


def _prctl(request: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(request, value)


def _kill_descendants() -> None:
    """Until there is no child left: orphans become children of the supervisor."""
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(POLL_S)


def work(pipe: int, job: Mapping[str, Any]) -> None:
    """Does the job and reports. Every message starts on a new line: a workload may have written to the pipe."""
    _hide_from_children(pipe)
    out = os.fdopen(pipe, "wb")

    def report(**message: Any) -> None:
        out.write(b"\n" + json.dumps(message).encode() + b"\n")
        out.flush()

    try:
        if "framework" in job:
            report(event={"result": _cell(lambda *steps: report(progress=steps), **job)})
            return
        if "setting" in job:
            report(event={"result": _setting(lambda *steps: report(progress=steps), **job)})
            return
        if "calibrate" in job:
            report(event={"result": _calibrate(lambda event: report(event=dict(event)), **job)})
            return
        if "target" in job:
            record = _profile(**job)
        else:
            spec = RunSpec.from_json(job)
            if spec.cores:
                _bind(spec.cores)
            record = _run(spec, lambda *steps: report(progress=steps), lambda event: report(event=dict(event)))
    except FathomError as error:
        report(refused=str(error))
    else:
        report(record=record.to_json())


def _run(spec: RunSpec, on_progress: OnProgress, on_event: OnEvent) -> Record:
    if spec.ranks is not None:
        from fathom.experiments.launch import launched  # here, as it loads torch

        return launched(spec, on_progress)
    if spec.kind == "training":
        from fathom.training.run import train  # here, as it loads torch

        return train(spec, on_progress, on_event)
    return measure(spec, on_progress)


def _cell(
    progress: OnProgress,
    framework: Mapping[str, Any],
    truth: str | None = None,
    cpus: Sequence[int] = (),
    write: str | None = None,
) -> dict[str, Any]:
    """The record of a cell checked against the reference in `truth`; or that reference, written to a file."""
    from fathom.core.framework import FrameworkSpec
    from fathom.frameworks import cell, reference

    spec = FrameworkSpec(**framework)
    try:
        if write is not None:
            reference.write(cell.work_of(spec), Path(write))
            return {"written": write}
        return cell.run(spec, Path(truth or ""), lambda: _bind(tuple(cpus)), progress).to_json()
    except FathomError:
        raise
    except Exception as error:  # whatever a framework raises: its type and first line say more than the end of a trace
        lines = str(error).split("\n")
        first = next((line.strip() for line in lines if line.strip()), "no message")
        raise EngineError(f"{type(error).__name__}: {first[:LONGEST_REASON]}") from None


def _setting(
    progress: OnProgress, setting: Mapping[str, Any], against: Mapping[str, Any], spec: Mapping[str, Any], **own: Any
) -> dict[str, Any]:
    """The trial of a setting against another; of a user's model, `own` has its target, loss and optimizer."""
    faulthandler.enable(all_threads=False)
    from fathom.core.advice import Setting, SettingTrial
    from fathom.measure.settings import tried  # here, as it loads torch

    asked, other = Setting(**setting), Setting(**against)
    try:
        return tried(RunSpec.from_json(spec), asked, progress, other, **own).to_json()
    except FathomError as error:
        return SettingTrial(setting=asked, against=other, failed=str(error)).to_json()
    except Exception as error:  # whatever a compiler raises: the other trials go on
        lines = [line.strip() for line in str(error).split("\n") if line.strip()]
        why = f"{type(error).__name__}: {(lines or ['no message'])[0][:LONGEST_REASON]}"
        return SettingTrial(setting=asked, against=other, failed=why).to_json()


def _calibrate(
    on_event: OnEvent,
    calibrate: str,
    budget_s: float,
    precisions: Sequence[str],
    threads: int | None,
    workloads: Sequence[tuple[str, str]],
    out: str,
) -> str:
    """The file that the campaign was written to."""
    import torch

    from fathom.measure.calibration.run import Runner, begun, continued, file_name

    if threads is not None:
        torch.set_num_threads(threads)
    device = torch.device(calibrate)
    new = begun(device, tuple(precisions))
    path = Path(out) / file_name(new)
    campaign = continued(path, new)
    if "fp32" not in campaign.flop_per_s or not campaign.bytes_per_s:
        raise BadOption(f"the ceilings of {campaign.machine} could not be measured: its memory is full")
    if campaign.calls:
        on_event({"resumed": len(campaign.calls), "file": str(path)})
    runner = Runner(device, path, budget_s, campaign, lambda what: on_event({"timing": what}))
    try:
        runner.run([(name, preset) for name, preset in workloads], tuple(precisions))
    except EngineError as error:  # the device is lost to this process, and another is to go on
        raise RuntimeError(str(error)) from None
    return str(path)


def _profile(target: str, **settings: Any) -> Record:
    """The user's code may crash: the fault handler then prints the line, which the parent reads."""
    faulthandler.enable(all_threads=False)
    from fathom.measure.own.target import profile_target  # here, as it loads torch

    return profile_target(target, **settings)


def _hide_from_children(pipe: int) -> None:
    """A child that a workload forks may run on as if it were the worker: it must not report as well."""
    os.set_inheritable(pipe, False)
    null = os.open(os.devnull, os.O_WRONLY)
    os.register_at_fork(after_in_child=lambda: os.dup2(null, pipe, inheritable=False))


def _bind(cores: tuple[int, ...]) -> None:
    """Before torch is loaded, which sizes its thread pools by the cores it finds."""
    if not hasattr(os, "sched_setaffinity"):
        raise BadOption("this system cannot bind a process to cores")
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        raise BadOption(f"cannot run on cores {','.join(map(str, cores))}: {error.strerror}") from None


def main() -> None:
    pipe, parent = int(sys.argv[1]), int(sys.argv[2])
    job = json.loads(sys.argv[3])
    supervise(parent, pipe)
    work(pipe, job)
    gc.freeze()  # else Python, as it ends, looks for garbage among all objects of torch: a third of a second
    if job.get("ranks"):  # of a single worker, the end of the process is a part of its wall time
        leave(0)


def leave(code: int) -> NoReturn:
    """At once, when all is written and closed: taking torch apart module by module takes up to two seconds."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
