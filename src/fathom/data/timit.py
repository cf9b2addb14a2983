"""TIMIT: recordings of read speech with their phones, the 61 phones and their folding, and a synthetic replacement.

The layout is that of the LDC: TRAIN/DR1/FCJF0/SX37.WAV (in SPHERE format) beside SX37.PHN, .WRD and .TXT.
The two SA sentences, which every speaker reads, are left out, as is usual. The split "core" is the core test set, on
which results are usually compared. In a folder without TRAIN and TEST every fourth utterance, by name, is the test
split. Every tenth training speaker is validation; where there is one speaker only, every tenth utterance. Where
there is TRAIN or TEST, nothing outside of them is read.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fathom.core.errors import DataError
from fathom.data import _audio
from fathom.data._audio import FEATURES, Scale, Sizes, Utterance, Utterances

EXPECTS = "TIMIT's TRAIN and TEST folders (or any folder of 16 kHz .WAV recordings), with a .PHN beside each .WAV"

WHOLE = {"train": 3696, "core": 192}  # utterances without the SA sentences

PHONES = """
aa ae ah ao aw ax ax-h axr ay b bcl ch d dcl dh dx eh el em en eng epi er ey f g gcl h# hh hv ih ix iy jh k kcl l
m n ng nx ow oy p pau pcl q r s sh t tcl th uh uw ux v w y z zh
""".split()  # noqa: SIM905 - as the corpus's own documentation lists them

# Lee and Hon, Speaker-independent phone recognition using hidden Markov models, 1989: 48 classes are trained,
# 39 are distinguished in scoring, and the glottal stop q is removed. Phones not listed here are their own class.
TO_48 = {
    "ux": "uw",
    "axr": "er",
    "ax-h": "ax",
    "em": "m",
    "nx": "n",
    "eng": "ng",
    "hv": "hh",
    "h#": "sil",
    "pau": "sil",
}
TO_48 |= dict.fromkeys(("pcl", "tcl", "kcl"), "cl") | dict.fromkeys(("bcl", "dcl", "gcl"), "vcl")
TO_39 = {"cl": "sil", "vcl": "sil", "epi": "sil", "el": "l", "en": "n", "zh": "sh", "ao": "aa", "ix": "ih", "ax": "ah"}
DELETED = "q"

# The core test set: two men and a woman of each of the eight dialects, as the corpus's own documentation lists them.
CORE = """
mdab0 mwbt0 felc0 mtas1 mwew0 fpas0 mjmp0 mlnt0 fpkt0 mlll0 mtls0 fjlm0
mbpm0 mklt0 fnlp0 mcmj0 mjdh0 fmgd0 mgrt0 mnjm0 fdhc0 mjln0 mpam0 fmld0
""".split()  # noqa: SIM905

# recordings that are never read
SA, UNLABELLED, OUTSIDE = LEFT_OUT = ("that are SA sentences", "without a .PHN", "outside the folders TRAIN and TEST")

# Some corpora come with phones already folded to 48 classes. The three classes that are not among the 61 phones are
# read as a frequent member, which folds to the same class again.
UNFOLDED = {"cl": "tcl", "vcl": "dcl", "sil": "h#"}
_NUMBERS = {phone: number for number, phone in enumerate(PHONES, start=1)}
_NUMBERS |= {folded: _NUMBERS[phone] for folded, phone in UNFOLDED.items()}


def folded(phones: Iterable[str], classes: int) -> list[str]:
    """Phones mapped to Lee and Hon's 48 or 39 classes, as used for the phone error rate."""
    assert classes in (48, 39), "Lee and Hon define 48 and 39 classes"
    in_48 = [TO_48.get(phone, phone) for phone in phones if phone != DELETED]
    return in_48 if classes == 48 else [TO_39.get(phone, phone) for phone in in_48]


FOLDING = {phone: "".join(folded([phone], 39)) for phone in PHONES}  # phone -> scoring class


@dataclass(frozen=True)
class _Recording:
    """The files of one utterance, and the split of its folder, if any."""

    audio: Path
    phones: Path
    words: Path | None
    split: str | None

    @property
    def speaker(self) -> str:
        return self.audio.parent.name.lower()


@dataclass(frozen=True)
class _PassedOver:
    """A recording that is never read."""

    reason: str  # one of LEFT_OUT
    speaker: str
    split: str | None


def is_present(folder: Path) -> bool:
    return any(name.lower().endswith(".phn") for _, _, names in os.walk(folder) for name in names)


def has_core_test_set(folder: Path) -> bool:
    """Whether any of TIMIT's core test speakers are in the folder's test split; other corpora have none of them."""
    return any(one.split == "test" and one.speaker in CORE for one in _recordings(folder, []))


def is_whole(folder: Path) -> bool:
    """Whether it has as many utterances as the LDC's: those to train on, and the core test set."""
    recordings = list(_recordings(folder, []))
    return all(len(_in_folders(recordings, split)) == count for split, count in WHOLE.items())


def read(folder: Path, split: str, sizes: Sizes, by_speaker: bool = False) -> Utterances:
    """One split (of base.SPLITS, or core), normalised by the training split's statistics or by each speaker's own."""
    passed_over: list[_PassedOver] = []
    recordings = list(_recordings(folder, passed_over))
    chosen = _in_split(recordings, split)
    skipped = _left_out_of(split, passed_over, recordings)
    if not chosen:
        others = ", ".join(f"{count:,} {reason}" for reason, count in skipped.items())
        problem = f"no utterance of the {split} split{f' (recordings: {others})' if others else ''}"
        raise DataError.at(folder, f"{problem}; the folder must contain {EXPECTS}")
    utterances = [_utterance(recording) for recording in chosen]
    scale = None
    if not by_speaker:
        other = () if split.startswith("train") else _in_split(recordings, "train_subset")
        scale = Scale.of((_utterance(one) for one in other) if other else utterances)
    return _audio.padded(folder, utterances, scale, PHONES, sizes, skipped, FOLDING)


def synthetic(seed: int, sizes: Sizes, items: int = 512) -> Utterances:
    """Random phones of 4 to 12 frames each, with noise; the spectrum of a phone is the same for every seed."""
    rng = np.random.default_rng(seed)
    spectra = np.random.default_rng(0).standard_normal((len(PHONES), FEATURES), np.float32)
    steps = rng.integers(1, len(PHONES), (items, sizes.phones))  # never 0: no phone is repeated
    phones = steps.cumsum(1) % len(PHONES)
    ends = rng.integers(4, 13, (items, sizes.phones)).clip(max=sizes.frames).cumsum(1)
    most = (ends <= sizes.frames).sum(1)
    count = rng.integers((most + 1) // 2, most + 1)
    frames = ends[np.arange(items), count - 1]
    time = np.arange(sizes.frames)
    position = np.stack([row.searchsorted(time, "right") for row in ends]).clip(max=sizes.phones - 1)
    features = spectra[np.take_along_axis(phones, position, 1)]
    features += 0.5 * rng.standard_normal(features.shape, np.float32)
    features[time >= frames[:, None]] = 0
    numbers = np.where(np.arange(sizes.phones) < count[:, None], phones + 1, 0)
    columns = {"features": features, "frames": frames, "phones": numbers, "phone_count": count}
    return Utterances({name: torch.from_numpy(column) for name, column in columns.items()}, PHONES, [""] * items, {})


def _recordings(folder: Path, passed_over: list[_PassedOver]) -> Iterator[_Recording]:
    """Every .WAV with a .PHN beside it, sorted by path; suffixes in upper or lower case."""
    for parent, below, names in os.walk(folder):
        below.sort()
        here = {name.lower(): Path(parent, name) for name in names}
        parts = Path(parent).relative_to(folder).as_posix().lower().split("/")
        split = next((part for part in parts if part in ("train", "test")), None)
        for name in sorted(here):
            stem, wav, rest = name.rpartition(".wav")
            if not wav or rest:
                continue
            if stem in ("sa1", "sa2"):
                passed_over.append(_PassedOver(SA, Path(parent).name.lower(), split))
            elif f"{stem}.phn" not in here:
                passed_over.append(_PassedOver(UNLABELLED, Path(parent).name.lower(), split))
            else:
                words = here.get(f"{stem}.txt") or here.get(f"{stem}.wrd")
                yield _Recording(here[name], here[f"{stem}.phn"], words, split)


def _in_split(recordings: list[_Recording], split: str) -> list[_Recording]:
    if split not in ("train_subset", "validation"):
        return _in_folders(recordings, split)
    training = _in_folders(recordings, "train")
    held_out = _audio.is_validation([one.speaker for one in training])
    return [one for one, apart in zip(training, held_out, strict=True) if apart == (split == "validation")]


def _in_folders(recordings: list[_Recording], split: str) -> list[_Recording]:
    if not any(recording.split for recording in recordings):
        return [one for index, one in enumerate(recordings) if (index % 4 == 3) == (split != "train")]
    if split == "core":
        return [one for one in recordings if one.split == "test" and one.speaker in CORE]
    return [recording for recording in recordings if recording.split == split]


def _left_out_of(split: str, passed_over: list[_PassedOver], recordings: list[_Recording]) -> Counter[str]:
    """Why recordings that would be of the split are not read; where nothing tells, they count for every split."""
    own, outside = passed_over, list[str]()
    if any(recording.split for recording in recordings):
        splits = [one.split for one in recordings] + [one.split for one in passed_over]
        outside = [OUTSIDE] * splits.count(None)
        own = [one for one in own if one.split == ("test" if split in ("test", "core") else "train")]
        if split == "core":
            own = [one for one in own if one.speaker in CORE]
        elif split in ("train_subset", "validation"):
            held_out = {recording.speaker for recording in _in_split(recordings, "validation")}
            own = [one for one in own if (one.speaker in held_out) == (split == "validation")]
    return Counter([*(one.reason for one in own), *outside])


def _utterance(recording: _Recording) -> Utterance:
    samples = _audio.read_samples(recording.audio)
    phones = _phones(recording.phones, len(samples))
    sentence = _sentence(recording.words) if recording.words else ""
    return Utterance(_audio.with_deltas(_audio.mfcc(samples)), phones, sentence, recording.speaker)


def _sentence(path: Path) -> str:
    """The words of a .TXT or .WRD, without the times where its lines begin with them.

    Any text will do: nothing is learnt from it, it is shown beside the phones.
    """
    lines = _audio.read_bytes(path).decode("utf-8-sig", errors="replace").splitlines()
    return " ".join(re.sub(r"^\s*\d+\s+\d+\s+", "", line).strip() for line in lines).strip()


def _phones(path: Path, samples: int) -> list[int]:
    segments = _segments(path)
    for line, (start, phone) in enumerate(segments, start=1):
        if phone not in _NUMBERS:
            raise DataError.at(path, f"{phone[:20]!r} is not one of TIMIT's 61 phones", line=line)
        if start >= samples:
            raise DataError.at(path, f"a phone starts at sample {start}, the recording has {samples}", line=line)
    return [_NUMBERS[phone] for _, phone in segments]


def _segments(path: Path) -> list[tuple[int, str]]:
    """The start and the label of each phone: lines of 'start end label', in samples."""
    segments: list[tuple[int, str]] = []
    for number, line in enumerate(_audio.read_lines(path), start=1):
        found = re.fullmatch(r"\s*(\d{1,9})\s+(\d{1,9})\s+(\S.*?)\s*", line)
        if found is None:
            raise DataError.at(path, f"'start end label' was expected, not {line[:60]!r}", line=number)
        start, end = int(found[1]), int(found[2])
        if start >= end or (segments and start < segments[-1][0]):
            problem = f"{start} to {end}: the end must be after the start, and starts must not decrease"
            raise DataError.at(path, problem, line=number)
        segments.append((start, found[3]))
    if not segments:
        raise DataError.at(path, "empty: lines of 'start end label' were expected")
    return segments
