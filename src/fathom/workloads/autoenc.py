"""autoenc: the variational autoencoder of Kingma and Welling (2014) on MNIST, with a Bernoulli decoder.

Harvard's 2016 code used linear maps and a Gaussian decoder; this is the network of the paper: one hidden layer of
500 tanh units on each side of 20 latents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adagrad, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from fathom.core.errors import BadOption
from fathom.core.record import Artifact
from fathom.data import mnist
from fathom.data.base import Batch, once, part_of_training
from fathom.workloads.base import Facts, Output, State, Workload
from fathom.workloads.recipe import Recipe, warmup_cosine

EVALUATED = 5000  # test images at once
INTERVAL = 600_000  # training images between two evaluations


class VariationalAutoencoder(nn.Module):
    """Encoder to the mean and log variance of the latents, a sample of them, decoder to Bernoulli logits."""

    def __init__(self, pixels: int, hidden: int, latent: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(pixels, hidden)
        self.mean = nn.Linear(hidden, latent)
        self.log_variance = nn.Linear(hidden, latent)
        self.decoder = nn.Linear(latent, hidden)
        self.reconstruction = nn.Linear(hidden, pixels)
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.01)  # the paper's N(0, 0.01), biases included

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = torch.tanh(self.encoder(x))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        latent = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.decode(latent), mean, log_variance

    def decode(self, latent: Tensor) -> Tensor:
        logits: Tensor = self.reconstruction(torch.tanh(self.decoder(latent)))
        return logits


@dataclass(frozen=True, kw_only=True)
class AutoencRecipe(Recipe["Autoenc"]):
    """The variational bound on MNIST's test images."""

    def for_run(self, folder: Path | None, options: Mapping[str, Any]) -> AutoencRecipe:
        """Of synthetic digits there are few: an interval is once through them."""
        if folder is None:
            return self
        recipe = self if mnist.is_mnist(folder) else self.without_target("MNIST")
        return replace(recipe, items_per_evaluation=INTERVAL)

    def schedule(self, workload: Autoenc, optimizer: Optimizer, steps: int) -> LambdaLR | None:
        warm_up = workload.warm_up
        return None if warm_up is None else warmup_cosine(optimizer, steps, max(1.0, warm_up * steps))

    def evaluate(self, workload: Autoenc, state: State, data: mnist.Digits) -> float:
        batches = once(data, EVALUATED, state.device)
        total = sum(float(workload.loss(state.model, batch)) * len(batch["pixels"]) for batch in batches)
        return -total / len(data)

    def artifacts(self, workload: Autoenc, state: State, data: mnist.Digits) -> list[Artifact]:
        """Digits that the network generates, and test digits above their reconstructions."""
        model = state.model
        assert isinstance(model, VariationalAutoencoder)
        samples = torch.sigmoid(model.decode(torch.randn(40, workload.latent, device=state.device)))
        batch = next(once(data, 20, state.device))
        seen = torch.cat([_grey(batch), workload.infer(model, batch)["reconstruction"]])
        return [
            Artifact(title="Samples", png=mnist.tiled_png(samples, across=20)),
            Artifact(
                title="Test digits, and their reconstructions below", png=mnist.tiled_png(seen, across=len(seen) // 2)
            ),
        ]


@dataclass(frozen=True, kw_only=True)
class Autoenc(Workload):
    name: ClassVar = "autoenc"
    facts: ClassVar = Facts(
        year=2014,
        paper="Kingma and Welling, Auto-Encoding Variational Bayes, ICLR 2014",
        style="Full",
        layers=3,
        task="Unsupervised",
        dataset="MNIST",
        parameters=815_824,
        macs_per_item=814_000,
        train_flop_per_item=4_100_000,
    )
    item: ClassVar = "image"
    expects: ClassVar = mnist.EXPECTS
    presets: ClassVar = {
        "tiny": {"batch": 32, "hidden": 64, "latent": 8},
        "small": {"batch": 100},
        "paper": {"batch": 100},
    }

    recipe: ClassVar = AutoencRecipe(
        metric="variational bound",
        unit="nats",
        target=-100.0,
        better="higher",
        protocol="the mean bound of the test images, one sample of the latents each; trained on 1e8 images, evaluated "
        "after every 600,000 on a twentieth of the training images, which training does not see, and the best weights "
        "are tested once",
        evaluations=167,  # the 1e8 images of the paper's Fig. 2
        options={"adam": True, "batch": 1000, "learning_rate": 0.003, "warm_up": 0.01},
        engine="cudagraph",  # its kernels are so small that a GPU would wait for every launch
    )

    hidden: int = 500
    latent: int = 20
    learning_rate: float = 0.01  # the paper tried 0.01, 0.02 and 0.1; the larger two overshoot at first
    adam: bool = False  # in place of the paper's Adagrad, for batches so large that a GPU is not idle
    warm_up: float | None = None  # the share of training with linear warm-up, before cosine decay; None is constant

    def __post_init__(self) -> None:
        for name in ("hidden", "latent"):
            if getattr(self, name) < 1:
                raise BadOption(f"{name} of autoenc must be at least 1, not {getattr(self, name)}")

    def model(self) -> VariationalAutoencoder:
        return VariationalAutoencoder(mnist.SIDE**2, self.hidden, self.latent)

    def synthetic(self, seed: int) -> mnist.Digits:
        return mnist.synthetic(seed)

    def real(self, folder: Path, split: str = "train") -> mnist.Digits:
        return part_of_training(partial(mnist.read, folder), split)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        logits: Tensor = model(_grey(batch))[0]
        return logits

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The negative variational bound in nats per image."""
        grey = _grey(batch)
        logits, mean, log_variance = model(grey)
        reconstruction = F.binary_cross_entropy_with_logits(logits.float(), grey, reduction="sum")
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).float().sum()
        bound: Tensor = (reconstruction + divergence) / len(grey)
        return bound

    def optimizer(self, model: nn.Module) -> Optimizer:
        if self.adam:
            return Adam(model.parameters(), lr=self.learning_rate, fused=True)
        return Adagrad(model.parameters(), lr=self.learning_rate)

    def infer(self, model: nn.Module, batch: Batch) -> Output:
        """Reconstructions; the latent is sampled here too, which makes inference stochastic."""
        logits, mean, _ = model(_grey(batch))
        return {"reconstruction": torch.sigmoid(logits), "latent": mean}

    def answers(self, output: Output, source: Any) -> list[str]:
        """Each reconstruction's brightest rows, drawn with characters."""
        images = output["reconstruction"].float().cpu().view(-1, mnist.SIDE, mnist.SIDE)
        return [_drawn(image) for image in images]


def _grey(batch: Batch) -> Tensor:
    return batch["pixels"].float() / 255


def _drawn(image: Tensor) -> str:
    """14 lines of 28 characters: two rows of pixels a line, as a terminal's letters are twice as tall as wide."""
    shades = " .:-=+*#%@"
    rows = image.view(14, 2, 28).mean(1)
    return "\n".join("".join(shades[min(9, int(value * 10))] for value in row) for row in rows.tolist())
