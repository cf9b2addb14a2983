"""What networks have to show, for all seeds of a lesson at once: as a spread where it can be, else of the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fathom.analyses._words import spread
from fathom.lesson import Exhibit


def shown(name: str, by_seed: Mapping[int, Sequence[Exhibit]]) -> list[Exhibit]:
    """Each exhibit once, its title saying whose it is."""
    first = min(by_seed)
    told = []
    for exhibit in by_seed[first]:
        others = [_like(exhibit, exhibits) for seed, exhibits in by_seed.items() if seed != first]
        together = _together([exhibit, *others]) if others else None
        whose = f"seed {first}" if together is None else f"{len(by_seed)} seeds, median (least to most)"
        told.append(replace(together or exhibit, title=f"{name}, {whose}: {exhibit.title}"))
    return told


def _like(exhibit: Exhibit, exhibits: Sequence[Exhibit]) -> Exhibit | None:
    """The table of another seed that has the same rows and columns."""

    def outline(table: Exhibit) -> tuple[object, ...]:
        return table.title, table.columns, [row[0] for row in table.rows]

    return next((other for other in exhibits if exhibit.columns and outline(other) == outline(exhibit)), None)


def _together(tables: Sequence[Exhibit | None]) -> Exhibit | None:
    """One table for all; None where some lack it, or differ in more than numbers."""
    known = [table for table in tables if table is not None]
    if len(known) < len(tables):
        return None
    cells = [list(zip(*rows, strict=True)) for rows in zip(*(table.rows for table in known), strict=True)]
    if not all(_same(each) or _numbers(each) for row in cells for each in row):
        return None
    return replace(known[0], rows=[[each[0] if _same(each) else spread(each) for each in row] for row in cells])


def _same(cells: Sequence[Any]) -> bool:
    return all(cell == cells[0] for cell in cells)


def _numbers(cells: Sequence[Any]) -> bool:
    return all(isinstance(cell, int | float) for cell in cells)
