"""Training of the image networks: augmentation of small images on the device, top-1, exact resumption after a kill."""

from __future__ import annotations

import dataclasses
import os
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import real_data
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD
from training_runs import Killed, learning_of, numbers, trained

from fathom.core.errors import DataError
from fathom.core.spec import RunSpec
from fathom.data import imagenet
from fathom.data._thumbnails import (
    Augmentation,
    Thumbnails,
    affine_transformed,
    augmented,
    colour_jittered,
    cut_out,
    random_affine_maps,
    resized,
)
from fathom.training import checkpoint
from fathom.training.checkpoint import FOLDER
from fathom.training.data_id import data_id
from fathom.workloads._image_classifier import ImageClassifier, ImageRecipe
from fathom.workloads.alexnet import AlexNet
from fathom.workloads.base import State, workload_class
from fathom.workloads.vgg import VGG

CPU = torch.device("cpu")
EVERYTHING = Augmentation(shift=0.125, zoom=0.2, rotation=15.0, colour=0.3, cutout=0.25)
SAME = torch.tensor([[1.0, 0, 0], [0, 1, 0]])


def random_images(count: int, side: int = 8, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)


def write_set(root: Path, classes: int = 3, each: int = 8, side: int = 24) -> Path:
    """train/ and test/ with smooth images, one shade per class."""
    rng = np.random.default_rng(1)
    for split in ("train", "test"):
        for label in range(classes):
            folder = root / split / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(each):
                shade = np.linspace(0, 60, side)[:, None, None] + 40 + 60 * label + rng.uniform(-10, 10, 3)
                pixels = np.broadcast_to(shade, (side, side, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.jpg", quality=95)
    return root


def recipe_of(name: str) -> ImageRecipe:
    recipe = workload_class(name).recipe
    assert isinstance(recipe, ImageRecipe)
    return recipe


@pytest.mark.parametrize("name", ["alexnet", "vgg", "residual"])
def test_only_cifar10_has_a_target(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(name)
    other = recipe.for_run(write_set(tmp_path / "other", classes=10, each=1), {})
    assert other.target is None
    assert other.taken == f"no target: that of {recipe.target:g} % is for CIFAR-10"
    folder = tmp_path / "cifar10"
    for split, each in (("train", 2), ("test", 1)):
        for label in imagenet.CIFAR10:
            (folder / split / label).mkdir(parents=True)
            for number in range(each):
                (folder / split / label / f"{number}.jpg").touch()
    assert recipe.for_run(folder, {}).target is None, "as many classes of these names, but other images"
    monkeypatch.setattr(imagenet, "CIFAR10_SIZES", ((20, 10),))
    assert recipe.for_run(folder, {}) is recipe
    assert recipe.for_run(None, {}) is recipe


@pytest.mark.realdata
def test_the_real_cifar10_keeps_its_recipes() -> None:
    ids = {"alexnet": "694924958f4b", "vgg": "f3caf840d1bf", "residual": "cca648a9c9da"}  # of the records in results/
    folder = real_data("cifar10-jpeg")
    assert {name: recipe_of(name).for_run(folder, {}).id for name in ids} == ids


@pytest.mark.parametrize("name", ["alexnet", "vgg", "residual"])
def test_it_learns_classes_and_is_evaluated_on_other_images(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = workload_class(name)
    monkeypatch.setattr(workload, "recipe", dataclasses.replace(recipe_of(name), target=90.1))
    options = {"side": 40} if name == "residual" else {}  # enough, and faster
    few = 6 if name == "alexnet" else 3  # as many as it takes
    spec = RunSpec(
        workload=name, preset="tiny", device="cpu", threads=1, kind="training", evaluations=few, options=options
    )
    learning = learning_of(trained(spec))
    assert len(learning.curve) == few
    assert learning.reached
    assert learning.quality is not None
    assert learning.quality > 90
    assert [row[1] for row in learning.artifacts[0].rows] == [52, 52, *[51] * 8], "all 512 count"


@pytest.mark.parametrize(("name", "resident"), [("alexnet", 64), ("vgg", 64), ("residual", 64), ("alexnet", 0)])
def test_a_killed_run_on_small_images_resumes_to_the_same_numbers(
    name: str, resident: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From memory, and read from files for every batch."""
    options = {"classes": 3, "resident": resident, "cutout": 0.25, "rotation": 10.0, "color_jitter": 0.2}
    options |= {"dropout": 0.5} if name != "residual" else {}
    data = str(write_set(tmp_path / "data"))
    spec = RunSpec(
        workload=name,
        preset="tiny",
        device="cpu",
        threads=1,
        kind="training",
        evaluations=4,
        data=data,
        options=options,
    )
    monkeypatch.setenv(FOLDER, str(tmp_path / "checkpoints"))
    monkeypatch.setattr(checkpoint, "INTERVAL_S", 0.0)  # after every evaluation
    with pytest.raises(Killed):
        trained(spec, die_at=3)
    resumed = trained(spec)
    monkeypatch.delenv(FOLDER)
    whole = trained(spec)
    assert (learning_of(resumed).resumed, learning_of(whole).resumed) == (1, 0)
    assert numbers(resumed) == numbers(whole)
    assert len({loss for _, loss, _ in numbers(resumed)}) == len(numbers(resumed)), "it learnt all the while"


def test_small_images_are_kept_as_they_were_decoded(tmp_path: Path) -> None:
    images = imagenet.read(write_set(tmp_path), "test", side=32, classes=3)
    kept = imagenet.thumbnails(images, largest=24)
    assert kept is not None
    assert kept.class_names == ("class0", "class1", "class2")
    assert kept.columns["label"].tolist() == [0] * 8 + [1] * 8 + [2] * 8
    for index in (0, 9, 23):
        label = index // 8
        decoded = np.asarray(Image.open(tmp_path / "test" / f"class{label}" / f"{index % 8}.jpg"))
        assert np.array_equal(kept.columns["image"][index].permute(1, 2, 0).numpy(), decoded)


def test_large_or_unequal_images_are_not_kept_in_memory(tmp_path: Path) -> None:
    images = imagenet.read(write_set(tmp_path), "train", side=32, classes=3)
    assert imagenet.thumbnails(images, largest=0) is None
    assert imagenet.thumbnails(images, largest=23) is None
    for odd in ((24, 25), (25, 25), (12, 12)):
        Image.new("RGB", odd).save(tmp_path / "train" / "class2" / "7.jpg")
        assert imagenet.thumbnails(images, largest=64) is None
    (tmp_path / "train" / "class1" / "0.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"class1/0.jpg: not a JPEG image"):
        imagenet.thumbnails(images, largest=64)
    (tmp_path / "train" / "class0" / "0.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"class0/0.jpg: not a JPEG image"):
        imagenet.thumbnails(images, largest=64)


def test_a_timed_run_still_reads_files_and_training_keeps_them(tmp_path: Path) -> None:
    folder = write_set(tmp_path)
    assert isinstance(VGG.configured("tiny").real(folder), imagenet.Images)
    workload = VGG.configured("tiny", resident=64)
    kept = workload.real(folder)
    assert isinstance(kept, Thumbnails)
    batch = next(workload.feed(kept, CPU, seed=0))
    assert batch["image"].shape == (16, 3, 32, 32)
    assert batch["image"].dtype == torch.uint8


@pytest.mark.parametrize("side", [8, 16, 21, 56])
def test_without_augmentation_an_image_is_only_resized(side: int) -> None:
    image = random_images(3)
    textbook = F.interpolate(image.float(), (side, side), mode="bilinear", align_corners=False)
    assert (resized(image, side) - textbook).abs().max() <= 0.5
    assert (affine_transformed(image.float(), SAME.expand(3, 2, 3), side) - textbook).abs().max() <= 0.501


def test_affine_maps_flip_shift_and_rotate() -> None:
    marked = torch.full((1, 3, 8, 8), 10.0)
    marked[0, :, 2, 5] = 200.0
    mirrored = torch.tensor([[[-1.0, 0, 0], [0, 1, 0]]])
    assert torch.equal(affine_transformed(marked, mirrored, 8), marked.flip(3).byte())
    right_and_up = torch.tensor([[[1.0, 0, 2 * 2 / 8], [0, 1, -2 * 1 / 8]]])  # samples 2 pixels right and 1 up
    shifted = affine_transformed(marked, right_and_up, 8)
    assert (shifted[0, 0] == 200).nonzero().tolist() == [[3, 3]]
    quarter = torch.tensor([[[0.0, -1, 0], [1, 0, 0]]])
    assert torch.equal(affine_transformed(marked, quarter, 8)[0, 0], torch.rot90(marked[0, 0].byte()))
    large = affine_transformed(marked, mirrored, 16)
    assert torch.equal(large, resized(marked.flip(3).byte(), 16))


def test_beyond_its_edge_an_image_is_reflected() -> None:
    image = random_images(1, side=4)
    moved = affine_transformed(image.float(), torch.tensor([[[1.0, 0, 2 * 2 / 4], [0, 1, 0]]]), 4)
    assert torch.equal(moved, image[..., [2, 3, 3, 2]])


def test_the_default_augmentation_is_a_horizontal_flip() -> None:
    torch.manual_seed(0)
    image = random_images(400)
    seen = augmented(image, 8, Augmentation())
    plain = (seen == image).flatten(1).all(1)
    mirrored = (seen == image.flip(3)).flatten(1).all(1)
    assert (plain ^ mirrored).all()
    assert 150 < plain.sum() < 250


def test_affine_maps_stay_within_the_configured_ranges() -> None:
    torch.manual_seed(0)
    maps = random_affine_maps(torch.empty(2000, 3, 8, 8), EVERYTHING)
    widths, heights = maps[:, :, 0].norm(dim=1), maps[:, :, 1].norm(dim=1)
    for found in (widths, heights):
        assert 1 / 1.2 - 1e-6 <= found.min() < 0.85
        assert 1.18 < found.max() <= 1.2 + 1e-6
    assert not torch.equal(widths, heights)
    angles = torch.rad2deg(torch.atan2(-maps[:, 0, 1], maps[:, 1, 1]))
    assert -15.001 < angles.min() < -14
    assert 14 < angles.max() < 15.001
    torch.testing.assert_close((maps[:, :, 0] * maps[:, :, 1]).sum(1), torch.zeros(2000), atol=1e-6, rtol=0)
    assert 0.24 < maps[:, :, 2].max() <= 0.25
    assert -0.25 <= maps[:, :, 2].min() < -0.24


def test_colour_jitter_by_hand() -> None:
    pixels = torch.tensor([90.0, 60, 30]).view(1, 3, 1, 1).repeat(1, 1, 1, 2)
    pixels[..., 1] = 20.0  # a coloured pixel of grey 60 beside a grey one of 20: their mean is 40

    def factors(*values: float) -> Tensor:
        return torch.tensor(values).view(3, 1)

    assert torch.equal(colour_jittered(pixels, factors(1, 1, 1)), pixels)
    assert colour_jittered(pixels, factors(0.5, 1, 1))[0, :, 0].tolist() == [[75, 20], [60, 20], [45, 20]]
    assert colour_jittered(pixels, factors(1, 0.5, 1))[0, :, 0].tolist() == [[65, 30], [50, 30], [35, 30]]
    assert colour_jittered(pixels, factors(1, 1, 2))[0, :, 0].tolist() == [[180, 40], [120, 40], [60, 40]]


def test_cutout_fills_a_square_with_the_mean_colour() -> None:
    pixels = torch.zeros(2, 3, 8, 8)
    pixels[:, 0] = torch.arange(64.0).view(8, 8)
    seen = cut_out(pixels, torch.tensor([[0.5, 0.0], [0.25, 1.0]]), 0.5)
    painted = seen[:, 0] == 31.5
    assert painted[0].nonzero().tolist() == [[y, x] for y in (2, 3, 4, 5) for x in (0, 1, 2, 3)]
    assert painted[1].nonzero().tolist() == [[y, x] for y in (0, 1) for x in (6, 7)], "cut off at the edge"
    assert torch.equal(seen[:, 0][~painted], pixels[:, 0][~painted])


def test_the_seed_alone_decides_the_batches() -> None:
    workload = VGG.configured("tiny", zoom=0.2, rotation=15.0, color_jitter=0.3, cutout=0.25)
    source = Thumbnails(random_images(40), torch.arange(40) % 10, [str(label) for label in range(10)])

    def batches(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        return [batch["image"] for batch in islice(workload.feed(source, CPU, seed), 4)]

    first, again, other = batches(1), batches(1), batches(2)
    assert all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, other))
    assert len({batch.sum().item() for batch in first}) == 4


class Reads(nn.Module):
    """Predicts the class that the top left value names."""

    def forward(self, image: Tensor) -> Tensor:
        return F.one_hot(image[:, 0, 0, 0].long(), 10).float()


@pytest.mark.parametrize("small", [True, False])
def test_top_1_by_hand(small: bool) -> None:
    workload = VGG.configured("tiny", classes=10)
    taken_for = torch.tensor([0, 0, 2, 1, 2, 2, 0, 9])
    label = torch.tensor([0, 0, 0, 1, 2, 2, 2, 2])
    side = 8 if small else 32
    image = taken_for.byte().view(-1, 1, 1, 1).expand(8, 3, side, side).contiguous()
    held_out = Thumbnails(image, label, ["cat", "dog", "frog"])
    state = State(Reads(), CPU, None, iter(()), None, lambda: torch.autocast("cpu", enabled=False))
    assert VGG.recipe.evaluate(workload, state, held_out) == 62.5
    (table,) = VGG.recipe.artifacts(workload, state, held_out)
    assert table.rows == [
        ["cat", 3, pytest.approx(200 / 3), "frog (1)"],
        ["dog", 1, 100.0, None],
        ["frog", 4, 50.0, "cat (1)"],
    ]


def test_the_learning_rate_has_linear_warm_up_and_cosine_decay() -> None:
    workload = VGG.configured("tiny", learning_rate=0.4, warm_up=0.2)
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=workload.learning_rate)
    schedule = VGG.recipe.schedule(workload, optimizer, steps=20)
    rates = []
    for _ in range(20):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[:3] == pytest.approx([0.1, 0.2, 0.3])
    assert rates[10] == pytest.approx(0.2)
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0)


def test_smoothed_labels_by_hand() -> None:
    workload = VGG.configured("tiny", classes=2, label_smoothing=0.1)
    logits = torch.tensor([[0.0, 1.0]])
    batch = {"image": logits, "label": torch.tensor([1])}
    chances = logits.softmax(-1)[0]
    by_hand = -(0.05 * chances[0].log() + 0.95 * chances[1].log())
    torch.testing.assert_close(workload.loss(nn.Identity(), batch), by_hand)


def test_alexnet_may_start_as_he_proposed() -> None:
    torch.manual_seed(0)
    model = AlexNet.configured("tiny", weight_deviation=None).model()
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            assert layer.weight.std().item() == pytest.approx((2 / layer.weight[0].numel()) ** 0.5, rel=0.1)
            assert layer.bias is not None
            assert not layer.bias.any()


def test_recipes_fit_their_networks() -> None:
    for name in ("alexnet", "vgg", "residual"):
        workload, recipe = workload_class(name), recipe_of(name)
        configured = workload.configured(recipe.preset, **recipe.options)
        assert isinstance(configured, ImageClassifier)
        assert (configured.classes, configured.shrink) == (10, 1)
        assert recipe.target == {"alexnet": 85, "vgg": 88, "residual": 90}[name]


def test_the_protocol_says_how_often_the_test_set_was_evaluated() -> None:
    said = "after every epoch "
    for name in ("alexnet", "vgg", "residual", "seq2seq"):
        recipe = workload_class(name).recipe
        assert recipe is not None
        assert recipe.stop_at is None
        assert recipe.items_per_evaluation is None, "an epoch"
        assert said in recipe.protocol
        assert recipe.validated_on == "validation"
        assert recipe.protocol.endswith("the best of these is tested once")


def test_augmentation_options_still_go_by_their_old_names() -> None:
    old = VGG.configured("tiny", turn=15.0, colour=0.3, hole=0.25)
    assert old == VGG.configured("tiny", rotation=15.0, color_jitter=0.3, cutout=0.25)


IMAGES = RunSpec(
    workload="alexnet", preset="tiny", device="cpu", threads=1, kind="training", evaluations=2,
    options={"batch": 8, "classes": 3},
)  # fmt: skip


def test_a_checkpoint_of_other_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "checkpoints"))
    spec = dataclasses.replace(IMAGES, data=str(write_set(tmp_path / "set")))
    with pytest.raises(Killed):
        trained(spec, die_at=2)
    images = tmp_path / "set/train/class0/0.jpg", tmp_path / "set/train/class0/later.jpg"
    images[0].rename(images[1])
    with pytest.raises(DataError, match="remove it to start over: the files of the data were others then"):
        trained(spec)
    images[1].rename(images[0])
    assert learning_of(trained(spec)).resumed == 1


def test_records_below_the_data_are_no_part_of_it(tmp_path: Path) -> None:
    spec = dataclasses.replace(IMAGES, data=str(write_set(tmp_path / "set")))
    before = data_id(spec)
    (tmp_path / "set/records/checkpoints").mkdir(parents=True)
    for name in (".lock-1", "alexnet.json", "checkpoints/alexnet.pt"):
        (tmp_path / "set/records" / name).write_text("x")
    assert data_id(spec) == before
    (tmp_path / "set/train/class0/more.jpg").write_text("x")
    assert data_id(spec) != before


def test_test_images_of_another_class_are_refused_and_not_replaced_by_those_of_validation(tmp_path: Path) -> None:
    root = write_set(tmp_path)
    (root / "train").rename(root / "val")
    write_set(tmp_path / "more")
    (root / "more/train").rename(root / "train")
    (root / "test/class0").rename(root / "test/unknown")
    with pytest.raises(DataError, match="unknown: the training set has no such class"):
        workload_class("alexnet").configured("tiny", classes=3).open(root, "test")


def test_a_class_folder_that_is_no_unicode_text_is_named_before_training(tmp_path: Path) -> None:
    root = write_set(tmp_path)
    (root / "train/class1").rename(root / "train" / os.fsdecode(b"caf\xe9"))
    with pytest.raises(DataError, match=r"the name of the folder b'caf\\xe9' is no UTF-8 text"):
        workload_class("alexnet").configured("tiny", classes=3).open(root, "train")


def test_a_test_image_that_cannot_be_read_leaves_what_was_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "checkpoints"))
    root = write_set(tmp_path / "set", side=160)  # larger than is decoded at the start
    whole = (root / "test/class2/7.jpg").read_bytes()
    (root / "test/class2/7.jpg").write_bytes(whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2))
    failed = trained(dataclasses.replace(IMAGES, data=str(root)))
    assert failed.outcome == "failed"
    assert str(failed.reason).startswith("trained, and not tested: ")
    assert "7.jpg" in str(failed.reason)
    assert (len(learning_of(failed).curve), learning_of(failed).quality) == (2, None)
    (root / "test/class2/7.jpg").write_bytes(whole)
    record = trained(dataclasses.replace(IMAGES, data=str(root)))
    assert (record.outcome, numbers(record)) == ("ok", numbers(failed))
