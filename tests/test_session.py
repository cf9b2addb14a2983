"""The lifecycle of a session: what a hook may do, what a seed fixes, what is refused."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fathom
from fathom.core.errors import BadOption, DoesNotFit
from fathom.core.spec import RunSpec
from fathom.data.base import Batch
from fathom.engine.engines.eager import Eager
from fathom.engine.memory import least_bytes
from fathom.measure.loop import measure
from fathom.workloads.autoenc import Autoenc
from fathom.workloads.base import Output, State
from fathom.workloads.base import workload_class as workload

TINY = RunSpec(workload="autoenc", preset="tiny", device="cpu", steps=2)


def tiny(**options: object) -> fathom.Session:
    return fathom.load("autoenc", preset="tiny", device="cpu", **options)


def test_run_before_setup_says_what_to_do() -> None:
    with pytest.raises(BadOption, match=r"call setup\(\) first"):
        tiny().run(1)


def test_a_training_step_composes_updates_and_then_lets_the_environment_act(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    class Counting(Eager):
        def update(self, batch: Batch) -> Tensor:
            happened.append("update")
            return super().update(batch)

    def interact(self: Autoenc, state: State, output: Output | None) -> Output | None:
        happened.append("interact")
        return output

    monkeypatch.setattr(Autoenc, "updates_per_step", 3)
    monkeypatch.setattr(Autoenc, "interact", interact)
    monkeypatch.setattr("fathom.engine.session.engine_class", lambda name: Counting)
    for interactive in (False, True):
        monkeypatch.setattr(Autoenc, "interactive", interactive)
        with tiny().setup() as session:
            session.run(1)
    assert happened == ["update"] * 3 + ["update"] * 3 + ["interact"]


def test_the_loss_of_a_step_is_the_mean_of_its_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    with tiny().setup() as session:
        single = session.run(4)
    monkeypatch.setattr(Autoenc, "updates_per_step", 2)
    with tiny().setup() as session:
        pairs = session.run(2)
    assert pairs == pytest.approx([(single[0] + single[1]) / 2, (single[2] + single[3]) / 2])  # type: ignore[operator]


def test_a_step_runs_when_its_hook_says_so_and_once() -> None:
    with tiny() as session:
        session.setup()
        weight = next(session.state.model.parameters())
        moments = []

        def hook(step: fathom.Step) -> None:
            before = weight.detach().clone()
            first = step.loss
            moments.append((bool((weight == before).all()), first, step.loss))

        losses = session.run(3, on_step=hook)
    assert [moved for moved, _, _ in moments] == [False, False, False]
    assert [(first, again) for _, first, again in moments] == [(loss, loss) for loss in losses]


def test_a_hook_that_does_nothing_loses_no_step() -> None:
    with tiny().setup() as plain:
        expected = plain.run(3)
    with tiny().setup() as hooked:
        assert hooked.run(3, on_step=lambda step: None) == expected


def test_steps_are_numbered_through_the_life_of_a_session() -> None:
    numbers: list[int] = []
    with tiny().setup() as session:
        session.run(2, on_step=lambda step: numbers.append(step.index))
        session.run(2, on_step=lambda step: numbers.append(step.index))
    assert numbers == [0, 1, 2, 3]


def test_fields_of_the_workload_are_options_of_load() -> None:
    assert tiny(latent=3).workload.latent == 3  # type: ignore[attr-defined]


# the process is left as it was found


def settings() -> dict[str, Any]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return {
        "threads": torch.get_num_threads(),
        "matmul tf32": matmul.allow_tf32,
        "cudnn tf32": cudnn.allow_tf32,
        "benchmark": cudnn.benchmark,
        "benchmark limit": cudnn.benchmark_limit,
        "random state": torch.get_rng_state().tolist(),
    }


@pytest.fixture
def found() -> Iterator[dict[str, Any]]:
    """Settings as no run would leave them."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    odd: list[tuple[Any, str, Any]] = [
        (matmul, "allow_tf32", True),
        (cudnn, "allow_tf32", True),
        (cudnn, "benchmark", False),
    ]
    odd += [(cudnn, "benchmark_limit", 7)]
    usual = [(owner, name, getattr(owner, name)) for owner, name, _ in odd]
    for owner, name, value in odd:
        setattr(owner, name, value)
    torch.manual_seed(1234)
    yield settings()
    for owner, name, value in usual:
        setattr(owner, name, value)


def test_a_session_has_settings_of_its_own_and_puts_the_others_back(found: dict[str, Any]) -> None:
    own = {"threads": found["threads"] + 1, "matmul tf32": False, "cudnn tf32": False, "benchmark": True}
    with tiny(threads=found["threads"] + 1).setup() as session:
        during = settings()
        assert {name: during[name] for name in own} == own, "fp32 means no tf32"
        assert during["benchmark limit"] == Autoenc.algorithms != 7
        session.run(2)
        assert settings()["random state"] != found["random state"]
    assert settings() == found
    session.close()  # a second time changes nothing
    assert settings() == found


def test_settings_are_put_back_when_setup_raises(found: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        torch.rand(3)
        raise RuntimeError("no more")

    monkeypatch.setattr(Autoenc, "begin", refuse)
    with pytest.raises(RuntimeError, match="no more"):
        tiny(threads=found["threads"] + 1).setup()
    assert settings() == found


def test_settings_are_put_back_when_a_step_raises(found: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no more")

    monkeypatch.setattr(Autoenc, "loss", refuse)
    with pytest.raises(RuntimeError, match="no more"), tiny(threads=found["threads"] + 1).setup() as session:
        session.run(1)
    assert settings() == found


def test_measuring_puts_settings_back(found: dict[str, Any]) -> None:
    assert measure(replace(TINY, threads=found["threads"] + 1)).outcome == "ok"
    assert settings() == found


def test_a_session_inside_another_leaves_it_as_it_was(found: dict[str, Any]) -> None:
    with tiny(threads=found["threads"] + 1).setup() as outer:
        outer.run(1)
        before = settings()
        with tiny(threads=found["threads"] + 2, seed=9).setup() as inner:
            inner.run(2)
        assert settings() == before
    assert settings() == found


def test_a_forgotten_session_changes_nothing_when_it_is_collected() -> None:
    """It would set the random state of whatever runs then back to its own beginning."""
    threads = torch.get_num_threads()
    forgotten = tiny(threads=threads + 1).setup()
    forgotten.run(1)
    with tiny().setup() as session:
        first = session.run(3)
    with tiny().setup() as session:
        during = [*session.run(1)]
        del forgotten
        gc.collect()
        assert [*during, *session.run(2)] == first
    torch.set_num_threads(threads)


# an output of inference is kept until the next one


@pytest.mark.parametrize("way", ["without a hook", "with a hook", "measured", "measured with a budget"])
def test_inference_keeps_one_output_alone(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs are large: none of those before may be alive when the next one is computed."""
    infer, made, alive = Autoenc.infer, list[weakref.ref[Tensor]](), list[int]()

    def watched(self: Autoenc, model: nn.Module, batch: Batch) -> Output:
        alive.append(sum(output() is not None for output in made))
        output = infer(self, model, batch)
        made.append(weakref.ref(output["reconstruction"]))
        return output

    monkeypatch.setattr(Autoenc, "infer", watched)
    if way.startswith("measured"):
        budget_s = 60.0 if way.endswith("budget") else None
        monkeypatch.setattr("fathom.measure.loop.PRECISE", 0.0)
        assert measure(replace(TINY, phase="infer", steps=50, warmup=0, budget_s=budget_s)).outcome == "ok"
    else:
        hook = (lambda step: step.run() and None) if way == "with a hook" else None
        with tiny(phase="infer").setup() as session:
            results = session.run(50, on_step=hook)
            assert len(results) == 1
            assert results[0] is not None
            assert sum(output() is not None for output in made) == 1
    assert alive == [0] * 50


def test_least_bytes_counts_weights_gradients_batch_and_saved_tensors() -> None:
    network = workload("autoenc").configured("tiny", batch=10)
    parameters = sum(p.numel() for p in network.model().parameters())
    inputs = 10 * (784 + 8)  # bytes of pixels, and the label
    infer = least_bytes(network, "infer")
    assert infer == 4 * parameters + inputs + 10 * 2 * 784 * 4  # the largest op divides the pixels by 255
    # training keeps at least the input, both tanh outputs and the gradients
    assert least_bytes(network, "train") >= 8 * parameters + inputs + 10 * 4 * (784 + 64 + 64)


def test_a_batch_beyond_memory_is_refused_before_it_is_made() -> None:
    with pytest.raises(DoesNotFit, match="batch 1000000000 of autoenc needs at least"):
        tiny(batch=1_000_000_000).setup()


def test_inference_counts_the_largest_op() -> None:
    network = workload("vgg").configured("small", batch=10)
    image = 224 * 224 * 4
    # the second convolution reads and writes 64 maps of the full size
    assert least_bytes(network, "infer") >= 143_667_240 * 4 + 10 * 2 * 64 * image


def test_an_allocator_that_refuses_is_told_with_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Autoenc, "loss", refuse)
    with (
        tiny().setup() as session,
        pytest.raises(DoesNotFit, match="batch 32 of autoenc does not fit in the memory of cpu"),
    ):
        session.run(1)


# what a measurement makes of it


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, "the output latent holds nan"),
        (math.inf, "the output latent holds inf"),
        (-math.inf, None),  # a logarithm of nothing
        (0.0, None),
    ],
)
def test_inference_that_gives_no_number_is_a_failed_run(
    value: float, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    infer = Autoenc.infer

    def spoilt(self: Autoenc, model: nn.Module, batch: Batch) -> Output:
        output = infer(self, model, batch)
        output["latent"][-1, -1] = value
        return {**output, "count": torch.ones(2, dtype=torch.int64)}

    monkeypatch.setattr(Autoenc, "infer", spoilt)
    record = measure(replace(TINY, phase="infer"))
    assert (record.outcome, record.reason) == ("failed" if reason else "ok", reason)
    assert (len(record.step_s), bool(record.answers)) == (2, reason is None)


def test_a_program_run_whose_loss_is_no_number_is_a_failed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(TINY, kind="program")
    assert measure(spec).outcome == "ok"
    loss, calls = Autoenc.loss, count()

    def spoilt(self: Autoenc, model: nn.Module, batch: Batch) -> Tensor:
        return loss(self, model, batch) * (math.nan if next(calls) == 1 else 1.0)

    monkeypatch.setattr(Autoenc, "loss", spoilt)
    record = measure(spec)
    assert (record.outcome, record.reason) == ("failed", "the loss is nan at step 1")


def test_a_measurement_that_fails_closes_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[fathom.Session] = []

    def refuse(*_: object) -> None:
        raise RuntimeError("no more")

    def close(session: fathom.Session) -> None:
        closed.append(session)

    monkeypatch.setattr(Autoenc, "loss", refuse)
    monkeypatch.setattr(fathom.Session, "close", close)
    assert measure(TINY).reason == "RuntimeError: no more"
    assert len(closed) == 1


def test_what_an_optimizer_refuses_is_the_users_to_put_right() -> None:
    with pytest.raises(BadOption, match="the optimizer of autoenc: Invalid learning rate: -1"):
        fathom.load("autoenc", preset="tiny", device="cpu", learning_rate=-1.0).setup()
