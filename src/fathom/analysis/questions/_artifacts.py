"""Artifacts of trained networks over all seeds of a training task: medians and ranges, or else the first seed's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fathom.core.formatting import median_and_range
from fathom.core.record import Artifact


def shown(name: str, by_seed: Mapping[int, Sequence[Artifact]]) -> list[Artifact]:
    """Each artifact once; its title names the seeds."""
    first = min(by_seed)
    found = []
    for artifact in by_seed[first]:
        others = [_like(artifact, artifacts) for seed, artifacts in by_seed.items() if seed != first]
        together = _together([artifact, *others]) if others else None
        seeds = f"seed {first}" if together is None else f"{len(by_seed)} seeds, median (min to max)"
        found.append(replace(together or artifact, title=f"{name}, {seeds}: {artifact.title}"))
    return found


def _like(artifact: Artifact, artifacts: Sequence[Artifact]) -> Artifact | None:
    """The table of another seed that has the same rows and columns."""

    def outline(table: Artifact) -> tuple[object, ...]:
        return table.title, table.columns, [row[0] for row in table.rows]

    return next((other for other in artifacts if artifact.columns and outline(other) == outline(artifact)), None)


def _together(tables: Sequence[Artifact | None]) -> Artifact | None:
    """One table for all; None where some lack it, or differ in more than numbers."""
    known = [table for table in tables if table is not None]
    if len(known) < len(tables):
        return None
    cells = [list(zip(*rows, strict=True)) for rows in zip(*(table.rows for table in known), strict=True)]
    if not all(_same(each) or _numbers(each) for row in cells for each in row):
        return None
    return replace(
        known[0], rows=[[each[0] if _same(each) else median_and_range(each) for each in row] for row in cells]
    )


def _same(cells: Sequence[Any]) -> bool:
    return all(cell == cells[0] for cell in cells)


def _numbers(cells: Sequence[Any]) -> bool:
    return all(isinstance(cell, int | float) for cell in cells)
