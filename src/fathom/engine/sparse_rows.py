"""Ops on sparse gradients as the ops on their rows that a GPU runs.

The meta device loses the rows: a copy of a sparse tensor has none there, and a table to which one is added is taken to
be changed as a whole. How many indices are equal is in their values: every one is a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def parts_of(tensor: Tensor) -> list[Tensor]:
    """What a tensor holds in memory: a sparse one, its indices and its rows."""
    return [tensor._indices(), tensor._values()] if tensor.is_sparse else [tensor]


def has_rows(args: Sequence[Any]) -> bool:
    """Whether any operand is sparse in its first dimension alone, as the gradient of an embedding is."""
    given = [each for arg in args[:2] for each in (arg if isinstance(arg, tuple | list) else [arg])]
    return any(isinstance(each, Tensor) and each.is_sparse and each.sparse_dim() == 1 for each in given)


def _made(like: Tensor, indices: Tensor, values: Tensor, coalesced: bool | None = None) -> Tensor:
    made: Tensor = aten._sparse_coo_tensor_with_dims_and_tensors.default(
        *(1, values.dim() - 1, like.shape, indices, values),
        dtype=values.dtype,
        layout=torch.sparse_coo,
        device=values.device,
        is_coalesced=coalesced,
    )
    return made


def _clone(sparse: Tensor, **_: Any) -> Tensor:
    return _made(sparse, *(aten.clone.default(part) for part in parts_of(sparse)))


def _coalesce(sparse: Tensor) -> Tensor:
    """Indices are sorted, and rows with the same one added up."""
    indices, values = parts_of(sparse)
    in_order, order = aten.sort.default(indices[0])
    rows = aten.index_add_.default(aten.empty_like.default(values), 0, order, values)
    return _made(sparse, in_order.unsqueeze(0), rows, coalesced=True)


def _masked(table: Tensor, sparse: Tensor, **_: Any) -> Tensor:
    indices = sparse._indices()
    return _made(sparse, indices, aten.index_select.default(table, 0, indices[0]), coalesced=True)


def _add(first: Tensor, second: Tensor, *, alpha: float = 1) -> Tensor:
    """Of two sparse tensors, the rows of both; a table is copied."""
    if first.is_sparse and second.is_sparse:
        pairs = zip(parts_of(first), parts_of(second), (1, 0), strict=True)
        return _made(first, *(aten.cat.default([a, b], dim) for a, b, dim in pairs))
    table, sparse = (second, first) if first.is_sparse else (first, second)
    return _add_into(aten.clone.default(table), sparse, alpha=alpha)


def _add_into(table: Tensor, rows: Tensor, *, alpha: float = 1) -> Tensor:
    indices, values = parts_of(rows)
    aten.index_add_.default(table, 0, indices[0], values, alpha=alpha)
    return table


def _add_each(tables: Sequence[Tensor], others: Sequence[Tensor], *, alpha: float = 1) -> None:
    for table, other in zip(tables, others, strict=True):
        aten.add_.Tensor(table, other, alpha=alpha)


ON_ROWS: dict[Any, Callable[..., Any]] = {
    aten.clone.default: _clone,
    aten._coalesce.default: _coalesce,
    aten.sparse_mask.default: _masked,
    aten.add.Tensor: _add,
    aten.add_.Tensor: _add_into,
    aten._foreach_add_.List: _add_each,
}
