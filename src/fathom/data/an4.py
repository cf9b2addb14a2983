"""AN4 (CMU, 1991), spoken letters and numbers: Sphinx features or SPHERE recordings, transcripts, a dictionary.

The layout is that of CMU's archive: etc/an4_train.fileids and .transcription, with one utterance per line in the same
order (likewise for test); etc/an4.dic, one word and its phones per line; etc/an4.phone; feat/FILEID.mfc or
wav/FILEID.sph. Every tenth training speaker is validation; where there is one speaker only, every tenth utterance.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fathom.core.errors import DataError, UnknownName
from fathom.data import _audio
from fathom.data._audio import Features, Scale, Sizes, Utterance, Utterances
from fathom.data.base import SPLITS

EXPECTS = "AN4's etc folder (an4_train.fileids, .transcription, an4.dic, ...) and feat/**.mfc or wav/**.sph"
WHOLE = {"train": 948, "test": 130}  # utterances
COEFFICIENTS = 13  # per frame in a .mfc file
MAX_COEFFICIENT = 1e4  # far above any cepstral coefficient of a 16-bit recording
MAX_PHONES = 61  # as in TIMIT, so that one network fits both

# Words whose first pronunciation in the dictionary is not the one spoken: A is the letter here, never the article AH,
# and ONE does not begin with HH.
PRONUNCIATION = {"A": "A(2)", "ONE": "ONE(2)"}


def is_present(folder: Path) -> bool:
    return (folder / "etc" / "an4_train.fileids").exists()


def is_whole(folder: Path) -> bool:
    """Whether the lists name as many utterances as CMU's: a part of the corpus comes in files of the same names."""
    try:
        return all(len(_audio.read_lines(_names(folder, split))) == count for split, count in WHOLE.items())
    except DataError:
        return False  # the reader tells it


def read(folder: Path, split: str, sizes: Sizes, by_speaker: bool = False) -> Utterances:
    """One split (of base.SPLITS), normalised by the training split's statistics or by each speaker's own."""
    inventory = _inventory(folder / "etc" / "an4.phone")
    dictionary = _dictionary(folder / "etc" / "an4.dic", inventory)
    utterances = _split(folder, split, dictionary)
    if by_speaker:
        return _audio.padded(folder, utterances, None, inventory, sizes, Counter())
    training = utterances if split.startswith("train") else _split(folder, "train_subset", dictionary)
    return _audio.padded(folder, utterances, Scale.of(training), inventory, sizes, Counter())


def _split(folder: Path, split: str, dictionary: dict[str, list[int]]) -> list[Utterance]:
    if split in ("train", "test"):
        return list(_utterances(folder, split, dictionary))
    if split not in SPLITS:
        raise UnknownName.among("split", split, SPLITS)
    everyone = list(_utterances(folder, "train", dictionary))
    held_out = _audio.is_validation([utterance.speaker for utterance in everyone])
    found = [each for each, apart in zip(everyone, held_out, strict=True) if apart == (split == "validation")]
    if not found:
        raise DataError.at(folder, f"no utterance of the {split} split: of {len(everyone)} none can be held out")
    return found


def read_mfc(path: Path) -> Features:
    """A Sphinx feature file: a big-endian count, then as many floats, 13 per frame."""
    raw = _audio.read_bytes(path)
    if len(raw) < 4:
        raise DataError.at(path, "truncated: a count of 4 bytes was expected", offset=len(raw))
    (count,) = struct.unpack_from(">i", raw)
    if count < COEFFICIENTS or count % COEFFICIENTS or len(raw) != 4 + 4 * count:
        problem = f"the header declares {count} numbers ({COEFFICIENTS} per frame), the file has {len(raw) - 4} bytes"
        raise DataError.at(path, problem, offset=0)
    numbers = np.frombuffer(raw, ">f4", offset=4).astype(np.float32)
    valid = np.abs(numbers) < MAX_COEFFICIENT  # false for NaN too
    if not valid.all():
        index = int(valid.argmin())
        raise DataError.at(path, f"{numbers[index]} is not a cepstral coefficient", offset=4 + 4 * index)
    return numbers.reshape(-1, COEFFICIENTS)


def _utterances(folder: Path, split: str, dictionary: dict[str, list[int]]) -> Iterator[Utterance]:
    """The utterances of a split; every word is assumed to have one fixed pronunciation."""
    names = _names(folder, split)
    transcription = folder / "etc" / f"an4_{split}.transcription"
    fileids, transcripts = _audio.read_lines(names), _audio.read_lines(transcription)
    if not fileids:
        raise DataError.at(names, "empty: it names no utterance")
    if len(fileids) != len(transcripts):
        problem = f"{len(transcripts)} transcripts for {len(fileids)} utterances of {names.name}"
        raise DataError.at(transcription, problem)
    for number, (fileid, transcript) in enumerate(zip(fileids, transcripts, strict=True), start=1):
        if not re.fullmatch(r"([\w-]{1,99}/){0,9}[\w-]{1,99}", fileid):
            raise DataError.at(names, f"a path below feat or wav was expected, not {fileid[:60]!r}", line=number)
        path = _path(folder, fileid)
        if not path.is_file():
            raise DataError.at(names, f"{path.relative_to(folder)} does not exist", line=number)
        words = _words(transcription, number, transcript, fileid.rpartition("/")[2])
        unknown = [word for word in words if word not in dictionary]
        if unknown:
            raise DataError.at(transcription, f"{unknown[0][:30]!r} is not in an4.dic", line=number)
        phones = [phone for word in words for phone in dictionary[word]]
        speaker = path.parent.name
        yield Utterance(_audio.with_deltas(_mfcc(path)), phones, " ".join(words), speaker)


def _names(folder: Path, split: str) -> Path:
    return folder / "etc" / f"an4_{split}.fileids"


def _path(folder: Path, fileid: str) -> Path:
    """CMU's features if the folder has any, else recordings. They are never mixed, as our features differ in scale."""
    features = folder / "feat"
    return features / f"{fileid}.mfc" if features.is_dir() else folder / "wav" / f"{fileid}.sph"


def _mfcc(path: Path) -> Features:
    return read_mfc(path) if path.suffix == ".mfc" else _audio.mfcc(_audio.read_samples(path))


def _words(path: Path, number: int, transcript: str, name: str) -> list[str]:
    """The words of '<s> ONE TWO </s> (name)'; the silence marks <s>, </s> and <sil> are optional."""
    spoken, _, ending = transcript.rpartition("(")
    words = [word for word in spoken.split() if word not in ("<s>", "</s>", "<sil>")]
    if ending.strip() != f"{name})" or not words:
        raise DataError.at(path, f"words and ({name}) were expected, not {transcript[:60]!r}", line=number)
    return words


def _inventory(path: Path) -> list[str]:
    phones = _audio.read_lines(path)
    for number, phone in enumerate(phones, start=1):
        if not re.fullmatch(r"[A-Z]+", phone) or phone in phones[: number - 1]:
            raise DataError.at(path, f"a new phone in capital letters was expected, not {phone[:20]!r}", line=number)
    if not 1 <= len(phones) <= MAX_PHONES:
        raise DataError.at(path, f"1 to {MAX_PHONES} phones were expected, not {len(phones)}")
    return phones


def _dictionary(path: Path, inventory: list[str]) -> dict[str, list[int]]:
    """Word -> phone ids. WORD(2) and so on are alternative pronunciations; the first one is used for WORD."""
    numbers = {phone: number for number, phone in enumerate(inventory, start=1)}
    words: dict[str, list[int]] = {}
    for number, line in enumerate(_audio.read_lines(path), start=1):
        word, *phones = line.split() or [""]
        unknown = [phone for phone in phones if phone not in numbers]
        if not phones or unknown or word in words:
            problem = f"a new word and phones of an4.phone were expected, not {line[:60]!r}"
            raise DataError.at(path, problem, line=number)
        words[word] = [numbers[phone] for phone in phones]
    return words | {word: words[variant] for word, variant in PRONUNCIATION.items() if variant in words}
