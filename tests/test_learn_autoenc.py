"""The autoencoder learns its digits: one epoch of the real ones is enough to pass -140 nats."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import real_data
from PIL import Image
from training_runs import learning_of, trained

from fathom.core.spec import RunSpec
from fathom.data import mnist
from fathom.engine.session import Session
from fathom.training.run import train
from fathom.training.trainer import HeldOut, recipe_for, trainer_for
from fathom.workloads import autoenc
from fathom.workloads.autoenc import Autoenc
from fathom.workloads.base import State

RECIPE = Autoenc.recipe
ONE_EPOCH = {"adam": True, "batch": 100, "learning_rate": 0.003}


@pytest.mark.realdata
def test_one_epoch_of_mnist_passes_140_nats(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = real_data("mnist")
    monkeypatch.setattr(autoenc, "INTERVAL", 60_000)  # a tenth of the recipe's
    record = train(
        RunSpec(
            workload="autoenc",
            preset="paper",
            device="cpu",
            threads=1,
            kind="training",
            evaluations=1,
            data=str(folder),
            options=ONE_EPOCH,
        )
    )
    assert record.learning is not None
    assert record.learning.items == 60_000
    assert record.learning.quality is not None
    assert record.learning.quality > -140
    assert (record.learning.data, record.learning.split) == ("mnist", "test")


def test_the_recipe_is_as_long_as_the_papers_figure(tmp_path: Path) -> None:
    recipe = RECIPE.for_run(tmp_path, {})
    assert recipe.items_per_evaluation is not None
    assert recipe.evaluations * recipe.items_per_evaluation == pytest.approx(1e8, rel=0.01)
    assert recipe.stop_at is None
    assert RECIPE.for_run(None, {}).items_per_evaluation is None, "of synthetic digits, one epoch"


def idx(numbers: list[int]) -> bytes:
    return bytes([0, 0, 8, 1]) + len(numbers).to_bytes(4) + bytes(numbers)


def test_only_mnist_has_a_target(tmp_path: Path) -> None:
    def labelled(split: str, counts: Sequence[int]) -> None:
        labels = [digit for digit, count in enumerate(counts) for _ in range(count)]
        (tmp_path / f"{split}-labels-idx1-ubyte").write_bytes(idx(labels))

    labelled("train", mnist._DIGITS["train"])
    labelled("t10k", mnist._DIGITS["test"])
    known = RECIPE.for_run(tmp_path, {})
    assert (known.target, known.taken) == (-100, "")
    for split, counts in (("t10k", [1000] * 10), ("train", [600] * 10)):  # Fashion-MNIST's, and a part
        labelled(split, counts)
        other = RECIPE.for_run(tmp_path, {})
        assert (other.target, other.taken) == (None, "no target: that of -100 nats is for MNIST")
        assert other.items_per_evaluation == known.items_per_evaluation
    assert RECIPE.for_run(None, {}) is RECIPE


@pytest.mark.realdata
def test_real_mnist_keeps_its_target_and_its_recipe() -> None:
    recipe = RECIPE.for_run(real_data("mnist"), {})
    assert (recipe.target, recipe.id) == (-100, "f657047da328"), "the id of the records in results/"


@pytest.mark.parametrize(
    ("preset", "options", "steps"),
    [("paper", {"batch": 20}, 30_000), ("paper", {"batch": 7}, 85_715), ("tiny", {}, 18_750), ("paper", {}, 6000)],
)
def test_an_interval_is_as_many_images_whatever_the_batch(
    preset: str, options: dict[str, Any], steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Autoenc, "real", lambda self, folder, split="train": mnist.synthetic(0, items=100))
    spec = RunSpec(
        workload="autoenc", preset=preset, device="cpu", kind="training", data=str(tmp_path), options=options
    )
    with Session(spec).setup() as session:
        assert trainer_for(session, recipe_for(session.spec), HeldOut(None, None)).steps_per_evaluation == steps


def test_the_learning_rate_has_linear_warm_up_and_cosine_decay() -> None:
    workload = Autoenc.configured("tiny", adam=True, learning_rate=0.5, warm_up=0.05)
    optimizer = workload.optimizer(workload.model())
    schedule = RECIPE.schedule(workload, optimizer, steps=100)
    assert schedule is not None
    rates = []
    for _ in range(100):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[:3] == pytest.approx([0.1, 0.2, 0.3])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert rates[-1] < 0.001
    assert RECIPE.schedule(Autoenc.configured("paper"), optimizer, steps=100) is None, "the paper's rate stands still"


def test_the_bound_is_the_mean_over_every_test_image() -> None:
    with Session(RunSpec(workload="autoenc", preset="tiny", device="cpu")).setup() as session:
        workload, model = session.workload, session.state.model
        assert isinstance(workload, Autoenc)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()  # then every pixel is a coin, and the latents say nothing
        pixels = torch.full((7001, 784), 255, dtype=torch.uint8)
        digits = mnist.Digits(pixels=pixels, label=torch.zeros(7001, dtype=torch.long))
        with torch.inference_mode():
            quality = RECIPE.evaluate(workload, session.state, digits)
    assert quality == pytest.approx(-784 * torch.log(torch.tensor(2.0)).item(), rel=1e-5)


def test_artifacts_are_images_of_digits() -> None:
    with Session(RunSpec(workload="autoenc", preset="tiny", device="cpu")).setup() as session, torch.inference_mode():
        assert isinstance(session.workload, Autoenc)
        shown = RECIPE.artifacts(session.workload, session.state, mnist.synthetic(1, items=30))
    assert [artifact.title for artifact in shown] == ["Samples", "Test digits, and their reconstructions below"]
    for artifact in shown:
        assert artifact.png is not None
        assert Image.open(io.BytesIO(base64.b64decode(artifact.png))).size == (20 * 28, 2 * 28)


def test_drawn_digits_stand_in_rows() -> None:
    digits = torch.zeros(4, 784)
    digits[1] = 1  # the second of the first row
    image = Image.open(io.BytesIO(base64.b64decode(mnist.tiled_png(digits, across=2))))
    assert image.size == (56, 56)
    assert [image.getpixel(at) for at in ((14, 14), (42, 14), (14, 42))] == [255, 0, 255]


def test_a_result_is_not_lost_for_want_of_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[object]:
        raise RuntimeError("no such picture\nand more")

    monkeypatch.setattr(type(RECIPE), "artifacts", broken)
    spec = RunSpec(workload="autoenc", preset="tiny", device="cpu", threads=1, kind="training", evaluations=1)
    record = trained(spec)
    assert (record.outcome, learning_of(record).artifacts) == ("ok", [])
    assert learning_of(record).quality is not None
    assert "no tables or images of the result: RuntimeError: no such picture" in record.notes


def test_fewer_test_digits_than_a_line_of_the_picture() -> None:
    workload = Autoenc.configured("tiny")
    state = State(
        model=workload.model(), device=torch.device("cpu"), source=None, batches=iter(()), optimizer=None,
        autocast=nullcontext,
    )  # fmt: skip
    few = mnist.Digits(pixels=torch.zeros(7, 784, dtype=torch.uint8))
    _, seen = RECIPE.artifacts(workload, state, few)
    assert Image.open(io.BytesIO(base64.b64decode(str(seen.png)))).size == (7 * 28, 2 * 28)
