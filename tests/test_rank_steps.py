"""Steps of ranks that share a machine, predicted from one rank's step: what slows them down, and what messages take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from conftest import fathom
from sample_records import record_of
from test_ranks_finding import BATCH, job

from fathom.analysis.rank_jobs import curves_of
from fathom.analysis.scaling_law import STRONG, WEAK
from fathom.core.errors import DataError
from fathom.core.ranks import ALL_REDUCE, COPY, PRODUCT, Collective, Overlap, Ranks, SharedWork
from fathom.core.record import Record
from fathom.core.store import Store
from fathom.experiments.ranks import collectives
from fathom.predict.rank_steps import (
    OneRank,
    _is_plain_ddp,
    _of_any_batch,
    alone_at,
    cases_of,
    independent_step,
    rank_step,
)
from fathom.predict.shared_machine import Shared, shared_of
from fathom.trace.step_work import BACKWARD, FORWARD, OPTIMIZER, GradientReady, OpWork, StepWork

MB = 1_000_000
FREE = Shared(  # 1 GFLOP/s and 1 GB/s, of which other ranks take nothing; messages take no time
    ranks=4,
    flop_per_s=1e9,
    product=1.0,
    copy_s={MB: 1e-3, 10 * MB: 10e-3},
    copy={MB: 1.0, 10 * MB: 1.0},
    hidden=1.0,
    all_reduce={1024: 1e-12, MB: 1e-12},
)


def op(part: str, flop: float = 0.0, moved: float = 0.0) -> OpWork:
    return OpWork(op="aten::x", type="MatMul", part=part, shapes="", dtypes="", flop=flop, bytes=moved)


def step(*gradients: int, moved: float = 0.0) -> StepWork:
    """10 ms forward, 10 ms backward for each gradient, 10 ms update: products, or sums of so many bytes."""
    work = {"moved": moved} if moved else {"flop": 10e6}
    ops = tuple(op(part, **work) for part in (FORWARD, BACKWARD, OPTIMIZER))
    return StepWork(
        workload="vgg",
        phase="train",
        precision="fp32",
        batch=1,
        item="image",
        ops=ops,
        sequence=(0, *[1] * len(gradients), 2),
        gradients=tuple(GradientReady(2 + number, size) for number, size in enumerate(gradients)),
    )


def test_ranks_that_take_nothing_from_each_other_are_as_fast_as_one() -> None:
    found = rank_step(step(4, 4), 0.04, FREE)
    assert found.step_s == pytest.approx(0.04)
    assert found == independent_step(step(4, 4), 0.04, FREE)


def test_products_and_copies_are_slowed_each_by_its_own_factor() -> None:
    slower = replace(FREE, product=1.5, copy={MB: 2.0, 10 * MB: 4.0})
    assert rank_step(step(4, 4), 0.04, slower).compute_s == pytest.approx(0.06)
    assert rank_step(step(4, 4, moved=10 * MB), 0.04, slower).compute_s == pytest.approx(0.16)
    assert rank_step(step(4, 4, moved=MB), 0.004, slower).compute_s == pytest.approx(0.008)
    # a step of 8 ms moves bytes for 4 ms of them: the rest is slowed as products are
    assert rank_step(step(4, 4, moved=MB), 0.008, slower).compute_s == pytest.approx(4e-3 * 2 + 4e-3 * 1.5)
    # operands were in caches where the step is shorter than its bytes: all of it is slowed as copies are
    assert rank_step(step(4, 4, moved=10 * MB), 0.02, slower).compute_s == pytest.approx(0.08)
    assert independent_step(step(4, 4), 0.04, slower).compute_s == 0.04


def test_small_messages_wait_for_answers_at_once() -> None:
    """Both gradients end the backward pass; gloo has two messages under way, so one latency is exposed and not two."""
    waiting = replace(FREE, all_reduce={1024: 5e-3, 64 * MB: 5e-3})
    both_late = replace(step(2 * MB, 2 * MB), gradients=(GradientReady(3, 2 * MB), GradientReady(3, 2 * MB)))
    found = rank_step(both_late, 0.04, waiting)
    assert found.exposed_s == pytest.approx(5e-3)
    assert found.communication_s == pytest.approx(10e-3)
    assert found.step_s == pytest.approx(0.045)
    # the first of two gradients is through before the backward pass ends
    assert rank_step(step(2 * MB, 4), 0.04, waiting).exposed_s == pytest.approx(5e-3)


def test_bytes_of_hidden_messages_take_time_from_computing_as_far_as_that_was_measured() -> None:
    """26 MB are under way for 6 ms, of which 5 are for its bytes, behind 10 ms of the backward pass."""
    sending = replace(FREE, all_reduce={1024: 1e-3, 26 * MB: 6e-3}, hidden=0.4)
    found = rank_step(step(26 * MB, 4), 0.04, sending)
    last = 1e-3  # the second bucket's latency, which nothing hides
    assert found.exposed_s == pytest.approx(last)
    assert found.compute_s == pytest.approx(0.04 + 0.6 * (5e-3 - last))
    assert rank_step(step(26 * MB, 4), 0.04, replace(sending, hidden=1.0)).compute_s == pytest.approx(0.04)


def test_a_message_larger_than_any_measured_takes_in_proportion() -> None:
    sending = replace(FREE, all_reduce={1024: 1e-3, 10 * MB: 4e-3})
    assert sending.message_s(30 * MB) == pytest.approx(12e-3)
    assert sending.message_s(8) == pytest.approx(1e-3)


def model(batch: float) -> float:
    return {16.0: 1.0, 4.0: 0.3}[batch]  # of no other


def test_one_rank_at_another_batch_is_on_the_line_through_the_nearest_two() -> None:
    measured = {2.0: 0.5, 16.0: 2.6, 64.0: 9.0}
    assert alone_at(measured, 16, model) == 2.6
    assert alone_at(measured, 4, model) == pytest.approx(0.8)
    assert alone_at(measured, 1, model) == pytest.approx(0.35)
    assert alone_at({1.0: 0.1, 2.0: 10.0}, 0.5, model) == pytest.approx(0.01)  # no time is below nothing


def test_one_rank_of_one_batch_is_at_another_as_the_model_has_it() -> None:
    assert alone_at({16.0: 2.0}, 4, model) == pytest.approx(0.6)


def test_the_slowest_of_several_ranks_is_slower_the_more_steps_vary() -> None:
    assert OneRank({}, [1.0, 1.0, 1.0]).slowest_of(16) == pytest.approx(1.0)
    varied = OneRank({}, [3.0, 1.0])  # the larger of two draws is 3 in three of four
    assert varied.slowest_of(1) == pytest.approx(2.0)
    assert varied.slowest_of(2) == pytest.approx(2.5)
    assert varied.slowest_of(1000) == pytest.approx(3.0)


def shared_record(ranks: int, slower: float, number: int = 0) -> Record:
    (spec,) = collectives([ranks], "cpu", 1024, 1024, [ALL_REDUCE])
    part = Ranks(
        backend="gloo",
        ranks=ranks,
        collectives=[Collective(operation=ALL_REDUCE, message_bytes=1024, sample_s=[1e-3], calls=1)],
        shared_work=[
            SharedWork(work=PRODUCT, flop=10**9, bytes_moved=12, alone_s=[1.0], together_s=[1.0], slowest_s=[slower]),
            SharedWork(work=COPY, flop=MB, bytes_moved=MB, alone_s=[1e-3], together_s=[1e-3]),
        ],
        overlaps=[Overlap(message_bytes=1 << 20, compute_s=[1.0], message_s=[1.0], both_s=[1.5])],
    )
    name = f"shared-{ranks}-{number}"
    return replace(record_of("autoenc"), spec=spec, id=name, warmup_s=[], losses=[], ranks=part, step_s=[])


def test_what_is_shared_is_the_median_over_launches_of_the_slowest_rank() -> None:
    found = shared_of([shared_record(4, slower, number) for number, slower in enumerate((1.2, 1.5, 9.0))])
    assert list(found) == [4]
    assert (found[4].product, found[4].flop_per_s, found[4].hidden) == (1.5, 1e9, 0.5)
    assert (found[4].copy_s, found[4].all_reduce) == ({MB: 1e-3}, {1024: 1e-3})


def test_messages_are_as_much_shorter_in_a_step_as_after_computing() -> None:
    """Back to back 1 kB takes 1 ms and 1 MB takes 4; after computing 0.5 ms and 4."""
    record = shared_record(4, 1.0)
    assert record.ranks is not None
    times = {1024: (1e-3, 0.5e-3), 32 * 1024: (2e-3, None), 1 << 20: (4e-3, 4e-3)}
    part = replace(
        record.ranks,
        collectives=[
            Collective(operation=ALL_REDUCE, message_bytes=size, sample_s=[alone], calls=1)
            for size, (alone, _) in times.items()
        ],
        overlaps=[
            Overlap(message_bytes=size, compute_s=[1.0], message_s=[alone], both_s=[1.0], after_s=[1.0 + after])
            for size, (alone, after) in times.items()
            if after
        ],
    )
    found = shared_of([replace(record, ranks=part)])[4]
    assert found.message_s(1024) == pytest.approx(0.5e-3)
    assert found.message_s(32 * 1024) == pytest.approx(2e-3 * 0.5**0.5)  # halfway, on logarithms
    assert found.message_s(1 << 20) == pytest.approx(4e-3)
    assert found.hidden == 1.0  # of the larger message alone; a small one has nothing but latency


def test_every_job_of_several_ranks_stands_beside_its_prediction() -> None:
    """Weak scaling from one rank at the same batch; strong scaling, which has no other one, by the model."""
    records = [job(1, 0.04), job(4, 0.07, WEAK), job(4, 0.05, STRONG), job(8, 0.5, WEAK), shared_record(4, 1.5)]
    small = round(BATCH / 4)
    found = {
        case.scaling: case for case in cases_of(records, lambda _, batch: step(4) if batch == small else step(4, 4))
    }
    weak = found[WEAK]
    assert (weak.workload, weak.ranks, weak.batch) == ("vgg", 4, BATCH)
    assert weak.measured_s == pytest.approx(0.07)
    assert weak.alone_s == pytest.approx(0.04)
    assert weak.predicted_s == pytest.approx(0.04 * 1.5 + 1e-3)  # and the latency of the last message
    assert weak.independent_s == pytest.approx(0.041)
    assert weak.error == pytest.approx(0.061 / 0.07 - 1)
    strong = found[STRONG]
    assert strong.batch == BATCH / 4
    assert strong.alone_s == pytest.approx(0.04 * 0.03 / 0.04)  # three products in place of four


def test_machines_are_not_mixed() -> None:
    """One rank of a machine without collectives says nothing of another's."""
    elsewhere = replace(record_of("vgg").machine, host_id="another")
    here = [job(1, 0.04), job(4, 0.07, WEAK), shared_record(4, 1.5)]
    other = [replace(each, machine=elsewhere) for each in (job(1, 0.4), job(4, 0.7, WEAK))]
    (found,) = cases_of([*here, *other], lambda _, batch: step(4, 4))
    assert found.alone_s == pytest.approx(0.04)
    assert found.measured_s == pytest.approx(0.07)


def by_nccl(record: Record) -> Record:
    assert record.ranks is not None
    return replace(record, ranks=replace(record.ranks, backend="nccl"))


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        ([job(1, 0.04), job(4, 0.07, WEAK)], "run `fathom collectives`"),
        ([shared_record(4, 1.5), job(4, 0.07, WEAK)], "run `fathom scale --ranks`"),
        ([shared_record(4, 1.5), by_nccl(job(1, 0.04)), by_nccl(job(4, 0.07, WEAK))], "run `fathom scale --ranks`"),
    ],
)
def test_what_is_missing_is_named(records: list[Record], problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        cases_of(records, lambda record, batch: step(4, 4))


def test_the_command_prints_the_error_over_all_jobs(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path / "records")
    for record in (job(1, 0.04), job(4, 0.07, WEAK), shared_record(4, 1.5)):
        store.add(record)
    assert fathom(monkeypatch, "predict", "--scaling", tmp_path / "records") == 0
    assert "over 1 job (median" in " ".join(capsys.readouterr().out.split())
    assert fathom(monkeypatch, "predict", "--scaling", tmp_path / "nowhere") == 2


def test_jobs_of_several_batches_and_of_plain_ddp_alone_are_predicted() -> None:
    plain = [job(ranks, 0.1 * size, batch=size) for size in (8, 16) for ranks in (1, 2)]
    others = [job(2, 9.0, batch=8, slow_rank=(1, 2.0)), job(2, 9.0, batch=8, strategy_options={"accumulate": 2})]
    curves = [each for each in curves_of([*plain, *others]) if each.base and _is_plain_ddp(each.jobs[-1].runs[0])]
    assert {each.jobs[-1].runs[0].spec.batch for each in curves} == {8, 16}
    assert not any(each.jobs[-1].step.median > 5 for each in curves)
    assert len({_of_any_batch(each) for each in curves}) == 1
