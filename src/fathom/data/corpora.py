"""The sentence pairs of a folder of parallel text, one sentence per line, by split, and how much of it there is.

The split of a file follows from its name without the language (NAME.en and NAME.fr; .txt and .gz may follow):
  train       train; else all that begin so; else all that are not held out (europarl-v7.fr-en, giga-fren, ...)
  validation  val, valid, validation or dev; else the first that begins so; else the last newstest but one
  test        test; else the first that begins so or with tst (Multi30k's test_2016_flickr); else the last newstest
A name that begins otherwise may have such a word further on (opus.de-en-dev of OPUS-100, IWSLT14.TED.tst2010.de-en).
Where there is no file for one of the last two, a few pairs of the training text are taken for it.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path

import numpy as np

from fathom.core.errors import DataError, UnknownName
from fathom.core.files import MB, unpacked
from fathom.data.base import SPLITS

EXPECTS = (
    "one sentence per line in files named by language: europarl-v7.fr-en.en and .fr with newstest2013.en and .fr, "
    "or train.en and .de with val and test (the options source_language and target_language choose the pair)"
)
MOST_BYTES = 8000 * MB  # of one file, unpacked: more text than memory holds as token ids
_MAX_LINE_BYTES = 1 << 20  # a longer line means that the file is not text
_TAKEN = 1000  # pairs that are taken of a training text for a split that has no file, and a twentieth of it at most
_LEAST_PAIRS = 40  # of a training text that pairs are taken from
_LANGUAGE = re.compile(r"[a-z]{2,3}([_-][A-Za-z]{2,4})?")
_OTHER_FILES = re.compile("bin|bpe|csv|dat|doc|htm|idx|log|md|npy|pdf|py|sgm|sh|spm|tar|tgz|tmx|tsv|xml|xz|zip")
_HELD_OUT = re.compile(r"val|dev|test|tst|news-?(test|dev|discuss|syscomb)")
_FURTHER_ON = re.compile(r".*?[._-](train|val|valid|validation|dev|test|tst)(?:ing)?\d*(?![^._-])")
_UNSPACED = (  # scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
)
_WORD = re.compile(rf"[{_UNSPACED}]{{1,2}}|[^\s{_UNSPACED}]+")  # where words are not told apart, two letters are one


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


def without_files(folder: Path, *languages: str) -> list[str]:
    """The held-out splits that have no files of their own."""
    names = _names(folder, *languages)
    return [split for split in ("validation", "test") if not _corpora_of(names, split)]


def _taken_of_training(folder: Path, *languages: str) -> dict[str, list[tuple[str, str]]]:
    """For each held-out split without files of its own, the training pairs that are taken for it.

    They are taken out of the training text wherever they stand in it, and no pair is in both: a text may repeat itself.
    """
    missing = without_files(folder, *languages)
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
    for source, target in files_of(folder, split, *languages):
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

    count: int  # training pairs, but for those with an empty side
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
    for pair in filter(all, pairs(folder, "train_subset", *languages)):  # nothing is learnt where a side is empty
        for text, known in zip(pair, letters, strict=True):
            counts.append(len(_WORD.findall(text)))
            known.update(text)
    lengths = np.asarray(counts).reshape(-1, 2)
    words = lengths.sum(0, dtype=np.int64)
    if not len(lengths):
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
    return f"{sum(all(pair) for pair in pairs(folder, split, *languages)):,} pairs of the training text"


def files_of(folder: Path, split: str, *languages: str) -> list[tuple[Path, Path]]:
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
        named = [name for name in names if name.startswith("train")]
        return ["train"] if "train" in named else named or [name for name in names if _word_of(name) in ("", "train")]
    news = [name for name in names if name.startswith("newstest")]
    if split == "validation":
        return _named(names, "val", "valid", "validation", "dev")[:1] or news[:-1][-1:]
    return _named(names, "test", "tst")[:1] or news[-1:]


def _named(names: list[str], *words: str) -> list[str]:
    """The corpora that have one of these names, then those that begin so, then those that have it further on."""
    exact = [name for name in names if name in words]
    begin_so = [name for name in names if name.startswith(words) and name not in exact]
    return exact + begin_so + [name for name in names if not name.startswith(words) and _word_of(name) in words]


def _word_of(name: str) -> str:
    """The word that tells the split of a corpus; "" of one that is training text for want of any."""
    if begins := re.match("train", name) or _HELD_OUT.match(name):
        return begins[0]
    further_on = _FURTHER_ON.match(name)
    return further_on[1] if further_on else ""


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
