"""karate: the graph convolutional network of Kipf and Welling (2017), which classifies the nodes of a graph.

The real graph is Zachary's karate club (1977): 34 members, 78 friendships, and the side that each took when the club
split. Synthetic graphs are drawn from a stochastic block model: two groups with many edges inside and few between.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam, Optimizer

from fathom import DataError, Dataset, Facts, Recipe, State, Workload

Batch = dict[str, Tensor]
INSIDE, BETWEEN = 8.0, 1.0  # expected edges of a node to its own group, and to the other


class Graph(Dataset):
    """One graph: an item is a node, and the only batch is all of them, as every node sees its neighbours.

    The labels of a few nodes are given; of the others, every fifth is validation and the rest is the test.
    """

    def __init__(self, edges: Tensor, label: Tensor, labelled: int = 2) -> None:
        nodes = len(label)
        adjacency = torch.eye(nodes)
        adjacency[edges[:, 0], edges[:, 1]] = adjacency[edges[:, 1], edges[:, 0]] = 1.0
        scale = adjacency.sum(1).rsqrt()
        known = torch.zeros(nodes)
        for group in (0, 1):  # the nodes of each group with the most edges are the ones whose label is given
            members = (label == group).nonzero().flatten()
            known[members[adjacency[members].sum(1).argsort(descending=True)[:labelled]]] = 1.0
        unknown = (known == 0).nonzero().flatten()
        fifth = torch.arange(len(unknown)) % 5 == 0
        self.held_out = {"validation": unknown[fifth], "test": unknown[~fifth]}
        self.columns: Batch = {
            "adjacency": adjacency * scale[:, None] * scale[None, :],
            "features": torch.eye(nodes),
            "label": label,
            "known": known,
        }

    def __len__(self) -> int:
        return len(self.columns["label"])

    def __getitem__(self, indices: Any) -> Batch:
        return self.columns


@dataclass(frozen=True)
class Nodes:
    """Those of a graph that are evaluated."""

    graph: Graph
    split: str  # validation or test


class GraphNetwork(nn.Module):
    """Two layers; each mixes the features of neighbours before its matrix product."""

    def __init__(self, nodes: int, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(nodes, hidden, bias=False)
        self.second = nn.Linear(hidden, 2, bias=False)

    def forward(self, adjacency: Tensor, features: Tensor) -> Tensor:
        logits: Tensor = adjacency @ self.second(F.relu(adjacency @ self.first(features)))
        return logits


@dataclass(frozen=True, kw_only=True)
class SideRecipe(Recipe["Karate"]):
    """How many members without a given label are placed on the side that they took."""

    def evaluation_data(self, workload: Karate, folder: Path, split: str) -> Nodes:
        """The same graph: labels that training does not see, some in validation and others in the test."""
        return Nodes(workload.real(folder), split)

    def synthetic_evaluation_data(self, workload: Karate, seed: int) -> Nodes:
        return Nodes(workload.synthetic(seed), "test")

    def evaluate(self, workload: Karate, state: State, data: Nodes) -> float:
        batch = {name: column.to(state.device) for name, column in data.graph.columns.items()}
        right = workload.forward(state.model, batch).argmax(1) == batch["label"]
        return 100 * float(right[data.graph.held_out[data.split].to(state.device)].float().mean())


@dataclass(frozen=True, kw_only=True)
class Karate(Workload):
    name: ClassVar = "karate"
    facts: ClassVar = Facts(
        year=2017,
        paper="Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks, ICLR 2017",
        style="Graph",
        layers=2,
        task="Semi-supervised",
        dataset="Zachary's karate club",
        parameters=8_224,
        macs_per_item=17_440,
        train_flop_per_item=69_824,
    )
    item: ClassVar = "node"
    expects: ClassVar = "edges.csv (two members a line) and labels.csv (a member's side a line)"
    presets: ClassVar = {"tiny": {"batch": 34}, "small": {"batch": 512}, "paper": {"batch": 2_708}}  # Cora's nodes
    recipe: ClassVar = SideRecipe(
        metric="accuracy",
        unit="%",
        target=90.0,
        better="higher",
        protocol="24 of the 30 members whose side is not given; the other 6 are validation, evaluated after every 10 "
        "updates, and the best weights are tested once",
        evaluations=20,
        stop_at=100.0,
        items_per_evaluation=340,
        preset="tiny",
    )

    hidden: int = 16

    def model(self) -> GraphNetwork:
        return GraphNetwork(self.batch, self.hidden)

    def synthetic(self, seed: int) -> Graph:
        random = torch.Generator().manual_seed(seed)
        label = (torch.arange(self.batch) >= self.batch // 2).long()
        same = label[:, None] == label[None, :]
        chance = torch.where(same, INSIDE, BETWEEN) / (self.batch / 2)
        drawn = (torch.rand(self.batch, self.batch, generator=random) < chance).triu(1)
        return Graph(drawn.nonzero(), label)

    def real(self, folder: Path, split: str = "train") -> Graph:
        edges, labels = (_rows(folder / name) for name in ("edges.csv", "labels.csv"))
        for line, edge in enumerate(edges, start=1):
            if not all(0 <= member < len(labels) for member in edge):
                raise DataError.at(folder / "edges.csv", f"line {line}: labels.csv has no such member")
        return Graph(torch.tensor(edges), torch.tensor(labels).flatten())

    def fit(self, source: Graph) -> Self:
        return replace(self, batch=len(source))

    def feed(self, source: Graph, device: torch.device, seed: int, start: int = 0) -> Iterator[Batch]:
        batch = {name: column.to(device) for name, column in source.columns.items()}
        while True:
            yield batch

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        logits: Tensor = model(batch["adjacency"], batch["features"])
        return logits

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross entropy in nats, over the nodes whose label is given."""
        each = F.cross_entropy(self.forward(model, batch).float(), batch["label"], reduction="none")
        return (each * batch["known"]).sum() / batch["known"].sum()

    def optimizer(self, model: nn.Module) -> Optimizer:
        return Adam(model.parameters(), lr=0.01)

    def infer(self, model: nn.Module, batch: Batch) -> Batch:
        return {"side": self.forward(model, batch).argmax(1)}

    def answers(self, output: Batch, source: Graph) -> list[str]:
        return [f"node {node}: side {side}" for node, side in enumerate(output["side"].tolist())]


def _rows(path: Path) -> list[list[int]]:
    try:
        with path.open(newline="") as file:
            return [[int(cell) for cell in row] for row in csv.reader(file)]
    except (OSError, ValueError) as error:
        raise DataError.at(path, f"expected lines of whole numbers: {error}") from None
