"""Predictors on times that follow a law; evaluation that must not see what it predicts; campaigns as files."""

from __future__ import annotations

import builtins
import gzip
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fathom.cli.commands import _evaluate
from fathom.core.errors import BadOption, DataError
from fathom.core.spec import EAGER
from fathom.predict import campaign as campaigns
from fathom.predict.campaign import SUFFIX, Campaign, TimedCall, source_of
from fathom.predict.choice import _is_called, chosen
from fathom.predict.errors import errors_file, own_errors
from fathom.predict.evaluation import (
    FITS,
    OP_BY_OP,
    OTHER_BATCHES_RUN,
    UNSEEN_BATCH,
    UNSEEN_WORKLOAD,
    Score,
    evaluate,
    summaries,
    width_of,
)
from fathom.predict.features import features, shapes_of
from fathom.predict.host_costs import fit_host
from fathom.predict.other_batches import Case
from fathom.predict.predictors import boosting, svr
from fathom.predict.predictors.efficiency import ClassFit, Efficiency
from fathom.predict.predictors.names import (
    AUTO,
    BOOSTING,
    EFFICIENCY,
    FITTED,
    NEIGHBOURS,
    PREDICTORS,
    ROOFLINE,
    SVR,
    WITH_EXTRA,
)
from fathom.predict.predictors.op_by_op import OpByOp
from fathom.predict.predictors.roofline import Roofline
from fathom.predict.probe import Probe
from fathom.predict.reference import nearest, shipped
from fathom.predict.target import CUDAGRAPH, Target
from fathom.trace.step_work import OpWork, StepWork

TARGET = Target(name="device", gpu=False, flop_per_s={"fp32": 1e11}, bytes_per_s=1e10)
KINDS = {"aten::mm": "MatMul", "aten::add": "Add"}


def product(m: int, n: int, k: int) -> OpWork:
    shapes = f"[{m}, {k}] [{k}, {n}]"
    flop, nbytes = 2.0 * m * n * k, 4.0 * (m * n + n * k + m * k)
    return OpWork(
        op="aten::mm", type="MatMul", part="forward", shapes=shapes, dtypes="float float", flop=flop, bytes=nbytes,
        spec=shapes,
    )  # fmt: skip


def addition(size: int) -> OpWork:
    return OpWork(
        op="aten::add", type="Add", part="forward", shapes=f"[{size}]", dtypes="float", flop=float(size),
        bytes=12.0 * size, spec=f"add {size}",
    )  # fmt: skip


def law(op: OpWork) -> float:
    """Products reach half of the roof, additions a quarter; a call takes 5 us at least."""
    roof = max((op.flop or 0) / 1e11, (op.bytes or 0) / 1e10)
    return 5e-6 + roof * (2 if op.type == "MatMul" else 4)


def drawn(seed: int, count: int) -> list[OpWork]:
    draw = random.Random(seed)
    sizes = [[round(math.exp(draw.uniform(2, 7))) for _ in range(3)] for _ in range(count)]
    return [product(*each) for each in sizes] + [addition(each[0] * each[1]) for each in sizes]


def step(ops: list[OpWork], workload: str = "net", batch: int = 8) -> StepWork:
    sequence = tuple(range(len(ops)))
    return StepWork(
        workload=workload, phase="train", precision="fp32", batch=batch, item="item", ops=tuple(ops), sequence=sequence,
        gpu=False,
    )  # fmt: skip


def test_class_efficiencies_are_found_again() -> None:
    timed = [(op, law(op)) for op in drawn(1, 60)]
    fits = Efficiency.fitted(timed, TARGET).fits
    assert fits["matrix product"].slowness == pytest.approx(2, rel=1e-3)
    assert fits["elementwise"].slowness == pytest.approx(4, rel=1e-3)
    assert fits["elementwise"].overhead_s == pytest.approx(5e-6, rel=1e-3)


def test_calls_without_device_time_do_not_bend_a_fit() -> None:
    timed = [(op, law(op)) for op in drawn(1, 60)] + [(addition(9), 0.0)] * 200
    assert Efficiency.fitted(timed, TARGET).fits["elementwise"].slowness == pytest.approx(4, rel=1e-3)


@pytest.mark.parametrize("kind", [svr, boosting])
def test_a_regression_learns_what_lies_between_its_calls(kind: Any) -> None:
    pytest.importorskip("sklearn")
    fitted = kind.fitted([(op, law(op)) for op in drawn(1, 150)], TARGET)
    unseen = drawn(2, 30)
    found = fitted.seconds(step(unseen), TARGET)
    errors = [abs(math.log(seconds / law(op))) for op, seconds in zip(unseen, found, strict=True)]
    assert sorted(errors)[len(errors) // 2] < 0.1
    assert sum(found) == pytest.approx(sum(map(law, unseen)), rel=0.25)


def test_without_scikit_learn_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refusing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "sklearn":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refusing)
    with pytest.raises(BadOption, match=r"pip install 'fathom\[predict\]'"):
        svr.fitted([], TARGET)


def test_timed_calls_go_before_what_another_predictor_says() -> None:
    known, other = product(64, 64, 64), product(32, 32, 32)
    predictor = OpByOp([TimedCall(work=known, seconds=7.0)], Roofline())
    assert predictor.seconds(step([known, other]), TARGET)[0] == 7.0
    assert predictor.seconds(step([known, other]), TARGET)[1] < 1e-3
    assert predictor.known_share(step([known, other]), TARGET) == pytest.approx(1.0, abs=1e-3)


def test_features_are_as_many_for_every_op() -> None:
    odd = replace(addition(3), shapes="[[2, 3], [4]] [] [5]", dtypes="")
    lengths = {len(features(each, 1e-6)) for each in (product(2, 3, 4), addition(5), odd, replace(odd, shapes="{"))}
    assert len(lengths) == 1
    assert shapes_of("[[2, 3], [4]] [5]") == [[[2, 3], [4]], [5]]


def campaign(calls: list[TimedCall], probes: list[Probe] | None = None) -> Campaign:
    return Campaign(
        machine="device", device="cpu", threads=2, torch="2.13", started="2026", flop_per_s={"fp32": 1e11},
        bytes_per_s=1e10, calls=calls, probes=probes or [],
    )  # fmt: skip


def timed(ops: list[OpWork], source: str, factor: float = 1.0) -> list[TimedCall]:
    return [TimedCall(work=op, seconds=factor * law(op), sources=(source,)) for op in ops]


def test_an_unseen_workload_is_predicted_without_any_of_its_calls() -> None:
    """Its own calls are a thousand times too fast here: whoever has seen them is far off."""
    own, others = drawn(3, 20), drawn(4, 60)
    spoilt = timed(own, source_of("net", 8, "train"), 0.001) + timed(others, "random 1")
    spoilt += timed(drawn(5, 20), source_of("net", 16, "train"), 0.001)
    case = Case(step(own), sum(map(law, own)))
    scores = evaluate(campaign(spoilt), [case], [ROOFLINE, EFFICIENCY])
    errors = {(each.situation, each.predictor): each.error for each in scores}
    assert errors[UNSEEN_WORKLOAD, EFFICIENCY] == pytest.approx(0, abs=0.01)
    assert errors[UNSEEN_WORKLOAD, ROOFLINE] < -0.4
    assert errors[UNSEEN_BATCH, EFFICIENCY] < -0.5  # which may see the other batch
    assert errors[OP_BY_OP, OP_BY_OP] == pytest.approx(-0.999, abs=0.001)


def test_a_call_that_two_workloads_share_is_left_out_for_both() -> None:
    own = drawn(3, 20)
    shared = [
        TimedCall(work=op, seconds=law(op) / 1000, sources=("other@8 train", source_of("net", 4, "train")))
        for op in drawn(6, 20)
    ]
    case = Case(step(own), sum(map(law, own)))
    found = evaluate(campaign(shared + timed(drawn(4, 60), "random 1")), [case], [EFFICIENCY])
    unseen = [each for each in found if each.situation == UNSEEN_WORKLOAD]
    assert unseen[0].error == pytest.approx(0, abs=0.01)


def test_a_workload_timed_at_one_batch_has_no_unseen_batch() -> None:
    own = drawn(3, 20)
    calls = timed(own, source_of("net", 8, "train")) + timed(drawn(4, 60), "random 1")
    calls += timed(drawn(8, 20), source_of("net", 4, "infer"))  # another phase is no other batch of this one
    scores = evaluate(campaign(calls), [Case(step(own), 1.0)], [EFFICIENCY])
    assert {each.situation for each in scores} == {UNSEEN_WORKLOAD, OP_BY_OP}


def test_a_step_in_a_cuda_graph_waits_for_its_kernels_and_not_for_the_host() -> None:
    """Its calls take 10 us on the device and 100 us to launch one by one."""
    own = [product(64, 64 + at, 64) for at in range(20)]
    calls = [TimedCall(work=op, seconds=1e-5, sources=(source_of("net", 8, "train"),)) for op in own]
    calls += [TimedCall(work=op, seconds=1e-5, sources=("random 1",)) for op in drawn(4, 60)]
    probes = [
        Probe(name="random 1", phase="train", calls={"forward": n}, ops_s=n * 1e-5, step_s=n * 1e-4) for n in (10, 30)
    ]
    gpu = replace(campaign(calls, probes), device="cuda:0")
    cases = [Case(step(own), 2e-3), Case(step(own), 2e-4, CUDAGRAPH)]
    eager, graph = (each for each in evaluate(gpu, cases, [EFFICIENCY]) if each.situation == OP_BY_OP)
    assert eager.error == pytest.approx(0, abs=0.01)
    assert graph.error == pytest.approx(0, abs=0.01)
    with pytest.raises(BadOption, match="cudagraph needs a GPU, and device is a CPU"):
        evaluate(campaign(calls), cases, [EFFICIENCY])


def test_a_step_of_which_a_tenth_was_not_timed_is_not_called_op_by_op() -> None:
    own = [product(64, 64 + at, 64) for at in range(20)]
    known = timed(own, source_of("net", 8, "train"))
    others = timed(drawn(4, 60), "random 1")

    def situations(calls: list[TimedCall]) -> set[str]:
        return {each.situation for each in evaluate(campaign(calls + others), [Case(step(own), 1.0)], [EFFICIENCY])}

    assert OP_BY_OP in situations(known)
    assert OP_BY_OP not in situations(known[:17])


def test_measured_steps_at_other_batches_correct_a_prediction() -> None:
    """Steps take 1.5 times their ops. The step at this batch is unseen, and no other workload or phase counts."""
    sizes = {batch: [product(batch * 8, 60 + at, 70 + at) for at in range(20)] for batch in (4, 8, 16)}
    calls = [call for batch, ops in sizes.items() for call in timed(ops, source_of("net", batch, "train"))]
    calls += timed(drawn(4, 60), "random 1")
    cases = [Case(step(ops, batch=batch), 1.5 * sum(map(law, ops))) for batch, ops in sizes.items()]
    other = drawn(9, 20)
    cases.append(Case(step(other, workload="other"), 40 * sum(map(law, other))))
    cases.append(Case(replace(step(drawn(8, 20), batch=4), phase="infer"), 1.0))
    scores = evaluate(campaign(calls), cases, [ROOFLINE, EFFICIENCY, NEIGHBOURS])
    found = [each for each in scores if each.situation == OTHER_BATCHES_RUN]
    assert {(each.workload, each.phase, each.batch, each.predictor) for each in found} == {
        ("net", "train", batch, name) for batch in sizes for name in (EFFICIENCY, NEIGHBOURS)
    }
    assert [each.error for each in found] == pytest.approx(
        [0.0] * len(found), abs=0.05
    )  # the largest is beyond those known
    plain = [each for each in scores if each.situation == UNSEEN_BATCH and each.predictor == NEIGHBOURS]
    assert [each.error for each in plain if each.phase == "train"] == pytest.approx([-1 / 3] * 3, abs=0.02)


def score(workload: str, predicted: float, measured: float = 1.0) -> Score:
    return Score(workload, "train", 8, UNSEEN_WORKLOAD, EFFICIENCY, predicted, measured)


def test_conformal_intervals_have_their_rank_and_their_coverage() -> None:
    scores = [score(f"w{at}", math.exp(at / 10)) for at in range(1, 21)]
    assert width_of(scores) == pytest.approx(1.9)  # number ceil(21 x 0.9) = 19 of 20
    assert width_of(scores[:5]) == pytest.approx(0.5)  # too few for the level: the largest
    (found,) = summaries(scores)
    assert found.factor == pytest.approx(math.exp(1.9))
    assert found.coverage == pytest.approx(18 / 20)  # without it, 19 others: the largest that are left out miss
    assert found.mean_error == pytest.approx(sum(math.exp(at / 10) - 1 for at in range(1, 21)) / 20)


def test_coverage_is_measured_on_other_workloads_alone() -> None:
    """One workload is far off: its own errors must not widen its interval."""
    scores = [score("good", 1.01), score("fine", 0.99), score("bad", 5.0), score("bad", 4.0)]
    (found,) = summaries(scores)
    assert found.coverage == 0.5
    (alone,) = summaries(scores[2:])
    assert alone.coverage is None


def test_what_the_host_costs_is_found_from_whole_steps() -> None:
    draw = random.Random(0)
    probes = []
    for at in range(20):
        calls = {part: draw.randint(5, 200) for part in ("forward", "backward", "optimizer")}
        host = 3e-6 * calls["forward"] + 5e-6 * calls["backward"] + 1e-6 * calls["optimizer"] + 2e-4
        probes.append(Probe(name=f"random {at}", phase="train", calls=calls, ops_s=0.01, step_s=0.01 + host))
    found = fit_host(probes, gpu=False)
    assert [found.forward_s, found.backward_s] == pytest.approx([3e-6, 5e-6], rel=0.01)
    assert found.step_s == pytest.approx(2e-4, rel=0.05)
    assert fit_host(probes[:1], gpu=False).forward_s == 0
    few = fit_host(probes[:6], gpu=False)
    assert few.forward_s == few.backward_s == few.optimizer_s > 0  # too few to tell the parts from each other


def test_a_host_whose_core_is_slow_at_times_is_fitted_at_its_full_speed() -> None:
    """Two of three steps were measured while the same loop took twice as long."""
    probes = [
        Probe(
            name=f"random {at}", phase=phase, calls={"forward": 10 * at}, ops_s=1e-5, loop_s=slow * 1e-4,
            step_s=slow * (1e-4 * at + 5e-5 * (phase == "train") + 2e-5),
        )
        for at in range(1, 20) for phase in ("train", "infer") for slow in (1 if at % 3 == 0 else 2,)
    ]  # fmt: skip
    found = fit_host(probes, gpu=True)
    assert found.forward_s == pytest.approx(1e-5, rel=0.01)
    assert found.step_s == pytest.approx(2e-5, rel=0.01)
    assert found.training_s == pytest.approx(5e-5, rel=0.01)
    unknown = fit_host([replace(each, loop_s=None) for each in probes], gpu=True)
    assert unknown.step_s > 1.2 * found.step_s


def test_a_gpu_that_is_always_busy_says_nothing_of_its_host() -> None:
    busy = [Probe(name="n", phase="train", calls={"forward": 10 * at}, ops_s=1.0, step_s=1.01) for at in range(1, 20)]
    assert fit_host(busy, gpu=True).forward_s == 0


def test_a_campaign_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = campaign(timed(drawn(1, 5), "random 1"), [Probe(name="r", phase="train", calls={}, ops_s=1.0, step_s=2.0)])
    path = tmp_path / "a" / f"machine{campaigns.SUFFIX}"
    campaigns.write(path, made)
    assert campaigns.read(path) == made
    assert campaigns.find(tmp_path / "a") == [path]


@pytest.mark.parametrize(
    "content",
    [b"", b"junk", gzip.compress(b"{}"), gzip.compress(b'{"format": 3')],
    ids=["empty", "no gzip", "no campaign", "half a file"],  # what is compressed has the time in it
)
def test_another_file_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"machine{campaigns.SUFFIX}"
    path.write_bytes(content)
    with pytest.raises(DataError) as refused:
        campaigns.read(path)
    assert "\n" not in str(refused.value)


def test_the_machines_that_come_along_are_complete() -> None:
    known = shipped()
    assert {each.gpu for each in known.machines} == {True, False}
    assert all(ClassFit in {type(fit) for fit in each.fits.values()} for each in known.machines)
    assert known.other.coverage is not None
    assert 0 < known.other.low < 1 < known.other.high
    near = nearest(Target(name="x", gpu=True, flop_per_s={"fp32": 1e13}, bytes_per_s=1e12), known.machines)
    assert near is not None
    assert near.gpu


def test_predictors_that_are_evaluated_are_those_that_can_be_chosen() -> None:
    assert tuple(FITS) == FITTED
    assert set(FITTED) < set(PREDICTORS)
    assert set(WITH_EXTRA) == {SVR, BOOSTING}


# which calibration


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("H200", "nvidia-h200"),
        ("nvidia h200", "nvidia-h200"),
        ("a100", "nvidia-a100-sxm4-80gb"),
        ("A100-SXM4", "nvidia-a100-sxm4-80gb"),
        ("neoverse", "neoverse-n1-2-threads"),
        ("A10", None),
        ("H20", None),
        ("nvidia", "nvidia-h200"),
        ("", None),
    ],
)
def test_a_calibration_is_named_by_whole_words(asked: str, found: str | None) -> None:
    names = ["nvidia-h200", "nvidia-a100-sxm4-80gb", "neoverse-n1-2-threads"]
    assert next((name for name in names if _is_called(name, asked)), None) == found


def test_several_calibrations_of_one_processor_must_be_told_apart(tmp_path: Path) -> None:
    for threads in (1, 16):
        (tmp_path / f"xeon-{threads}-threads{SUFFIX}").write_bytes(b"")
    with pytest.raises(BadOption, match="several calibrations, choose one by --on: xeon-1-threads, xeon-16-threads"):
        chosen("xeon", tmp_path, "auto", "fp32", None, None)


def test_a_damaged_file_of_errors_is_named(tmp_path: Path) -> None:
    path = tmp_path / f"here{SUFFIX}"
    errors_file(path).write_text('[{"situation"')
    with pytest.raises(DataError, match="not the errors of a calibration; evaluate it again"):
        own_errors(path)


def test_errors_are_told_though_they_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They took minutes to compute."""
    found: dict[str, Any] = {"read_nonempty": [], "_machine": ("N1", []), "scored": [score("good", 1.01)]}
    for name, value in found.items():
        monkeypatch.setattr(_evaluate, name, lambda *_, value=value: value)
    monkeypatch.setattr(_evaluate, "_material", lambda *_: (tmp_path / "gone" / f"here{SUFFIX}", None, []))
    with pytest.raises(OSError, match="gone"):
        _evaluate.evaluate([], tmp_path, None, AUTO, EAGER, True)
    assert json.loads(capsys.readouterr().out)["scores"][0]["workload"] == "good"


def test_a_precision_that_was_not_fitted_is_not_faster_than_its_ceiling() -> None:
    """Convolutions by fewer products beat the ceiling in fp32."""
    fast = Efficiency({"matrix product": ClassFit(0.0, 0.5), "elementwise": ClassFit(0.0, 0.5)}, {"fp32"})
    target = replace(TARGET, flop_per_s={"fp32": 1e11, "bf16": 1e11})
    ops = [product(512, 512, 512), addition(1000)]
    narrow = [replace(op, dtypes="BFloat16") for op in ops]
    roof = Roofline().seconds(step(ops), target)
    assert fast.seconds(step(ops), target) == pytest.approx([each / 2 for each in roof])
    assert fast.seconds(step(narrow), target) == pytest.approx([roof[0], roof[1] / 2])


def test_what_a_device_lacks() -> None:
    assert TARGET.lacks("fp32") is None
    assert TARGET.lacks("mixed") is None  # ops say what they compute in
    assert TARGET.lacks("tf32") == "no tf32 peak of device is known"
    half = replace(TARGET, flop_per_s={"fp32": 1e11, "fp16": 9e11})
    assert half.lacks("bf16") == "no bf16 peak of device is known; it has fp16"
    assert half.peak("bf16") == 1e11  # fp16 is not wider


def test_sums_in_fp64_take_their_bytes_and_products_need_a_peak() -> None:
    assert Roofline().seconds(step([replace(addition(1000), dtypes="double")]), TARGET) == [pytest.approx(1.2e-6)]
    with pytest.raises(BadOption, match="no fp64 peak of device is known"):
        Roofline().seconds(step([replace(product(8, 8, 8), dtypes="double")]), TARGET)


def test_steps_of_another_precision_or_network_correct_nothing() -> None:
    ops = {batch: [product(batch * 8, 60 + at, 70 + at) for at in range(20)] for batch in (4, 8)}
    calls = [call for batch, each in ops.items() for call in timed(each, source_of("net", batch, "train"))]
    calls += timed(drawn(4, 60), "random 1")
    one, other = step(ops[4], batch=4), step(ops[8], batch=8)
    for changed in (replace(other, precision="bf16"), replace(other, parameters=7)):
        both = replace(campaign(calls), flop_per_s={"fp32": 1e11, "bf16": 1e11})
        found = evaluate(both, [Case(one, 1.0), Case(changed, 50.0)], [EFFICIENCY])
        assert not [each for each in found if each.situation == OTHER_BATCHES_RUN]


def test_a_precision_that_was_not_calibrated_is_not_evaluated() -> None:
    ops = drawn(4, 60)
    tf32 = Case(replace(step(ops), precision="tf32"), 1.0)
    with pytest.raises(DataError, match="in a precision of the calibration"):
        evaluate(campaign(timed(ops, "random 1")), [tf32], [EFFICIENCY])
