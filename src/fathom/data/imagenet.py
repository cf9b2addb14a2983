"""ImageNet: readers of class folders and of the original archive of archives, and a synthetic replacement."""

from __future__ import annotations

import math
import os
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from fathom.core.errors import DataError
from fathom.core.files import MB, limit_of, opened, read_bytes, too_large
from fathom.data._jpeg import BadImage, Box, decode, image_size
from fathom.data._left_out import left_out
from fathom.data._tar import Member, members
from fathom.data._thumbnails import Thumbnails
from fathom.data.base import Batch, Dataset, InMemory

ARCHIVE = "ILSVRC2012_img_train.tar"
EXPECTS = f"class folders of JPEG (train/CLASS/*.JPEG and val/CLASS/*.JPEG, or CLASS/*.JPEG), or {ARCHIVE}"
VALIDATION_FOLDERS = ("val", "valid", "validation")  # the first that has classes; it is the test where no test is
_SUFFIXES = (".jpeg", ".jpg", ".jpe", ".jfif")
_OTHER_IMAGES = {
    **{f".{name}": name.upper() for name in ("png", "gif", "bmp", "tif", "tiff", "avif", "heic", "jp2")},
    ".webp": "WebP",
}
CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
CIFAR10_SIZES = ((50_000, 10_000), (25_000, 5_000))  # training and test images: all, and the half we train on
MOST_COMPARED = 100_000  # images of a split that are read to find those that another split has, too
MOST_BYTES = 256 * MB  # of one image, packed: far beyond any photograph


class Files(Protocol):
    """Where the images are stored. Instances are plain data, so that worker processes can receive a copy."""

    class_names: tuple[str, ...]
    labels: NDArray[np.int64]

    @property
    def left_out(self) -> Mapping[str, int]:
        """How many files of the folders are not read, by what they are."""

    def content(self, index: int) -> bytes: ...

    def error(self, index: int, problem: str) -> DataError:
        """The error to raise for an image, with its file and offset."""


class Images(Dataset):
    """Images decoded on access: a random crop with random horizontal flip for training, a centre crop for testing."""

    def __init__(self, files: Files, side: int, augment: bool) -> None:
        self.files, self.side, self.augment = files, side, augment
        self.class_names, self.left_out = files.class_names, files.left_out

    def __len__(self) -> int:
        return len(self.files.labels)

    def __getitem__(self, indices: Sequence[int]) -> Batch:
        return self.drawn(indices, 0)

    def drawn(self, indices: Sequence[int], number: int) -> Batch:
        # The batch's number and indices seed the augmentation: the result does not depend on which worker reads the
        # batch, and even a batch of one image, whose indices are the same in every epoch, is cropped differently.
        rng = np.random.default_rng([number, *indices])
        pixels = np.empty((len(indices), self.side, self.side, 3), np.uint8)
        for row, index in enumerate(indices):
            if self.augment:
                image = self._decoded(index, partial(random_crop, rng))
                pixels[row] = image[:, ::-1] if rng.random() < 0.5 else image
            else:
                pixels[row] = self._decoded(index, centre_crop)
        labels = self.files.labels[np.asarray(indices)]
        return {"image": torch.from_numpy(pixels).permute(0, 3, 1, 2), "label": torch.from_numpy(labels)}

    @property
    def notes(self) -> list[str]:
        return left_out(self.left_out, len(self), "file")

    def subset(self, rows: Sequence[int]) -> Images:
        return Images(SomeFiles(self.files, np.asarray(rows)), self.side, self.augment)

    def digests(self) -> NDArray[np.int64] | None:
        """Of the files' bytes, as long as that takes no more than a minute or so."""
        if len(self) > MOST_COMPARED:
            return None
        return np.array([hash(self.files.content(index)) for index in range(len(self))], np.int64)

    def _decoded(self, index: int, crop: Callable[[int, int], Box]) -> NDArray[np.uint8]:
        try:
            return decode(self.files.content(index), crop, self.side)
        except BadImage as error:
            raise self.files.error(index, str(error)) from None


def centre_crop(width: int, height: int) -> Box:
    """The box of scaling the shorter side to 256 and cropping the central 224 x 224."""
    side = min(width, height) * 224 / 256
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_crop(rng: np.random.Generator, width: int, height: int) -> Box:
    """A random box: aspect ratio 3:4 to 4:3, area 8 to 100 % of the largest box of that aspect ratio."""
    ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
    crop_width = min(width, height * ratio) * math.sqrt(rng.uniform(0.08, 1))
    crop_height = crop_width / ratio
    left, top = (width - crop_width) * rng.random(), (height - crop_height) * rng.random()
    return left, top, left + crop_width, top + crop_height


class Patterns(InMemory):
    """Synthetic images and their labels."""

    class_names: tuple[str, ...] = tuple(f"pattern {number}" for number in range(10))


def synthetic(seed: int, side: int, classes: int, items: int = 512) -> Patterns:
    """Ten smooth colour patterns (or fewer, if there are fewer classes), one per class, randomly shifted, with noise.

    The patterns are the same for every seed: another seed gives other images of the same classes.
    """
    used = min(classes, len(Patterns.class_names))
    coarse = torch.rand(used, 3, 5, 5, generator=torch.Generator().manual_seed(2012))
    smooth = F.interpolate(coarse, (side, side), mode="bicubic").clamp(0, 1).permute(0, 2, 3, 1)
    shapes = (smooth * 191).byte().numpy()
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(items) % used)
    shifts = rng.integers(-(side // 8), side // 8 + 1, (items, 2))
    pixels = rng.integers(0, 64, (items, side, side, 3), np.uint8)
    for image, label, shift in zip(pixels, labels, shifts, strict=True):
        image += np.roll(shapes[label], shift, (0, 1))
    return Patterns(image=torch.from_numpy(pixels).permute(0, 3, 1, 2), label=torch.from_numpy(labels))


def read(folder: Path, split: str, side: int, classes: int) -> Images:
    files = _find(folder, split)
    found = len(files.class_names)
    if found > classes:
        problem = f"{found} classes, but the network has {classes} outputs; run it with the option classes={found}"
        raise DataError.at(folder, problem)
    return Images(files, side, augment=split == "train")


def thumbnails(images: Images, largest: int) -> Thumbnails | None:
    """All images decoded at once; None unless they are squares of one size, at most `largest` pixels a side."""
    files = images.files
    if not largest:
        return None
    try:
        side, _ = image_size(files.content(0))
    except BadImage as error:
        raise files.error(0, str(error)) from None

    def whole(width: int, height: int) -> Box:
        if not width == height == side:
            raise _OtherSize
        return 0, 0, side, side

    if side > largest:
        return None
    reader = Images(files, side, augment=False)
    try:
        decoded = [reader._decoded(index, whole) for index in range(len(images))]
    except _OtherSize:
        return None
    pixels = torch.from_numpy(np.stack(decoded)).permute(0, 3, 1, 2)
    return Thumbnails(pixels, torch.from_numpy(files.labels), images.class_names, images.left_out)


class _OtherSize(Exception):
    """An image differs in size from the first of its set."""


def has_validation(folder: Path) -> bool:
    """Whether there are validation images beside test images: none are taken of training then.

    Test images that share no class with the training images have none: Tiny ImageNet has test/images.
    """
    train = set(_class_folders(folder / "train"))
    return all(train.intersection(_class_folders(each)) for each in _held_out_folders(folder))


def _held_out_folders(folder: Path) -> tuple[Path, Path]:
    """Where validation images and test images would be."""
    validation = (folder / name for name in VALIDATION_FOLDERS)
    return next((each for each in validation if _class_folders(each)), folder / "val"), folder / "test"


def is_cifar10(folder: Path) -> bool:
    """Whether these are CIFAR-10's images, by their classes and their number: CINIC-10 has more of the same classes."""
    if _class_folders(folder / "train") != CIFAR10:
        return False
    return tuple(len(_find(folder, split).labels) for split in ("train", "test")) in CIFAR10_SIZES


def _find(folder: Path, split: str) -> Files:
    """The images of a split; the training set, where present, defines the class numbers."""
    train, archive = folder / "train", folder / ARCHIVE
    if split in ("validation", "test") and has_validation(folder):
        return ClassFolders(_held_out_folders(folder)[split == "test"], _class_folders(train))
    held_out = next((each for each in _held_out_folders(folder) if _class_folders(each)), None)
    numbered = _class_folders(train) or (sorted(_class_archives(archive)) if archive.exists() else [])
    if split == "train" and numbered:
        return ClassFolders(train, numbered) if _class_folders(train) else TarOfTars(archive)
    if split == "test" and held_out:
        return ClassFolders(held_out, numbered or _class_folders(held_out))
    if numbered or held_out:
        wanted = "train" if split == "train" else "val"
        unlabelled = (folder / "ILSVRC2012_img_val.tar").exists() and not held_out
        hint = "; ILSVRC2012_img_val.tar has no class labels" if unlabelled else ""
        raise DataError.at(folder, f"no images for {split}; add {wanted}/CLASS/*.JPEG{hint}")
    if not (bare := _class_folders(folder)):
        raise DataError.at(folder, f"no class folders; the folder must contain {EXPECTS}")
    if split == "test":  # testing on the training images would be misleading
        raise DataError.at(folder, "no images for test; add train/CLASS/*.JPEG and val/CLASS/*.JPEG")
    return ClassFolders(folder, bare)


class SomeFiles:
    """Some of the images."""

    def __init__(self, files: Files, rows: NDArray[np.int64]) -> None:
        self.files, self.rows = files, rows
        self.class_names, self.labels = files.class_names, files.labels[rows]
        self.left_out = files.left_out

    def content(self, index: int) -> bytes:
        return self.files.content(int(self.rows[index]))

    def error(self, index: int, problem: str) -> DataError:
        return self.files.error(int(self.rows[index]), problem)


class ClassFolders:
    """CLASS/*.JPEG, classes numbered in the given order."""

    def __init__(self, root: Path, class_names: Sequence[str]) -> None:
        self.root, self.class_names = root, tuple(class_names)
        number_of = {name: number for number, name in enumerate(class_names)}
        names: list[bytes] = []
        labels = array("q")
        self.left_out: Counter[str] = Counter()
        for name in _class_folders(root):
            if name not in number_of:
                raise DataError.at(root / name, "the training set has no such class")
            found = _image_names(root / name, self.left_out)
            names += found
            labels.extend([number_of[name]] * len(found))
        beside = sum(_is_image(path.name) and path.is_file() for path in root.iterdir())
        self.left_out["beside the class folders"] = beside
        # one array: the reference counts of a list's items would make every worker copy its memory
        self.names = np.array(names)
        self.labels = np.array(labels, np.int64)

    def path(self, index: int) -> Path:
        return self.root / self.class_names[int(self.labels[index])] / os.fsdecode(self.names[index])

    def content(self, index: int) -> bytes:
        return read_bytes(self.path(index), MOST_BYTES)

    def error(self, index: int, problem: str) -> DataError:
        return DataError.at(self.path(index), problem)


class TarOfTars:
    """The archive as distributed, with one CLASS.tar per class: indexed when opened, never unpacked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        classes = _class_archives(path)
        self.class_names = tuple(sorted(classes))
        self.left_out: Counter[str] = Counter()
        names: list[bytes] = []
        offsets, sizes, labels = array("q"), array("q"), array("q")
        with opened(path) as file:
            for label, class_name in enumerate(self.class_names):
                whole = classes[class_name]
                inside = members(path, file, whole.offset, whole.offset + whole.size)
                found = [member for member in inside if _is_jpeg(member.name, self.left_out)]
                if not found:
                    raise DataError.at(path, f"no JPEG image in {whole.name}", offset=whole.offset)
                names += [member.name.encode() for member in found]
                offsets.extend(member.offset for member in found)
                sizes.extend(member.size for member in found)
                labels.extend([label] * len(found))
        self.names, self.offsets = np.array(names), np.array(offsets)
        self.sizes, self.labels = np.array(sizes), np.array(labels, np.int64)

    def content(self, index: int) -> bytes:
        # opened for every read: that costs microseconds, and worker processes must not share a file position
        size = int(self.sizes[index])
        if size > (most := limit_of(MOST_BYTES)):
            raise too_large(self.path, f"{self.names[index].decode()} is declared larger", most)
        with opened(self.path) as file:
            file.seek(self.offsets[index])
            return file.read(size)

    def error(self, index: int, problem: str) -> DataError:
        member = f"{self.class_names[int(self.labels[index])]}.tar, {self.names[index].decode()}"
        return DataError.at(self.path, f"{member}: {problem}", offset=int(self.offsets[index]))


def _class_archives(path: Path) -> dict[str, Member]:
    """The archives inside the archive, by class name."""
    found: dict[str, Member] = {}
    with opened(path) as file:
        for member in members(path, file, 0, path.stat().st_size):
            name = PurePosixPath(member.name)
            if name.suffix != ".tar":
                continue
            if name.stem in found:
                raise DataError.at(path, f"{name} appears twice", offset=member.offset)
            found[name.stem] = member
    if not found:
        raise DataError.at(path, "a tar archive of CLASS.tar archives was expected; it contains none")
    return found


def _class_folders(root: Path) -> list[str]:
    """The names of the subfolders, sorted; empty if the folder does not exist."""
    try:
        with os.scandir(root) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise DataError.at(root, f"cannot be read: {error.strerror or error}") from None
    for name in names:
        if name != os.fsencode(name).decode(errors="replace"):  # records and reports are Unicode text
            raise DataError.at(root, f"the name of the folder {os.fsencode(name)!r} is no UTF-8 text; rename it")
    return names


def _is_jpeg(name: str, left_out: Counter[str]) -> bool:
    """By its name; an image of another format is counted as left out."""
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in _OTHER_IMAGES:
        left_out[f"in {_OTHER_IMAGES[suffix]} format"] += 1
    return suffix in _SUFFIXES


def _is_image(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in (*_SUFFIXES, *_OTHER_IMAGES)


def _images_below(folder: Path) -> int:
    return sum(_is_image(name) for _, _, names in os.walk(folder) for name in names)


def _image_names(folder: Path, left_out: Counter[str]) -> list[bytes]:
    """The names of the JPEG files in a folder, sorted."""
    own: Counter[str] = Counter()
    names: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if _is_jpeg(entry.name, own):
                    if entry.is_file():
                        names.append(entry.name)
                    else:
                        own["that are no regular files"] += 1
                elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                    own["in subfolders"] += _images_below(folder / entry.name)
    except OSError as error:
        raise DataError.at(folder, f"cannot be read: {error.strerror or error}") from None
    if not names:
        others = ", ".join(f"{count} {reason}" for reason, count in own.items() if count)
        hint = f"; {others} cannot be read: convert them, or move them here" if others else ""
        raise DataError.at(folder, f"no JPEG image (*.JPEG, *.jpg) in this class folder{hint}")
    left_out.update(own)
    return [os.fsencode(name) for name in sorted(names)]
