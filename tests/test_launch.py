"""A job of several ranks ends within its time-out whatever a rank does, names rank and cause, and leaves nobody.

Most ranks here load no torch: torchrun, the heartbeats and the watch are the real ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch.distributed.elastic.rendezvous import dynamic_rendezvous

from fathom.core import heartbeat
from fathom.core.errors import BadOption, Refused
from fathom.core.heartbeat import Beat
from fathom.core.spec import RunSpec
from fathom.experiments import launch, ranks
from fathom.experiments.launch import JobFailed, run
from fathom.experiments.ranks import Launch

FAKE = Path(__file__).parent / "faults" / "fake_rank.py"
KILLS = int(os.environ.get("FATHOM_TEST_KILLS", "5"))  # 100 of them take two to three minutes
TIMEOUT_S = 3.0
SOON_S = 60.0  # from a fault to the end of the job, on a very busy machine: it shall end, and this is no timing


@pytest.fixture(autouse=True)
def unnamed_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun names the method of each event, and for that it reads the source of every frame of these tests."""
    monkeypatch.setattr(dynamic_rendezvous, "get_method_name", lambda depth=2: "")


def alive(folder: Path) -> list[str]:
    """Processes of the job in this folder; what they started has the folder in its arguments, too."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(folder) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {process.cmdline()}")
    return found


def job(folder: Path, ranks: int = 3, launch: Launch | None = None, **fields: Any) -> int:
    folder.mkdir(exist_ok=True)
    (folder / "job.json").write_text(json.dumps({"steps": 20, "at_step": 5, "misdeeds": {}, **fields}))
    return run(folder, [sys.executable, str(FAKE), str(folder)], ranks, launch or Launch(timeout_s=TIMEOUT_S))


def failure(folder: Path, misdeeds: dict[int, str], **fields: Any) -> str:
    begun = time.monotonic()
    with pytest.raises(JobFailed) as failed:
        job(folder, misdeeds=misdeeds, **fields)
    assert time.monotonic() - begun < TIMEOUT_S + SOON_S
    assert alive(folder) == []
    return str(failed.value)


def test_ranks_that_do_nothing_wrong_end_by_themselves_and_report_their_steps(tmp_path: Path) -> None:
    steps: list[int] = []
    (tmp_path / "job.json").write_text(json.dumps({"steps": 400, "at_step": 0, "misdeeds": {}}))
    run(tmp_path, [sys.executable, str(FAKE), str(tmp_path)], 2, Launch(timeout_s=30), steps.append)
    assert steps == sorted(steps), "of the rank that is behind, whenever any of them went on"
    assert steps[-1] > 0
    assert alive(tmp_path) == []


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGABRT"])
def test_a_rank_that_is_killed_is_named_with_the_signal(tmp_path: Path, name: str) -> None:
    assert failure(tmp_path, {2: name}) == f"rank 2: killed by {name}"


def test_a_rank_that_exits_is_named_with_its_last_line(tmp_path: Path) -> None:
    assert failure(tmp_path, {1: "exit"}) == "rank 1: exited with code 3: the last line of rank 1"


def test_a_rank_without_memory_is_named(tmp_path: Path) -> None:
    assert failure(tmp_path, {0: "memory"}) == "rank 0: MemoryError: cannot allocate 3 GB"


@pytest.mark.parametrize("misdeed", ["stall", "SIGSTOP"])
def test_a_rank_that_stalls_or_is_stopped_ends_the_job_after_the_timeout(tmp_path: Path, misdeed: str) -> None:
    text = failure(tmp_path, {1: misdeed})
    assert text.startswith("rank 1: no progress for ")
    assert " s in step 4" in text


def test_a_rank_that_waits_for_ever_is_named_with_the_operation(tmp_path: Path) -> None:
    text = failure(tmp_path, {0: "wait", 1: "wait", 2: "wait"}, at_step=17, steps=17)
    assert "waits in all-reduce 17 since " in text


@pytest.mark.parametrize("misdeeds", [{1: "unborn"}, {0: "unborn", 1: "unborn", 2: "unborn"}])
def test_a_rank_that_never_begins_is_named(
    tmp_path: Path, misdeeds: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fathom.experiments.launch.START_S", 20.0)
    assert failure(tmp_path, misdeeds) == f"rank {min(misdeeds)}: did not start within 20 s"


def test_what_a_rank_has_started_ends_with_it(tmp_path: Path) -> None:
    assert failure(tmp_path, {1: "child"}) == "rank 1: killed by SIGKILL"


def test_a_failed_job_is_restarted_as_often_as_wanted(tmp_path: Path) -> None:
    twice = Launch(timeout_s=5, max_restarts=3)
    assert job(tmp_path / "a", launch=twice, misdeeds={1: "SIGKILL"}, faulty_attempts=2) == 2
    once = Launch(timeout_s=5, max_restarts=1)
    with pytest.raises(JobFailed, match="rank 1: killed by SIGKILL"):
        job(tmp_path / "b", launch=once, misdeeds={1: "SIGKILL"})
    assert alive(tmp_path) == []


def test_a_stalled_job_is_restarted_too(tmp_path: Path) -> None:
    again = Launch(timeout_s=3, max_restarts=1)
    assert job(tmp_path, ranks=2, launch=again, misdeeds={1: "stall"}, faulty_attempts=1) == 1


def test_a_rendezvous_that_nobody_answers_is_one_line_within_the_timeout(tmp_path: Path) -> None:
    """Port 1 of another address: the first node is not there."""
    begun = time.monotonic()
    with pytest.raises(JobFailed, match=r"cannot reach the rendezvous at 127\.0\.0\.2:1 within 2 s"):
        job(tmp_path, ranks=2, launch=Launch(timeout_s=2, nodes=2, rendezvous="127.0.0.2:1"))
    assert time.monotonic() - begun < 2 + SOON_S
    assert alive(tmp_path) == []


def test_a_node_that_never_comes_is_one_line_within_the_timeout(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match=r"cannot reach the rendezvous at localhost:\d+ within 2 s"):
        job(tmp_path, ranks=2, launch=Launch(timeout_s=2, nodes=2, rendezvous="localhost:29437"))
    assert alive(tmp_path) == []


def test_a_refusal_of_a_rank_is_raised_as_one(tmp_path: Path) -> None:
    from fathom.experiments.launch import _failure

    same = {rank: rank for rank in range(3)}
    (tmp_path / "rank-1.error").write_text(json.dumps({"kind": "refused", "text": "batch 9 does not fit"}))
    (tmp_path / "rank-0.error").write_text(json.dumps({"kind": "peer", "text": "Connection closed by peer"}))
    error = _failure(tmp_path, {0: 1, 1: 1}, None, same)
    assert isinstance(error, Refused)
    assert str(error) == "rank 1: batch 9 does not fit"
    lost = _failure(tmp_path, {0: 1, 2: -signal.SIGKILL}, None, same)
    assert str(lost) == "rank 2: killed by SIGKILL"  # the lost connection is a consequence
    output = tmp_path / "output" / "job" / "attempt_0" / "2"
    output.mkdir(parents=True)
    (output / "stderr.log").write_text("terminate called after throwing an instance of 'IoException'\n  what():  no\n")
    gave_up = _failure(tmp_path, {0: 1, 2: -signal.SIGABRT}, None, same)
    assert str(gave_up) == "rank 2: killed by SIGABRT: what():  no"
    assert str(_failure(tmp_path, {2: -signal.SIGKILL}, None, same)) == "rank 2: killed by SIGKILL"
    second_node = _failure(tmp_path, {6: -signal.SIGABRT}, None, {6: 2})  # torchrun's folders count from 0 on each node
    assert str(second_node) == "rank 6: killed by SIGABRT: what():  no"


def test_signal_handlers_are_put_back(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    job(tmp_path, ranks=1, steps=1)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before


@pytest.mark.parametrize(
    "fields", [{"timeout_s": 0.5}, {"timeout_s": 1e9}, {"max_restarts": -1}, {"nodes": 2}], ids=str
)
def test_wrong_launches_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        Launch(**fields)


def test_a_launch_travels_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Launch(timeout_s=7, max_restarts=2, nodes=2, rendezvous="a:1")
    for name, value in launch.environment().items():
        monkeypatch.setenv(name, value)
    assert Launch.from_environment() == launch


@pytest.mark.slow
def test_seeded_kills_of_a_random_rank_each_end_the_job_and_name_it(tmp_path: Path) -> None:
    chance = random.Random(18)
    for number in range(KILLS):
        ranks = chance.choice([2, 3])
        victim, moment = chance.randrange(ranks), chance.randrange(1, 20)
        text = failure(tmp_path / str(number), {victim: "SIGKILL"}, ranks=ranks, at_step=moment)
        assert text == f"rank {victim}: killed by SIGKILL", number


def test_a_rank_that_is_killed_later_than_the_one_to_blame_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_ago = time.monotonic() - 100
    waits = Beat(1, 0, "send-receive", 3, 14, 13, long_ago, long_ago)
    hangs = Beat(2, 0, heartbeat.STEP, 3, 13, 13, long_ago, 0.0)
    watch = launch._Watch(tmp_path, 20.0, lambda step: None, ())
    looks = iter([{0: waits, 1: hangs}, {0: waits}])

    def look() -> dict[int, Beat]:
        found = next(looks, None)
        if found is None:
            watch._stop.set()
        return found or {}

    monkeypatch.setattr(watch, "_beats", look)
    monkeypatch.setattr(watch, "_kill", lambda: None)
    monkeypatch.setattr(launch, "POLL_S", 0.0)
    watch._run()
    assert watch.verdict is not None
    assert watch.verdict.startswith(
        "rank 1: no progress for 100 s in step 3; rank 0 waits in send-receive 14 since 100"
    )


@pytest.mark.parametrize("device", ["cpu", "auto", "cuda"])
def test_one_rank_has_the_cores_of_each_rank_of_the_largest_job(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "usable_cores", lambda: 16)
    base = RunSpec(workload="", device=device, strategy="ddp", ranks=1)
    assert {spec.threads for spec in ranks.plan(base, ["autoenc"], [1, 2, 4])} == {4}


def test_a_series_does_not_run_out_of_ports() -> None:
    last = Launch(nodes=2, rendezvous="node1:65500")
    assert [last.nth(number).rendezvous for number in (0, 35, 36)] == ["node1:65500", "node1:65535", "node1:65436"]
