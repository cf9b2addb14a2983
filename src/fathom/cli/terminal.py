"""How results look in a terminal: tables on stdout, progress and messages on stderr, one JSON document for scripts."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.box import SIMPLE, SIMPLE_HEAD
from rich.console import Console, JustifyMethod, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fathom.core import formatting
from fathom.core.formatting import count, seconds
from fathom.core.stopping import unwinding

__all__ = [
    "beside", "count", "human", "print_facts", "print_json", "print_table", "print_text", "progress_bar", "screen",
    "seconds", "skipped", "text",
]  # fmt: skip

screen = Console(markup=False)  # the last output of a crashed program may hold brackets
human = Console(stderr=True, markup=False)
human.soft_wrap = not human.is_terminal  # a file has no width
SHOW_CURSOR = b"\r\x1b[2K\x1b[?25h"  # clears the line of a bar, which hides the cursor
SPEED_WINDOW_S = 600.0  # over which speed is averaged for the remaining time: fast and slow runs alternate


def print_json(document: Any) -> None:
    """Strict JSON: non-finite values are null, as not every reader knows NaN."""
    print(json.dumps(_finite(document), indent=1, allow_nan=False))


def skipped(problem: str) -> None:
    """A warning about an unreadable or foreign file in a folder of records."""
    human.print(f"skipped: {problem}", style="yellow", highlight=False)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], keys: int | None = None) -> None:
    """Numbers to the right, a dash for what is not known; columns that do not fit the terminal follow below.

    `keys` leading columns name a row, and are repeated there; by default the text columns before the first number.
    """
    shown = [formatting.column([row[index] for row in rows], heading) for index, heading in enumerate(columns)]
    cells = [[formatting.ascii_minus(cell) for cell in row] for row in zip(*shown, strict=True)]
    numeric = [any(isinstance(row[index], int | float) for row in rows) for index in range(len(columns))]
    widths = [max(map(len, texts)) for texts in zip(columns, *cells, strict=True)]
    room = screen.width if screen.is_terminal else None
    if room is not None and sum(widths) + len(widths) + 1 > room:  # words may wrap, numbers may not
        widths = [width if number else min(width, room // 3) for width, number in zip(widths, numeric, strict=True)]
    for number, strip in enumerate(_strips(widths, numeric, room, keys)):
        table = Table(title=None if number else title, title_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False)
        for index in strip:
            justify: JustifyMethod = "right" if numeric[index] else "left"
            table.add_column(columns[index], justify=justify, no_wrap=numeric[index], max_width=widths[index])
        for row in cells:
            table.add_row(*(row[index] for index in strip))
        natural = max(len(title), sum(widths[index] + 1 for index in strip) + 1)
        page = screen if screen.is_terminal else Console(markup=False, width=natural)  # a file has no width
        page.print(table)


def _strips(
    widths: Sequence[int], numeric: Sequence[bool], room: int | None, naming: int | None = None
) -> list[list[int]]:
    """Which columns stand side by side: all that fit, else groups that each repeat the columns that name a row."""
    everything = list(range(len(widths)))
    if room is None or sum(widths) + len(widths) + 1 <= room:
        return [everything]
    keys = everything[:naming] if naming else everything[: numeric.index(True)] if True in numeric else everything
    while len(keys) > 1 and sum(widths[index] + 1 for index in keys) + 1 > room / 2:
        keys = keys[:-1]
    taken = sum(widths[index] + 1 for index in keys) + 1
    strips, used = [list(keys)], taken
    for index in everything[len(keys) :]:
        if used + widths[index] + 1 > room and len(strips[-1]) > len(keys):
            strips, used = [*strips, list(keys)], taken
        strips[-1].append(index)
        used += widths[index] + 1
    return strips


def print_text(line: str) -> None:
    """One line of a result; not wrapped in a file."""
    screen.print(line, highlight=False, markup=False, soft_wrap=not screen.is_terminal)


def print_facts(title: str, rows: Sequence[tuple[str, str]]) -> None:
    table = Table(title=title, title_justify="left", show_header=False, box=SIMPLE, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    screen.print(table)


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress]:
    """Shown at a terminal only, and removed when done, or when a signal ends the command."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = human.is_terminal
    bar = _Bar(*columns, console=human, transient=True, disable=not shown, speed_estimate_period=SPEED_WINDOW_S)
    if not shown:  # nothing to remove
        yield bar
        return
    with unwinding(SHOW_CURSOR), bar:
        yield bar


class _Bar(Progress):
    """With a line below each bar for the state of its task, which is too long to stand beside it."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield from (Text(state) for task in self.tasks if (state := task.fields.get("state")))


def text(value: Any) -> str:
    return formatting.ascii_minus(formatting.cell(value))


def beside(value: float | None, target: float | None) -> str:
    return formatting.ascii_minus(formatting.beside(value, target))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
