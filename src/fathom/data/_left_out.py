"""What a reader left out, shortened or did not know, in words: what a run learns from is part of its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fathom.data._vocabulary import UNK


def left_out(counts: Mapping[str, int], kept: int, thing: str) -> list[str]:
    """9,035 pairs left out, 8,965 kept: 9,000 longer than 20 words, 35 with an empty side."""
    known = {reason: count for reason, count in counts.items() if count}
    if not known:
        return []
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in known.items())
    many = sum(known.values())
    return [f"{many:,} {thing}{'' if many == 1 else 's'} left out, {kept:,} kept: {reasons}"]


@dataclass
class TextCounts:
    """Counts of the pairs of a split while they are read; pairs of numbers are of the source and of the target."""

    is_training: bool
    longest: tuple[int, int]  # tokens
    kept: int = 0
    empty: int = 0  # pairs left out because one side is
    too_long: int = 0  # left out of training, truncated elsewhere
    tokens: list[int] = field(default_factory=lambda: [0, 0])
    unknown: list[int] = field(default_factory=lambda: [0, 0])

    def keep(self, sides: Sequence[Sequence[int]]) -> None:
        """Counts a pair of rows of token ids that is kept."""
        self.kept += 1
        for index, row in enumerate(sides):
            self.tokens[index] += len(row)
            self.unknown[index] += row.count(UNK)

    @property
    def notes(self) -> list[str]:
        longer = f"with more than {self.longest[0]} source or {self.longest[1]} target tokens"
        reasons = {longer: self.too_long if self.is_training else 0, "with an empty side": self.empty}
        found = left_out(reasons, self.kept, "pair")
        if self.too_long and not self.is_training:
            found.append(f"{self.too_long:,} of {self.kept:,} pairs truncated: {longer}")
        if any(self.unknown):
            shares = [
                f"{unknown:,} of {tokens:,} {side} tokens ({100 * unknown / tokens:.2g} %)"
                for side, unknown, tokens in zip(("source", "target"), self.unknown, self.tokens, strict=True)
            ]
            found.append(f"not in the vocabulary, read as <unk>: {' and '.join(shares)}")
        return found
