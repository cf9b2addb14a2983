"""benchmarks/batches.py: the study's profiled runs at half and twice the batch, and no others."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from fathom.workloads.base import workload_class

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "batches.py"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("batches", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_phase_is_profiled_at_half_and_twice_the_batch(script: ModuleType) -> None:
    own = workload_class("memnet").configured("small").batch
    found = script.specs(["memnet"], "small", "cpu")
    assert [(each.phase, each.batch) for each in found] == [
        (phase, batch) for phase in ("train", "infer") for batch in (own // 2, own * 2)
    ]
    assert {each.kind for each in found} == {"profiled"}
    assert {each.threads for each in found} == {None}


def test_no_batch_is_below_one(script: ModuleType) -> None:
    assert workload_class("vgg").configured("small").batch == 1
    assert [each.batch for each in script.specs(["vgg"], "small", "cpu")] == [2, 2]


def test_the_presets_own_batch_is_the_studys_run(script: ModuleType) -> None:
    found = script.specs(["memnet"], "small", "cpu", [1.0])
    assert [(each.phase, each.batch) for each in found] == [("train", None), ("infer", None)]
