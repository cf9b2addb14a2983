"""Numbers, sizes, times and lists as people read them, in a terminal and in a report; None is a dash, never zero."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeGuard

DASH = "—"  # what is not measured
HELD_AGAINST_A_TARGET = "quality"  # the heading of a column
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


def cell(value: object) -> str:
    """A value alone: a number to four significant digits, a dash for None, yes or no, and all else as it is."""
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return fixed(value, 0)
    return number(value, 4) if isinstance(value, float) else str(value)


def beside(value: float | None, target: float | None) -> str:
    """A value with as many digits, four at least, as it takes to differ from its target: 32.996 is not 33."""
    if value is None or target is None or value == target:
        return cell(value)
    digits = next((digits for digits in range(4, 17) if f"{value:.{digits}g}" != f"{target:.{digits}g}"), 17)
    return _minus(f"{value:,.{digits}g}") if digits > 4 else cell(value)


def column(values: Sequence[object], heading: str = "") -> list[str]:
    """The cells of one column. Fractions share their decimals, so that points stand below one another: one for a
    percentage, else three digits for the middle one, and four where values are held against a target; values of very
    different sizes have three digits each."""
    sizes = [abs(value) for value in values if isinstance(value, float) and math.isfinite(value) and value]
    percent = "(%" in heading
    wide = bool(sizes) and not percent and max(sizes) / min(sizes) > 100
    digits = 4 if heading == HELD_AGAINST_A_TARGET else 3
    decimals = 1 if percent else _decimals(statistics.median(sizes), digits) if sizes else 0
    while decimals and all(_is_at(size, decimals - 1) for size in sizes):
        decimals -= 1

    def shown(value: object) -> str:
        if not isinstance(value, float):
            return cell(value)
        if value == 0:
            return "0"
        lost = abs(value) < 0.5 * 10**-decimals  # it would read as zero
        return number(value) if wide or lost or decimals > 4 or not abs(value) < 1e7 else fixed(value, decimals)

    return [shown(value) for value in values]


def ascii_minus(text: str) -> str:
    """With the minus sign that a program reads: numbers are copied from a terminal."""
    return text.replace("−", "-")


def size(count: float) -> str:
    """Bytes in binary units."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{number(count)} {unit}"
        count /= 1024
    return f"{number(count)} TiB"


def prefixed(value: float, unit: str) -> str:
    """With a decimal prefix: 3.12 TFLOP, 25.6 M parameters."""
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if float(f"{value:.3g}") >= factor:
            return f"{_three_digits(value / factor)} {prefix}{unit}"
    return f"{_three_digits(value)} {unit}".rstrip()


def _three_digits(value: float) -> str:
    """Or more where a whole number has more: 1,170 and not 1.17e+03."""
    text = f"{value:.3g}"
    return f"{value:,.0f}" if "e+" in text else text


def moment(iso: str) -> str:
    """An ISO time as UTC to the minute; what is no time is left as it is."""
    try:
        return datetime.fromisoformat(iso).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError):  # the first and the last year have no time in other zones
        return iso


def count(how_many: int, thing: str) -> str:
    return f"{fixed(how_many, 0)} {thing}{'' if how_many == 1 else 's'}"


def seconds(value: float) -> str:
    """A duration in the unit that suits it: 1.52 s, 21.4 ms, 380 µs."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if float(f"{value:.3g}") >= size:
            return f"{_three_digits(value / size)} {unit}"
    return f"{_three_digits(value / 1e-6)} µs"


def finite(value: float) -> float | None:
    """None for a bound that is infinite or not a number, as that of a single value is."""
    return value if math.isfinite(value) else None


def in_percent(part: float | None) -> float | None:
    return None if part is None else 100 * part


def listed(names: Sequence[str]) -> str:
    """One, two and three."""
    return "".join(names) if len(names) < 2 else f"{', '.join(names[:-1])} and {names[-1]}"


def least_and_most(values: Mapping[str, float], style: str, unit: str = "") -> str:
    """0.05 (one) to 1.25 (other): the least and the greatest, and whose they are."""
    ends = dict.fromkeys((min(values, key=lambda name: values[name]), max(values, key=lambda name: values[name])))
    return " to ".join(f"{values[name]:{style}}{unit} ({name})" for name in ends)


def mean_and_range(ratios: Mapping[str, float]) -> tuple[str, str]:
    """The geometric mean of ratios, and in brackets whose the least and the greatest are."""
    mean = number(statistics.geometric_mean(ratios.values()))
    least, most = (choice(ratios, key=lambda name: ratios[name]) for choice in (min, max))
    if len(ratios) == 1:
        return mean, f"({least})"
    return (
        mean,
        f"(geometric mean of {len(ratios)}; {number(ratios[least])} for {least} to {number(ratios[most])} for {most})",
    )


def median_and_range(values: Sequence[float]) -> str:
    """32 (31 to 33): the median, the least and the greatest; 32 where they are the same."""
    middle, least, most = (_minus(f"{of(values):.4g}") for of in (statistics.median, min, max))
    return middle if least == most else f"{middle} ({least} to {most})"


def span(values: Iterable[float], unit: str = "") -> str:
    """From the least to the greatest; one number where they read the same."""
    ordered = sorted(values)
    low, high = number(ordered[0]), number(ordered[-1])
    return f"{low}{unit}" if low == high else f"{low}{unit} to {high}{unit}"


def several(values: Iterable[object]) -> str:
    """Each different value once, numbers in ascending order, all else in the order of first sight."""
    different = list(dict.fromkeys(value for value in values if value is not None))
    if different and all(map(is_number, different)):
        different.sort(key=float)  # type: ignore[arg-type]
    return listed([str(value) for value in different])


def _is_at(value: float, decimals: int) -> bool:
    """Whether so many decimals say it all."""
    return math.isclose(value, round(value, decimals), rel_tol=1e-9)


def _decimals(value: float, digits: int) -> int:
    return max(0, digits - 1 - math.floor(math.log10(float(f"{value:.{digits}g}")))) if value else 0


def _minus(text: str) -> str:
    return text.replace("-", "−")
