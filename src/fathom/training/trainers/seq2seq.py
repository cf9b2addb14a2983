"""How seq2seq is trained: sentences of similar length together, so that each length is one shape.

The decoder's thousands of small launches, word by word and layer by layer, are what a step waits for on a GPU. Short
sentences need fewer of them, and a CUDA graph for each length launches them all at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import torch

from fathom.data._vocabulary import PAD
from fathom.data.base import Batch
from fathom.data.wmt import ParallelText
from fathom.engine.session import Session
from fathom.training.trainer import HeldOut, Trainer
from fathom.workloads.recipe import Recipe

ROUNDED_TO = 4  # words: a batch is as wide as its longest sentence, rounded up to a multiple of this


class TranslationTrainer(Trainer):
    """Batches of similar length."""

    def __init__(self, session: Session, recipe: Recipe[Any], held_out: HeldOut) -> None:
        super().__init__(session, recipe, held_out)
        self._feed(start=0)

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        super().load_state_dict(kept)
        self._feed(start=self.steps_done)

    def _feed(self, start: int) -> None:
        text, workload = self.state.source, self.workload
        self.state.batches = batches(text, workload.batch, self.state.device, self.session.spec.seed or 0, start)


def batches(text: ParallelText, batch: int, device: torch.device, seed: int, start: int = 0) -> Iterator[Batch]:
    """Full batches of sentences of similar length, for ever, from batch number start on; each sentence once an epoch.

    One seeded shuffle of the text follows another. A sentence waits until its length has a batch together, be it in the
    next epoch: which lengths come when is as random as the shuffle.
    """
    widths = _widths(text, batch)
    columns = {name: column.to(device) for name, column in text.columns.items()}
    for number, (width, items) in enumerate(_gathered(widths, batch, seed)):
        if number >= start:
            rows = torch.tensor(items, pin_memory=device.type == "cuda").to(device, non_blocking=True)
            yield {name: column[:, :width].index_select(0, rows) for name, column in columns.items()}


def _widths(text: ParallelText, batch: int) -> list[int]:
    """How wide a batch each pair goes into; widths that few sentences have are joined with wider ones."""
    lengths = torch.stack([(column != PAD).sum(1) for column in text.columns.values()]).amax(0)
    widths: list[int] = ((lengths + ROUNDED_TO - 1) // ROUNDED_TO * ROUNDED_TO).tolist()
    found = Counter(widths)
    joined: dict[int, int] = {}
    wide, together = max(found), 0
    before = wide
    for width in sorted(found, reverse=True):
        if together >= batch:
            before, wide, together = wide, width, 0
        joined[width] = wide
        together += found[width]
    if together < batch:  # the shortest, which have nothing below them to be joined with
        joined = {width: before if into == wide else into for width, into in joined.items()}
    return [joined[width] for width in widths]


def _gathered(widths: list[int], batch: int, seed: int) -> Iterator[tuple[int, list[int]]]:
    generator = torch.Generator().manual_seed(seed)
    waiting: defaultdict[int, list[int]] = defaultdict(list)
    while True:
        for item in torch.randperm(len(widths), generator=generator).tolist():
            together = waiting[widths[item]]
            together.append(item)
            if len(together) == batch:
                yield widths[item], together
                waiting[widths[item]] = []
