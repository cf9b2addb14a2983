"""Every framework is told its threads in its own way, and what it then reports is recorded."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_frameworks import spec_of

from fathom.core import plugins
from fathom.frameworks import cell, framework


@pytest.mark.parametrize("name", plugins.names("frameworks"))
def test_variables_that_libraries_read_when_loaded_are_set_before(name: str) -> None:
    found = framework.load(name)().environment(3)
    assert {found[each] for each in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")} == {"3"}
    assert found["CUDA_VISIBLE_DEVICES"] == "-1"
    if name.startswith("keras_"):
        assert found["KERAS_BACKEND"] == name.removeprefix("keras_")


def fake(monkeypatch: pytest.MonkeyPatch, name: str, module: Any) -> Any:
    monkeypatch.setitem(sys.modules, name, module)
    return module


@pytest.fixture
def torch_calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    import torch

    calls: dict[str, int] = {}
    for name in ("num_threads", "num_interop_threads"):
        monkeypatch.setattr(torch, f"set_{name}", lambda value, name=name: calls.update({name: value}))
        monkeypatch.setattr(torch, f"get_{name}", lambda name=name: calls[name])
    return calls


@pytest.mark.parametrize("name", ["torch", "keras_torch"])
def test_torch_is_told_its_threads(name: str, torch_calls: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, "keras", SimpleNamespace())
    assert framework.load(name)().start(3) == {
        "torch.get_num_threads": "3",
        "torch.get_num_interop_threads": "1",
    }
    assert torch_calls == {"num_threads": 3, "num_interop_threads": 1}


def test_tensorflow_is_told_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[str, int] = {}
    threading = SimpleNamespace(
        set_intra_op_parallelism_threads=lambda n: said.update(intra=n),
        set_inter_op_parallelism_threads=lambda n: said.update(inter=n),
        get_intra_op_parallelism_threads=lambda: said["intra"],
        get_inter_op_parallelism_threads=lambda: said["inter"],
    )
    fake(monkeypatch, "tensorflow", SimpleNamespace(config=SimpleNamespace(threading=threading)))
    fake(monkeypatch, "keras", SimpleNamespace())
    found = framework.load("keras_tensorflow")().start(3)
    assert found == {"intra_op_parallelism_threads": "3", "inter_op_parallelism_threads": "1"}


def test_jax_says_that_its_threads_cannot_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, "jax", SimpleNamespace(config=SimpleNamespace(jax_default_matmul_precision=None)))
    fake(monkeypatch, "keras", SimpleNamespace())
    found = framework.load("keras_jax")().start(3)
    assert found["threads"].startswith("not settable")
    assert found["affinity"] == str(len(os.sched_getaffinity(0)))


def test_onnx_runtime_is_told_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    class Session:
        def __init__(self, path: Path, options: Any, providers: list[str]) -> None:
            assert providers == ["CPUExecutionProvider"]
            self.get_session_options = lambda: options
            self.get_inputs = lambda: [SimpleNamespace(name="x")]

        def run(self, outputs: None, inputs: dict[str, Any]) -> list[Any]:
            return [inputs["x"]]

    fake(monkeypatch, "onnxruntime", SimpleNamespace(SessionOptions=SimpleNamespace, InferenceSession=Session))
    monkeypatch.setattr(torch.onnx, "export", lambda *arguments, **options: None)
    work = cell.work_of(spec_of("onnxruntime"))
    step, found = framework.load("onnxruntime")().build(work, 3)
    assert found == {"intra_op_num_threads": "3", "inter_op_num_threads": "1"}
    assert step() is work.inputs


def test_openvino_is_told_its_threads_and_to_keep_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[str, Any] = {}

    def compile_model(model: Any, device: str, settings: dict[str, Any]) -> Any:
        assert device == "CPU"
        said.update(settings)
        request = SimpleNamespace(infer=lambda inputs, **options: inputs)
        return SimpleNamespace(create_infer_request=lambda: request, get_property=said.__getitem__)

    core = SimpleNamespace(compile_model=compile_model)
    fake(
        monkeypatch, "openvino", SimpleNamespace(Core=lambda: core, convert_model=lambda module, example_input: module)
    )
    framework.load("openvino")().build(cell.work_of(spec_of("openvino")), 3)
    assert said["INFERENCE_NUM_THREADS"] == 3
    assert said["NUM_STREAMS"] == 1
    assert said["INFERENCE_PRECISION_HINT"] == "f32"
