"""The table of frameworks: equal networks, checked outputs, threads as asked for, and every way a cell can fail."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stub_frameworks

from fathom.core.framework import FrameworkRecord, FrameworkSpec
from fathom.experiments import frameworks as table
from fathom.frameworks import cell, framework, network, reference
from fathom.frameworks.network import Layer, keras_weights
from fathom.machine.host import fingerprint

TESTS = Path(__file__).parent
PARAMETERS = {  # by hand, from the layers
    "fcn5": (26_752 + 1) * 2048 + 2 * (2048 + 1) * 2048 + (2048 + 1) * 26_752,
    "alexnet": 62_378_344,  # as counted from the prototxt of the ungrouped network
    "resnet50": 25_557_032,  # as torchvision counts its trainable parameters
    "lstm": 10_000 * 256 + 2 * 4 * 256 * (256 + 256 + 1) + (256 + 1) * 10_000,
}


def spec_of(framework_name: str, **changes: Any) -> FrameworkSpec:
    fields = {"network": "fcn5", "phase": "infer", "batch": 4, "preset": "tiny", "steps": 6, **changes}
    return FrameworkSpec(framework=framework_name, **fields)


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers find the module of stubs, too."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]))


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    """The reference of the tiny network, computed in NumPy."""
    path = tmp_path / "truth.npy"
    np.save(path, stub_frameworks.logits(cell.work_of(spec_of("torch")), np.float64))
    return path


def in_process(name: str, path: Path, **changes: Any) -> FrameworkRecord:
    return cell.run(spec_of(f"stub_frameworks:{name}", **changes), path, lambda: None)


@pytest.fixture(autouse=True)
def threads_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


# The networks


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_the_networks_have_the_published_sizes(name: str) -> None:
    assert network.load(name).configured("paper").parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_layers_weights_and_the_torch_module_agree(name: str) -> None:
    work = cell.work_of(spec_of("torch", network=name, phase="train"))
    module = framework.torch_module(work)  # raises where a weight has no place, or a place no weight
    trained = sum(weight.numel() for weight in module.parameters() if weight.requires_grad)
    assert trained == work.network.parameters
    arrays = {(layer, key): array for layer, part in work.weights.items() for key, array in part.items()}
    assert sum(a.size for (_, key), a in arrays.items() if not key.startswith("running_")) == trained
    again = cell.work_of(spec_of("torch", network=name, phase="train"))
    assert np.array_equal(again.inputs, work.inputs)
    for (layer, key), array in arrays.items():
        assert np.array_equal(again.weights[layer][key], array)
        assert array.dtype == np.float32
    other = cell.work_of(spec_of("torch", network=name, seed=1))
    assert not np.array_equal(other.inputs, work.inputs)


def test_a_weight_without_a_place_is_refused() -> None:
    work = cell.work_of(spec_of("torch"))
    with pytest.raises(ValueError, match=r"do not match the module: \['extra.weight'\]"):
        framework.torch_module(replace(work, weights={**work.weights, "extra": {"weight": np.ones(1)}}))


def test_weights_are_laid_out_for_keras() -> None:
    chance = np.random.default_rng(0)
    conv = {"weight": chance.random((5, 3, 2, 2)), "bias": chance.random(5)}
    kernel, bias = keras_weights(Layer("c", "conv", 3, 5, 2), conv, channels_last=True)
    assert kernel.shape == (2, 2, 3, 5)
    assert kernel[1, 0, 2, 4] == conv["weight"][4, 2, 1, 0]
    assert bias is conv["bias"]
    image, dense = chance.random((3, 2, 4)), {"weight": chance.random((6, 24)), "bias": np.zeros(6)}
    layer = Layer("d", "dense", 24, 6, flattened=(3, 2, 4))
    expected = dense["weight"] @ image.ravel()
    last, _ = keras_weights(layer, dense, channels_last=True)
    first, _ = keras_weights(layer, dense, channels_last=False)
    assert np.allclose(image.transpose(1, 2, 0).ravel() @ last, expected)
    assert np.allclose(image.ravel() @ first, expected)


def test_the_reference_is_that_of_an_independent_computation(truth: Path, tmp_path: Path) -> None:
    path = tmp_path / "reference.npy"
    reference.write(cell.work_of(spec_of("torch")), path)
    assert reference.logits_error(np.load(path), np.load(truth)) < 1e-6


@pytest.mark.parametrize("name", sorted(PARAMETERS))
@pytest.mark.parametrize("phase", ["train", "infer"])
def test_pytorch_agrees_with_the_reference(name: str, phase: str, tmp_path: Path) -> None:
    work = cell.work_of(spec_of("torch", network=name, phase=phase))
    reference.write(work, tmp_path / "truth.npy")
    step, _ = framework.load("torch")().build(work, 1)
    found, stored = [step() for _ in range(reference.CHECKED)], np.load(tmp_path / "truth.npy")
    if phase == "train":
        assert stored[0][0] > stored[0][1] > stored[0][2]  # it learns: a step that does nothing would be seen
        assert reference.losses_error([float(each) for each in found], stored) < 1e-3
    else:
        assert reference.logits_error(np.asarray(found[0]), stored) < 1e-5


@pytest.mark.slow  # each cell is a process that loads its framework
@pytest.mark.parametrize(
    ("name", "kind"),  # a convolutional and a recurrent one in turns, ten seconds a cell
    [
        ("keras_torch", "alexnet"),
        ("keras_jax", "lstm"),
        ("keras_tensorflow", "alexnet"),
        ("onnxruntime", "lstm"),
        ("openvino", "alexnet"),
    ],
)
def test_every_installed_framework_computes_the_same(name: str, kind: str, tmp_path: Path) -> None:
    runner = framework.load(name)
    if runner.missing():
        pytest.skip(f"{name} is {runner.install_line()}")
    for phase in runner.phases:
        spec = spec_of(name, network=kind, phase=phase)
        reference.write(cell.work_of(spec), tmp_path / "truth.npy")
        record = table.run(spec, tmp_path / "truth.npy", lambda done, total: None, 600.0)
        assert (record.outcome, record.reason) == ("ok", None)
        assert record.error is not None
        assert record.tolerance is not None
        assert record.error < 0.1 * record.tolerance


# What is wrong is marked


def test_a_cell_that_is_right_is_timed_and_says_what_it_ran_with(truth: Path) -> None:
    record = in_process("Numpy", truth)
    assert record.outcome == "ok"
    assert record.error is not None
    assert record.error < 1e-6
    assert len(record.warmup_s) == reference.CHECKED
    assert len(record.step_s) == 6
    assert record.versions == {"numpy": np.__version__}
    assert record.settings["threads"] == "1"
    assert record.parameters == network.load("fcn5").configured("tiny").parameters
    assert record.cores_used is not None
    assert FrameworkRecord.from_json(record.to_json()) == record


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Wrong", "logits differ from the reference by 0.001, tolerance 0.0001"),
        ("NotFinite", "non-finite outputs"),
        ("WrongLater", "logits differ from the reference"),
        ("WrongWhenTimed", "logits differ from the reference"),
        ("NotFiniteLater", "non-finite outputs"),
    ],
)
def test_wrong_logits_are_marked(name: str, reason: str, truth: Path) -> None:
    record = in_process(name, truth)
    assert record.outcome == "wrong"
    assert str(record.reason).startswith(reason)
    assert record.step_s  # its time is kept: fast and wrong is a result
    assert FrameworkRecord.from_json(record.to_json()) == record


@pytest.mark.parametrize(
    ("name", "outcome", "reason"),
    [
        ("Trained", "ok", None),
        ("WrongGradient", "wrong", "losses differ from the reference by 0.5, tolerance 0.01"),
        ("Diverging", "wrong", "the loss became inf in the timed steps"),
    ],
)
def test_training_is_checked_by_how_its_loss_moves(name: str, outcome: str, reason: str | None, tmp_path: Path) -> None:
    np.save(tmp_path / "truth.npy", np.array([stub_frameworks.Trained.losses] * 2))
    record = in_process(name, tmp_path / "truth.npy", phase="train")
    assert (record.outcome, record.reason) == (outcome, reason)


@pytest.mark.parametrize(("noise", "tolerance"), [(0.0, 0.01), (0.01, 0.04), (0.5, 0.2)])
def test_the_tolerance_of_losses_allows_for_rounding_but_for_no_wrong_gradient(noise: float, tolerance: float) -> None:
    exact = np.array([3.0, 2.9, 2.8])
    stored = np.array([exact, exact + np.array([0, 0, 0.2 * noise])])
    assert reference.tolerance("train", stored) == pytest.approx(tolerance)
    assert reference.losses_error(stub_frameworks.WrongGradient.losses, stored) > reference.MOST


def test_logits_of_another_shape_are_no_broadcast(truth: Path) -> None:
    with pytest.raises(ValueError, match=r"logits of shape \(1, 24\), not \(4, 24\)"):
        in_process("OtherShape", truth)


# What fails is one record


@pytest.mark.parametrize(
    ("name", "timeout_s", "reason"),
    [
        ("Crashing", 600.0, "the worker was killed by SIGSEGV"),
        ("Raising", 600.0, "RuntimeError: operator Sigmoid is not supported"),
        ("Hanging", 1.0, "no progress for 1 s (heartbeat timeout)"),
    ],
)
def test_a_cell_that_fails_is_a_record(stubs: None, name: str, timeout_s: float, reason: str, truth: Path) -> None:
    record = table.run(spec_of(f"stub_frameworks:{name}"), truth, lambda done, total: None, timeout_s)
    assert record.outcome == "failed"
    assert reason in str(record.reason)
    assert "\n" not in str(record.reason)


def test_a_reference_that_cannot_be_computed_fails_its_cells_and_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jobs = []

    def no_worker(job: dict[str, Any], *others: Any) -> tuple[None, str]:
        jobs.append(job)
        return None, "out of memory"

    monkeypatch.setattr(table, "_result", no_worker)
    specs = [spec_of("torch"), spec_of("torch", threads=2)]
    found = list(table.run_all(specs, tmp_path, lambda index, spec: lambda done, total: None))
    assert [record.reason for record in found] == ["no reference to compare with: out of memory"] * 2
    assert len(jobs) == 1
    assert len(list(tmp_path.glob("*.framework.json"))) == 2


def test_a_worker_is_bound_to_its_cpus_and_has_its_variables(stubs: None, truth: Path) -> None:
    record = table.run(spec_of("stub_frameworks:Numpy"), truth, lambda done, total: None, 600.0)
    assert record.outcome == "ok", record.reason
    assert record.cpus == table.cpus_of(1)
    assert record.settings == {"affinity": str(record.cpus), "OMP_NUM_THREADS": "1", "threads": "1"}
    assert record.machine.identity == fingerprint().identity
    assert len(record.machine.cpu.affinity or []) == len(os.sched_getaffinity(0))  # of the machine, not of the binding


def test_more_threads_than_cpus_share_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from fathom.machine.host import HardwareThread

    monkeypatch.setattr(table, "topology", lambda: [HardwareThread(n, n % 2, 0) for n in range(4)])
    assert [table.cpus_of(threads) for threads in (1, 2, 4, 8)] == [[0], [0, 1], [0, 1, 2, 3], [0, 1, 2, 3]]
