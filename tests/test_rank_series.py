"""What a step of a rank is spent on, from moments made by hand; heartbeats, cores, and who holds a job up."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fathom.core import heartbeat
from fathom.core.heartbeat import Beat, Heartbeat
from fathom.engine.ranks.timeline import SlowLink, StepSpans
from fathom.experiments.launch import in_words, stalled
from fathom.experiments.rank import described, share_of_cores
from fathom.machine.host import HardwareThread
from fathom.measure.rank_series import covered, merged, overlap, parts_of

Span = tuple[float, float]


def step(begin: float, end: float, communication: list[Span], exposed: list[Span]) -> StepSpans:
    return StepSpans(begin, end, communication, exposed, wire_bytes=100)


def test_a_fast_rank_waits_for_the_slow_one_and_then_for_the_transfer() -> None:
    fast = step(0, 10, [(2, 9)], [(4, 9)])
    slow = step(0, 10, [(5, 9)], [(7, 9)])
    (one,), (other,) = parts_of([[fast], [slow]])
    assert (one.compute_s, one.wait_s, one.exposed_s, one.hidden_s) == (5, 3, 2, 2)  # 2 to 4 was hidden
    assert (other.compute_s, other.wait_s, other.exposed_s, other.hidden_s) == (8, 0, 2, 2)


def test_parts_always_add_up_to_the_step() -> None:
    steps = [
        [step(0, 10, [(1, 3), (2, 5), (6, 12)], [(2.5, 4), (6, 10)]), step(10, 12, [], [])],
        [step(0, 9, [(0, 9)], [(3, 4), (8, 9)]), step(9, 12, [(8, 13)], [])],
        [step(1, 9, [], [(1, 9), (9, 9)]), step(9, 12, [(10, 11)], [])],
    ]
    for rank in parts_of(steps):
        for parts in rank:
            assert parts.compute_s + parts.exposed_s + parts.wait_s == pytest.approx(parts.step_s)
            assert min(parts.compute_s, parts.exposed_s, parts.wait_s, parts.hidden_s) >= 0
            assert parts.hidden_s <= parts.compute_s


def test_nobody_waits_where_ranks_do_not_communicate_alike() -> None:
    (one,), (other,) = parts_of([[step(0, 10, [(2, 3)], [(2, 3)])], [step(0, 10, [], [])]])
    assert (one.wait_s, one.exposed_s) == (0, 1)
    assert (other.wait_s, other.exposed_s) == (0, 0)


def test_a_stage_waits_until_the_other_is_ready_for_the_message_and_then_for_the_transfer() -> None:
    """The second rank asks for a message at 1 that the first sends at 5; the gradient goes back at 8."""
    first = StepSpans(0, 12, [], [(5.5, 9)], 100, ["1-0"], {"0+0": 5, "1-0": 5.5})
    second = StepSpans(0, 12, [], [(1, 7)], 100, ["0+0"], {"0+0": 1, "1-0": 8})
    (one,), (other,) = parts_of([[first], [second]])
    assert (other.wait_s, other.exposed_s, other.compute_s) == (4, 2, 6)
    assert (one.wait_s, one.exposed_s, one.compute_s) == (2.5, 1, 8.5)


def test_a_wait_for_a_message_ends_with_its_span_whatever_the_other_rank_does() -> None:
    late = StepSpans(0, 12, [], [], 100, [], {"0+0": 11})
    early = StepSpans(0, 12, [], [(1, 3), (4, 5)], 100, ["0+0", None], {})
    _, (found,) = parts_of([[late], [early]])
    assert (found.wait_s, found.exposed_s, found.compute_s) == (2, 1, 9)  # a span of no message is a transfer


def test_spans_are_merged() -> None:
    assert merged([(3, 4), (0, 1), (0.5, 2), (2, 2)]) == [(0, 2), (3, 4)]
    assert covered([(0, 2), (1, 3)]) == 3
    assert overlap([(0, 2), (4, 6)], [(1, 5)]) == 2


def test_a_heartbeat_is_read_from_outside(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.beat"
    assert heartbeat.read(path) is None
    beat = Heartbeat(path)
    beat.doing(heartbeat.STEP, 3)
    assert beat.begin("all-reduce") == 1
    assert beat.begin("all-reduce") == 2
    beat.done()
    found = heartbeat.read(path)
    assert found is not None
    assert (found.pid, found.doing, found.step, found.begun, found.done) == (os.getpid(), "all-reduce", 3, 2, 1)
    assert found.waiting
    beat.done()
    found = heartbeat.read(path)
    assert found is not None
    assert not found.waiting
    path.write_bytes(b"short")
    assert heartbeat.read(path) is None


def at(doing: str, begun: int, done: int, since_s: float, step: int = 0) -> Beat:
    return Beat(1, 0, doing, step, begun, done, since_s, since_s if begun > done else 0.0)


def test_the_rank_that_computes_holds_up_those_that_wait() -> None:
    beats = {
        0: at("all-reduce", 17, 16, since_s=1.0),
        1: at("step", 16, 16, since_s=0.5, step=4),
        2: at("all-reduce", 17, 16, since_s=2.0),
    }
    assert stalled(beats, now_s=30.0, timeout_s=60.0) is None
    text = stalled(beats, now_s=61.5, timeout_s=60.0)
    assert text == "rank 1: no progress for 61 s in step 4; rank 0 waits in all-reduce 17 since 60 s"


def test_where_all_wait_it_is_the_rank_that_is_behind() -> None:
    beats = {0: at("all-gather", 18, 17, since_s=0.0), 1: at("all-reduce", 17, 16, since_s=0.0)}
    assert (
        stalled(beats, 60.5, 60.0)
        == "rank 1 waits in all-reduce 17 since 60 s; rank 0 waits in all-gather 18 since 60 s"
    )
    assert in_words(3, at("rendezvous", 0, 0, 0.0), 7.0) == "rank 3: no progress for 7 s in rendezvous"


def test_a_rank_that_has_just_begun_to_wait_is_no_reason_to_end_a_job() -> None:
    now = time.monotonic()
    assert stalled({0: at("all-reduce", 5, 4, now), 1: at("step", 4, 4, now)}, now + 59, 60.0) is None


FOUR = [HardwareThread(number, core=number, node=0) for number in range(4)]


def test_cores_are_divided_among_ranks_and_shared_only_where_there_are_too_few() -> None:
    assert [share_of_cores(FOUR, rank, 2, None) for rank in (0, 1)] == [[0, 1], [2, 3]]
    assert [share_of_cores(FOUR, rank, 2, 1) for rank in (0, 1)] == [[0], [1]]
    assert [share_of_cores(FOUR, rank, 6, None) for rank in range(6)] == [[0], [1], [2], [3], [0], [1]]
    assert share_of_cores(FOUR, 0, 1, 16) == [0, 1, 2, 3]
    assert share_of_cores(FOUR, 1, 2, 3) == [0, 1, 3]  # 3 cores for each of 2 ranks are not there


def test_a_lost_connection_is_a_consequence_and_not_a_cause() -> None:
    lost = RuntimeError("[gloo/transport/tcp/pair.cc:525] Connection closed by peer [127.0.0.1]:1234")
    assert described(lost)["kind"] == "peer"
    assert described(MemoryError())["kind"] == "failure"
    assert described(MemoryError())["text"].startswith("MemoryError")


@pytest.mark.parametrize("messages", [1, 4, 12])
def test_messages_of_a_slow_link_take_three_times_as_long_however_many_are_under_way(messages: int) -> None:
    """Launched together, each 1 s by itself; the program hears of the next only when it has slept for the last."""
    link, heard = SlowLink(3.0), 0.0
    for number in range(messages):
        link.begin(number * 1e-9, 100.0)
    for number in range(messages):
        heard = max(heard, number + 1.0)
        heard += link.left_s(number * 1e-9, heard)
    assert heard == pytest.approx(3.0 * messages)


def test_waiting_for_another_rank_is_not_made_longer() -> None:
    link = SlowLink(3.0)
    link.begin(0.0, 100.0)
    assert link.left_s(0.0, 1.0) == pytest.approx(2.0)
    link.begin(10.0, 100.0)
    assert link.left_s(10.0, 15.0) == 0.0  # 4 s of these it waited for another rank


def test_hardware_threads_of_a_core_go_to_one_rank() -> None:
    """Four cores of two threads, numbered as Linux does: 0 and 4 share a core."""
    here = [HardwareThread(number, number % 4, 0) for number in range(8)]
    assert [share_of_cores(here, rank, 2, None) for rank in (0, 1)] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert share_of_cores(here, 0, 1, 4) == [0, 1, 4, 5]  # as much as one of two
