"""AN4 (CMU, 1991), letters and numbers read aloud: Sphinx cepstra or the SPHERE recordings, spoken words, a dictionary.

The corpus as CMU ships it: etc/an4_train.fileids and .transcription, line by line the same utterances (and the same for
test); etc/an4.dic, a word and its phones a line; etc/an4.phone; feat/FILEID.mfc or wav/FILEID.sph.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fathom.core.errors import DataError
from fathom.data import _audio
from fathom.data._audio import Features, Scale, Sizes, Utterance, Utterances

EXPECTS = "AN4's etc folder (an4_train.fileids, .transcription, an4.dic, ...) and feat/**.mfc or wav/**.sph"
STATIC = 13  # cepstra a frame in a .mfc file
LARGEST = 1e4  # no cepstrum of a 16-bit recording comes near it
MOST_PHONES = 61  # as many as TIMIT has, so that one network fits both

# Where the dictionary's first pronunciation is not what is said: A stands for the letter here and never for the
# article AH, and nobody begins ONE with an HH.
SPOKEN = {"A": "A(2)", "ONE": "ONE(2)"}


def is_here(folder: Path) -> bool:
    return (folder / "etc" / "an4_train.fileids").exists()


def read(folder: Path, split: str, sizes: Sizes, by_speaker: bool = False) -> Utterances:
    """One split, scaled by the training split's statistics or by each speaker's own."""
    inventory = _inventory(folder / "etc" / "an4.phone")
    dictionary = _dictionary(folder / "etc" / "an4.dic", inventory)
    utterances = list(_utterances(folder, split, dictionary))
    if by_speaker:
        return _audio.padded(folder, utterances, None, inventory, sizes, Counter())
    training = utterances if split == "train" else _utterances(folder, "train", dictionary)
    return _audio.padded(folder, utterances, Scale.of(training), inventory, sizes, Counter())


def read_mfc(path: Path) -> Features:
    """A Sphinx feature file: a big-endian count of numbers, then the numbers, 13 a frame."""
    raw = _audio.content(path)
    if len(raw) < 4:
        raise DataError.at(path, "truncated: a count of 4 bytes was expected", offset=len(raw))
    (count,) = struct.unpack_from(">i", raw)
    if count < STATIC or count % STATIC or len(raw) != 4 + 4 * count:
        problem = f"the header promises {count} numbers (in frames of {STATIC}), the file has {len(raw) - 4} bytes"
        raise DataError.at(path, problem, offset=0)
    numbers = np.frombuffer(raw, ">f4", offset=4).astype(np.float32)
    sound = np.abs(numbers) < LARGEST  # false for NaN too
    if not sound.all():
        at = int(sound.argmin())
        raise DataError.at(path, f"{numbers[at]} is no cepstrum", offset=4 + 4 * at)
    return numbers.reshape(-1, STATIC)


def _utterances(folder: Path, split: str, dictionary: dict[str, list[int]]) -> Iterator[Utterance]:
    """The utterances of a split; a word that can be said in several ways counts as said in one."""
    names = folder / "etc" / f"an4_{split}.fileids"
    said = folder / "etc" / f"an4_{split}.transcription"
    fileids, transcripts = _audio.lines(names), _audio.lines(said)
    if not fileids or len(fileids) != len(transcripts):
        raise DataError.at(said, f"{len(transcripts)} transcripts for {len(fileids)} utterances of {names.name}")
    for number, (fileid, transcript) in enumerate(zip(fileids, transcripts, strict=True), start=1):
        if not re.fullmatch(r"([\w-]{1,99}/){0,9}[\w-]{1,99}", fileid):
            raise DataError.at(names, f"a path below feat or wav was expected, not {fileid[:60]!r}", line=number)
        path = _path(folder, fileid)
        if not path.is_file():
            raise DataError.at(names, f"{path.relative_to(folder)} is not there", line=number)
        words = _words(said, number, transcript, fileid.rpartition("/")[2])
        unknown = [word for word in words if word not in dictionary]
        if unknown:
            raise DataError.at(said, f"{unknown[0][:30]!r} is not in an4.dic", line=number)
        phones = [phone for word in words for phone in dictionary[word]]
        speaker = path.parent.name
        yield Utterance(_audio.with_slopes(_static(path)), phones, " ".join(words), speaker)


def _path(folder: Path, fileid: str) -> Path:
    """CMU's own features where the folder has any, else recordings; never a mixture, as ours differ in scale."""
    features = folder / "feat"
    return features / f"{fileid}.mfc" if features.is_dir() else folder / "wav" / f"{fileid}.sph"


def _static(path: Path) -> Features:
    return read_mfc(path) if path.suffix == ".mfc" else _audio.cepstra(_audio.samples(path))


def _words(path: Path, number: int, transcript: str, name: str) -> list[str]:
    """The words of '<s> ONE TWO </s> (name)'; the silences <s>, </s> and <sil> may be left out."""
    spoken, _, ending = transcript.rpartition("(")
    words = [word for word in spoken.split() if word not in ("<s>", "</s>", "<sil>")]
    if ending.strip() != f"{name})" or not words:
        raise DataError.at(path, f"words and ({name}) were expected, not {transcript[:60]!r}", line=number)
    return words


def _inventory(path: Path) -> list[str]:
    phones = _audio.lines(path)
    for number, phone in enumerate(phones, start=1):
        if not re.fullmatch(r"[A-Z]+", phone) or phone in phones[: number - 1]:
            raise DataError.at(path, f"a phone of its own was expected, not {phone[:20]!r}", line=number)
    if not 1 <= len(phones) <= MOST_PHONES:
        raise DataError.at(path, f"1 to {MOST_PHONES} phones were expected, not {len(phones)}")
    return phones


def _dictionary(path: Path, inventory: list[str]) -> dict[str, list[int]]:
    """How each word is said, as phone numbers: WORD(2) and so on are other ways to say WORD, the first of all."""
    numbers = {phone: number for number, phone in enumerate(inventory, start=1)}
    words: dict[str, list[int]] = {}
    for number, line in enumerate(_audio.lines(path), start=1):
        word, *phones = line.split() or [""]
        unknown = [phone for phone in phones if phone not in numbers]
        if not phones or unknown or word in words:
            problem = f"a new word and phones of an4.phone were expected, not {line[:60]!r}"
            raise DataError.at(path, problem, line=number)
        words[word] = [numbers[phone] for phone in phones]
    return words | {word: words[spoken] for word, spoken in SPOKEN.items() if spoken in words}
