"""Real jobs of two ranks in which one goes wrong: the record says which and how, and restarts resume where it was."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from fathom.core.errors import Refused
from fathom.core.events import no_progress
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.engine.session import Session
from fathom.experiments.launch import job
from fathom.experiments.ranks import Launch

TOLERANCE = 1e-4  # relative, as in test_ddp.py
FAULTY = str(Path(__file__).parent / "faults" / "faulty_rank.py")
SPEC = RunSpec(
    workload="memnet",
    preset="tiny",
    device="cpu",
    options={"noise": 0.0},
    ranks=2,
    strategy="ddp",
    scaling="strong",
    threads=1,
    warmup=2,
    steps=8,
)
pytestmark = pytest.mark.slow


PIPELINE = replace(SPEC, workload="deep_mnist", options={}, strategy="pipeline")


def failed(monkeypatch: pytest.MonkeyPatch, fault: str, timeout_s: float = 60.0, spec: RunSpec = SPEC) -> str:
    record = with_fault(monkeypatch, fault, Launch(timeout_s=timeout_s), spec)
    assert record.outcome == "failed"
    assert record.spec == spec
    return str(record.reason)


def with_fault(monkeypatch: pytest.MonkeyPatch, fault: str, launch: Launch, spec: RunSpec = SPEC) -> Record:
    monkeypatch.setenv("FATHOM_FAULT", fault)
    return job(spec, launch, no_progress, [FAULTY])


def test_a_rank_killed_within_a_step_is_named_though_the_other_lost_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert failed(monkeypatch, "kill:1:3") == "rank 1: killed by SIGKILL"


def test_a_rank_that_stalls_is_named_and_so_is_what_the_other_waits_in(monkeypatch: pytest.MonkeyPatch) -> None:
    text = failed(monkeypatch, "stall:1:3", timeout_s=20)
    assert re.match(r"rank 1: no progress for 2\d s in step 3; rank 0 waits in all-reduce ", text)


def test_a_stage_of_a_pipeline_that_stalls_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = failed(monkeypatch, "stall:1:3", timeout_s=20, spec=PIPELINE)
    assert re.match(r"rank 1: no progress for 2\d s in step 3; rank 0 waits in send-receive ", text)


def test_a_rank_that_is_in_another_operation_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    text = failed(monkeypatch, "skip:1:3", timeout_s=20)
    assert text.startswith("rank ")
    assert "rank 0" in text or "rank 1" in text


def test_a_rank_without_memory_is_refused_with_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FATHOM_FAULT", "memory:0:2")
    with pytest.raises(Refused, match="rank 0: batch 8 of memnet does not fit in the memory of cpu"):
        job(SPEC, Launch(timeout_s=60), no_progress, [FAULTY])


def test_a_rank_with_another_configuration_is_refused_with_the_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FATHOM_FAULT", "disagree:1:0")
    with pytest.raises(Refused, match="rank 1: started with another configuration: batch is 4 on rank 1 and None on"):
        job(SPEC, Launch(timeout_s=60), no_progress, [FAULTY])


def test_a_restarted_job_resumes_from_its_last_checkpoint_with_the_same_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one worker on the same global batch, to which the losses of ranks that nothing happens to are equal."""
    again = with_fault(monkeypatch, "kill:0:7", Launch(timeout_s=60, max_restarts=1))
    plain = RunSpec(workload=SPEC.workload, preset=SPEC.preset, device="cpu", options=SPEC.options)
    with Session(plain).setup() as session:
        alone = [float(loss) for loss in session.run(SPEC.warmup + SPEC.steps)]  # type: ignore[arg-type]
    assert again.outcome == "ok"
    assert again.ranks is not None
    assert again.ranks.restarts == 1
    assert len(again.step_s) == SPEC.steps
    assert again.losses == pytest.approx(alone, rel=TOLERANCE)
    assert all(one != pytest.approx(other, rel=10 * TOLERANCE) for one, other in pairwise(alone)), "each step is seen"
