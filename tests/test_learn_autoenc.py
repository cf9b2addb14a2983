"""The autoencoder learns its digits: one look through the real ones is enough to pass -140 nats."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import real_data
from PIL import Image

from fathom.core.spec import RunSpec
from fathom.data import mnist
from fathom.engine.session import Session
from fathom.training.run import learned
from fathom.training.trainer import recipe_for, trainer_for
from fathom.workloads import autoenc
from fathom.workloads.autoenc import Autoenc

ONE_ROUND = {"adam": True, "batch": 100, "learning_rate": 0.003}


@pytest.mark.realdata
def test_one_round_through_mnist_passes_140_nats(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = real_data("mnist")
    monkeypatch.setattr(autoenc, "ROUND", 60_000)  # a tenth of a lesson's round
    spec = RunSpec(workload="autoenc", preset="paper", device="cpu", kind="training", evaluations=1, data=str(folder))
    record = learned(RunSpec.from_json({**spec.to_json(), "options": ONE_ROUND}), lambda *_: None, lambda _: None)
    assert record.learning is not None
    assert record.learning.items == 60_000
    assert record.learning.quality is not None
    assert record.learning.quality > -140


def test_the_lesson_is_as_long_as_the_papers_figure(tmp_path: Path) -> None:
    lesson = Autoenc.taught(str(tmp_path), {})
    assert lesson.items is not None
    assert lesson.rounds * lesson.items == pytest.approx(1e8, rel=0.01)
    assert not lesson.stops_at_target
    assert Autoenc.taught(None, {}).items is None, "of invented digits, once through them"


@pytest.mark.parametrize(
    ("preset", "options", "steps"),
    [("paper", {"batch": 20}, 30_000), ("paper", {"batch": 7}, 85_715), ("tiny", {}, 18_750), ("paper", {}, 6000)],
)
def test_a_round_is_as_many_images_whatever_the_batch(
    preset: str, options: dict[str, Any], steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Autoenc, "real", lambda self, folder, split="train": mnist.synthetic(0, items=100))
    spec = RunSpec(
        workload="autoenc", preset=preset, device="cpu", kind="training", data=str(tmp_path), options=options
    )
    with Session(spec).setup() as session:
        assert trainer_for(session, recipe_for(session.spec), None).steps_per_evaluation == steps


def test_the_learning_rate_rises_and_falls_to_nothing() -> None:
    workload = Autoenc.configured("tiny", adam=True, learning_rate=0.5, warm_up=0.05)
    optimizer = workload.optimizer(workload.model())
    schedule = workload.schedule(optimizer, steps=100)
    assert schedule is not None
    rates = []
    for _ in range(100):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[:3] == pytest.approx([0.1, 0.2, 0.3])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert rates[-1] < 0.001
    assert Autoenc.configured("paper").schedule(optimizer, steps=100) is None, "the paper's rate stands still"


def test_the_bound_is_judged_over_every_test_image_by_the_loss() -> None:
    with Session(RunSpec(workload="autoenc", preset="tiny", device="cpu")).setup() as session:
        workload, model = session.workload, session.state.model
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()  # then every pixel is a coin, and the latents say nothing
        pixels = torch.full((7001, 784), 255, dtype=torch.uint8)
        digits = mnist.Digits(pixels=pixels, label=torch.zeros(7001, dtype=torch.long))
        with torch.inference_mode():
            quality = workload.evaluate(session.state, digits)
    assert quality == pytest.approx(-784 * torch.log(torch.tensor(2.0)).item(), rel=1e-5)


def test_exhibits_are_pictures_of_digits() -> None:
    with Session(RunSpec(workload="autoenc", preset="tiny", device="cpu")).setup() as session, torch.inference_mode():
        shown = session.workload.artifacts(session.state, mnist.synthetic(1))
    assert [artifact.title for artifact in shown] == ["Samples", "Test digits, and their reconstructions below"]
    for artifact in shown:
        assert artifact.png is not None
        assert Image.open(io.BytesIO(base64.b64decode(artifact.png))).size == (20 * 28, 2 * 28)


def test_drawn_digits_stand_in_rows() -> None:
    digits = torch.zeros(4, 784)
    digits[1] = 1  # the second of the first row
    picture = Image.open(io.BytesIO(base64.b64decode(mnist.tiled_png(digits, across=2))))
    assert picture.size == (56, 56)
    assert [picture.getpixel(at) for at in ((14, 14), (42, 14), (14, 42))] == [255, 0, 255]
