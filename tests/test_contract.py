"""The contract: what every workload promises, checked on each of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import pytest
from conftest import real_data

import fathom
from fathom.core import plugins
from fathom.engine.session import Session
from fathom.workloads.base import workload_class

ALL = plugins.names("workloads")
REAL = {  # the real data set that each workload reads in these tests
    "alexnet": "cifar10-jpeg",
    "vgg": "cifar10-jpeg",
    "residual": "cifar10-jpeg",
    "autoenc": "mnist",
    "memnet": "babi",
    "seq2seq": "wmt15-fr-en",
    "speech": "an4",
}


def tiny(name: str, **options: object) -> Session:
    return fathom.load(name, preset="tiny", device="cpu", **options).setup()


def test_the_eight_are_here() -> None:
    assert set(ALL) >= {"alexnet", "autoenc", "deepq", "memnet", "residual", "seq2seq", "speech", "vgg"}


@dataclass(frozen=True)
class Trained:
    """What was seen of one training run of 60 steps with a hook around each, at seed 0."""

    losses: list[float]
    hooked: list[str]
    parameters: set[str]
    touched: set[str]  # the parameters that had a gradient in the first three steps


@cache
def trained(name: str) -> Trained:
    """Several tests look at the same run: making a network and its data takes longer than most of its steps."""
    hooked: list[str] = []
    touched: set[str] = set()
    with tiny(name) as session:
        model = session.state.model

        def hook(step: fathom.Step) -> None:
            hooked.append(f"before {step.index}")
            step.run()
            hooked.append(f"after {step.index}")
            if step.index < 3:
                gradients = {each: parameter.grad for each, parameter in model.named_parameters()}
                touched.update(each for each, grad in gradients.items() if grad is not None and bool(grad.any()))

        losses = [float(loss) for loss in session.run(60, on_step=hook)]  # type: ignore[arg-type]
        return Trained(losses, hooked, {each for each, _ in model.named_parameters()}, touched)


@pytest.mark.parametrize("name", ALL)
def test_loss_is_finite_and_falls(name: str) -> None:
    losses = trained(name).losses
    assert all(map(math.isfinite, losses))
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10]), losses


@pytest.mark.parametrize("name", ALL)
def test_same_seed_same_losses_another_seed_others(name: str) -> None:
    def losses(seed: int) -> list[object]:
        with tiny(name, seed=seed) as session:
            return list(session.run(4))

    assert losses(0) == trained(name).losses[:4]
    assert losses(4) != trained(name).losses[:4]


@pytest.mark.parametrize("name", ALL)
def test_gradients_reach_every_parameter(name: str) -> None:
    assert trained(name).touched == trained(name).parameters


@pytest.mark.parametrize("name", ALL)
def test_a_hook_is_put_around_every_step(name: str) -> None:
    assert trained(name).hooked == [f"{when} {index}" for index in range(60) for when in ("before", "after")]


@pytest.mark.parametrize("name", ALL)
def test_bf16_trains_to_nearly_the_same_loss(name: str) -> None:
    with tiny(name, precision="bf16") as session:
        rough = float(session.run(1)[0])  # type: ignore[arg-type]
    exact = trained(name).losses[0]
    assert rough == pytest.approx(exact, rel=0.05)
    assert rough != exact, "autocast did not reach the network"


@pytest.mark.parametrize("name", ALL)
def test_inference_answers_every_item_in_words(name: str) -> None:
    with tiny(name, phase="infer") as session:
        output = session.run(1)[0]
        assert isinstance(output, dict)
        assert all(len(column) == session.items_per_step for column in output.values())
        answers = session.workload.answers(output, session.state.source)
        assert len(answers) == session.items_per_step
        assert all(isinstance(answer, str) and answer for answer in answers)
        assert not session.state.model.training
        assert all(parameter.grad is None for parameter in session.state.model.parameters())


@pytest.mark.realdata
@pytest.mark.parametrize("name", sorted(REAL))
@pytest.mark.parametrize("phase", ["train", "infer"])
def test_synthetic_and_real_batches_agree(name: str, phase: str) -> None:
    with tiny(name, data=str(real_data(REAL[name])), phase=phase) as real:
        batch = next(real.state.batches)
        # the stand-in is asked for in the configuration that the real data led to
        like = real.workload.example()
        assert {k: (v.dtype, tuple(v.shape)) for k, v in batch.items()} == {
            k: (v.dtype, tuple(v.shape)) for k, v in like.items()
        }
        results = real.run(2)
        if phase == "train":
            assert all(math.isfinite(loss) for loss in results)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ALL)
def test_presets_are_the_three_and_small_is_the_full_network(name: str) -> None:
    from fathom.engine.cost import parameters

    kind = workload_class(name)
    assert set(kind.presets) == {"tiny", "small", "paper"}
    assert parameters(kind.configured("small")) == parameters(kind.configured("paper"))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ALL)
def test_gpu_agrees_with_cpu(name: str) -> None:
    # the two draw different numbers from one seed, so nothing may be dropped
    options = {"dropout": 0.0} if hasattr(workload_class(name), "dropout") else {}
    losses: list[float] = []
    for device in ("cpu", "cuda"):
        with fathom.load(name, preset="tiny", device=device, options=options).setup() as session:
            losses += session.run(1)  # type: ignore[arg-type]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
