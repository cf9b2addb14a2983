"""The ImageNet readers: exact on folders and on the archive of archives; corrupt files give clear errors."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import real_data
from fuzz import mutations, survive
from numpy.typing import NDArray
from PIL import Image

from fathom.core.errors import DataError
from fathom.core.feeding import Feeding
from fathom.data import imagenet
from fathom.data._jpeg import BadImage, decode
from fathom.data.base import Dataset, ShuffledBatches, feed, feeding

CPU = torch.device("cpu")


def scene(width: int, height: int) -> Image.Image:
    """An image that is smooth, different everywhere, and bright at its last corner."""
    across, down = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    red, green, blue = 40 + 200 * across, 40 + 200 * down, 240 - 100 * across * down
    return Image.fromarray(np.stack([red, green, blue], -1).astype(np.uint8))


def jpeg(image: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, **{"format": "JPEG", "quality": 95, **options})
    return buffer.getvalue()


def plain(shade: int, side: int = 24) -> bytes:
    return jpeg(Image.new("RGB", (side, side), (shade, shade, shade)))


def write_folders(root: Path, classes: dict[str, list[bytes]]) -> Path:
    for name, files in classes.items():
        (root / name).mkdir(parents=True)
        for number, content in enumerate(files):
            (root / name / f"{name}_{number}.JPEG").write_bytes(content)
    return root


def tar_of(files: dict[str, bytes], archive_format: int = tarfile.GNU_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=archive_format) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), 1.5  # in pax, a fraction of a second calls for an extra header
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def write_archive(folder: Path, classes: dict[str, list[bytes]], archive_format: int = tarfile.GNU_FORMAT) -> Path:
    inner = {
        f"{name}.tar": tar_of({f"{name}_{n}.JPEG": content for n, content in enumerate(files)}, archive_format)
        for name, files in classes.items()
    }
    path = folder / imagenet.ARCHIVE
    path.write_bytes(tar_of(inner, archive_format))
    return path


SHADES = {
    "n03": [plain(200), plain(210)],
    "n01": [plain(30)],
    "n02": [plain(90), plain(100), plain(110)],
}  # not in order


def shades(images: imagenet.Images) -> dict[int, list[int]]:
    """What was read, as class number and brightness."""
    batch = images[range(len(images))]
    found: dict[int, list[int]] = {}
    for label, image in zip(batch["label"].tolist(), batch["image"], strict=True):
        found.setdefault(label, []).append(round(image.float().mean().item()))
    return found


EXPECTED_SHADES = {0: [30], 1: [90, 100, 110], 2: [200, 210]}


@pytest.mark.parametrize("archive_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_archive_is_read_in_place_with_classes_in_order(tmp_path: Path, archive_format: int) -> None:
    write_archive(tmp_path, SHADES, archive_format)
    images = imagenet.read(tmp_path, "train", side=16, classes=3)
    assert images.class_names == ("n01", "n02", "n03")
    assert shades(images) == EXPECTED_SHADES


def test_folders_are_read_with_classes_in_order(tmp_path: Path) -> None:
    write_folders(tmp_path / "train", SHADES)
    (tmp_path / "train" / "n01" / "notes.txt").write_text("no image")
    (tmp_path / "train" / ".cache").mkdir()
    assert shades(imagenet.read(tmp_path, "train", side=16, classes=1000)) == EXPECTED_SHADES


def test_bare_class_folders_are_a_training_set_even_if_a_class_is_called_train(tmp_path: Path) -> None:
    write_folders(tmp_path, {"train": [plain(50)], "aeroplane": [plain(150)]})
    images = imagenet.read(tmp_path, "train", side=16, classes=2)
    assert images.class_names == ("aeroplane", "train")
    assert shades(images) == {0: [150], 1: [50]}
    with pytest.raises(DataError, match=r"no images for test; add train/CLASS/\*.JPEG and val/CLASS"):
        imagenet.read(tmp_path, "test", side=16, classes=2)


@pytest.mark.parametrize("layout", ["folders", "archive"])
def test_training_set_numbers_the_classes_of_the_test_set(tmp_path: Path, layout: str) -> None:
    if layout == "folders":
        write_folders(tmp_path / "train", SHADES)
    else:
        write_archive(tmp_path, SHADES)
    write_folders(tmp_path / "val", {"n03": [plain(180)]})
    assert shades(imagenet.read(tmp_path, "test", side=16, classes=3)) == {2: [180]}
    write_folders(tmp_path / "val", {"n99": [plain(180)]})
    with pytest.raises(DataError, match=r"val/n99: the training set has no such class"):
        imagenet.read(tmp_path, "test", side=16, classes=3)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no class folders; the folder must contain class folders of JPEG"):
        imagenet.read(tmp_path, "train", 16, 10)
    write_archive(tmp_path, SHADES)
    with pytest.raises(DataError, match=r"no images for test; add val/CLASS/\*\.JPEG$"):
        imagenet.read(tmp_path, "test", 16, 10)
    (tmp_path / "ILSVRC2012_img_val.tar").touch()
    with pytest.raises(DataError, match="ILSVRC2012_img_val.tar has no class labels"):
        imagenet.read(tmp_path, "test", 16, 10)
    with pytest.raises(DataError, match=r"3 classes, but the network has 2 outputs; .* classes=3"):
        imagenet.read(tmp_path, "train", 16, 2)
    (write_folders(tmp_path / "val", {"n01": [plain(1)]}) / "n02").mkdir()
    with pytest.raises(DataError, match="val/n02: no JPEG image"):
        imagenet.read(tmp_path, "test", 16, 10)


def slow_centre_crop(image: Image.Image, side: int) -> NDArray[np.uint8]:
    """The textbook way: scale the shorter side to 256/224 of the wanted one, then crop the centre."""
    scale = side * 256 / 224 / min(image.size)
    size = round(image.width * scale), round(image.height * scale)
    large = image.convert("RGB").resize(size, Image.Resampling.BILINEAR)
    left, top = (large.width - side) // 2, (large.height - side) // 2
    return np.asarray(large.crop((left, top, left + side, top + side)))


@pytest.mark.parametrize("size", [(500, 375), (333, 500), (2400, 1800), (40, 30)])
def test_centre_crop_agrees_with_scaling_then_cropping(size: tuple[int, int]) -> None:
    content = jpeg(scene(*size))
    fast = decode(content, imagenet.centre_crop, 112).astype(int)
    difference = np.abs(fast - slow_centre_crop(Image.open(io.BytesIO(content)), 112))
    assert difference.mean() < 1.5, "also where libjpeg decoded at a fraction of the size"
    assert difference.max() < 8


def test_large_images_are_decoded_small(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[tuple[int, int]] = []
    resize = Image.Image.resize

    def spy(image: Image.Image, *arguments: Any) -> Image.Image:
        decoded.append(image.size)
        return resize(image, *arguments)

    monkeypatch.setattr(Image.Image, "resize", spy)
    for side in (112, 224, 1000):
        decode(jpeg(scene(2400, 1800)), imagenet.centre_crop, side)
    assert decoded == [(300, 225), (600, 450), (2400, 1800)], "the least that leaves side of 7/8 of the rows"


def test_random_crop_lies_inside_and_has_its_shape() -> None:
    rng = np.random.default_rng(0)
    for _ in range(2000):
        width, height = rng.integers(1, 700, 2).tolist()
        left, top, right, bottom = imagenet.random_crop(rng, width, height)
        across, down = right - left, bottom - top
        assert 0 <= left < right <= width + 1e-9
        assert 0 <= top < bottom <= height + 1e-9
        ratio = across / down
        assert 0.7499 < ratio < 1.3334
        largest = min(width, height * ratio) ** 2 / ratio
        assert 0.0799 < across * down / largest < 1.0001


def test_augmentation_follows_the_batch_and_mirrors_half(tmp_path: Path) -> None:
    write_folders(tmp_path / "train", {"n01": [jpeg(scene(64, 64)), plain(9)]})
    images = imagenet.read(tmp_path, "train", 32, 1000)
    batch = [0] * 400
    first, again, other = images[batch]["image"], images[batch]["image"], images[[*batch[1:], 1]]["image"]
    assert torch.equal(first, again)
    assert not torch.equal(first[0], other[0]), "in another batch the same image is cropped differently"
    red = first[:, 0].float()
    mirrored = (red[:, :, 0].mean(1) > red[:, :, -1].mean(1)).float().mean()
    assert 0.4 < mirrored < 0.6
    assert len(torch.unique(red.mean((1, 2)))) > 200, "crops differ within a batch"


@pytest.mark.parametrize("part", [False, True])
def test_a_batch_of_one_image_is_cropped_differently_in_every_step(tmp_path: Path, part: bool) -> None:
    images = imagenet.read(write_folders(tmp_path / "train", {"n01": [jpeg(scene(64, 64))]}).parent, "train", 32, 10)
    source = Dataset.subset(images, [0]) if part else images
    with feeding(Feeding()):
        steps = [batch["image"] for batch in islice(feed(source, 1, CPU, seed=3), 20)]
        (resumed,) = islice(feed(source, 1, CPU, seed=3, start=7), 1)
    assert len({step.numpy().tobytes() for step in steps}) == 20
    assert torch.equal(resumed["image"], steps[7]), "a run that is resumed sees what it would have seen"


def test_batches_are_bytes_in_channels_last(tmp_path: Path) -> None:
    batch = imagenet.read(write_folders(tmp_path / "val", SHADES).parent, "test", 16, 3)[[0, 3, 3]]
    assert batch["image"].shape == (3, 3, 16, 16)
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    assert (batch["image"].dtype, batch["label"].dtype) == (torch.uint8, torch.int64)
    assert batch["label"].tolist() == [0, 1, 1]


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
def test_every_colour_space_becomes_rgb(mode: str) -> None:
    image = Image.new("RGB", (32, 32), (60, 60, 60)).convert(mode)
    pixels = decode(jpeg(image), imagenet.centre_crop, 16)
    assert pixels.shape == (16, 16, 3)
    assert np.abs(pixels.astype(int) - 60).max() <= 2


def test_the_one_png_among_the_jpegs_is_read() -> None:
    pixels = decode(jpeg(Image.new("RGB", (32, 32), (10, 20, 30)), format="PNG"), imagenet.centre_crop, 16)
    assert (pixels == (10, 20, 30)).all()


OPTIONS: list[dict[str, Any]] = [{}, {"subsampling": 0}, {"mode": "L"}, {"mode": "CMYK"}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("size", [(160, 120), (97, 81), (1600, 1200)])
def test_truncated_data_is_refused_not_filled_with_grey(size: tuple[int, int], options: dict[str, Any]) -> None:
    whole = jpeg(scene(*size).convert(options.get("mode", "RGB")), **{"subsampling": options.get("subsampling", 2)})
    decode(whole, imagenet.centre_crop, 64)
    for share in (0.5, 0.9, 0.99):
        at = int(len(whole) * share)
        with pytest.raises(BadImage, match="truncated"):
            decode(whole[:at], imagenet.centre_crop, 64)
        with pytest.raises(BadImage, match="the data ends before the image is complete"):
            decode(whole[:at] + b"\xff\xd9", imagenet.centre_crop, 64)


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_grey_images_are_not_mistaken_for_truncated_ones(mode: str, progressive: bool) -> None:
    for shade in range(120, 137):
        content = jpeg(Image.new("RGB", (72, 40), (shade, shade, shade)).convert(mode), progressive=progressive)
        assert np.abs(decode(content, imagenet.centre_crop, 16).astype(int) - shade).max() <= 2


@pytest.mark.parametrize("side", [2_000, 9_000, 12_000, 65_000])
def test_header_with_too_many_pixels_is_refused(side: int) -> None:
    content = bytearray(plain(77))
    frame = content.index(b"\xff\xc0") + 5
    content[frame : frame + 4] = side.to_bytes(2) * 2
    with pytest.raises(BadImage, match="cannot hold|bomb"):
        decode(bytes(content), imagenet.centre_crop, 16)


def test_corrupt_image_names_its_file_or_its_offset_in_the_archive(tmp_path: Path) -> None:
    broken = plain(30)[:200]
    write_folders(tmp_path / "val", {"n01": [plain(30), broken]})
    with pytest.raises(DataError, match=r"val/n01/n01_1\.JPEG: corrupt JPEG: "):
        imagenet.read(tmp_path, "test", 16, 10)[[0, 1]]
    path = write_archive(tmp_path, {"n01": [plain(30)], "n02": [plain(40), b"no image"]})
    images = imagenet.read(tmp_path, "train", 16, 10)
    offset = path.read_bytes().index(b"no image")
    with pytest.raises(DataError, match=rf"img_train\.tar: byte {offset}: n02\.tar, n02_1\.JPEG: not a JPEG image"):
        images[[0, 1, 2]]


def test_image_that_vanished_is_named(tmp_path: Path) -> None:
    images = imagenet.read(write_folders(tmp_path / "val", SHADES).parent, "test", 16, 10)
    (tmp_path / "val/n02/n02_1.JPEG").unlink()
    with pytest.raises(DataError, match=r"n02/n02_1\.JPEG: cannot be read: No such file"):
        images[[2]]


def headers(path: Path) -> Iterator[int]:
    """Where each inner archive's first header lies."""
    with tarfile.open(path) as archive:
        yield from (member.offset_data for member in archive)


def test_damaged_header_is_an_error_where_the_standard_library_stops_reading(tmp_path: Path) -> None:
    path = write_archive(tmp_path, SHADES)
    whole = path.read_bytes()
    second = list(headers(path))[2] + 512 + -(-len(SHADES["n02"][0]) // 512) * 512
    for damage, problem in ((b"\x07" * 8, "a tar header was expected"), (bytes(512), "ends here, but a member 'n02_2")):
        content = bytearray(whole)
        content[second : second + len(damage)] = damage
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"img_train\.tar: byte {second}: .*{problem}"):
            imagenet.read(tmp_path, "train", 16, 10)


def test_truncated_archive_is_an_error_wherever_it_is_cut(tmp_path: Path) -> None:
    path = write_archive(tmp_path, SHADES)
    whole = path.read_bytes()
    end = whole.rindex(b"\xff\xd9")
    for length in [*range(0, end, 997), *range(0, end, 512)]:
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"img_train\.tar: (byte \d+: )?(truncated|member|a tar)"):
            imagenet.read(tmp_path, "train", 16, 10)


def test_archive_of_something_else_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / imagenet.ARCHIVE
    path.write_bytes(tar_of({"n01/n01_1.JPEG": plain(1)}))
    with pytest.raises(DataError, match=r"CLASS\.tar archives was expected"):
        imagenet.read(tmp_path, "train", 16, 10)
    path.write_bytes(tar_of({"n01.tar": tar_of({"readme": b"x"})}))
    with pytest.raises(DataError, match=r"no JPEG image in n01\.tar"):
        imagenet.read(tmp_path, "train", 16, 10)
    path.write_bytes(tar_of({"n01.tar": tar_of({}), "./n01.tar": tar_of({})}))
    with pytest.raises(DataError, match="n01.tar appears twice"):
        imagenet.read(tmp_path, "train", 16, 10)


@pytest.mark.parametrize("layout", ["folders", "archive"])
def test_background_workers_read_what_is_read_directly(tmp_path: Path, layout: str) -> None:
    classes = {f"n{n}": [jpeg(scene(40 + n, 50 + i)) for i in range(4)] for n in range(3)}
    if layout == "folders":
        write_folders(tmp_path / "train", classes)
    else:
        write_archive(tmp_path, classes)
    images = imagenet.read(tmp_path, "train", 24, 10)
    pickled: imagenet.Images = pickle.loads(pickle.dumps(images))
    fed = list(islice(feed(images, 5, CPU, seed=3), 5))
    for number, (batch, indices) in enumerate(zip(fed, ShuffledBatches(len(images), 5, seed=3), strict=False)):
        for direct in (images.drawn(indices, number), pickled.drawn(indices, number)):
            assert torch.equal(batch["image"], direct["image"])
            assert torch.equal(batch["label"], direct["label"])
    assert fed[0]["image"].is_contiguous(memory_format=torch.channels_last)


def test_corrupt_image_met_by_a_worker_arrives_as_one_line(tmp_path: Path) -> None:
    write_folders(tmp_path / "train", {"n01": [plain(30), plain(30)[:250], plain(40)]})
    images = imagenet.read(tmp_path, "train", 16, 10)
    with pytest.raises(DataError) as caught:
        list(islice(feed(images, 3, CPU, seed=0), 2))
    text = str(caught.value)
    assert text.startswith(f"{tmp_path / 'train/n01/n01_1.JPEG'}: corrupt JPEG: ")
    assert "\n" not in text


KINDS: dict[str, bytes] = {
    "baseline": jpeg(scene(52, 40)),
    "progressive": jpeg(scene(52, 40), progressive=True),
    "restarts": jpeg(scene(52, 40), restart_marker_blocks=1),
    "grey": jpeg(scene(52, 40).convert("L")),
    "cmyk": jpeg(scene(52, 40).convert("CMYK")),
    "png": jpeg(scene(52, 40), format="PNG"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_corrupt_images_are_refused_or_valid(kind: str) -> None:
    refusals: list[str] = []
    for content in mutations(KINDS[kind], 1200):
        try:
            pixels = decode(content, imagenet.centre_crop, 32)
        except BadImage as error:
            refusals.append(str(error))
        else:
            assert pixels.shape == (32, 32, 3)
            assert pixels.dtype == np.uint8
    assert len(refusals) > 600
    assert not any("\n" in text for text in refusals)


def test_corrupt_archives_are_refused_or_whole(tmp_path: Path) -> None:
    path = write_archive(tmp_path, {"n01": [plain(30), plain(50)], "n02": [plain(90)]})

    def read() -> None:
        images = imagenet.read(tmp_path, "train", 16, 10)
        assert len(images) == 3, "no image is lost silently"
        assert images[[0, 1, 2]]["label"].tolist() == [0, 0, 1]

    refused, accepted = survive(path, read, count=2000)
    assert accepted + refused == 2000
    assert refused > 1000


def test_every_damaged_header_byte_is_noticed(tmp_path: Path) -> None:
    path = write_archive(tmp_path, {"n01": [plain(30)], "n02": [plain(90)]})
    whole = path.read_bytes()
    inner = list(headers(path))
    for start in (0, inner[0], inner[1]):
        for at in {*range(start, start + 345)} - {start + 154, start + 155}:  # the two that end the checksum's digits
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x01]) + whole[at + 1 :])
            with pytest.raises(DataError, match="a tar header was expected"):
                imagenet.read(tmp_path, "train", 16, 10)


@pytest.mark.realdata
def test_real_cifar10_as_class_folders() -> None:
    folder = real_data("cifar10-jpeg")
    train, test = (imagenet.read(folder, split, 64, 10) for split in ("train", "test"))
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    assert train.class_names == test.class_names == names
    for images in (train, test):
        labels = images.files.labels
        assert (np.bincount(labels) == len(labels) // 10).all()
    one_each = test[[len(test) // 10 * number for number in range(10)]]
    assert one_each["label"].tolist() == list(range(10))
    assert 60 < one_each["image"].float().mean() < 180


@pytest.mark.realdata
def test_real_imagenet_images() -> None:
    folder = real_data("imagenet-samples")
    images = imagenet.read(folder, "train", 224, 1000)
    rows = [line.split("\t") for line in (folder / "labels.tsv").read_text().splitlines()[1:]]
    wordnet = {row[1]: int(row[0]) for row in rows}
    published = [wordnet[name] for name in images.class_names]
    assert published == sorted(published), "our order of classes is ImageNet's own"
    images.augment = False
    batch = images[range(len(images))]
    assert batch["label"].tolist() == list(range(len(images.class_names)))
    assert isinstance(images.files, imagenet.ClassFolders)
    for index, image in enumerate(batch["image"]):
        exact = slow_centre_crop(Image.open(images.files.path(index)), 224)
        assert np.abs(coarse(image.permute(1, 2, 0).numpy()) - coarse(exact)).mean() < 2, images.files.path(index)


def coarse(pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Means over 16 x 16 pixels, which the rounding of a crop to whole pixels hardly moves."""
    means: NDArray[np.float64] = pixels.reshape(14, 16, 14, 16, 3).mean((1, 3))
    return means


def test_synthetic_classes_are_learnable_and_shared_by_all_seeds() -> None:
    seen, unseen, again = (imagenet.synthetic(seed, 48, 1000).columns for seed in (0, 1, 0))
    assert torch.equal(seen["image"], again["image"])
    assert not torch.equal(seen["image"], unseen["image"])
    assert torch.bincount(seen["label"]).tolist() == [52, 52, *[51] * 8]
    blurred = [torch.nn.functional.avg_pool2d(part["image"].float(), 12).flatten(1) for part in (seen, unseen)]
    means = torch.stack([blurred[0][seen["label"] == label].mean(0) for label in range(10)])
    nearest = torch.cdist(blurred[1], means).argmin(1)
    assert (nearest == unseen["label"]).float().mean() > 0.9
    assert imagenet.synthetic(0, 48, classes=3).columns["label"].max() == 2
