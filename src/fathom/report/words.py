"""Numbers, sizes and moments as people read them; None is a dash, never zero."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TypeGuard

from fathom.analysis.finding import Cell

DASH = "—"  # what is not measured
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(value: float, digits: int = 3) -> str:
    """A number alone, to so many significant digits: 0.00352, 3.52, 352, 35,241, 3.52 × 10⁹."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size and not 1e-4 <= size < 1e7:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{_minus(mantissa)} × 10{str(int(exponent)).translate(SUPERSCRIPT)}"
    return fixed(value, 0 if _is_at(value, 0) else _decimals(size, digits))


def fixed(value: float, decimals: int) -> str:
    """So many decimals; digits are grouped from ten thousand on, so that years and steps stay as one is used to."""
    shown = f"{value:,.{decimals}f}" if abs(value) >= 1e4 else f"{value:.{decimals}f}"
    return _minus(shown)


def column(values: Sequence[Cell], heading: str = "") -> list[str]:
    """The cells of one column. Fractions share their decimals, so that points stand below one another: one for a
    percentage, else three digits for the middle one; values of very different sizes have three digits each."""
    sizes = [abs(value) for value in values if isinstance(value, float) and math.isfinite(value) and value]
    percent = "(%" in heading
    wide = bool(sizes) and not percent and max(sizes) / min(sizes) > 100
    decimals = 1 if percent else _decimals(statistics.median(sizes), 3) if sizes else 0
    while decimals and all(_is_at(size, decimals - 1) for size in sizes):
        decimals -= 1

    def shown(value: Cell) -> str:
        if value is None:
            return DASH
        if isinstance(value, bool):
            return "yes" if value else "no"
        if not is_number(value):
            return str(value)
        if value == 0:
            return "0"
        lost = abs(value) < 0.5 * 10**-decimals  # it would read as zero
        return number(value) if wide or lost or decimals > 4 or not abs(value) < 1e7 else fixed(value, decimals)

    return [shown(value) for value in values]


def size(count: float) -> str:
    """Bytes in binary units."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{number(count)} {unit}"
        count /= 1024
    return f"{number(count)} TiB"


def moment(iso: str) -> str:
    """An ISO time as UTC to the minute; what is no time is left as it is."""
    try:
        parsed = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    return parsed.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def count(how_many: int, thing: str) -> str:
    return f"{fixed(how_many, 0)} {thing}{'' if how_many == 1 else 's'}"


def span(values: Iterable[float], unit: str = "") -> str:
    """From the least to the greatest; one number where they read the same."""
    ordered = sorted(values)
    low, high = number(ordered[0]), number(ordered[-1])
    return f"{low}{unit}" if low == high else f"{low}{unit} to {high}{unit}"


def several(values: Iterable[object]) -> str:
    """Each different value once, in the order of first sight."""
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None))


def _is_at(value: float, decimals: int) -> bool:
    """Whether so many decimals say it all."""
    return math.isclose(value, round(value, decimals), rel_tol=1e-9)


def _decimals(value: float, digits: int) -> int:
    return max(0, digits - 1 - math.floor(math.log10(float(f"{value:.{digits}g}")))) if value else 0


def _minus(text: str) -> str:
    return text.replace("-", "−")
