"""ImageNet: class folders of JPEG or the original archive of archives, and synthetic patterns in their place."""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from fathom.core.errors import DataError
from fathom.data._jpeg import BadPicture, Box, decode, size
from fathom.data._tar import Member, members
from fathom.data._thumbnails import Thumbnails
from fathom.data.base import Batch, Dataset, InMemory

ARCHIVE = "ILSVRC2012_img_train.tar"
EXPECTS = f"class folders of JPEG (train/CLASS/*.JPEG and val/CLASS/*.JPEG, or CLASS/*.JPEG), or {ARCHIVE}"
_SUFFIXES = (".jpeg", ".jpg")


class Files(Protocol):
    """Where the pictures are: plain data, so that a worker process can be handed a copy."""

    class_names: tuple[str, ...]
    labels: NDArray[np.int64]

    def content(self, index: int) -> bytes: ...

    def fault(self, index: int, problem: str) -> DataError: ...


class Images(Dataset):
    """Pictures decoded when they are asked for: a random part, mirrored or not, to train on; the middle to test on."""

    def __init__(self, files: Files, side: int, augment: bool) -> None:
        self.files, self.side, self.augment = files, side, augment
        self.class_names = files.class_names

    def __len__(self) -> int:
        return len(self.files.labels)

    def __getitem__(self, indices: Sequence[int]) -> Batch:
        # The company an item keeps changes with every shuffle, so it can seed the augmentation: the same in
        # whichever process reads the batch, another the next time round, and no counter to carry.
        rng = np.random.default_rng(indices)
        pixels = np.empty((len(indices), self.side, self.side, 3), np.uint8)
        for row, index in enumerate(indices):
            if self.augment:
                picture = self._decoded(index, partial(random_part, rng))
                pixels[row] = picture[:, ::-1] if rng.random() < 0.5 else picture
            else:
                pixels[row] = self._decoded(index, middle)
        labels = self.files.labels[np.asarray(indices)]
        return {"image": torch.from_numpy(pixels).permute(0, 3, 1, 2), "label": torch.from_numpy(labels)}

    def _decoded(self, index: int, part: Callable[[int, int], Box]) -> NDArray[np.uint8]:
        try:
            return decode(self.files.content(index), part, self.side)
        except BadPicture as error:
            raise self.files.fault(index, str(error)) from None


def middle(width: int, height: int) -> Box:
    """The square that is left when the shorter side is scaled to 256 and 224 x 224 are kept."""
    kept = min(width, height) * 224 / 256
    left, top = (width - kept) / 2, (height - kept) / 2
    return left, top, left + kept, top + kept


def random_part(rng: np.random.Generator, width: int, height: int) -> Box:
    """Sides in a ratio of 3:4 to 4:3, and 8 to 100 % of the largest area of that shape."""
    ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
    across = min(width, height * ratio) * math.sqrt(rng.uniform(0.08, 1))
    down = across / ratio
    left, top = (width - across) * rng.random(), (height - down) * rng.random()
    return left, top, left + across, top + down


class Patterns(InMemory):
    """Synthetic pictures and the class of each."""

    class_names: tuple[str, ...] = tuple(f"pattern {number}" for number in range(10))


def synthetic(seed: int, side: int, classes: int, items: int = 512) -> Patterns:
    """Ten blurred patterns of colour (or as many as there are classes), one a class, shifted about under noise.

    The patterns are the same for every seed: another seed gives other pictures of the same classes.
    """
    used = min(classes, len(Patterns.class_names))
    coarse = torch.rand(used, 3, 5, 5, generator=torch.Generator().manual_seed(2012))
    smooth = F.interpolate(coarse, (side, side), mode="bicubic").clamp(0, 1).permute(0, 2, 3, 1)
    shapes = (smooth * 191).byte().numpy()
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(items) % used)
    shifts = rng.integers(-(side // 8), side // 8 + 1, (items, 2))
    pixels = rng.integers(0, 64, (items, side, side, 3), np.uint8)
    for picture, label, shift in zip(pixels, labels, shifts, strict=True):
        picture += np.roll(shapes[label], shift, (0, 1))
    return Patterns(image=torch.from_numpy(pixels).permute(0, 3, 1, 2), label=torch.from_numpy(labels))


def read(folder: Path, split: str, side: int, classes: int) -> Images:
    files = _find(folder, split)
    found = len(files.class_names)
    if found > classes:
        problem = f"{found} classes, but the network tells {classes} apart; run it with the option classes={found}"
        raise DataError.at(folder, problem)
    return Images(files, side, augment=split == "train")


def thumbnails(images: Images, largest: int) -> Thumbnails | None:
    """All of a set's pictures, decoded now; None where they are not squares of one size, and no larger than that."""
    files = images.files
    if not largest:
        return None
    try:
        side, _ = size(files.content(0))
    except BadPicture as error:
        raise files.fault(0, str(error)) from None

    def whole(width: int, height: int) -> Box:
        if not width == height == side:
            raise _OtherSize
        return 0, 0, side, side

    if side > largest:
        return None
    reader = Images(files, side, augment=False)
    try:
        pictures = [reader._decoded(index, whole) for index in range(len(images))]
    except _OtherSize:
        return None
    pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)
    return Thumbnails(pixels, torch.from_numpy(files.labels), images.class_names)


class _OtherSize(Exception):
    """A picture that is not as large as the first of its set."""


def _find(folder: Path, split: str) -> Files:
    """The pictures of a split; the classes are numbered by the training set where there is one."""
    train, archive = folder / "train", folder / ARCHIVE
    held_out = next((place for place in (folder / "val", folder / "test") if _class_folders(place)), None)
    numbered = _class_folders(train) or (sorted(_class_archives(archive)) if archive.exists() else [])
    if split == "train" and numbered:
        return ClassFolders(train, numbered) if _class_folders(train) else TarOfTars(archive)
    if split == "test" and held_out:
        return ClassFolders(held_out, numbered or _class_folders(held_out))
    if numbered or held_out:
        wanted = "train" if split == "train" else "val"
        unlabelled = (folder / "ILSVRC2012_img_val.tar").exists() and not held_out
        hint = "; ILSVRC2012_img_val.tar does not say its classes" if unlabelled else ""
        raise DataError.at(folder, f"no pictures to {split} on; put there {wanted}/CLASS/*.JPEG{hint}")
    if not (bare := _class_folders(folder)):
        raise DataError.at(folder, f"no class folders in it; put there {EXPECTS}")
    if split == "test":  # the same pictures would be learnt and judged by
        raise DataError.at(folder, "no pictures to test on; put there train/CLASS/*.JPEG and val/CLASS/*.JPEG")
    return ClassFolders(folder, bare)


class ClassFolders:
    """CLASS/*.JPEG, the classes numbered in the order of their names."""

    def __init__(self, root: Path, class_names: Sequence[str]) -> None:
        self.root, self.class_names = root, tuple(class_names)
        number_of = {name: number for number, name in enumerate(class_names)}
        names: list[bytes] = []
        labels = array("q")
        for name in _class_folders(root):
            if name not in number_of:
                raise DataError.at(root / name, "the training set has no such class")
            found = _pictures(root / name)
            names += found
            labels.extend([number_of[name]] * len(found))
        self.names = np.array(names)  # one block of memory: touching a list's strings would copy them in every worker
        self.labels = np.array(labels, np.int64)

    def path(self, index: int) -> Path:
        return self.root / self.class_names[int(self.labels[index])] / os.fsdecode(self.names[index])

    def content(self, index: int) -> bytes:
        try:
            return self.path(index).read_bytes()
        except OSError as error:
            raise self.fault(index, f"cannot be read: {error.strerror or error}") from None

    def fault(self, index: int, problem: str) -> DataError:
        return DataError.at(self.path(index), problem)


class TarOfTars:
    """The archive as it was shipped, one CLASS.tar for each class: indexed when opened, never unpacked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        classes = _class_archives(path)
        self.class_names = tuple(sorted(classes))
        names: list[bytes] = []
        offsets, sizes, labels = array("q"), array("q"), array("q")
        with path.open("rb", buffering=0) as file:
            for label, class_name in enumerate(self.class_names):
                whole = classes[class_name]
                inside = members(path, file, whole.offset, whole.offset + whole.size)
                found = [member for member in inside if member.name.lower().endswith(_SUFFIXES)]
                if not found:
                    raise DataError.at(path, f"no JPEG picture in {whole.name}", offset=whole.offset)
                names += [member.name.encode() for member in found]
                offsets.extend(member.offset for member in found)
                sizes.extend(member.size for member in found)
                labels.extend([label] * len(found))
        self.names, self.offsets = np.array(names), np.array(offsets)
        self.sizes, self.labels = np.array(sizes), np.array(labels, np.int64)

    def content(self, index: int) -> bytes:
        # opened anew for each: microseconds beside a decode, and no place in the file for processes to quarrel over
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(self.offsets[index])
                return file.read(int(self.sizes[index]))
        except OSError as error:
            raise self.fault(index, f"cannot be read: {error.strerror or error}") from None

    def fault(self, index: int, problem: str) -> DataError:
        member = f"{self.class_names[int(self.labels[index])]}.tar, {self.names[index].decode()}"
        return DataError.at(self.path, f"{member}: {problem}", offset=int(self.offsets[index]))


def _class_archives(path: Path) -> dict[str, Member]:
    """The archives inside the archive, by the class they are named after."""
    found: dict[str, Member] = {}
    try:
        with path.open("rb", buffering=0) as file:
            for member in members(path, file, 0, path.stat().st_size):
                name = PurePosixPath(member.name)
                if name.suffix != ".tar":
                    continue
                if name.stem in found:
                    raise DataError.at(path, f"a second {name}", offset=member.offset)
                found[name.stem] = member
    except OSError as error:
        raise DataError.at(path, f"cannot be read: {error.strerror or error}") from None
    if not found:
        raise DataError.at(path, "a tar archive of CLASS.tar archives was expected; there is none in it")
    return found


def _class_folders(root: Path) -> list[str]:
    """The folders in a folder, by name; none where there is no folder."""
    try:
        with os.scandir(root) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise DataError.at(root, f"cannot be read: {error.strerror or error}") from None


def _pictures(folder: Path) -> list[bytes]:
    """The names of the pictures in a folder, in order."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.name.lower().endswith(_SUFFIXES) and entry.is_file()]
    except OSError as error:
        raise DataError.at(folder, f"cannot be read: {error.strerror or error}") from None
    if not names:
        raise DataError.at(folder, "no JPEG picture (*.JPEG, *.jpg) in this class folder")
    return [os.fsencode(name) for name in sorted(names)]
