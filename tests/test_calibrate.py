"""A campaign with a clock of its own: what it times, what it leaves out, how it resumes; and the commands as typed."""

from __future__ import annotations

import json
import math
import signal
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from conftest import fathom as run_command
from sample_records import GPU, LAPTOP, MACHINES, op_row, record_of

from fathom.core import stopping
from fathom.core.errors import EngineError
from fathom.core.store import Store
from fathom.engine.step_work import step_work
from fathom.experiments import calibrate as experiment
from fathom.experiments.isolate import NoRecord
from fathom.measure.calibration import run as running
from fathom.measure.calibration.cases import cases_of
from fathom.measure.calibration.layers import DRAWS, FEWEST_FLOP, LAYERS, MOST_FLOP, _up_to, products_of, random_layer
from fathom.measure.calibration.networks import FAMILIES, deep_network, random_network
from fathom.measure.calibration.op_times import OpTime, time_call
from fathom.measure.calibration.run import Runner, file_name
from fathom.predict import campaign as campaigns
from fathom.predict.call_shape import Convolution, layer_of
from fathom.predict.campaign import Campaign, read, source_of, write
from fathom.predict.choice import calibrated
from fathom.predict.core_speed import CoreSpeed
from fathom.predict.errors import errors_file, errors_of_its_kind
from fathom.predict.estimate import INDEPENDENT
from fathom.predict.evaluation import OP_BY_OP, UNSEEN_WORKLOAD, Summary
from fathom.predict.predictors.names import NEIGHBOURS
from fathom.predict.probe import Probe
from fathom.workloads.base import workload_class

CPU = torch.device("cpu")
Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fathom(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Exit code, output and messages of a command."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = run_command(monkeypatch, *arguments)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def empty() -> Campaign:
    return Campaign(
        machine="Test CPU, 2 cores", device="cpu", threads=2, torch="2.13", started="2026",
        flop_per_s={"fp32": 1e11}, bytes_per_s=1e10, memory_bytes=8e9,
    )  # fmt: skip


FAST_S, SLOW_S = 2e-4, 4e-4  # of the fixed loop on the core


class Clock:
    """Every call takes a millisecond of its own time and a second of the budget's; one op cannot be made here."""

    def __init__(self) -> None:
        self.timed: list[str] = []
        self.core_s = FAST_S

    def loop(self, loops: int = 0) -> float:
        return self.core_s

    def time_call(self, spec: str, device: torch.device) -> OpTime:
        self.timed.append(spec)
        if "aten::relu." in spec:
            raise RuntimeError("not on this device\nand more lines")
        return OpTime(1e-3 * self.core_s / FAST_S, loop_s=self.core_s)

    def now(self) -> float:
        return float(len(self.timed))


@pytest.fixture(autouse=True)
def no_deep_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are simulated for seconds in every campaign; one test has them."""
    monkeypatch.setattr(running, "DEEP_PROBES", 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(running, "time_call", found.time_call)
    monkeypatch.setattr(running, "step_s", lambda *_: 0.5)
    monkeypatch.setattr(running, "loop_s", found.loop)
    monkeypatch.setattr(running, "PROBES", 1)
    monkeypatch.setattr(running, "SAVE_S", 200.0)  # each call is a second, and a file takes longer than a call
    return found


def test_a_campaign_stops_at_its_budget_and_resumes_where_it_stopped(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / f"cpu{campaigns.SUFFIX}"
    first = Runner(CPU, path, 100.0, empty(), clock=clock.now).run([("autoenc", "tiny")], ("fp32",))
    assert len(clock.timed) == len(set(clock.timed)) == 100
    assert campaigns.read(path) == first
    assert first.probes == []  # the step's calls were not all timed
    again = Runner(CPU, path, 100.0, campaigns.read(path), clock=clock.now).run([("autoenc", "tiny")], ("fp32",))
    assert len(clock.timed) == len(set(clock.timed)) == 200  # nothing is timed twice
    assert len(again.calls) + len(again.failed) == 200
    assert [(each.name, each.phase) for each in again.probes[:2]] == [("random 0", "train"), ("random 0", "infer")]


@pytest.mark.parametrize(("usual_s", "other_s"), [(FAST_S, SLOW_S), (SLOW_S, FAST_S)])
def test_what_was_timed_at_another_core_speed_is_timed_again_at_the_usual_one(
    usual_s: float, other_s: float, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether that is the faster one or the slower one, which a shared core may have for hours."""
    step = step_work(workload_class("autoenc").configured("tiny"), "train", gpu=False)
    ops = list({op.spec: op for op in step.ops if "aten::relu." not in op.spec}.values())
    calls = [
        campaigns.TimedCall(work=op, seconds=1.0, loop_s=usual_s if at % 3 else other_s, sources=("autoenc@1 train",))
        for at, op in enumerate(ops)
    ]
    probes = [Probe(name="random 0", phase=phase, calls={}, ops_s=1, step_s=9, cold_bytes=0, loop_s=other_s)
              for phase in ("train", "infer")]  # fmt: skip
    before = replace(empty(), calls=calls, probes=probes)
    assert before.speed == CoreSpeed(usual_s)
    assert before.at_other_speed == len(ops[::3])
    monkeypatch.setattr(Runner, "_steps", lambda *_: iter([(replace(step, sequence=()), "nothing new")]))

    def run(core_s: float) -> Campaign:
        clock.core_s = core_s
        return Runner(CPU, tmp_path / "c", 9000.0, before, clock=clock.now).run([], ("fp32",))

    assert run(other_s).probes == probes
    assert clock.timed == [], "not while the core has that speed"
    again = run(usual_s)
    assert clock.timed[: len(ops[::3])] == [op.spec for op in ops[::3]]
    assert again.at_other_speed == 0
    assert {each.seconds for each in again.calls[: len(ops)]} == {1.0, 1e-3 * usual_s / FAST_S}
    assert {each.sources[0] for each in again.calls[: len(ops)]} == {"autoenc@1 train"}
    assert [(each.step_s, each.loop_s) for each in again.probes] == [(0.5, usual_s)] * 2


def test_a_call_that_fails_is_noted_and_the_campaign_goes_on(tmp_path: Path, clock: Clock) -> None:
    found = Runner(CPU, tmp_path / "c", 400.0, empty(), clock=clock.now).run([("alexnet", "tiny")], ("fp32",))
    assert found.failed
    assert set(found.failed.values()) == {"not on this device"}
    assert len(found.calls) > 100


def test_a_device_that_a_call_stopped_ends_the_campaign_and_the_next_goes_on(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: torch.device) -> None:
        raise RuntimeError("device-side assert\nmore")

    path = tmp_path / f"c{campaigns.SUFFIX}"
    runner = Runner(CPU, path, 400.0, empty(), clock=clock.now)
    with monkeypatch.context() as broken:
        broken.setattr(running, "wait", gone)
        with pytest.raises(EngineError, match="aten::relu stopped cpu"):
            runner.run([("alexnet", "tiny")], ("fp32",))
    left = campaigns.read(path)
    assert len(left.failed) == 1
    again = Runner(CPU, path, 100.0, left, clock=clock.now).run([("alexnet", "tiny")], ("fp32",))
    assert len(again.calls) > len(left.calls)
    assert clock.timed.count(next(iter(left.failed))) == 1


@pytest.mark.parametrize("seed", range(2 * len(FAMILIES)))
def test_a_random_network_is_the_same_again_and_can_be_run(seed: int) -> None:
    first, second = (step_work(random_network(seed), "train", gpu=False) for _ in range(2))
    assert first == second
    assert {op.part for op in first.ops} == {"forward", "backward", "optimizer"}
    small = [op for op in first.ops if (op.bytes or 0) < 1e6 and (op.flop or 0) < 1e6][:10]
    for op in small:
        if not op.op.endswith("_local_scalar_dense"):
            assert time_call(op.spec, CPU, 0.0).seconds > 0


@pytest.mark.parametrize("seed", range(2 * len(LAYERS)))
def test_a_random_layer_has_products_of_both_passes_and_nothing_else(seed: int) -> None:
    first, second = (products_of(step_work(random_layer(seed), "train", gpu=False)) for _ in range(2))
    assert first == second
    assert {op.part for op in first.ops} == {"forward", "backward"}
    assert {layer_of(op) is not None for op in first.ops} == {True}
    assert first.calls == [1] * len(first.ops)


def test_layers_come_in_both_layouts_and_up_to_the_largest_flop() -> None:
    layers = [layer_of(op) for seed in range(60) for op in step_work(random_layer(seed), "infer", gpu=False).ops]
    found = [each for each in layers if isinstance(each, Convolution)]
    assert {each.turned for each in found} == {each.groups > 1 for each in found} == {True, False}
    assert max(each.flop for each in found) <= MOST_FLOP
    assert max(each.flop for each in found) > 100 * min(each.flop for each in found)


def test_layers_of_a_faster_device_are_those_that_keep_it_busy() -> None:
    steps = [step_work(random_layer(seed, 8.0), "infer", gpu=True) for seed in range(0, 40, 2)]
    found = [op.flop or 0.0 for step in steps for op in step.ops if layer_of(op) is not None]
    assert statistics.median(found) > 1e9
    assert max(found) > 8**3 * MOST_FLOP / 10


def test_every_fourth_layer_is_a_convolution_as_in_image_networks() -> None:
    """Of nearly as many FLOP as there may be; most of them 3x3 with as many places as before, as Winograd's are."""
    steps = [step_work(random_layer(seed, 8.0), "infer", gpu=True) for seed in range(2, 242, 4)]
    found = [layer for step in steps for op in step.ops if isinstance(layer := layer_of(op), Convolution)]
    assert len(found) == 60
    assert all(30 * FEWEST_FLOP * 8**3 / 100 < each.flop <= MOST_FLOP * 8**3 for each in found)
    assert statistics.median(each.flop for each in found) > 5e10
    assert sum(each.kernel == 9 and each.stepped == 1 for each in found) > 20
    sides = [each.channels * math.sqrt(each.input_size / each.items / each.channels) for each in found]
    assert all(1000 < each < 20000 for each in sides)


def test_some_layers_are_the_first_of_a_network() -> None:
    """Nobody wants the gradient of a first layer's input: its backward pass is another call."""
    steps = [step_work(random_layer(seed), "train", gpu=False) for seed in range(0, 60, 2)]
    layers = [layer_of(op) for step in steps for op in products_of(step).ops if op.part == "backward"]
    assert {each.wanted[0] for each in layers if isinstance(each, Convolution)} == {True, False}


def test_a_layer_of_fewer_flop_than_any_is_the_smallest_drawn() -> None:
    sizes = iter([5.0, 3.0] * (DRAWS + 1))
    made = _up_to(1.0, lambda: (size := next(sizes), lambda: size))  # type: ignore[arg-type, return-value]
    assert made() == 3.0  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_deep_network_is_paced_by_its_calls(seed: int) -> None:
    """Hundreds of calls of the same few kinds, each of little work: what a call costs is told from what a step does."""
    found = [step_work(deep_network(seed), phase, gpu=True) for phase in ("train", "infer")]
    again = step_work(deep_network(seed), "train", gpu=True)
    assert again.sequence == found[0].sequence
    assert len(found[0].sequence) > 3 * len(found[1].sequence) > 100
    assert all((op.flop or 0) < 1e7 for op in found[0].ops)


def test_a_campaign_times_whole_steps_of_deep_networks_after_random_ones(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "PROBES", 1)
    monkeypatch.setattr(running, "DEEP_PROBES", 2)
    monkeypatch.setattr(Runner, "_steps", lambda *_: iter(()))  # what comes after them
    found = Runner(CPU, tmp_path / "c", 1500.0, empty(), clock=clock.now).run([("autoenc", "tiny")], ("fp32",))
    names = [f"{each.name} {each.phase}" for each in found.probes]
    networks = ("random 0", "deep 0", "deep 1")
    assert names == [f"{network} {phase}" for network in networks for phase in ("train", "infer")]


def test_a_file_of_format_1_is_read_with_one_tensor_where_steps_have_one(tmp_path: Path) -> None:
    """It does not say so: its calls would be those of no step, and would not be left out with their workload."""
    step = step_work(workload_class("speech").configured("tiny"), "train", gpu=True)
    marked = {op.spec for op in step.ops if '["S",0]' in op.spec}
    assert marked
    calls = []
    for op in step.ops:
        entries = json.loads(op.spec)
        plain = [entries[1 + each[1]] if isinstance(each, list) and each[:1] == ["S"] else each for each in entries]
        spec = json.dumps(plain, separators=(",", ":"))
        calls.append(campaigns.TimedCall(work=replace(op, spec=spec), seconds=1.0))
    path = tmp_path / f"gpu{campaigns.SUFFIX}"
    write(path, replace(empty(), calls=calls, format=1))
    found = campaigns.read(path)
    assert {each.work.spec for each in found.calls} == {op.spec for op in step.ops}
    assert found.format == campaigns.FORMAT


def test_random_networks_of_a_faster_device_are_larger() -> None:
    flops = [sum(step_work(random_network(seed, size), "infer").flop for seed in range(7)) for size in (1.0, 8.0)]
    assert flops[1] > 2 * flops[0]


def test_a_file_is_named_after_the_machine() -> None:
    assert file_name(empty()) == f"test-cpu-2-cores-2-threads{campaigns.SUFFIX}"


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    """A machine where every call takes 10 us and every step 100 us more."""
    step = step_work(workload_class("autoenc").configured("tiny"), "train", gpu=False)
    calls = [campaigns.TimedCall(work=op, seconds=1e-5, sources=("autoenc@1 train",)) for op in step.ops]
    probes = [
        Probe(name=f"random {at}", phase="train", calls={"forward": at}, ops_s=at * 1e-5, step_s=at * 1e-5 + 1e-4)
        for at in range(1, 20)
    ]
    made = Campaign(
        machine="Test CPU, 2 cores", device="cpu", threads=2, torch="2.13", started="2026", flop_per_s={"fp32": 1e11},
        bytes_per_s=1e10, memory_bytes=8e9, calls=calls, probes=probes,
    )  # fmt: skip
    write(tmp_path / file_name(made), made)
    return tmp_path


def test_a_step_whose_calls_were_all_timed_is_their_sum(calibration: Path, fathom: Typed) -> None:
    arguments = ("autoenc", "--preset", "tiny", "--calibration", str(calibration), "--predictor", "op-by-op", "--json")
    found = json.loads(fathom("predict", *arguments)[1])
    step = step_work(workload_class("autoenc").configured("tiny"), "train", gpu=False)
    assert found["device_s"] == pytest.approx(1e-5 * len(step.sequence))
    assert found["host_s"] == pytest.approx(1e-4, rel=0.01)
    assert found["step_s"] == pytest.approx(found["device_s"] + found["host_s"])
    assert found["low_s"] < found["step_s"] < found["high_s"]
    op_by_op = next(each for each in errors_of_its_kind(False, "eager").summaries if each.situation == OP_BY_OP)
    assert (found["coverage"], found["high_s"]) == (op_by_op.coverage, pytest.approx(op_by_op.factor * found["step_s"]))
    assert found["coverage_on"] == "Neoverse-N1, 2 cores", "nobody compared this calibration with measured steps"


@pytest.mark.parametrize(("usual_s", "said"), [(FAST_S / 0.95, False), (FAST_S / 0.6, True)])
def test_a_prediction_says_how_fast_the_core_usually_was(usual_s: float, said: bool, calibration: Path) -> None:
    (path,) = campaigns.find(calibration)
    made = read(path)
    calls = [replace(each, loop_s=usual_s if at else FAST_S) for at, each in enumerate(made.calls)]
    write(path, replace(made, calls=calls))
    notes = [each for each in calibrated(path, NEIGHBOURS, "fp32").notes if "of its fastest speed" in each]
    expected = ["for a core at 60% of its fastest speed, as it usually was in the calibration"]
    assert notes == (expected if said else [])


def test_a_calibration_without_calls_predicts_nothing(tmp_path: Path, fathom: Typed) -> None:
    write(tmp_path / file_name(empty()), empty())
    code, _, error = fathom("predict", "autoenc", "--preset", "tiny", "--calibration", str(tmp_path))
    assert code == 2
    assert "has no op calls: run fathom calibrate with a longer --budget" in error


def test_the_roofline_needs_no_calls_but_the_ceilings(tmp_path: Path, calibration: Path, fathom: Typed) -> None:
    ceilings = replace(read(campaigns.find(calibration)[0]), calls=[], probes=[])
    write(tmp_path / file_name(ceilings), ceilings)
    arguments = ("predict", "autoenc", "--preset", "tiny", "--predictor", "roofline", "--json", "--calibration")
    without, with_calls = (json.loads(fathom(*arguments, str(each))[1]) for each in (tmp_path, calibration))
    assert 0 < without["step_s"] == without["roofline_s"] == with_calls["step_s"]


@pytest.mark.parametrize("peak", ["1e300", "0", "nan"])
def test_a_machine_beyond_all_bounds_is_refused(peak: str, fathom: Typed) -> None:
    code, _, error = fathom("predict", "autoenc", "--preset", "tiny", "--peak-tflops", peak, "--bandwidth", "1e300")
    assert (code, len(error.splitlines())) == (2, 1)
    assert "peak must be a number from 1e-09 to 1e+12" in error


def test_steps_measured_at_another_batch_correct_the_prediction(
    calibration: Path, tmp_path: Path, fathom: Typed
) -> None:
    arguments = ("predict", "autoenc", "--preset", "tiny", "--calibration", str(calibration), "--json")
    plain, half = (json.loads(fathom(*arguments, *batch)[1])["step_s"] for batch in ((), ("--batch", "16")))
    machine = replace(MACHINES[LAPTOP], cpu=replace(MACHINES[LAPTOP].cpu, name="Test CPU", affinity=[0, 1]))
    spec = {"preset": "tiny", "batch": 16, "kind": "profiled"}
    measured = record_of("autoenc", [op_row("MatMul", 3 * half)], spec=spec, machine=machine)
    Store(tmp_path / "measured").add(measured)
    found = json.loads(fathom(*arguments, "--measured", str(tmp_path / "measured"))[1])
    assert found["step_s"] == pytest.approx(3 * plain, rel=0.01)
    assert "measured over predicted at batch 16" in " ".join(found["notes"])
    code, _, said = fathom(*arguments, "--batch", "16", "--measured", str(tmp_path / "measured"))
    assert (code, "at another batch than 16" in said) == (2, True)


def test_a_step_whose_calls_were_not_timed_has_the_interval_of_unseen_workloads(calibration: Path) -> None:
    (path,) = campaigns.find(calibration)
    found = [
        Summary(situation, predictor, 16, 0.1, 0.1, 0.2, factor, 0.9)
        for situation, predictor, factor in ((OP_BY_OP, OP_BY_OP, 1.1), (UNSEEN_WORKLOAD, NEIGHBOURS, 1.5))
    ]
    errors_file(path).write_bytes(msgspec.json.encode(found))
    choice = calibrated(path, "auto", "fp32")
    known, unknown = (step_work(workload_class(name).configured("tiny"), gpu=False) for name in ("autoenc", "alexnet"))
    assert choice.interval_of(known).high == pytest.approx(1.1)
    assert choice.interval_of(unknown).high == pytest.approx(1.5)
    assert choice.how(unknown)["interval"].low == pytest.approx(1 / 1.5)
    assert calibrated(path, NEIGHBOURS, "fp32").interval_of(known).high == pytest.approx(1.5)


def test_the_same_step_on_a_device_that_is_not_here(fathom: Typed) -> None:
    arguments = ("resnet-50", "--on", "P100", "--batch", "32", "--count", "8", "--interconnect", "InfiniBand EDR")
    found = json.loads(fathom("predict", *arguments, "--json")[1])
    assert (found["target"], found["count"], found["fits"]) == ("P100", 8, True)
    assert found["step_s"] == pytest.approx(found["compute_s"] + found["exposed_s"])
    assert found["communication_s"] > found["exposed_s"] > 0
    assert any("H200" in note for note in found["notes"])
    _, human, _ = fathom("predict", *arguments)
    assert "coverage not measured" in human  # of several devices
    assert "of held-out steps" in fathom("predict", "resnet-50", "--on", "P100", "--batch", "32")[1]
    assert "exposed" in human


def test_devices_that_infer_are_said_to_work_independently(fathom: Typed) -> None:
    arguments = ("predict", "memnet", "--on", "H100", "--phase", "infer", "--count")
    one, two = (json.loads(fathom(*arguments, count, "--json")[1]) for count in "12")
    assert (two["step_s"], two["items_per_s"]) == (one["step_s"], pytest.approx(2 * one["items_per_s"]))
    assert INDEPENDENT in two["notes"]
    assert INDEPENDENT not in one["notes"]
    human = " ".join("".join(fathom(*arguments, "2")[1:]).split())
    assert INDEPENDENT in human
    assert "exposed" not in human


REFUSED = {
    "no calibration": (("memnet", "--calibration", "nowhere"), "run fathom calibrate"),
    "no network": ((), "name a workload of"),
    "unknown device": (("memnet", "--on", "H1000"), "no device"),
    "unknown workload": (("memnt", "--on", "H100"), "did you mean memnet"),
    "half a device": (("memnet", "--peak-tflops", "3"), "--bandwidth"),
    "two devices": (("memnet", "--on", "H100", "--peak-tflops", "3", "--bandwidth", "5"), "give one of them"),
    "no link": (("memnet", "--on", "H100", "--count", "4"), "interconnect"),
    "another's link": (
        ("memnet", "--on", "H100", "--count", "8", "--interconnect", "NVLink 2"),
        "8 x H100 SXM on NVLink 2: H100 SXM has NVLink 4",
    ),
    "too many for a link": (
        ("memnet", "--on", "H100", "--count", "64", "--interconnect", "NVLink 4"),
        "NVLink joins the devices of one server, 8 at most; more need a network",
    ),
    "no devices": (("memnet", "--on", "H100", "--count", "0"), "--count"),
    "unknown predictor to evaluate": (("--evaluate", "nowhere", "--predictor", "op-by-op"), "predictor to evaluate"),
    "unknown predictor": (("memnet", "--on", "H100", "--predictor", "magic"), "predictor"),
    "regression elsewhere": (("memnet", "--on", "H100", "--predictor", "svr"), "needs a calibration"),
    "no peak": (("memnet", "--on", "Neoverse-N1"), "no peak FLOP/s"),
    "no bandwidth": (("memnet", "--on", "TPU v2", "--precision", "bf16"), "`fathom predict` takes --peak-tflops"),
    "no bf16": (("memnet", "--on", "V100", "--precision", "bf16"), "no bf16 peak of V100 is known; it has fp16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_predicted_is_one_line(name: str, fathom: Typed) -> None:
    arguments, message = REFUSED[name]
    code, _, said = fathom("predict", *arguments)
    assert code == 2
    assert message in " ".join(said.split())


def test_the_precision_that_a_refusal_names_is_predicted(fathom: Typed) -> None:
    found = json.loads(fathom("predict", "autoenc", "--on", "V100", "--precision", "fp16", "--json")[1])
    assert (found["precision"], found["coverage"]) == ("fp16", None)


def test_a_graph_on_a_device_that_is_not_here_has_no_host_and_no_measured_coverage(fathom: Typed) -> None:
    eager, graph = (
        json.loads(fathom("predict", "memnet", "--on", "H200", "--engine", engine, "--json")[1])
        for engine in ("eager", "cudagraph")
    )
    assert graph["step_s"] < eager["step_s"] / 3
    assert graph["step_s"] == pytest.approx(max(graph["device_s"], graph["host_s"]))
    assert (eager["coverage"] is not None, graph["coverage"]) == (True, None)
    assert fathom("predict", "memnet", "--on", "H200", "--engine", "cudagraph")[1].startswith("memnet, train, fp32, cu")


@pytest.mark.parametrize("engine", ["compile", ""])
def test_an_engine_whose_steps_are_not_predicted_is_refused(engine: str, fathom: Typed) -> None:
    for asked in (("memnet", "--on", "H200"), ("--evaluate", "results/h200")):
        code, _, said = fathom("predict", *asked, "--engine", engine)
        assert (code, said.strip()) == (2, f"fathom: no engine to predict {engine!r}; there are: cudagraph, eager")


@pytest.mark.parametrize("budget", ["0", "-1", "nan", "1e9"])
def test_a_budget_is_some_minutes(budget: str, tmp_path: Path, fathom: Typed) -> None:
    code, _, said = fathom("calibrate", "--budget", budget, "--out", str(tmp_path))
    assert (code, "--budget" in said) == (2, True)


def test_no_threads_are_refused_before_anything_is_timed(tmp_path: Path, fathom: Typed) -> None:
    code, _, said = fathom("calibrate", "--threads", "0", "--out", str(tmp_path))
    assert (code, "threads must be 1 to" in said) == (2, True)


def test_of_several_launches_of_a_step_the_median_is_the_measured_one() -> None:
    spec = {"kind": "profiled", "preset": "tiny"}
    launches = []
    for step_s in (3.0, 1.0, 2.0):
        record = record_of("autoenc", rows=[op_row("MatMul", 0.5)], spec=spec)
        assert record.profile is not None
        launches.append(replace(record, profile=replace(record.profile, free_step_s=[step_s] * 5, data_s=0.0)))
    other = record_of("autoenc", rows=[op_row("MatMul", 0.5)], spec=spec | {"batch": 7})
    found = cases_of([*launches, other], launches[0].machine_label)
    assert found[0].measured_s == pytest.approx(2.0)
    assert [case.step.batch for case in found] == [workload_class("autoenc").configured("tiny").batch, 7]


PROFILED = {"kind": "profiled", "preset": "tiny"}


@pytest.mark.parametrize(("place", "kept"), [(GPU, [False, True]), (LAPTOP, [True, True])])
def test_a_step_that_mostly_prepares_its_batch_says_nothing_of_the_network(place: str, kept: list[bool]) -> None:
    """On a GPU, where it is subtracted as the profiler saw it; on a CPU it is a part of the step."""
    rows = [op_row("MatMul", 0.1, place=place)]
    record = record_of("autoenc", rows, outside_s=0.9, spec=PROFILED, place=place)
    assert record.profile is not None
    free = [1.0] * 5 if place == GPU else []
    profile = replace(record.profile, free_step_s=free, plain_step_s=[1.0] * 5, step_s=[1.0] * 5)
    found = [replace(record, profile=replace(profile, data_s=data_s)) for data_s in (0.8, 0.2)]
    assert [len(cases_of([each], record.machine_label)) for each in found] == kept


def test_calls_say_which_steps_they_are_of_and_one_that_ended_the_process_is_not_made_again(
    tmp_path: Path, clock: Clock
) -> None:
    """One campaign over the workload at three batches, random networks, and layers after each of them."""
    path = tmp_path / "c"
    step = step_work(workload_class("autoenc").configured("tiny"), "train", gpu=False)
    spec = next(op.spec for op in step.ops if op.op == "aten::mm")
    (tmp_path / "c.timing").write_text(spec)
    found = Runner(CPU, path, 1500.0, empty(), clock=clock.now).run([("autoenc", "tiny")], ("fp32",))
    assert found.failed[spec] == "the process ended in it"
    assert spec not in {call.work.spec for call in found.calls}
    assert not (tmp_path / "c.timing").exists()
    sources = {source for each in found.calls for source in each.sources}
    assert {source_of("autoenc", size, "train") for size in (step.batch, step.batch // 2, 2 * step.batch)} <= sources
    assert any(source.startswith("random ") for source in sources)
    assert any(len(each.sources) > 1 for each in found.calls)
    assert {f"layer {at}" for at in range(running.LAYERS["cpu"])} <= sources


def test_a_call_that_ended_the_process_is_noted_before_another_can(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "c.timing").write_text("a call")
    Runner(CPU, tmp_path / "c", 1500.0, empty(), clock=clock.now)
    assert campaigns.read(tmp_path / "c").failed == {"a call": "the process ended in it"}


def test_a_calibration_that_the_user_ends_blames_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_worker(*_: Any, **__: Any) -> NoRecord:
        (tmp_path / "c.timing").write_text("a call")
        raise stopping.Stopped(signal.SIGINT)

    monkeypatch.setattr(experiment, "in_worker", in_worker)
    with pytest.raises(stopping.Stopped):
        experiment.calibrated("cpu", 60.0, ["fp32"], 1, [("autoenc", "tiny")], tmp_path, lambda _: None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ends", [1, experiment.MOST_LOST])
def test_a_calibration_goes_on_in_another_worker_where_a_call_ends_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: int
) -> None:
    """Workers that are killed, and then one that comes to its end."""
    budgets: list[float] = []

    def in_worker(job: Any, *, heartbeat_timeout_s: float, on_event: Callable[[Any], None]) -> NoRecord:
        budgets.append(job["budget_s"])
        if len(budgets) > ends:
            on_event({"result": str(tmp_path / "file")})
        (tmp_path / "c.timing").write_text("a call")
        return NoRecord("killed by SIGSEGV")

    monkeypatch.setattr(experiment, "in_worker", in_worker)
    events: list[Any] = []
    asked = ("cpu", 60.0, ["fp32"], 1, [("autoenc", "tiny")], tmp_path, events.append)
    if ends < experiment.MOST_LOST:
        assert experiment.calibrated(*asked) == tmp_path / "file"
        assert budgets == sorted(budgets, reverse=True)
    else:
        with pytest.raises(EngineError, match="the same command resumes"):
            experiment.calibrated(*asked)
    assert events == [{"lost": "killed by SIGSEGV"}] * ends


def test_a_fault_of_the_calibration_itself_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every worker would end in it, twenty times over the whole budget."""
    monkeypatch.setattr(experiment, "in_worker", lambda *_, **__: NoRecord("exited with code 1: AttributeError: no"))
    events: list[Any] = []
    with pytest.raises(EngineError, match="^the worker ended outside of any call, .* code 1: AttributeError: no$"):
        experiment.calibrated("cpu", 60.0, ["fp32"], 1, [("autoenc", "tiny")], tmp_path, events.append)
    assert events == []


def test_the_command_times_calls_in_a_worker(tmp_path: Path, fathom: Typed) -> None:
    asked = ("--device", "cpu", "--budget", "0.02", "--threads", "1", "--out", str(tmp_path))
    code, printed, said = fathom("calibrate", *asked, "--json")
    assert code == 0, said
    facts = json.loads(printed)
    assert facts["op_calls"] == len(campaigns.read(Path(facts["file"])).calls)


def test_a_campaign_that_goes_on_has_the_ceilings_of_precisions_that_are_added(tmp_path: Path) -> None:
    path = tmp_path / f"here{campaigns.SUFFIX}"
    first = replace(empty(), flop_per_s={"fp32": 1e12}, bytes_per_s=1e11)
    write(path, first)
    found = running.continued(path, replace(first, flop_per_s={"fp32": 9e12, "bf16": 4e12}, bytes_per_s=9e11))
    assert (found.flop_per_s, found.bytes_per_s) == ({"fp32": 1e12, "bf16": 4e12}, 1e11)
