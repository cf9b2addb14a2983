"""Trials of settings on real modules: both sides are copies with equal weights, and other batches count in items."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fathom.core.advice import USUAL, Setting, SettingTrial
from fathom.core.spec import OWN, RunSpec
from fathom.core.trial import FIRST_STEPS
from fathom.machine import host
from fathom.measure import settings, trial
from fathom.measure.own.sides import OwnSides, Replayed

MODULE = """\
import torch
from torch import nn

MODEL = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.LazyLinear(5))

def make():
    return MODEL, (torch.randn(6, 3, 8, 8), torch.arange(6) % 5), "cross_entropy", "adam"

def bound():
    model = nn.Linear(4, 2)
    return model, torch.randn(6, 4), None, torch.optim.AdamW(model.parameters(), lr=0.5)

def dense():
    torch.manual_seed(1)  # its loss is a mean of outputs: near zero, any rounding of it is large
    return nn.Linear(4, 2), torch.randn(6, 4)

CALLS = []

def step():
    return lambda: CALLS.append(torch.get_num_threads())

class Stacking(nn.Linear):
    def forward(self, parts):
        return super().forward(torch.stack(parts))

def fixed():
    return Stacking(4, 2), ([torch.randn(4), torch.randn(4)],)

class Reshaping(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x.reshape(6, 4))

def reshaping():
    return Reshaping(), torch.randn(6, 4)

def low():
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 5)).bfloat16()
    batch = torch.randn(32, 64).bfloat16(), torch.arange(32) % 5
    return model, batch, "cross_entropy", torch.optim.SGD(model.parameters(), 0.1)

class Averaging(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(()))

    def forward(self, output, target):
        loss = nn.functional.cross_entropy(output, target)
        self.mean = 0.9 * self.mean + 0.1 * loss.detach()
        return loss / self.mean

def averaged():
    return nn.Linear(4, 5), (torch.randn(6, 4), torch.arange(6) % 5), Averaging(), "sgd"

def normed():
    return nn.utils.weight_norm(nn.Linear(4, 5)), (torch.randn(6, 4), torch.arange(6) % 5), "cross_entropy", "sgd"

CLIPPED = []

def hooked():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    optimizer.register_step_pre_hook(lambda *_: CLIPPED.append(nn.utils.clip_grad_norm_(model.parameters(), 1e-9)))
    return model, torch.randn(6, 4), None, optimizer

class Drawing(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.first, self.last, self.draw = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3), draw

    def forward(self, x):
        return self.last(self.draw(self.first(x))).mean((2, 3))

IMAGES = torch.randn(6, 3, 8, 8), torch.arange(6) % 5

def dropping():
    return Drawing(lambda x: nn.functional.dropout(x, 0.5)), IMAGES, "cross_entropy", "sgd"

def noisy():
    return Drawing(lambda x: x + torch.randn_like(x)), IMAGES, "cross_entropy", "sgd"

ONE = Drawing(torch.relu)
ONE.first.forward = lambda x, layer=ONE.first: nn.Conv2d.forward(layer, x)

def one():
    return ONE, IMAGES, "cross_entropy", "sgd"
"""


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A user's module in the working directory, and trials of a single turn."""
    (tmp_path / "tried_model.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "tried_model", raising=False)
    monkeypatch.setattr(trial, "TURNS", 2)
    monkeypatch.setattr(settings, "has_bf16", lambda: True)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def tried(setting: Setting, function: str = "make", against: Setting = USUAL, **changes: Any) -> SettingTrial:
    fields = {"preset": OWN, "source": "model", "precision": None, "seed": None, "kind": "trial", "budget_s": 0.01}
    spec = RunSpec(workload="tried_model", device="cpu", **(fields | changes))
    return settings.tried(spec, setting, lambda *_: None, against, target=f"tried_model:{function}")


@pytest.mark.parametrize("phase", ["train", "infer"])
def test_the_usual_setting_agrees_with_itself_to_the_last_digit(phase: str) -> None:
    """Dropout and lazy layers included: both sides begin with the same weights and random numbers."""
    found = tried(Setting(), phase=phase)
    assert found.failed is None
    assert found.agreement == "yes"
    assert found.trial is not None
    assert found.trial.difference() == 0.0
    assert len(found.gains) == 2
    assert (found.items, found.usual_items) == (6, 6)


def test_channels_last_and_fused_give_the_same_results() -> None:
    found = tried(Setting(engine="channels_last+fused"))
    assert (found.failed, found.agreement) == (None, "yes")


@pytest.mark.parametrize("function", ["averaged", "normed", "hooked"])
def test_each_side_has_its_own_loss_hooks_and_weights(function: str) -> None:
    """A loss that keeps an average, weights that cannot be copied, a hook that clips the model it was made with."""
    import tried_model  # type: ignore[import-not-found]

    found = tried(Setting(threads=1), function)
    assert (found.failed, found.agreement) == (None, "yes")
    assert found.trial is not None
    assert found.trial.difference() == 0.0
    assert bool(tried_model.CLIPPED) == (function == "hooked")
    if function == "hooked":
        assert found.trial.eager.losses[-1] == pytest.approx(found.trial.eager.losses[0], rel=1e-6), "it is clipped"


def test_a_model_that_cannot_be_copied_has_to_be_made_anew() -> None:
    told = "the model cannot be copied, and its function gives the same one again: make a new one"
    assert tried(Setting(threads=1), "one").failed == told


def test_a_model_in_a_low_precision_is_judged_by_its_own_rounding() -> None:
    found = tried(Setting(threads=1), "low")
    assert (found.precision, found.agreement) == ("bf16", "yes")
    assert found.trial is not None
    assert any(losses != found.trial.eager.losses for losses in found.trial.rounded_losses)


def test_what_a_layout_draws_otherwise_is_not_called_wrong() -> None:
    assert tried(Setting(engine="channels_last"), "dropping").agreement == "yes"
    assert tried(Setting(engine="channels_last"), "noisy").agreement == "not compared"


def test_a_larger_batch_is_counted_in_items_and_not_compared() -> None:
    found = tried(Setting(batch=24))
    assert (found.items, found.usual_items) == (24, 6)
    assert found.agreement == "not compared"
    assert found.trial is not None
    assert found.gains == [pytest.approx(4 * each) for each in found.trial.speedups]


def test_bf16_is_judged_by_its_own_rounding() -> None:
    found = tried(Setting(precision="bf16"), "dense")
    assert (found.precision, found.agreement) == ("bf16", "yes")
    assert found.trial is not None
    assert found.trial.difference() != 0.0


def test_wrong_results_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that updates nothing is fast and wrong."""
    from fathom.engine.engines.fused import Fused

    monkeypatch.setattr(Fused, "apply", lambda self: None)
    found = tried(Setting(engine="fused"), "bound")
    assert found.agreement.startswith("no: the loss of step 1 differs by ")


def test_the_users_model_and_optimizer_are_not_touched() -> None:
    import tried_model

    tried(Setting(), "make")  # which gives the lazy layer its size
    before = {name: value.clone() for name, value in tried_model.MODEL.state_dict().items()}
    tried(Setting(engine="channels_last+fused"))
    after = tried_model.MODEL.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert all(weight.grad is None for weight in tried_model.MODEL.parameters())
    assert tried_model.MODEL[0].weight.is_contiguous()


def test_an_optimizer_that_the_user_made_is_copied_with_its_model() -> None:
    found = tried(Setting(engine="fused"), "bound")
    assert (found.failed, found.agreement) == (None, "yes")
    assert found.trial is not None
    assert len(set(found.trial.engine.losses)) > 1  # it trains: the copy's optimizer has the copy's weights


def test_each_side_has_its_own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    import tried_model

    torch.set_num_threads(2)
    found = tried(Setting(threads=1), "step")
    assert found.failed is None
    assert found.agreement == "not compared"
    assert set(tried_model.CALLS) == {1, 2}
    first_turns = [
        number for number, before in zip(tried_model.CALLS[1:], tried_model.CALLS, strict=False) if number != before
    ]
    assert len(first_turns) >= 3  # usual, tried, and back in the turns


@pytest.mark.parametrize(
    ("setting", "function", "why"),
    [
        (
            Setting(engine="channels_last"),
            "dense",
            "engine channels_last changes nothing: the model has no convolution",
        ),
        (Setting(engine="cudagraph"), "dense", "engine cudagraph alone is for workloads; a model of your own takes "),
        (Setting(engine="compile+cudagraph"), "dense", "engine cudagraph needs an NVIDIA GPU, not cpu"),
        (Setting(precision="tf32"), "dense", "precision tf32 needs an NVIDIA GPU"),
        (Setting(engine="compile"), "step", "a step of your own runs as you wrote it: only its threads can be tried"),
        (Setting(batch=8), "fixed", "its batch has no tensor with a row an item"),
    ],
)
def test_what_does_not_apply_says_why(setting: Setting, function: str, why: str) -> None:
    found = tried(setting, function)
    assert found.refused
    assert (found.failed or "").startswith(why)
    assert found.gains == []


def test_a_model_that_fails_at_another_batch_is_one_line() -> None:
    from fathom.core.errors import BadOption

    with pytest.raises(BadOption, match=r"^tried_model:reshaping failed: RuntimeError: .*tried_model.py, line "):
        tried(Setting(batch=12), "reshaping")


def test_a_workload_is_tried_by_its_name() -> None:
    spec = RunSpec(workload="autoenc", preset="tiny", device="cpu", kind="trial", budget_s=0.01)
    found = settings.tried(spec, Setting(batch=8), lambda *_: None)
    assert (found.failed, found.items) == (None, 8)


def test_two_settings_beside_each_other_are_timed_and_not_compared() -> None:
    """Each side with its own threads, precision and batch; of a workload and of a user's module."""
    one, other = Setting(batch=12, threads=1), Setting(precision="bf16")
    for found in (of_autoenc(other, against=one), tried(other, against=one)):
        assert (found.failed, found.setting, found.against) == (None, other, one)
        assert (found.usual_items, found.agreement) == (12, "not compared")
        assert found.trial is not None
        assert not found.trial.rounded_losses
        assert len(found.gains) == 2
    refused = of_autoenc(other, against=Setting(engine="onnxruntime"))
    assert refused.refused
    assert refused.against.engine == "onnxruntime"


def of_autoenc(setting: Setting, **changes: Any) -> SettingTrial:
    spec = RunSpec(workload="autoenc", preset="tiny", device="cpu", kind="trial", budget_s=0.01)
    return settings.tried(spec, setting, lambda *_: None, **changes)


def test_losses_of_rounded_weights_are_found_once_for_all_trials_of_a_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    first = of_autoenc(Setting(threads=1))
    assert first.trial is not None
    known = {first.precision: first.trial.rounded_losses}
    assert [len(each) for each in first.trial.rounded_losses] == [20, 20]

    def unwanted(*_: object) -> Any:
        raise AssertionError("rounded again")

    monkeypatch.setattr(settings, "_rounded", unwanted)
    again = of_autoenc(Setting(threads=1), rounded=known)
    assert again.trial is not None
    assert (again.agreement, again.trial.rounded_losses) == ("yes", first.trial.rounded_losses)
    with pytest.raises(AssertionError, match="rounded again"):
        of_autoenc(Setting(precision="bf16"), rounded=known)  # another precision rounds otherwise


def test_of_slow_steps_fewer_are_compared_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "COMPARED_S", 0.0)
    found = of_autoenc(Setting(threads=1))
    assert found.trial is not None
    sides = (found.trial.eager, found.trial.engine)
    assert [len(each.losses) for each in sides] == [FIRST_STEPS, FIRST_STEPS]
    assert [len(each) for each in found.trial.rounded_losses] == [FIRST_STEPS, FIRST_STEPS]
    assert found.agreement == "yes"


def test_later_trials_compare_as_many_steps_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the steps take then: losses of another number of steps could not be compared."""
    known = {"fp32": [[0.0] * 12, [0.0] * 12]}
    monkeypatch.setattr(settings, "COMPARED_S", 0.0)
    found = of_autoenc(Setting(threads=1), rounded=known)
    assert found.trial is not None
    assert [len(each.losses) for each in (found.trial.eager, found.trial.engine)] == [12, 12]
    assert found.agreement == "yes"


def test_bf16_is_not_tried_on_a_cpu_without_instructions_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On such a CPU a step in bf16 took 65 times as long as one in fp32."""
    monkeypatch.setattr(settings, "has_bf16", lambda: False)
    found = of_autoenc(Setting(precision="bf16"))
    assert (found.refused, found.failed) == (True, "this CPU has no instructions for bf16")
    monkeypatch.setattr(settings, "has_bf16", lambda: None)  # where it is not known, it is tried
    assert of_autoenc(Setting(precision="bf16")).refused is False


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 amx_tile", True),
        ("Features\t: fp asimd asimddp", False),
        ("Features\t: fp asimd bf16", True),
        ("processor\t: 0", None),
    ],
)
def test_instructions_for_bf16_are_read_from_the_kernel(
    monkeypatch: pytest.MonkeyPatch, text: str, found: bool | None
) -> None:
    monkeypatch.setattr(host, "_lines", lambda path: text.split("\n"))
    assert host.has_bf16() is found


def test_rows_are_repeated_to_fill_a_batch() -> None:
    base = RunSpec(workload="x", preset=OWN, source="model", precision=None, seed=None, device="cpu")
    batch = {"input": torch.arange(6.0).reshape(3, 2), "scale": torch.ones(2)}
    sides = OwnSides(base, lambda: {"model": nn.Bilinear(2, 2, 1), "batch": batch})
    sized = sides._sized(5)
    assert sized["input"].tolist() == [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3]]
    assert sized["scale"].tolist() == [1, 1]


def test_what_is_kept_of_a_replayed_step_is_a_copy() -> None:
    """A model that returns its own loss: the next replay of a graph writes over it."""

    class Losing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept = nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.kept}

    model = Losing()
    workload = Replayed(module=model, inputs=torch.ones(1), batch=1)
    call = next(workload.feed(torch.ones(1), torch.device("cpu"), 0))
    for kept in (workload.loss(model, call), workload.infer(model, call)["0"]):
        with torch.no_grad():
            model.kept.zero_()
        assert kept.item() == 1.0
        with torch.no_grad():
            model.kept.fill_(1.0)
