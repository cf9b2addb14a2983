"""A user's own model: the same rows as the eight, whatever shape it comes in, and clear words where it will not do."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from test_cli import document, fathom
from torch import nn

import fathom as suite
from fathom import own, trace
from fathom.errors import BadOption

HIDDEN_FLOP = 2 * 32 * 64 * 128
HEAD_FLOP = 2 * 32 * 128 * 10


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def flop_by_layer(record: suite.Record) -> dict[str, float]:
    assert record.profile is not None
    layers: dict[str, float] = {}
    for row in record.profile.rows:
        if row.type == "MatMul":
            layers[row.layer] = layers.get(row.layer, 0) + row.flop
    return layers


def test_training_rows_carry_the_models_own_layers_and_work() -> None:
    record = suite.profile(network(), torch.randn(32, 64), device="cpu")
    # the first layer needs no gradient of its input
    assert flop_by_layer(record) == {"0": 2 * HIDDEN_FLOP, "2": 3 * HEAD_FLOP}
    assert (record.items_per_step, record.parameters) == (32, 64 * 128 + 128 + 128 * 10 + 10)


def test_inference_is_the_forward_pass_alone() -> None:
    record = suite.profile(network(), torch.randn(32, 64), phase="infer", device="cpu")
    assert flop_by_layer(record) == {"0": HIDDEN_FLOP, "2": HEAD_FLOP}
    assert record.profile is not None
    assert {row.phase for row in record.profile.rows} == {"forward"}


class Keyed(nn.Module):
    """Takes named inputs and returns its own loss, as many published models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.layer(x)
        return {"loss": nn.functional.cross_entropy(scores, target), "scores": scores}


def test_a_models_own_loss_is_the_one_that_is_trained() -> None:
    record = suite.profile(Keyed(), {"x": torch.randn(8, 4), "target": torch.zeros(8, dtype=torch.long)}, device="cpu")
    assert record.profile is not None
    assert "CrossEntropy" in {row.type for row in record.profile.rows if row.phase == "backward"}


def test_a_given_loss_takes_what_the_model_returns() -> None:
    seen: list[tuple[int, ...]] = []

    def loss(output: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(output.shape))
        return output.square().mean()

    suite.profile(network(), torch.randn(32, 64), loss=loss, device="cpu")
    assert set(seen) == {(32, 10)}


def test_a_trace_we_wrote_reads_back_as_the_same_rows(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    record = suite.profile(network(), torch.randn(32, 64), device="cpu", trace_out=path)
    again = own.from_trace(path)
    assert record.profile is not None
    assert again.profile is not None
    assert sum(row.cpu_s for row in again.profile.rows) == pytest.approx(sum(row.cpu_s for row in record.profile.rows))
    assert again.profile.slowdown is None
    assert trace.STEP in {event["name"] for event in json.loads(path.read_text())["traceEvents"] if "name" in event}


def test_the_command_tells_which_of_the_eight_it_is_like(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine_for_test.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)), torch.randn(4, 3, 64, 64)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert fathom(monkeypatch, "profile", "mine_for_test:make", "--device", "cpu", "--out", "kept", "--json") == 0
    told = document(capsys)
    assert told["closest"] in {"residual", "vgg", "alexnet", "deepq"}
    assert 0 <= told["distance"] < 0.5
    assert Path(told["record"]).exists()


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("nothing_here:make", "cannot import nothing_here"),
        ("json:nothing", "json has no nothing"),
        ("json", "expected package.module:function"),
        ("os:getcwd", "must return a Workload, or a module and a batch, not str"),
    ],
)
def test_what_cannot_be_used_is_told(target: str, expected: str) -> None:
    with pytest.raises(BadOption, match=expected):
        own.from_target(target)
