"""Speech features: NIST SPHERE and RIFF recordings, mel-frequency cepstral coefficients, padded utterances."""

from __future__ import annotations

import codecs
import re
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from fathom.core import files
from fathom.core.errors import DataError
from fathom.data._left_out import left_out
from fathom.data.base import Batch, InMemory

RATE = 16_000  # samples per second, in TIMIT and in AN4
WINDOW, HOP, FFT = 400, 160, 512  # 25 ms windows every 10 ms
FILTERS, CEPSTRA = 26, 12
FEATURES = 26  # 12 cepstral coefficients and the log energy, and the delta of each
MOST_BYTES = 64 * files.MB  # of one file: half an hour of speech
BLOCK = 4096  # windows transformed at once, which bounds the memory for a long recording
TOO_SHORT = "with fewer frames than CTC needs for its phones"
POWER_FLOOR = 1e-10  # power below this is silence: its logarithm is taken of this

Samples = NDArray[np.int16]
Features = NDArray[np.float32]


def read_bytes(path: Path) -> bytes:
    return files.read_bytes(path, MOST_BYTES)


def read_lines(path: Path) -> list[str]:
    """The lines of a small ASCII text file."""
    raw = read_bytes(path)
    try:
        return raw.removeprefix(codecs.BOM_UTF8).decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise DataError.at(path, "plain ASCII text was expected", offset=error.start) from None


def read_samples(path: Path) -> Samples:
    """A 16 kHz mono recording of 16-bit samples; the container is detected by content, not by file name."""
    raw = read_bytes(path)
    if raw.startswith(b"NIST_1A\n"):
        found = _sphere(path, raw)
    elif raw.startswith(b"RIFF"):
        found = _riff(path, raw)
    else:
        raise DataError.at(path, "neither a NIST SPHERE (NIST_1A) nor a RIFF recording", offset=0)
    if len(found) < WINDOW:
        raise DataError.at(path, f"{len(found)} samples are less than one window of {WINDOW}")
    return found


def _sphere(path: Path, raw: bytes) -> Samples:
    size, fields = _sphere_header(path, raw)
    coding = fields.get("sample_coding", "pcm")  # TIMIT's headers lack it
    if "shorten" in coding:
        convert = "convert it with: sph2pipe -p -f rif IN OUT"
        raise DataError.at(path, f"compressed with shorten ({coding}), which cannot be decoded; {convert}")
    order = fields.get("sample_byte_format")
    expected = {"sample_rate": str(RATE), "channel_count": "1", "sample_n_bytes": "2"}
    wrong = [f"{name} {fields.get(name)}" for name, value in expected.items() if fields.get(name) != value]
    if coding != "pcm" or order not in ("01", "10") or wrong:
        problem = f"16-bit mono PCM at {RATE} Hz was expected, the header says sample_coding {coding}"
        raise DataError.at(path, f"{problem}, sample_byte_format {order}" + "".join(f", {field}" for field in wrong))
    declared = fields.get("sample_count", "")
    if not re.fullmatch(r"\d{1,12}", declared) or 2 * int(declared) != len(raw) - size:
        problem = (
            f"the header declares {declared[:20] or 'no'} samples, the file has {len(raw) - size} bytes of samples"
        )
        raise DataError.at(path, problem, offset=size)
    found = np.frombuffer(raw, "<i2" if order == "01" else ">i2", offset=size).astype(np.int16)
    checksum = fields.get("sample_checksum")
    if checksum is not None and checksum != str(int(found.astype(np.int64).sum()) % 65536):
        raise DataError.at(path, f"corrupt: the samples do not match the header's checksum {checksum}", offset=size)
    return found


def _sphere_header(path: Path, raw: bytes) -> tuple[int, dict[str, str]]:
    """The header's length in bytes and its fields as text. It has lines of 'name -type value' up to end_head."""
    length = raw[8:16].decode("latin-1").strip()
    if not length.isdecimal() or not 16 < int(length) <= len(raw):
        raise DataError.at(path, f"a header length of at most {len(raw)} bytes was expected, not {length!r}", offset=8)
    fields: dict[str, str] = {}
    for number, line in enumerate(raw[16 : int(length)].decode("latin-1").split("\n"), start=3):
        if line.strip() == "end_head":
            return int(length), fields
        parts = line.split(maxsplit=2)
        if not parts or line.startswith(";"):
            continue
        if len(parts) != 3 or parts[1][:2] not in ("-i", "-r", "-s"):
            raise DataError.at(path, f"'name -type value' was expected, not {line[:60]!r}", line=number)
        fields[parts[0]] = parts[2].strip()
    raise DataError.at(path, f"the header has no end_head in its {length} bytes", offset=int(length))


def _riff(path: Path, raw: bytes) -> Samples:
    if len(raw) < 12 or raw[8:12] != b"WAVE":
        raise DataError.at(path, "a RIFF file of kind WAVE was expected", offset=min(8, len(raw)))
    (declared,) = struct.unpack_from("<I", raw, 4)
    if declared + 8 != len(raw):
        raise DataError.at(path, f"the header declares {declared + 8} bytes, the file has {len(raw)}", offset=4)
    start, has_format = 12, False
    while start + 8 <= len(raw):
        name, size = struct.unpack_from("<4sI", raw, start)
        body = start + 8
        if body + size > len(raw):
            problem = f"the {name.decode('latin-1')!r} chunk declares {size} bytes, {len(raw) - body} are left"
            raise DataError.at(path, problem, offset=start)
        if name == b"fmt ":
            _check_format(path, raw[body : body + size], body)
            has_format = True
        elif name == b"data" and has_format and size % 2 == 0:
            return np.frombuffer(raw, "<i2", size // 2, body).astype(np.int16)
        elif name == b"data":
            raise DataError.at(path, "whole 16-bit samples after a 'fmt ' chunk were expected", offset=start)
        start = body + size + size % 2  # chunks start at even offsets
    raise DataError.at(path, "no data chunk", offset=len(raw))


def _check_format(path: Path, chunk: bytes, offset: int) -> None:
    if len(chunk) < 16:
        raise DataError.at(path, f"a 'fmt ' chunk of at least 16 bytes was expected, not {len(chunk)}", offset=offset)
    tag, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", chunk)
    if tag == 0xFFFE and len(chunk) >= 26:  # WAVE_FORMAT_EXTENSIBLE stores the format tag in its extension
        (tag,) = struct.unpack_from("<H", chunk, 24)
    if (tag, channels, rate, bits) != (1, 1, RATE, 16):
        problem = f"16-bit mono PCM at {RATE} Hz was expected, not format {tag} of {bits} bits, {channels} channels"
        raise DataError.at(path, f"{problem}, {rate} Hz", offset=offset)


def mfcc(recording: Samples) -> Features:
    """12 mel-frequency cepstral coefficients and the log energy per frame: 13 values."""
    count = (len(recording) - WINDOW) // HOP + 1
    starts = range(0, count, BLOCK)
    blocks = (recording[HOP * start : HOP * (min(start + BLOCK, count) - 1) + WINDOW] for start in starts)
    return np.concatenate([_mfcc_of_block(block) for block in blocks])


def _mfcc_of_block(recording: Samples) -> Features:
    frames = windows(recording)
    energy = np.log(np.maximum((frames**2).sum(1, keepdims=True), POWER_FLOOR))
    log_energies = np.log(np.maximum(power_spectrum(frames) @ mel_filters(), POWER_FLOOR))
    return np.hstack([log_energies @ _dct_matrix(), energy]).astype(np.float32)


def windows(recording: Samples) -> NDArray[np.float64]:
    """Overlapping windows, one per row, scaled so that full scale is 1."""
    return np.lib.stride_tricks.sliding_window_view(recording, WINDOW)[::HOP] / 32768


def power_spectrum(frames: NDArray[np.float64]) -> NDArray[np.float64]:
    """The power in 257 frequency bins, after pre-emphasis (speech has little energy at high frequencies)."""
    emphasised = frames - 0.97 * np.pad(frames[:, :-1], ((0, 0), (1, 0)))
    return np.abs(np.fft.rfft(emphasised * np.hamming(WINDOW), FFT)) ** 2 / FFT


def mel(hertz: Any) -> Any:
    """Hertz to mel, in which equal distances sound equal."""
    return 2595 * np.log10(1 + hertz / 700)


@cache
def mel_filters() -> NDArray[np.float64]:
    """26 overlapping triangular filters, evenly spaced in mel from 0 to 8 kHz, one per column."""
    step = mel(RATE / 2) / (FILTERS + 1)
    bands = mel(np.arange(FFT // 2 + 1) * RATE / FFT)[:, None]
    centres = step * np.arange(1, FILTERS + 1)
    return np.asarray(np.maximum(1 - np.abs(bands - centres) / step, 0))


@cache
def _dct_matrix() -> NDArray[np.float64]:
    """The discrete cosine transform from 26 log filter energies to cepstral coefficients 1 to 12."""
    order, position = np.arange(1, CEPSTRA + 1), np.arange(FILTERS)[:, None] + 0.5
    return np.asarray(np.sqrt(2 / FILTERS) * np.cos(np.pi / FILTERS * order * position))


def with_deltas(static: Features) -> Features:
    """The features and their deltas: the least-squares slope over two frames on either side."""
    padded = np.pad(static, ((2, 2), (0, 0)), mode="edge")
    deltas = (2 * (padded[4:] - padded[:-4]) + padded[3:-1] - padded[1:-3]) / 10
    return np.hstack([static, deltas])


@dataclass(frozen=True)
class Utterance:
    """One utterance: features per frame, phone ids (from 1: 0 is the CTC blank) and the words."""

    features: Features
    phones: list[int]
    sentence: str
    speaker: str = ""

    @property
    def frames_needed(self) -> int:
        """CTC needs one frame per phone, and a blank between two equal phones."""
        repeats = sum(phone == other for phone, other in zip(self.phones, self.phones[1:], strict=False))
        return len(self.phones) + repeats


@dataclass(frozen=True)
class Scale:
    """The mean and standard deviation of each feature over a set of utterances."""

    mean: Features
    deviation: Features

    @classmethod
    def of(cls, utterances: Iterable[Utterance]) -> Scale:
        count, total, squares = 0, np.zeros(FEATURES), np.zeros(FEATURES)
        for utterance in utterances:
            exact = utterance.features.astype(np.float64)
            count, total, squares = count + len(exact), total + exact.sum(0), squares + (exact**2).sum(0)
        mean = total / count
        deviation = np.sqrt(np.maximum(squares / count - mean**2, 1e-6))  # a constant feature must not divide by 0
        return cls(mean.astype(np.float32), deviation.astype(np.float32))

    def normalised(self, features: Features) -> Features:
        return (features - self.mean) / self.deviation


@dataclass(frozen=True)
class Sizes:
    """The sizes that utterances are padded to, and therefore their limits."""

    frames: int
    phones: int
    shrink: float = 1.0  # factor by which striding and speed perturbation may shorten an utterance

    def reason_to_skip(self, utterance: Utterance) -> str | None:
        """Why an utterance cannot be used; None if it can."""
        if len(utterance.features) > self.frames:
            return f"with more than {self.frames} frames"
        if len(utterance.phones) > self.phones:
            return f"with more than {self.phones} phones"
        if utterance.frames_needed * self.shrink > len(utterance.features):
            return TOO_SHORT
        return None


def is_validation(speakers: Sequence[str]) -> list[bool]:
    """Which training utterances are validation, by their speakers: those of every tenth, so that no voice is in both.

    Where there is one speaker only, it is every tenth utterance.
    """
    apart = speakers if len(set(speakers)) > 1 else [f"{number:06}" for number in range(len(speakers))]
    named = sorted(set(apart))
    held_out = set(named[4::10] or named[1:][-1:])
    return [each in held_out for each in apart]


class Utterances(InMemory):
    """Utterances padded with zeros to one size; phone id n is phones[n - 1]."""

    def __init__(
        self,
        columns: Batch,
        phones: Sequence[str],
        sentences: Sequence[str],
        skipped: Mapping[str, int],
        folding: Mapping[str, str] | None = None,
        spoken: NDArray[np.int64] | None = None,
    ) -> None:
        super().__init__(**columns)
        self.spoken = spoken  # digests of the features before they are scaled; None of synthetic utterances
        self.phones = list(phones)
        self.sentences = list(sentences)
        self.skipped = dict(skipped)  # reason -> number of utterances left out
        self.folding = dict(folding or {})  # phone -> the class it is scored as; "" if it is not scored
        self._notes = left_out(self.skipped, len(self), "recording")

    @property
    def notes(self) -> list[str]:
        return self._notes

    def subset(self, rows: Sequence[int]) -> Self:
        chosen = super().subset(rows)
        chosen.sentences = [self.sentences[row] for row in rows]
        chosen.spoken = None if self.spoken is None else self.spoken[np.asarray(rows)]
        return chosen

    def digests(self) -> NDArray[np.int64] | None:
        return self.spoken

    def transcript(self, numbers: Iterable[int]) -> str:
        """The names of phones; "?" for an output of the network that the corpus has no phone for."""
        return " ".join(self.phones[number - 1] if number <= len(self.phones) else "?" for number in numbers)

    def scored(self, transcript: str) -> str:
        """The transcript in the phone classes that the error rate distinguishes."""
        classes = (self.folding.get(phone, phone) for phone in transcript.split())
        return " ".join(filter(None, classes))


def padded(
    folder: Path,
    utterances: list[Utterance],
    scale: Scale | None,
    inventory: Sequence[str],
    sizes: Sizes,
    skipped: Counter[str],
    folding: Mapping[str, str] | None = None,
) -> Utterances:
    """The utterances that fit the sizes, normalised and padded; the others are counted in `skipped`.

    Without a scale, each speaker's utterances are normalised by their own mean and deviation.
    """
    scales = _scale_by_speaker(utterances) if scale is None else defaultdict(lambda: scale)
    kept = []
    for utterance in utterances:
        reason = sizes.reason_to_skip(utterance)
        if reason is None:
            kept.append(utterance)
        else:
            skipped[reason] += 1
    if skipped[TOO_SHORT] == len(utterances):
        raise DataError.at(folder, f"{len(utterances)} utterances, all {TOO_SHORT}")
    if not kept:
        longest = max(len(utterance.features) for utterance in utterances)
        most = max(len(utterance.phones) for utterance in utterances)
        problem = f"none of {len(utterances)} utterances fits in frames={sizes.frames}, phones={sizes.phones}"
        raise DataError.at(folder, f"{problem}; raise them (the largest here: {longest} frames, {most} phones)")
    features = np.zeros((len(kept), sizes.frames, FEATURES), np.float32)
    phones = np.zeros((len(kept), sizes.phones), np.int64)
    for row, utterance in enumerate(kept):
        features[row, : len(utterance.features)] = scales[utterance.speaker].normalised(utterance.features)
        phones[row, : len(utterance.phones)] = utterance.phones
    columns = {
        "features": torch.from_numpy(features),
        "frames": torch.tensor([len(utterance.features) for utterance in kept]),
        "phones": torch.from_numpy(phones),
        "phone_count": torch.tensor([len(utterance.phones) for utterance in kept]),
    }
    spoken = np.array([hash(utterance.features.tobytes()) for utterance in kept], np.int64)
    return Utterances(columns, inventory, [utterance.sentence for utterance in kept], skipped, folding, spoken)


def _scale_by_speaker(utterances: Iterable[Utterance]) -> dict[str, Scale]:
    by_speaker: defaultdict[str, list[Utterance]] = defaultdict(list)
    for utterance in utterances:
        by_speaker[utterance.speaker].append(utterance)
    return {speaker: Scale.of(own) for speaker, own in by_speaker.items()}
