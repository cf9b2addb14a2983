"""The lifecycle of a session: what a hook may do, what a seed fixes, what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count

import pytest
import torch
from torch import Tensor, nn

import fathom
from fathom.core.errors import BadOption, DoesNotFit
from fathom.core.spec import RunSpec
from fathom.data.base import Batch
from fathom.engine.memory import least_bytes
from fathom.measure.loop import measure
from fathom.workloads.autoenc import Autoenc
from fathom.workloads.base import Output
from fathom.workloads.base import workload_class as workload


def tiny(**options: object) -> fathom.Session:
    return fathom.load("autoenc", preset="tiny", device="cpu", **options)


def test_run_before_setup_says_what_to_do() -> None:
    with pytest.raises(BadOption, match=r"call setup\(\) first"):
        tiny().run(1)


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


def test_fp32_means_no_tf32() -> None:
    torch.backends.cudnn.allow_tf32 = True
    tiny().setup().close()
    assert not torch.backends.cudnn.allow_tf32


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
    with tiny().setup() as session:

        def refuse(*_: object) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr(type(session.workload), "loss", refuse)
        with pytest.raises(DoesNotFit, match="batch 32 of autoenc does not fit in the memory of cpu"):
            session.run(1)


# what a measurement makes of it

TINY = RunSpec(workload="autoenc", preset="tiny", device="cpu", steps=2)


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


def test_a_life_whose_loss_is_no_number_is_a_failed_run(monkeypatch: pytest.MonkeyPatch) -> None:
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
