"""Parallel text as rows of token ids: WMT and Multi30k by words or subwords, and a synthetic language pair."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fathom.core.errors import DataError
from fathom.data._left_out import TextCounts
from fathom.data._vocabulary import EOS, SPECIALS, Vocabulary, cached, tokenise
from fathom.data.base import InMemory
from fathom.data.corpora import EXPECTS, files_of, pairs, without_files

SAMPLED = 20_000  # training pairs by which the lengths in subwords are told
_USED_WORDS = 60  # words in use in the synthetic languages
_LANGUAGE_SEED = 2014  # of the synthetic dictionary


@dataclass(frozen=True)
class Side:
    """One language of the pair: its code, vocabulary size with special tokens, and tokens per row."""

    language: str
    words: int
    length: int


class TokenVocabulary(Protocol):
    """The common interface of word and subword vocabularies."""

    def __len__(self) -> int: ...

    def decode(self, ids: Iterable[int]) -> str: ...


class ParallelText(InMemory):
    """Sentence pairs as rows of token ids, padded on the right; each target ends with EOS."""

    def __init__(self, source: Tensor, target: Tensor, vocabularies: Sequence[TokenVocabulary]) -> None:
        super().__init__(source=source, target=target)
        self.source_vocabulary, self.target_vocabulary = vocabularies
        self.dropped = 0  # pairs left out because one side is empty
        self.too_long = 0  # training pairs left out because one side is too long
        self.truncated = 0  # pairs of a held-out split that were truncated
        self.lines: list[tuple[str, str]] = []  # the original text of a held-out split
        self.counts: TextCounts | None = None  # of the text that was read; None of synthetic text
        self.text_digests: NDArray[np.int64] | None = None  # of the raw text of each pair; None of synthetic text

    @property
    def notes(self) -> list[str]:
        return self.counts.notes if self.counts else []

    def subset(self, rows: Sequence[int]) -> Self:
        chosen = super().subset(rows)
        chosen.lines = [self.lines[row] for row in rows] if self.lines else []
        chosen.text_digests = None if self.text_digests is None else self.text_digests[np.asarray(rows)]
        return chosen

    def digests(self) -> NDArray[np.int64] | None:
        return self.text_digests

    def texts(self) -> list[tuple[str, str]]:
        """Each pair as text: the original where it was kept, else decoded from the ids."""
        vocabularies = self.source_vocabulary, self.target_vocabulary
        columns = self.columns["source"].tolist(), self.columns["target"].tolist()
        return self.lines or [
            (_decoded(vocabularies[0], source), _decoded(vocabularies[1], target))
            for source, target in zip(*columns, strict=True)
        ]


def _decoded(vocabulary: TokenVocabulary, row: list[int]) -> str:
    return vocabulary.decode(id_ for id_ in row if id_ > EOS)


def read(folder: Path, split: str, source: Side, target: Side, lowercase: bool = False) -> ParallelText:
    """A split (of base.SPLITS), encoded with the word vocabulary of the training text."""
    vocabularies = _vocabularies(folder, source, target, lowercase, _learnt_from(split))
    encoders = [partial(_word_ids, vocabulary, lowercase) for vocabulary in vocabularies]
    return _encoded(folder, split, (source, target), vocabularies, encoders)


def read_subwords(folder: Path, split: str, source: Side, target: Side, lowercase: bool = False) -> ParallelText:
    """A split, encoded with subwords learnt from the training text; decoding is lossless but for lowercase."""
    from fathom.data._subwords import Subwords  # imported here because few runs need it

    sides = source, target
    learnt = list(pairs(folder, _learnt_from(split), source.language, target.language))
    vocabularies: list[Subwords] = []
    for side, lines in zip(sides, ([line[index] for line in learnt] for index in range(2)), strict=True):
        if not any(lines):
            raise DataError.at(folder, f"no words in the {side.language} text; the folder must contain {EXPECTS}")
        vocabularies.append(Subwords.train(lines, side.words, lowercase))
    return _encoded(folder, split, sides, vocabularies, [vocabulary.encode for vocabulary in vocabularies])


def subword_lengths(
    folder: Path, languages: tuple[str, str], sizes: tuple[int, int], lowercase: bool = False
) -> NDArray[np.int64]:
    """How many subwords the first training pairs have, a row each, by vocabularies of these sizes learnt from them."""
    from fathom.data._subwords import Subwords  # imported here because few runs need it

    sample = list(islice(filter(all, pairs(folder, "train_subset", *languages)), SAMPLED))
    lengths = []
    for index, size in enumerate(sizes):
        lines = [line[index] for line in sample]
        vocabulary = Subwords.train(lines, size, lowercase)
        lengths.append([len(vocabulary.encode(line)) for line in lines])
    return np.array(lengths, dtype=np.int64).T


def _learnt_from(split: str) -> str:
    """The text that a split's vocabulary is made of: nothing that is evaluated on."""
    return "train" if split == "train" else "train_subset"


def _word_ids(vocabulary: Vocabulary, lowercase: bool, text: str) -> list[int]:
    return vocabulary.encode(tokenise(text, lowercase))


def _encoded(
    folder: Path,
    split: str,
    sides: tuple[Side, Side],
    vocabularies: Sequence[TokenVocabulary],
    encoders: Sequence[Callable[[str], list[int]]],
) -> ParallelText:
    source, target = sides
    rows = _Rows(source.length), _Rows(target.length)
    lines: list[tuple[str, str]] = []
    digests = array("q")
    counts = TextCounts(split.startswith("train"), (source.length, target.length - 1))
    for line in pairs(folder, split, source.language, target.language):
        words, translation = (encode(text) for encode, text in zip(encoders, line, strict=True))
        if not words or not translation:
            counts.empty += 1
            continue
        too_long = len(words) > source.length or len(translation) >= target.length  # the target needs room for EOS
        counts.too_long += too_long
        if too_long and counts.is_training:
            continue
        kept = words[: source.length], translation[: target.length - 1]
        counts.keep(kept)
        rows[0].append(kept[0])
        rows[1].append([*kept[1], EOS])
        digests.append(hash(line))
        if not counts.is_training:
            lines.append(line)
    if not rows[0].lengths:
        limit = f"at most {source.length} and {target.length - 1} tokens"
        problem = f"no {split} pair of {limit} among {counts.empty + counts.too_long}"
        way = "try a larger --set source_length=N or target_length=N" if counts.too_long else f"expected {EXPECTS}"
        raise DataError.at(folder, f"{problem}; {way}")
    text = ParallelText(rows[0].padded(), rows[1].padded(), vocabularies)
    text.counts, text.dropped, text.lines = counts, counts.empty, lines
    text.text_digests = np.asarray(digests)
    text.too_long, text.truncated = (counts.too_long, 0) if counts.is_training else (0, counts.too_long)
    return text


def synthetic(seed: int, source: Side, target: Side, items: int = 2048) -> ParallelText:
    """A synthetic language pair: each word has one translation, and adjectives move behind the following word.

    Few words of the vocabulary are in use, with frequencies that follow Zipf's law. The seed selects the sentences; the
    dictionary is the same for every seed, so that a model trained on one seed can be tested on another.
    """
    rng, language = np.random.default_rng(seed), np.random.default_rng(_LANGUAGE_SEED)
    used = min(_USED_WORDS, source.words - len(SPECIALS), target.words - len(SPECIALS))
    translation = language.permutation(used) + len(SPECIALS)
    adjective = language.random(used) < 0.3
    frequency = 1 / np.arange(1, used + 1)
    frequency /= frequency.sum()
    longest = min(source.length, target.length - 1)
    rows = _Rows(source.length), _Rows(target.length)
    for length in rng.integers(min(4, longest), longest + 1, items):
        words = rng.choice(used, length, p=frequency)
        rows[0].append((words + len(SPECIALS)).tolist())
        moved = np.flatnonzero(adjective[words[:-1]] & ~adjective[words[1:]])
        words[moved], words[moved + 1] = words[moved + 1], words[moved]
        rows[1].append([*translation[words].tolist(), EOS])
    vocabularies = [_synthetic_vocabulary(source.words, "bdglmnr"), _synthetic_vocabulary(target.words, "fkpstvz")]
    return ParallelText(rows[0].padded(), rows[1].padded(), vocabularies)


def _synthetic_vocabulary(size: int, consonants: str) -> Vocabulary:
    """All words of two syllables, then of three, until there are `size`."""
    syllables = [consonant + vowel for consonant in consonants for vowel in "aeiou"]
    words: list[str] = []
    longest = syllables
    while len(words) < size:
        longest = [word + syllable for word in longest for syllable in syllables]
        words += longest
    return Vocabulary([*SPECIALS, *words[: size - len(SPECIALS)]])


class _Rows:
    """Rows of different lengths, concatenated until all are known."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.numbers, self.lengths = array("i"), array("i")

    def append(self, row: list[int]) -> None:
        self.numbers.extend(row)
        self.lengths.append(len(row))

    def padded(self) -> Tensor:
        """A matrix with one row per item, padded with PAD (0) on the right."""
        filled = np.arange(self.width) < np.asarray(self.lengths)[:, None]
        table = np.zeros(filled.shape, np.int64)
        table[filled] = np.asarray(self.numbers)
        return torch.from_numpy(table)


def _vocabularies(folder: Path, source: Side, target: Side, lowercase: bool, split: str) -> list[Vocabulary]:
    """Vocabularies of the most frequent words of the training text, one per language."""
    files = [path for pair in files_of(folder, "train", source.language, target.language) for path in pair]
    stats = [(path.resolve(), path.stat()) for path in files]
    identity = {
        "files": [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats],
        "words": (source.words, target.words),
        "lowercase": lowercase,
        "split": split,
        "held out of training": without_files(folder, source.language, target.language),
    }

    def build() -> list[Vocabulary]:
        counts: tuple[Counter[str], Counter[str]] = Counter(), Counter()
        for left, right in pairs(folder, split, source.language, target.language):
            counts[0].update(tokenise(left, lowercase))
            counts[1].update(tokenise(right, lowercase))
        sizes = source.words, target.words
        return [Vocabulary.most_frequent(count, size) for count, size in zip(counts, sizes, strict=True)]

    vocabularies = cached(identity, build)
    if any(len(vocabulary) == len(SPECIALS) for vocabulary in vocabularies):
        raise DataError.at(files[0], f"no words in this file or in {files[1].name}; the folder must contain {EXPECTS}")
    return vocabularies
