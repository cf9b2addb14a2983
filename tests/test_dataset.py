"""How batches reach the device: in an order that depends on the seed only, one shuffle after another."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch

from fathom.core.errors import DataError
from fathom.data import base
from fathom.data.base import InMemory, ShuffledBatches, feed, folder_at

CPU = torch.device("cpu")


def numbers(count: int) -> InMemory:
    return InMemory(value=torch.arange(count))


def test_every_item_comes_once_before_any_comes_twice() -> None:
    batches = islice(iter(ShuffledBatches(items=10, batch=4, seed=1)), 5)
    order = [index for batch in batches for index in batch]
    assert sorted(order[:10]) == sorted(order[10:]) == list(range(10))
    assert order[:10] != order[10:], "each epoch has its own shuffle"


def test_a_batch_larger_than_the_set_wraps_around() -> None:
    (batch,) = islice(iter(ShuffledBatches(items=3, batch=7, seed=0)), 1)
    assert len(batch) == 7
    assert sorted(batch[:3]) == sorted(batch[3:6]) == [0, 1, 2]


def test_the_order_depends_on_the_seed_only() -> None:
    first, again, other = (
        [batch["value"].tolist() for batch in islice(feed(numbers(50), 8, CPU, seed), 6)] for seed in (1, 1, 2)
    )
    assert first == again != other


def test_workers_give_the_batches_of_a_resident_dataset() -> None:
    order = ShuffledBatches(items=50, batch=8, seed=3)
    resident = islice(base._resident(numbers(50), order, CPU), 6)
    from_workers = islice(base._from_workers(numbers(50), order, CPU, base.usual_feeding(CPU)), 6)
    assert [b["value"].tolist() for b in resident] == [b["value"].tolist() for b in from_workers]


def test_columns_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="one common, positive length"):
        InMemory(a=torch.zeros(3), b=torch.zeros(4))


def test_a_folder_is_found_as_given_or_below_the_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mnist").mkdir()
    monkeypatch.setenv("FATHOM_DATA", str(tmp_path))
    assert folder_at("mnist", "digits") == tmp_path / "mnist"
    assert folder_at(tmp_path / "mnist", "digits") == tmp_path / "mnist"
    with pytest.raises(DataError, match=r"none or .*none: no such folder; it must contain digits"):
        folder_at("none", "digits")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="is not a folder"):
        folder_at(tmp_path / "file", "digits")
