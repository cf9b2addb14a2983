"""tensor: which layers are divided, losses and gradients of the whole network, bytes as they must be.

Tolerance: 1e-4 relative, of the losses of four steps and of every gradient, in fp32.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from ranked_gradients import Errors
from ranked_jobs import in_this_process, records_and_gradients
from test_ddp import STEPS, TOLERANCE
from test_pipeline import FOLDED, piped, single
from torch import Tensor, nn

from fathom.core.errors import EngineError
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.engine.ranks.divisible import Division, division_of, linear_layers
from fathom.engine.ranks.strategies.tensor import TensorParallel
from fathom.workloads.base import workload_class

JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "pairs": ("alexnet", {}),
    "singles": ("alexnet", {"pairs": False}),
    "clipped": (FOLDED, {}),
    "entangled": ("ranked_models:Softened", {}),
}


def divided(workload: str, options: dict[str, Any], **changes: Any) -> RunSpec:
    return piped(workload, options, strategy="tensor", **changes)


COMPARED = ("pairs", "clipped", "entangled")


@pytest.fixture(scope="module")
def divided_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Record], dict[str, Errors]]:
    """Records and gradients by the same two ranks: starting them takes seconds."""
    specs = [divided(*job) for job in JOBS.values()] + [divided("deep_mnist", {}, scaling="weak", slow_link=(0, 1.5))]
    compared = [divided(*JOBS[name]) for name in COMPARED]
    records, errors = records_and_gradients(specs, compared, 2, tmp_path_factory.mktemp("tensor"))
    return dict(zip([*JOBS, "weak"], records, strict=True)), dict(zip(COMPARED, errors, strict=True))


@pytest.fixture(scope="module")
def found(divided_runs: tuple[dict[str, Record], dict[str, Errors]]) -> dict[str, Record]:
    return divided_runs[0]


@pytest.mark.parametrize("job", [*JOBS, "weak"])
def test_losses_are_those_of_one_worker_on_the_same_batch(found: dict[str, Record], job: str) -> None:
    record = found[job]
    assert record.losses == pytest.approx(single(record.spec), rel=TOLERANCE)
    assert record.outcome == "ok"


def test_gradients_are_those_of_the_whole_network_on_every_rank(
    divided_runs: tuple[dict[str, Record], dict[str, Errors]],
) -> None:
    for name, errors in divided_runs[1].items():
        model = workload_class(JOBS[name][0]).configured("tiny").model()
        assert set(errors) == {weight for weight, _ in model.named_parameters()}
        for weight, ranks in errors.items():
            assert [rank for rank, _ in ranks] == [0, 1]
            assert max(error for _, error in ranks) < TOLERANCE, (name, weight)


def test_layers_are_named_and_a_rank_has_a_part_of_them(found: dict[str, Record]) -> None:
    assert "tensor parallel layers: dense.full1 + dense.full2; dense.full3 alone" in found["pairs"].notes
    assert "tensor parallel layers: dense.full1 alone; dense.full2 alone; dense.full3 alone" in found["singles"].notes
    assert found["pairs"].parameters == found["singles"].parameters == 325_114
    model = workload_class("alexnet").configured("tiny").model()
    layers = linear_layers(model)
    by_column = sum(weight.numel() for name in ("dense.full1", "dense.full3") for weight in layers[name].parameters())
    halved = by_column + layers["dense.full2"].weight.numel()  # the bias of a layer divided by rows is on every rank
    assert f"weights on a rank: {325_114 - halved // 2:,} of 325,114" in found["pairs"].notes


def test_bytes_are_those_of_outputs_and_of_inputs_gradients(found: dict[str, Record]) -> None:
    """Two ranks: an all-reduce sends the message once, an all-gather half of it."""
    layers = linear_layers(workload_class("alexnet").configured("tiny").model())
    one, two, three = (layers[f"dense.full{number}"] for number in (1, 2, 3))
    item = 4 * 16  # bytes of a feature of the batch
    pairs = two.out_features + one.in_features + three.out_features / 2 + three.in_features
    singles = sum(layer.out_features / 2 + layer.in_features for layer in (one, two, three))
    for name, features in {"pairs": pairs, "singles": singles}.items():
        ranks = found[name].ranks
        assert ranks is not None
        assert {count for each in ranks.series for count in each.wire_bytes} == {item * features}


@pytest.mark.parametrize("job", [*JOBS, "weak"])
def test_parts_of_every_step_add_up(found: dict[str, Record], job: str) -> None:
    ranks = found[job].ranks
    assert ranks is not None
    for each in ranks.series:
        assert each.losses == found[job].losses
        assert len(each.step_s) == STEPS["steps"]
        for parts in zip(each.compute_s, each.exposed_s, each.wait_s, each.step_s, strict=True):
            assert sum(parts[:3]) == pytest.approx(parts[3])
            assert min(parts) >= 0


class Layers(nn.Module):
    def __init__(self, between: Any) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.third(self.between(self.second(self.between(self.first(x)))))
        return result


@pytest.mark.parametrize(
    ("between", "pairs"),
    [
        (torch.tanh, {"first": ("second",)}),
        (lambda x: x, {"first": ("second",)}),
        (lambda x: x.clamp(0, 1) * 3, {"first": ("second",)}),
        (lambda x: x.softmax(-1), {}),
        (lambda x: x.flip(-1), {}),
        (lambda x: x - x.mean(-1, keepdim=True), {}),
        (torch.zeros_like, {}),
    ],
)
def test_two_layers_are_a_pair_where_features_stay_apart_between_them(
    between: Any, pairs: dict[str, tuple[str, ...]]
) -> None:
    torch.manual_seed(0)
    model = Layers(between)
    found = division_of(model, lambda batch: model(batch["x"]).sum(), {"x": torch.randn(2, 6)}, 2)
    assert found == Division(pairs, () if pairs else ("first", "second"))  # three outputs cannot be divided by two
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_several_layers_may_read_what_one_gives() -> None:
    autoenc = workload_class("autoenc").configured("tiny", batch=2)
    model = autoenc.model()
    found = division_of(model, partial(autoenc.loss, model), autoenc.example(), 4)
    assert found == Division({"encoder": ("mean", "log_variance"), "decoder": ("reconstruction",)}, ())


def test_one_rank_is_the_plain_network(tmp_path: Path) -> None:
    record = in_this_process(divided("deep_mnist", {}, ranks=1), tmp_path)
    assert "one rank: no layer is divided, and none is a DTensor" in record.notes
    assert record.losses == pytest.approx(single(record.spec), rel=TOLERANCE)
    assert record.ranks is not None
    assert set(record.ranks.series[0].wire_bytes) == {0}
    assert set(record.ranks.series[0].exposed_s) == {0}


def test_what_cannot_be_divided_is_refused_with_the_reason(tmp_path: Path) -> None:
    told = "^strategy tensor cannot divide memnet: it has no Linear layer whose outputs can"
    with pytest.raises(EngineError, match=told):
        in_this_process(divided("memnet", {}), tmp_path)
    deepq = workload_class("deepq").configured("tiny")
    assert "environment of each rank" in str(TensorParallel().refusal(deepq, 2))
