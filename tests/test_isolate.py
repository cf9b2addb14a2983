"""The worker process: whatever ends it, the parent has a record or a one-line error, and no child is left."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from killing import workers

from fathom.core.errors import Refused
from fathom.core.events import no_progress
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments.isolate import isolated
from fathom.experiments.study import plan, run_all
from fathom.workloads.catalogue import suite

# inference: the first optimizer of a process loads all of torch._dynamo, which takes as long as torch
TINY = RunSpec(workload="autoenc", preset="tiny", device="cpu", steps=3, phase="infer")


def test_a_killed_worker_is_a_failed_record_and_leaves_no_process() -> None:
    def kill(done: int, total: int) -> None:
        # none where several reports came at once, and it was killed at the first
        for worker in [worker for supervisor in workers() for worker in supervisor.children()]:
            worker.kill()

    record = isolated(replace(TINY, steps=100_000), kill)  # so many that it is still at work
    assert record.outcome == "failed"
    assert record.reason == "the worker was killed by SIGKILL, most likely out of memory"
    assert workers() == []


def test_a_worker_without_progress_is_ended() -> None:
    record = isolated(TINY, heartbeat_timeout_s=0.01)
    assert (record.outcome, record.reason) == ("failed", "no progress for 0.01 s (heartbeat timeout)")
    assert workers() == []


def test_an_error_of_the_worker_is_raised_in_the_parent() -> None:
    with pytest.raises(Refused, match="no option of autoenc"):
        isolated(RunSpec(workload="autoenc", preset="tiny", options={"nonsense": 1}))


def test_a_worker_is_bound_to_its_cores() -> None:
    core = min(os.sched_getaffinity(0))
    record = isolated(replace(TINY, cores=(core,)))
    assert record.machine.cpu.affinity == [core]
    with pytest.raises(Refused, match="cannot run on cores 4095: Invalid argument"):
        isolated(replace(TINY, cores=(4095,)))


def test_an_interrupted_parent_takes_its_worker_along() -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        isolated(TINY, interrupt)
    assert workers() == []


def test_a_study_continues_after_a_failure_and_resumes_what_is_left(tmp_path: Path) -> None:
    store = Store(tmp_path)
    bad = RunSpec(workload="autoenc", preset="tiny", device="cpu", options={"nonsense": 1})
    both = [bad, TINY]
    outcomes = [record.outcome for record, _ in run_all(store.remaining(both), store, lambda index, spec: no_progress)]
    assert outcomes == ["failed", "ok"]
    assert store.remaining(both) == [bad]
    assert len(list(store.records())) == 2


def test_the_plan_covers_every_workload_phase_and_device() -> None:
    specs = plan([], "paper", ["cpu", "cuda:0"])
    pairs = {(spec.workload, spec.phase, spec.device, spec.preset) for spec in specs if spec.threads is None}
    assert len(pairs) == len(suite()) * 2 * 3, "the GPU runs both presets"
    assert {preset for *_, device, preset in pairs if device == "cpu"} == {"small"}
    assert {spec.workload for spec in specs if spec.threads == 1} == {"deepq", "seq2seq", "memnet"}
    assert len({spec.id for spec in specs}) == len(specs)


def test_a_worker_that_cannot_be_started_leaves_no_signal_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt  # as of a signal that another thread took

    monkeypatch.setattr("fathom.experiments.isolate._Worker", interrupted)
    with pytest.raises(KeyboardInterrupt):
        isolated(TINY)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
