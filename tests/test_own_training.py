"""What trains a user's model: losses, optimizers, ready steps and precisions; each works or is one helpful line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, weight_norm

import fathom
from fathom.core.errors import BadOption, FathomError, UnknownName
from fathom.core.record import Record
from fathom.machine import peaks
from fathom.measure import profiling
from fathom.measure.own import model as own_model

X, Y = torch.randn(8, 4), torch.randint(0, 3, (8,))

pytestmark = pytest.mark.usefixtures("few_steps")


def network() -> nn.Linear:
    return nn.Linear(4, 3)


profile = partial(fathom.profile, device="cpu")


def types(record: Record) -> set[str]:
    assert record.profile is not None
    return {row.type for row in record.profile.rows}


@pytest.mark.parametrize("loss", ["cross_entropy", F.cross_entropy, nn.CrossEntropyLoss()])
def test_a_loss_with_a_target(loss: Any) -> None:
    model = network()
    record = profile(model, (X, Y), loss=loss)
    assert record.losses[0] == pytest.approx(F.cross_entropy(model(X), Y).item(), rel=1e-5)
    assert types(record) >= {"CrossEntropy"}


class Language(nn.Module):
    """Classes last, as language models have them, in a mapping."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 4), nn.Linear(4, 11)

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        hidden = self.embed(input_ids)
        return {"hidden": hidden, "logits": self.head(hidden)}


def test_a_language_models_classes_come_last() -> None:
    model, ids = Language(), torch.randint(0, 11, (2, 5))
    record = profile(model, {"input_ids": ids, "labels": ids}, loss="cross_entropy")
    expected = F.cross_entropy(model(ids)["logits"].flatten(0, 1), ids.flatten())
    assert record.losses[0] == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (5, "the loss must be a function of what the model returns, not int"),
        (lambda output: 3.0, "<lambda> .*test_own_training.py, line .* is a plain float: it must be a tensor"),
        (lambda output: None, "is a plain NoneType"),
        (lambda output: output, r"has the shape \[8, 3\]: it must be one number"),
        (lambda output: output.detach().mean(), "depends on no trainable parameter: it was detached"),
        (lambda output: output.argmax(1).sum(), "has the type torch.int64"),
        ("cross_entropi", "no loss 'cross_entropi'; did you mean cross_entropy"),
        ("cross_entropy", "the loss compares the output with a target, and the batch has none"),
    ],
)
def test_a_loss_that_cannot_be_trained_is_one_line(loss: Any, expected: str) -> None:
    with pytest.raises(FathomError, match=expected) as caught:
        profile(network(), X, loss=loss)
    assert "\n" not in str(caught.value)


def rmsprop(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(model.parameters(), lr=1e-4)


@pytest.mark.parametrize(
    ("optimizer", "kind"),
    [
        (None, "SGD"),
        ("adamw", "AdamW"),
        ("Adagrad", "Adagrad"),
        (torch.optim.Adam, "Adam"),
        (rmsprop, "RMSprop"),
        ("test_own_training:rmsprop", "RMSprop"),
    ],
)
def test_an_optimizer_by_name_class_or_function(optimizer: Any, kind: str, tmp_path: Any) -> None:
    path = tmp_path / "trace.json"
    profile(network(), X, optimizer=optimizer, trace_out=path)
    assert f"Optimizer.step#{kind}.step" in path.read_text()


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ("adma", "no optimizer 'adma'"),
        ("lbfgs", "give the step itself as a function"),
        (5, "must be a name or a function of the model, not int"),
        (lambda model: model, "must return a torch Optimizer, not Linear"),
        (lambda model: rmsprop(network()), "the optimizer RMSprop has none of the model's parameters"),
    ],
)
def test_an_optimizer_that_will_not_do_is_one_line(optimizer: Any, expected: str) -> None:
    with pytest.raises(FathomError, match=expected):
        profile(network(), X, optimizer=optimizer)


def test_a_frozen_model_has_nothing_to_train_and_a_partly_frozen_one_has() -> None:
    frozen = network().requires_grad_(False)
    with pytest.raises(BadOption, match=r"no parameter of Linear requires a gradient.*--phase infer"):
        profile(frozen, X)
    assert profile(frozen, X, phase="infer").outcome == "ok"
    partly = nn.Sequential(network().requires_grad_(False), nn.Linear(3, 2))
    record = profile(partly, X, optimizer="adam")
    assert record.profile is not None
    backward = {row.layer for row in record.profile.rows if row.phase == "backward" and row.type == "MatMul"}
    assert backward == {"1"}


PECULIAR: dict[str, Callable[[], tuple[Any, Any]]] = {
    "weight normalisation": lambda: (weight_norm(network()), X),
    "parametrized": lambda: (parametrizations.weight_norm(network()), X),
    "lazy": lambda: (nn.Sequential(nn.LazyLinear(5), nn.BatchNorm1d(5), nn.LazyLinear(3)), X),
    "complex": lambda: (nn.Linear(4, 3, dtype=torch.complex64), X.to(torch.complex64)),
    "sparse gradients": lambda: (nn.Sequential(nn.Embedding(9, 4, sparse=True), network()), Y),
    "recurrent, packed": lambda: (nn.LSTM(4, 3), nn.utils.rnn.pack_sequence([X, X[:3]])),
    "scripted": lambda: (torch.jit.script(nn.Sequential(network())), X),
    "traced": lambda: (torch.jit.trace(network(), X), X),  # type: ignore[no-untyped-call]
    "compiled": lambda: (torch.compile(nn.Sequential(network()), backend="eager"), X),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", PECULIAR)
def test_peculiar_models_are_profiled(kind: str) -> None:
    module, batch = PECULIAR[kind]()
    for phase in ("train", "infer"):
        record = profile(module, batch, phase=phase)
        assert (record.outcome, record.notes) == ("ok", [])
        assert record.profile is not None
        assert record.profile.rows
    assert (kind == "lazy") == any(nn.parameter.is_lazy(weight) for weight in module.parameters())


class KeepsEvaluating(nn.Sequential):
    """As networks with frozen statistics do: whoever trains the model calls train() first."""

    def train(self, mode: bool = True) -> KeepsEvaluating:
        super().train(mode)
        self[0].eval()
        return self


@pytest.mark.parametrize("kind", [nn.Sequential, KeepsEvaluating])
def test_parts_in_evaluation_mode_stay_there(kind: type[nn.Sequential]) -> None:
    model = kind(nn.BatchNorm1d(4), network())
    if kind is nn.Sequential:
        model[0].eval()
    seen: list[tuple[bool, bool]] = []
    model[1].register_forward_hook(lambda *_: seen.append((model[0].training, model[1].training)))
    profile(model, X, in_place=True)
    assert set(seen) == {(False, True)}
    seen.clear()
    profile(model.eval(), X, in_place=True)
    assert set(seen) == {(kind is nn.Sequential, True)}, "a model in evaluation mode is trained as a whole"


def test_a_ready_step_is_run_as_it_is() -> None:
    model, calls = network(), 0
    optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-3)

    def step() -> float:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = model(X).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    record = profile(step)
    assert record.profile is not None
    counted = len(record.profile.plain_step_s) + len(record.profile.step_s) + profiling.DETAIL_STEPS
    assert calls == 2 + counted, "warm-up, and one at the end"
    assert (record.spec.source, record.spec.precision, record.spec.seed) == ("step", None, None)
    assert (record.parameters, record.items_per_step) == (15, None)
    assert record.losses[0] > record.losses[-1] > 0
    assert {row.phase for row in record.profile.rows} == {"forward", "backward", "optimizer"}
    assert profile(step, precision="bf16").spec.precision == "bf16", "as the user says"
    with pytest.raises(BadOption, match="a step takes no arguments, and this one needs x"):
        profile(lambda x: x)  # type: ignore[misc, arg-type]
    with pytest.raises(BadOption, match="a step takes no batch"):
        profile(step, X)
    with pytest.raises(BadOption, match="expected a torch module or a function that does one step, not int"):
        profile(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda model: model, "fp32"),
        (lambda model: model.double(), "fp64"),
        (lambda model: model.bfloat16(), "bf16"),
        (lambda model: model.half(), "fp16"),
    ],
)
def test_the_precision_is_that_of_the_parameters(
    change: Callable[[nn.Module], nn.Module], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    def ceilings(device: object, precision: str | None) -> tuple[None, float]:
        asked.append(precision)
        return None, 1.0

    monkeypatch.setattr(profiling, "ceilings", ceilings)
    model = change(network())
    weight = next(model.parameters())
    record = profile(model, X.to(weight.dtype))
    assert (record.spec.precision, asked) == (expected, [expected])
    assert record.profile is not None
    product = next(row for row in record.profile.rows if row.op == "aten::addmm")
    assert len(set(product.dtypes.split())) == 1


def test_a_mixed_model_says_so_and_autocast_is_for_fp32() -> None:
    class Mixed(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            for part in self:
                x = part(x.to(next(part.parameters()).dtype))
            return x

    assert profile(Mixed(network(), nn.Linear(3, 3).double()), X).spec.precision == "mixed"
    for precision in ("bf16", "fp16"):
        record = profile(network(), X, precision=precision)
        assert record.profile is not None
        product = next(row for row in record.profile.rows if row.op == "aten::addmm")
        assert set(product.dtypes.split()) == {"BFloat16" if precision == "bf16" else "Half"}
        assert record.spec.precision == precision
    with pytest.raises(BadOption, match="precision bf16 is for a model in fp32; the parameters of this one are fp64"):
        profile(network().double(), X.double(), precision="bf16")
    assert profile(nn.Flatten(), X, phase="infer").spec.precision == "fp32", "by its inputs"
    assert profile(nn.Flatten(), Y[:, None], phase="infer").spec.precision is None
    with pytest.raises(BadOption, match="a model in fp32 can be run in tf32, bf16, fp16, not in fp64"):
        profile(network(), X, precision="fp64")
    with pytest.raises(UnknownName, match="no precision 'fp8'"):
        profile(network(), X, precision="fp8")


class Casting(nn.Module):
    """Computes in bf16 by itself, and gives what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output: Tensor = self.layers(x).float()
        return output


def test_a_model_that_casts_is_recorded_in_what_it_computes_in(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def ceilings(device: object, precision: str | None) -> tuple[None, float]:
        asked.append(precision)
        return None, 1e9

    monkeypatch.setattr(profiling, "ceilings", ceilings)
    model = Casting()
    assert profile(model, X).spec.precision == "bf16"
    assert profile(lambda: model(X).sum().backward()).spec.precision == "bf16", "a step, of which nothing else tells"
    assert asked == ["bf16", "bf16"]


def test_ceilings_are_measured_in_the_precision_or_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.dtype] = []

    def product(device: object, dtype: torch.dtype) -> float:
        asked.append(dtype)
        return 1.0

    monkeypatch.setattr(peaks, "_product", product)
    monkeypatch.setattr(peaks, "_copy", lambda device: 2.0)
    device = torch.device("cpu")
    measured = peaks.ceilings.__wrapped__
    assert [measured(device, each)[0] for each in ("fp32", "bf16", "fp16", "fp64")] == [1.0] * 4
    assert asked == [torch.float32, torch.bfloat16, torch.float16, torch.float64]
    assert [measured(device, each) for each in ("mixed", None)] == [(None, 2.0), (None, 2.0)]


def test_a_device_that_is_full_has_no_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    for name in ("randn", "ones"):
        monkeypatch.setattr(torch, name, refuse)
    assert peaks.ceilings.__wrapped__(torch.device("cpu"), "fp32") == (None, None)


def test_nothing_is_invented_of_a_users_model() -> None:
    record = profile(network(), X, threads=1)
    assert (record.spec.source, record.spec.preset, record.spec.seed, record.spec.data) == ("model", "own", None, None)
    assert record.spec.threads == 1
    assert torch.get_num_threads() >= 1
    kept = Record.from_json(record.to_json())
    assert (kept.spec, kept.spec.id) == (record.spec, record.spec.id)


@pytest.mark.parametrize("phase", ["train", "infer"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_noted(phase: str, value: float) -> None:
    record = profile(network(), X * value, phase=phase)
    (note,) = record.notes
    assert note.startswith("the loss is " if phase == "train" else "the output 0 holds ")
    assert profile(network(), X, phase=phase).notes == []


def test_a_loss_that_diverges_while_it_is_profiled_is_noted() -> None:
    model = network()
    record = profile(model, X, loss=lambda output: output.square().sum(), optimizer=torch.optim.SGD(
        model.parameters(), lr=1e12))  # fmt: skip
    assert record.notes
    assert all(bool(weight.isfinite().all()) for weight in model.parameters()), "put back"


def test_what_does_not_fit_in_memory_names_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(own_model.OwnSession, "train_step", refuse)
    with pytest.raises(fathom.DoesNotFit, match="a step of mine does not fit in the memory of cpu; give a smaller"):
        profile(network(), X, name="mine")
