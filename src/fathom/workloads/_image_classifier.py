"""What the three ImageNet networks share: bytes in, normalised on the device, cross-entropy, five guesses out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from fathom.core.errors import BadOption
from fathom.core.record import Artifact
from fathom.data import imagenet
from fathom.data._thumbnails import Augmentation, Thumbnails, augmented, resized
from fathom.data.base import Batch, once, part_of_training
from fathom.workloads.base import Output, State, Workload
from fathom.workloads.recipe import Recipe, warmup_cosine

_MEAN = (0.485, 0.456, 0.406)  # of ImageNet's red, green and blue, where white is 1
_DEVIATION = (0.229, 0.224, 0.225)
_SHRINKS = (1, 2, 4, 8, 16)  # every width of the three networks can be divided by these, AlexNet's groups included
_EVALUATED = 500  # images at a time
THUMBNAILS = {  # what the three recipes share: ten classes of small images, augmented so that few of them teach more
    "batch": 128,
    "classes": 10,
    "resident": 64,
    "zoom": 0.15,
    "rotation": 10.0,
    "color_jitter": 0.2,
    "cutout": 0.25,
    "label_smoothing": 0.1,
    "averaging": 0.998,
    "mirrored": True,
}


class Normalise(nn.Module):
    """Bytes to floats of zero mean and unit deviation per colour channel, in the network's memory format.

    The conversion to float is written out: export formats have no product of bytes and floats, and no `out=`.
    """

    scale: Tensor
    offset: Tensor

    def __init__(self, channels_last: bool) -> None:
        super().__init__()
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (_MEAN, _DEVIATION))
        self.register_buffer("scale", 1 / (255 * deviation), persistent=False)
        self.register_buffer("offset", -mean / deviation, persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        pixels = image.to(self.scale.dtype, memory_format=self.memory_format)
        return torch.addcmul(self.offset, pixels, self.scale)


def dense_layers(features: int, hidden: int, classes: int, dropout: float) -> nn.Sequential:
    """The three fully connected layers that AlexNet introduced and VGG kept."""
    layers = nn.Sequential()
    for number, (inputs, outputs) in enumerate(((features, hidden), (hidden, hidden)), start=1):
        layers.add_module(f"full{number}", nn.Linear(inputs, outputs))
        layers.add_module(f"relu{number}", nn.ReLU(inplace=True))
        layers.add_module(f"dropout{number}", nn.Dropout(dropout))
    layers.add_module("full3", nn.Linear(hidden, classes))
    return layers


@dataclass(frozen=True, kw_only=True)
class ImageRecipe(Recipe["ImageClassifier"]):
    """Top-1 accuracy on a folder of images."""

    metric: str = "top-1 accuracy"
    unit: str = "%"
    better: Literal["higher", "lower"] = "higher"
    engine: str = "cudagraph"
    protocol: str = (
        "all images of the test set, small squares whole and others cropped to their centre, scaled to the network's "
        "input, the mean of its probabilities and "
        "those of its mirror image; a running mean of the weights is evaluated after every epoch on the validation "
        "images (where the folder has none, a twentieth of the training images, which training does not see), and the "
        "best of these is tested once"
    )

    def for_run(self, folder: Path | None, options: Mapping[str, Any]) -> ImageRecipe:
        return self if folder is None or imagenet.is_cifar10(folder) else self.without_target("CIFAR-10")

    def schedule(self, workload: ImageClassifier, optimizer: Optimizer, steps: int) -> LambdaLR:
        return warmup_cosine(optimizer, steps, max(1.0, workload.warm_up * steps))

    def evaluate(self, workload: ImageClassifier, state: State, data: Any) -> float:
        """The share of images whose likeliest class is theirs, in percent."""
        right = workload.confusion(state, data).diagonal().sum()
        return 100 * float(right) / len(data)

    def artifacts(self, workload: ImageClassifier, state: State, data: Any) -> list[Artifact]:
        """How well each class is recognised, and what it is most often confused with."""
        confusion, known = workload.confusion(state, data), len(data.class_names)
        names = [*data.class_names, *(f"class {label}" for label in range(known, workload.classes))]
        rows = [_recall(names, label, counts) for label, counts in enumerate(confusion.tolist()) if any(counts)]
        columns = ["class", "images", "top-1, %", "most often confused with"]
        return [Artifact(title="Classes", columns=columns, rows=rows)]


@dataclass(frozen=True, kw_only=True)
class ImageClassifier(Workload):
    """A network from images to one of many classes."""

    item: ClassVar = "image"
    expects: ClassVar = imagenet.EXPECTS
    renamed: ClassVar = {"turn": "rotation", "colour": "color_jitter", "hole": "cutout"}
    smallest_side: ClassVar[int]  # of an image that leaves at least one value after the last pooling

    side: int = 224
    classes: int = 1000
    shrink: int = 1  # divides the width of every layer; the published network is 1
    channels_last: bool = True
    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4

    # Of training on small images; as they stand here they change nothing.
    resident: int = 0  # images of at most so many pixels a side are kept on the device, and augmented there by:
    shift: float = 0.125  # of the side, across and down
    zoom: float = 0.0  # 0.2 scales width and height, each for itself, to between 1/1.2 and 1.2
    rotation: float = 0.0  # degrees, either way
    color_jitter: float = 0.0  # of brightness, contrast and saturation, more or less
    cutout: float = 0.0  # the side of a square that is painted over, of the image's
    mirrored: bool = False  # an evaluation takes the mean of an image's and its mirror image's probabilities
    label_smoothing: float = 0.0
    warm_up: float = 0.1  # the share of all steps with linear warm-up

    def __post_init__(self) -> None:
        if self.side < self.smallest_side:
            raise BadOption(f"side of {self.name} must be at least {self.smallest_side}, not {self.side}")
        if self.classes < 2:
            raise BadOption(f"classes must be at least 2, not {self.classes}")
        if self.shrink not in _SHRINKS:
            raise BadOption(f"shrink must be one of {', '.join(map(str, _SHRINKS))}, not {self.shrink}")

    @abstractmethod
    def network(self) -> nn.Module:
        """The network in torch's own memory format, from bytes [B, 3, side, side] to logits [B, classes]."""

    def model(self) -> nn.Module:
        network = self.network()
        if self.channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return network

    def synthetic(self, seed: int) -> imagenet.Patterns:
        return imagenet.synthetic(seed, self.side, self.classes)

    def real(self, folder: Path, split: str = "train") -> imagenet.Images | Thumbnails:
        if imagenet.has_validation(folder):
            return self._images(folder, "train" if split == "train_subset" else split)
        found = part_of_training(partial(self._images, folder), split)
        if split == "validation":  # these are training images
            found.left_out = {}  # told of those that are learnt from
            if isinstance(found, imagenet.Images):
                found.augment = False  # not cropped at random
        return found

    def _images(self, folder: Path, split: str) -> imagenet.Images | Thumbnails:
        images = imagenet.read(folder, split, self.side, self.classes)
        return imagenet.thumbnails(images, self.resident) or images

    def feed(self, source: Any, device: torch.device, seed: int, start: int = 0) -> Iterator[Batch]:
        batches = super().feed(source, device, seed, start)
        if not isinstance(source, Thumbnails):
            return batches
        by = Augmentation(self.shift, self.zoom, self.rotation, self.color_jitter, self.cutout)
        return ({**batch, "image": augmented(batch["image"], self.side, by)} for batch in batches)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        logits: Tensor = model(batch["image"])
        return logits

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = self.forward(model, batch).float()
        return F.cross_entropy(logits, batch["label"], label_smoothing=self.label_smoothing)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(
            model.parameters(),
            lr=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            fused=True,  # one pass over the parameters, which for VGG-19 are half a gigabyte
        )

    def confusion(self, state: State, held_out: Any) -> Tensor:
        """How many images of each class (down) the network takes for each (across)."""
        pairs = torch.zeros(self.classes**2, dtype=torch.long, device=state.device)
        for batch in once(held_out, _EVALUATED, state.device):
            if isinstance(held_out, Thumbnails):
                batch["image"] = resized(batch["image"], self.side)
            pair = batch["label"] * self.classes + self._probabilities(state.model, batch).argmax(-1)
            pairs += torch.bincount(pair, minlength=self.classes**2)
        return pairs.view(self.classes, self.classes)

    def _probabilities(self, model: nn.Module, batch: Batch) -> Tensor:
        images = [batch["image"], *([batch["image"].flip(-1)] if self.mirrored else [])]
        return torch.stack([self.forward(model, {"image": each}).float().softmax(-1) for each in images]).mean(0)

    def infer(self, model: nn.Module, batch: Batch) -> Output:
        """The five likeliest classes, best first, and how likely each is."""
        probabilities = self.forward(model, batch).float().softmax(-1)
        best = probabilities.topk(min(5, self.classes))
        return {"classes": best.indices, "probabilities": best.values}

    def answers(self, output: Output, source: Any) -> list[str]:
        names = dict(enumerate(source.class_names))
        guesses = zip(output["classes"].tolist(), output["probabilities"].tolist(), strict=True)
        return [
            ", ".join(f"{names.get(index, f'class {index}')} {chance:.1%}" for index, chance in zip(*row, strict=True))
            for row in guesses
        ]


def _recall(names: list[str], label: int, counts: list[int]) -> list[Any]:
    """A class, its images, how many percent of them are recognised, and what the others are most often taken for."""
    wrong = [*counts[:label], 0, *counts[label + 1 :]]
    most = max(wrong)
    other = f"{names[wrong.index(most)]} ({most})" if most else None
    return [names[label], sum(counts), 100 * counts[label] / sum(counts), other]
