"""Parallel text, one sentence per line: a reader of WMT and Multi30k files, and a synthetic language pair.

The split of a file follows from its name without the language (NAME.en and NAME.fr; .txt and .gz may follow):
  train       train; else all that begin so; else all that are not held out (europarl-v7.fr-en, giga-fren, ...)
  validation  val, valid, validation or dev; else the first that begins so; else the last newstest but one
  test        test; else the first that begins so or with tst (Multi30k's test_2016_flickr); else the last newstest
Where there is no file for one of the last two, a few pairs of the training text are taken for it.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from fathom.core.errors import DataError, UnknownName
from fathom.core.files import MB, unpacked
from fathom.data._left_out import TextCounts
from fathom.data._vocabulary import EOS, SPECIALS, Vocabulary, cached, tokenise
from fathom.data.base import SPLITS, InMemory

EXPECTS = (
    "one sentence per line in files named by language: europarl-v7.fr-en.en and .fr with newstest2013.en and .fr, "
    "or train.en and .de with val and test (the options source_language and target_language choose the pair)"
)
MOST_BYTES = 8000 * MB  # of one file, unpacked: more text than memory holds as token ids
_MAX_LINE_BYTES = 1 << 20  # a longer line means that the file is not text
_TAKEN = 1000  # pairs that are taken of a training text for a split that has no file, and a twentieth of it at most
_LEAST_PAIRS = 40  # of a training text that pairs are taken from
_USED_WORDS = 60  # words in use in the synthetic languages
_LANGUAGE_SEED = 2014  # of the synthetic dictionary
_LANGUAGE = re.compile(r"[a-z]{2,3}([_-][A-Za-z]{2,4})?")
_OTHER_FILES = re.compile("bin|bpe|csv|dat|doc|htm|idx|log|md|npy|pdf|py|sgm|sh|spm|tar|tgz|tmx|tsv|xml|xz|zip")
_HELD_OUT = re.compile(r"val|dev|test|tst|news-?(test|dev|discuss|syscomb)")
_UNSPACED = (  # scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
)
_WORD = re.compile(rf"[{_UNSPACED}]{{1,2}}|[^\s{_UNSPACED}]+")  # where words are not told apart, two letters are one


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

    @property
    def notes(self) -> list[str]:
        return self.counts.notes if self.counts else []

    def subset(self, rows: Sequence[int]) -> Self:
        chosen = super().subset(rows)
        chosen.lines = [self.lines[row] for row in rows] if self.lines else []
        return chosen

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


def read_subwords(folder: Path, split: str, source: Side, target: Side) -> ParallelText:
    """A split, encoded with subwords learnt from the training text; case is kept and decoding is lossless."""
    from fathom.data._subwords import Subwords  # imported here because few runs need it

    sides = source, target
    learnt = list(pairs(folder, _learnt_from(split), source.language, target.language))
    vocabularies: list[Subwords] = []
    for side, lines in zip(sides, ([line[index] for line in learnt] for index in range(2)), strict=True):
        if not any(lines):
            raise DataError.at(folder, f"no words in the {side.language} text; the folder must contain {EXPECTS}")
        vocabularies.append(Subwords.train(lines, side.words))
    return _encoded(folder, split, sides, vocabularies, [vocabulary.encode for vocabulary in vocabularies])


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
        if not counts.is_training:
            lines.append(line)
    if not rows[0].lengths:
        limit = f"at most {source.length} and {target.length - 1} words and punctuation marks"
        problem = f"no {split} pair of {limit} among {counts.empty + counts.too_long}"
        raise DataError.at(folder, f"{problem}; the folder must contain {EXPECTS}")
    text = ParallelText(rows[0].padded(), rows[1].padded(), vocabularies)
    text.counts, text.dropped, text.lines = counts, counts.empty, lines
    text.too_long, text.truncated = (counts.too_long, 0) if counts.is_training else (0, counts.too_long)
    return text


def pairs(folder: Path, split: str, source_language: str, target_language: str) -> Iterator[tuple[str, str]]:
    """The sentence pairs of a split as text; either side may be empty."""
    languages = source_language, target_language
    if split == "train" or (split != "train_subset" and _corpora_of(_names(folder, *languages), split)):
        yield from _all_pairs(folder, split, *languages)
        return
    taken = _taken_of_training(folder, *languages)
    if split == "train_subset":
        evaluated = {pair for some in taken.values() for pair in some}
        yield from (pair for pair in _all_pairs(folder, "train", *languages) if pair not in evaluated)
        return
    if split not in taken:
        problem = f"no {split} text in {languages[0]} and {languages[1]}, and too few training pairs to take it from"
        raise DataError.at(folder, f"{problem}: {_LEAST_PAIRS} are needed; the folder must contain {EXPECTS}")
    yield from taken[split]


def _taken_of_training(folder: Path, *languages: str) -> dict[str, list[tuple[str, str]]]:
    """For each held-out split without files of its own, the training pairs that are taken for it.

    They are taken out of the training text wherever they stand in it, and no pair is in both: a text may repeat itself.
    """
    names = _names(folder, *languages)
    missing = [split for split in ("validation", "test") if not _corpora_of(names, split)]
    if not missing:
        return {}
    found = sum(1 for _ in _all_pairs(folder, "train", *languages))
    if found < _LEAST_PAIRS:
        return {}
    few = min(_TAKEN, found // 20)
    order = np.random.default_rng(0).permutation(found)[: few * len(missing)].tolist()  # the same for every run
    split_of = {row: missing[place // few] for place, row in enumerate(order)}
    taken: dict[str, list[tuple[str, str]]] = {split: [] for split in missing}
    seen: dict[tuple[str, str], str] = {}
    for row, pair in enumerate(_all_pairs(folder, "train", *languages)):
        if row in split_of and seen.setdefault(pair, split_of[row]) == split_of[row]:
            taken[split_of[row]].append(pair)
    return taken


def _all_pairs(folder: Path, split: str, *languages: str) -> Iterator[tuple[str, str]]:
    """Every pair of a split's own files."""
    for source, target in _files(folder, split, *languages):
        counts = [0, 0]
        for left, right in zip_longest(_lines(source), _lines(target)):
            counts[0] += left is not None
            counts[1] += right is not None
            if left is not None and right is not None:
                yield left, right
        if counts[0] != counts[1]:
            raise DataError.at(source, f"{counts[0]} lines, but {target.name} has {counts[1]}")


@dataclass(frozen=True)
class TextSizes:
    """How much text a folder has in two languages; pairs of numbers are of the source and of the target."""

    count: int  # training pairs
    words: tuple[int, int]
    letters: tuple[int, int]  # different ones
    long_sentence: tuple[int, int]  # words; one sentence in 200 is longer
    validation: str  # where the split comes from, in words
    test: str
    is_multi30k: bool


def sizes(folder: Path, source_language: str, target_language: str) -> TextSizes:
    """What the sizes of a network for this text follow from."""
    languages = source_language, target_language
    counts, letters = array("i"), (set[str](), set[str]())
    for pair in pairs(folder, "train_subset", *languages):
        for text, known in zip(pair, letters, strict=True):
            counts.append(len(_WORD.findall(text)))
            known.update(text)
    lengths = np.asarray(counts).reshape(-1, 2)
    words = lengths.sum(0, dtype=np.int64)
    if not words.all():
        raise DataError.at(folder, f"no training text in {' and '.join(languages)} that is not held out")
    origin = {split: _origin(folder, split, *languages) for split in ("validation", "test")}
    long_sentence = np.quantile(lengths, 0.995, axis=0, method="higher")
    return TextSizes(
        len(lengths),
        (int(words[0]), int(words[1])),
        (len(letters[0]), len(letters[1])),
        (int(long_sentence[0]), int(long_sentence[1])),
        **origin,
        is_multi30k=origin["test"] == "test_2016_flickr",
    )


def _origin(folder: Path, split: str, *languages: str) -> str:
    """Where a held-out split comes from, in words."""
    if own := _corpora_of(_names(folder, *languages), split):
        return own[0]
    return f"{sum(1 for _ in pairs(folder, split, *languages)):,} pairs of the training text"


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
    files = [path for pair in _files(folder, "train", source.language, target.language) for path in pair]
    stats = [(path.resolve(), path.stat()) for path in files]
    identity = {
        "files": [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats],
        "words": (source.words, target.words),
        "lowercase": lowercase,
        "split": split,
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


def _files(folder: Path, split: str, *languages: str) -> list[tuple[Path, Path]]:
    """The corpora of a split, each as a pair of files."""
    found = _paths(folder, *languages)
    chosen = _corpora_of(_names(folder, *languages), split)
    if not chosen:
        problem = f"no {split} text in {languages[0]} and {languages[1]}; the folder must contain {EXPECTS}"
        raise DataError.at(folder, problem)
    for name in chosen:
        for paths, language in zip(found, languages, strict=True):
            if name not in paths:
                problem = f"{name}.{language} or {name}.{language}.gz is missing"
                raise DataError.at(folder, f"{problem}; the folder must contain {EXPECTS}")
    return [(found[0][name], found[1][name]) for name in chosen]


def _paths(folder: Path, *languages: str) -> list[dict[str, Path]]:
    """For each language, its files by their names without it."""
    # in descending order, so that a plain file replaces its .gz in the dict
    listing = sorted(folder.iterdir(), reverse=True) if folder.is_dir() else []
    return [{_corpus(path, language): path for path in listing} for language in languages]


def _names(folder: Path, *languages: str) -> list[str]:
    return sorted({name for paths in _paths(folder, *languages) for name in paths if name})


def _corpus(path: Path, language: str) -> str:
    """The name without the language; "" for a file in no or another language."""
    name = path.name.removesuffix(".gz").removesuffix(".txt")
    return name.removesuffix(f".{language}") if name.endswith(f".{language}") else ""


def languages(folder: Path) -> list[str]:
    """The codes of the languages that have training text in the folder, each beside a file of another language."""
    listing = sorted(folder.iterdir()) if folder.is_dir() else []
    endings = [path.name.removesuffix(".gz").removesuffix(".txt").rpartition(".") for path in listing]
    corpora = defaultdict(set)
    for name, _, code in endings:
        if name and _LANGUAGE.fullmatch(code) and not _OTHER_FILES.fullmatch(code):
            corpora[name].add(code)
    training = _corpora_of(sorted(name for name, codes in corpora.items() if len(codes) > 1), "train")
    return sorted({code for name in training for code in corpora[name]})


def _corpora_of(names: list[str], split: str) -> list[str]:
    if split not in SPLITS:
        raise UnknownName.among("split", split, SPLITS)
    if split.startswith("train"):
        named = _named(names, "train")
        return named[:1] if named[:1] == ["train"] else named or [name for name in names if not _HELD_OUT.match(name)]
    news = [name for name in names if name.startswith("newstest")]
    if split == "validation":
        return _named(names, "val", "valid", "validation", "dev")[:1] or news[:-1][-1:]
    return _named(names, "test", "tst")[:1] or news[-1:]


def _named(names: list[str], *words: str) -> list[str]:
    """The corpora that have one of these names, then those that begin so."""
    exact = [name for name in names if name in words]
    return exact + [name for name in names if name.startswith(words) and name not in exact]


def _lines(path: Path) -> Iterator[str]:
    """The lines of a text file, separated by line feeds only: Europarl has other separators within sentences."""
    number = 0
    try:
        with unpacked(path, MOST_BYTES) as file:
            for number, line in enumerate(iter(partial(file.readline, _MAX_LINE_BYTES), b""), 1):
                if b"\0" in line or len(line) == _MAX_LINE_BYTES:
                    what = "a zero byte" if b"\0" in line else f"longer than {_MAX_LINE_BYTES} bytes"
                    raise DataError.at(path, f"{what}, expected one sentence per line", line=number)
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    except UnicodeDecodeError as error:
        raise DataError.at(path, f"not UTF-8: {error.reason} at byte {error.start} of the line", line=number) from None
