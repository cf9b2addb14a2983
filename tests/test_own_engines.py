"""profile() of a module with an engine: the record says which, and how much of the time layers are known of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import fathom
from torch import nn

import fathom as suite
from fathom.core.errors import BadOption, EngineError

pytestmark = pytest.mark.usefixtures("few_steps")


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """How torch.compile was asked; it takes long, and tests/test_engines.py runs it."""
    asked: list[dict[str, Any]] = []

    def compile_(module: nn.Module, **how: Any) -> nn.Module:
        asked.append(how)
        return module

    monkeypatch.setattr(torch, "compile", compile_)
    return asked


@pytest.mark.parametrize("phase", ["train", "infer"])
def test_the_record_names_the_engine_and_what_layers_are_known_of(phase: str, compiled: list[dict[str, Any]]) -> None:
    record = suite.profile(model(), torch.randn(4, 8), phase=phase, device="cpu", engine="compile")
    assert record.spec.engine == "compile"
    assert compiled == [{}]
    assert record.profile is not None
    known = [note for note in record.profile.notes if "could be traced to a layer" in note]
    assert len(known) == 1
    assert known[0].endswith(
        " % of op time could be traced to a layer: engine compile runs kernels that several may share"
    )


def test_an_eager_record_has_no_such_note(compiled: list[dict[str, Any]]) -> None:
    record = suite.profile(model(), torch.randn(4, 8), device="cpu")
    assert record.spec.engine == "eager"
    assert compiled == []
    assert record.profile is not None
    assert not any("traced to a layer" in note for note in record.profile.notes)


def test_graphs_need_a_gpu() -> None:
    with pytest.raises(EngineError) as raised:
        suite.profile(model(), torch.randn(4, 8), device="cpu", engine="cudagraph+compile")
    assert str(raised.value) == "engine compile+cudagraph needs an NVIDIA GPU, not cpu"


def test_other_engines_are_for_workloads() -> None:
    with pytest.raises(BadOption) as raised:
        suite.profile(model(), torch.randn(4, 8), device="cpu", engine="fused")
    told = "engine fused is for workloads; a model of your own takes eager, compile, compile+cudagraph"
    assert str(raised.value) == told
    with pytest.raises(BadOption) as raised:
        suite.profile(lambda: None, device="cpu", engine="compile")
    assert str(raised.value) == "engine compile changes a module; a step of your own runs as you wrote it"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["some.module:make", "--engine", "compil"], "no engine 'compil'; did you mean compile?"),
        (["--trace", "trace.json", "--engine", "compile"], "--trace reads an existing trace; --engine is for a model"),
    ],
)
def test_a_slip_is_one_line(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fathom(monkeypatch, "profile", *arguments, "--out", tmp_path) == 2
    assert capsys.readouterr().err.startswith(f"fathom: {told}")
