"""Speech as numbers: NIST SPHERE and RIFF recordings, their mel-frequency cepstra, and padded utterances."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fathom.core.errors import DataError
from fathom.data.base import Batch, InMemory

RATE = 16_000  # samples a second, of TIMIT and AN4 alike
WINDOW, HOP, FFT = 400, 160, 512  # 25 ms windows every 10 ms
FILTERS, CEPSTRA = 26, 12
FEATURES = 26  # 12 cepstra and the log energy, and the slope of each
FLOOR = 1e-10  # the power below which a recording counts as silent

Samples = NDArray[np.int16]
Features = NDArray[np.float32]


def content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError.at(path, f"cannot be read: {error.strerror or error}") from None


def lines(path: Path) -> list[str]:
    """The lines of a small text file, without their ends."""
    raw = content(path)
    try:
        return raw.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise DataError.at(path, "plain ASCII text was expected", offset=error.start) from None


def samples(path: Path) -> Samples:
    """A 16 kHz mono recording of 16-bit samples in either container, whatever the file is called."""
    raw = content(path)
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
    coding = fields.get("sample_coding", "pcm")  # TIMIT leaves it out
    if "shorten" in coding:
        convert = "convert it with: sph2pipe -p -f rif IN OUT"
        raise DataError.at(path, f"compressed with shorten ({coding}), which is not decoded here; {convert}")
    order = fields.get("sample_byte_format")
    expected = {"sample_rate": str(RATE), "channel_count": "1", "sample_n_bytes": "2"}
    wrong = [f"{name} {fields.get(name)}" for name, value in expected.items() if fields.get(name) != value]
    if coding != "pcm" or order not in ("01", "10") or wrong:
        problem = f"16-bit mono PCM at {RATE} Hz was expected, the header says sample_coding {coding}"
        raise DataError.at(path, f"{problem}, sample_byte_format {order}" + "".join(f", {field}" for field in wrong))
    promised = fields.get("sample_count", "")
    if not promised.isdecimal() or 2 * int(promised) != len(raw) - size:
        problem = f"the header promises {promised or 'no'} samples, the file has {len(raw) - size} bytes of them"
        raise DataError.at(path, problem, offset=size)
    found = np.frombuffer(raw, "<i2" if order == "01" else ">i2", offset=size).astype(np.int16)
    checksum = fields.get("sample_checksum")
    if checksum is not None and checksum != str(int(found.astype(np.int64).sum()) % 65536):
        raise DataError.at(path, f"corrupt: the samples do not add up to the header's checksum {checksum}", offset=size)
    return found


def _sphere_header(path: Path, raw: bytes) -> tuple[int, dict[str, str]]:
    """The header's length in bytes, and its fields, all as text: lines of 'name -type value' up to end_head."""
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
    (promised,) = struct.unpack_from("<I", raw, 4)
    if promised + 8 != len(raw):
        raise DataError.at(path, f"the header promises {promised + 8} bytes, the file has {len(raw)}", offset=4)
    at, described = 12, False
    while at + 8 <= len(raw):
        name, size = struct.unpack_from("<4sI", raw, at)
        body = at + 8
        if body + size > len(raw):
            problem = f"the {name.decode('latin-1')!r} chunk promises {size} bytes, {len(raw) - body} are left"
            raise DataError.at(path, problem, offset=at)
        if name == b"fmt ":
            _check_format(path, raw[body : body + size], body)
            described = True
        elif name == b"data" and described and size % 2 == 0:
            return np.frombuffer(raw, "<i2", size // 2, body).astype(np.int16)
        elif name == b"data":
            raise DataError.at(path, "whole 16-bit samples after a 'fmt ' chunk were expected", offset=at)
        at = body + size + size % 2  # chunks start at even offsets
    raise DataError.at(path, "no data chunk", offset=len(raw))


def _check_format(path: Path, chunk: bytes, offset: int) -> None:
    if len(chunk) < 16:
        raise DataError.at(path, f"a 'fmt ' chunk of at least 16 bytes was expected, not {len(chunk)}", offset=offset)
    tag, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", chunk)
    if tag == 0xFFFE and len(chunk) >= 26:  # the extensible form keeps the true tag further on
        (tag,) = struct.unpack_from("<H", chunk, 24)
    if (tag, channels, rate, bits) != (1, 1, RATE, 16):
        problem = f"16-bit mono PCM at {RATE} Hz was expected, not format {tag} of {bits} bits, {channels} channels"
        raise DataError.at(path, f"{problem}, {rate} Hz", offset=offset)


def cepstra(recording: Samples) -> Features:
    """12 mel-frequency cepstra and the log energy of each window: 13 numbers a frame."""
    frames = windows(recording)
    energy = np.log(np.maximum((frames**2).sum(1, keepdims=True), FLOOR))
    loudness = np.log(np.maximum(power_spectrum(frames) @ mel_filters(), FLOOR))
    return np.hstack([loudness @ _cosines(), energy]).astype(np.float32)


def windows(recording: Samples) -> NDArray[np.float64]:
    """Overlapping windows, one a row; full scale is 1."""
    return np.lib.stride_tricks.sliding_window_view(recording, WINDOW)[::HOP] / 32768


def power_spectrum(frames: NDArray[np.float64]) -> NDArray[np.float64]:
    """The power in each of 257 bands: pre-emphasis lifts the high ones, which speech has little of."""
    emphasised = frames - 0.97 * np.pad(frames[:, :-1], ((0, 0), (1, 0)))
    return np.abs(np.fft.rfft(emphasised * np.hamming(WINDOW), FFT)) ** 2 / FFT


def mel(hertz: Any) -> Any:
    """The mel scale: equal steps sound equally far apart."""
    return 2595 * np.log10(1 + hertz / 700)


@cache
def mel_filters() -> NDArray[np.float64]:
    """26 overlapping triangles, evenly spaced in mel from 0 to 8 kHz, one a column."""
    step = mel(RATE / 2) / (FILTERS + 1)
    bands = mel(np.arange(FFT // 2 + 1) * RATE / FFT)[:, None]
    centres = step * np.arange(1, FILTERS + 1)
    return np.asarray(np.maximum(1 - np.abs(bands - centres) / step, 0))


@cache
def _cosines() -> NDArray[np.float64]:
    """The cosine transform that takes 26 log filter outputs to cepstra 1 to 12."""
    order, position = np.arange(1, CEPSTRA + 1), np.arange(FILTERS)[:, None] + 0.5
    return np.asarray(np.sqrt(2 / FILTERS) * np.cos(np.pi / FILTERS * order * position))


def with_slopes(static: Features) -> Features:
    """Each feature and, beside it, its slope: the least-squares line through two frames on either side."""
    padded = np.pad(static, ((2, 2), (0, 0)), mode="edge")
    slopes = (2 * (padded[4:] - padded[:-4]) + padded[3:-1] - padded[1:-3]) / 10
    return np.hstack([static, slopes])


@dataclass(frozen=True)
class Utterance:
    """What was said once: features a frame, phone numbers (from 1, as 0 is the blank of CTC) and the words."""

    features: Features
    phones: list[int]
    sentence: str
    speaker: str = ""

    @property
    def frames_needed(self) -> int:
        """CTC needs a frame a phone, and a blank between two phones alike."""
        return len(self.phones) + sum(one == next_ for one, next_ in zip(self.phones, self.phones[1:], strict=False))


@dataclass(frozen=True)
class Scale:
    """The mean and spread of each feature over a training set."""

    mean: Features
    spread: Features

    @classmethod
    def of(cls, utterances: Iterable[Utterance]) -> Scale:
        count, total, squares = 0, np.zeros(FEATURES), np.zeros(FEATURES)
        for utterance in utterances:
            exact = utterance.features.astype(np.float64)
            count, total, squares = count + len(exact), total + exact.sum(0), squares + (exact**2).sum(0)
        mean = total / count
        spread = np.sqrt(np.maximum(squares / count - mean**2, 1e-6))  # a feature that never changes stays near 0
        return cls(mean.astype(np.float32), spread.astype(np.float32))

    def applied(self, features: Features) -> Features:
        return (features - self.mean) / self.spread


@dataclass(frozen=True)
class Sizes:
    """What every utterance of a batch is padded to."""

    frames: int
    phones: int
    shrink: float = 1.0  # so many times fewer frames may be left when phones are read off

    def refusal(self, utterance: Utterance) -> str | None:
        """Why an utterance cannot be in a batch, if it cannot."""
        if len(utterance.features) > self.frames:
            return f"more than {self.frames} frames"
        if len(utterance.phones) > self.phones:
            return f"more than {self.phones} phones"
        if utterance.frames_needed * self.shrink > len(utterance.features):
            return "fewer frames than CTC needs for its phones"
        return None


class Utterances(InMemory):
    """Utterances padded with zeros to one size; phone number n is phones[n - 1]."""

    def __init__(
        self,
        columns: Batch,
        phones: Sequence[str],
        sentences: Sequence[str],
        skipped: Mapping[str, int],
        folding: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(**columns)
        self.phones = list(phones)
        self.sentences = list(sentences)
        self.skipped = dict(skipped)  # how many utterances of the folder are not here, by reason
        self.folding = dict(folding or {})  # the class that a phone is scored as; none where it is not scored at all

    def transcript(self, numbers: Iterable[int]) -> str:
        """Phones by name; a network has more outputs than some corpora have phones."""
        return " ".join(self.phones[number - 1] if number <= len(self.phones) else "?" for number in numbers)

    def scored(self, transcript: str) -> str:
        """The transcript in the classes that an error rate tells apart."""
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
    """Those utterances that fit the configured sizes, scaled and padded; the others are counted.

    Without a scale, each speaker has his own: that of all his utterances here.
    """
    scales = _by_speaker(utterances) if scale is None else defaultdict(lambda: scale)
    kept = []
    for utterance in utterances:
        reason = sizes.refusal(utterance)
        if reason is None:
            kept.append(utterance)
        else:
            skipped[reason] += 1
    if not kept:
        longest = max(len(utterance.features) for utterance in utterances)
        most = max(len(utterance.phones) for utterance in utterances)
        problem = f"none of {len(utterances)} utterances fits in frames={sizes.frames}, phones={sizes.phones}"
        raise DataError.at(folder, f"{problem}; raise them (the largest here: {longest} frames, {most} phones)")
    features = np.zeros((len(kept), sizes.frames, FEATURES), np.float32)
    phones = np.zeros((len(kept), sizes.phones), np.int64)
    for row, utterance in enumerate(kept):
        features[row, : len(utterance.features)] = scales[utterance.speaker].applied(utterance.features)
        phones[row, : len(utterance.phones)] = utterance.phones
    columns = {
        "features": torch.from_numpy(features),
        "frames": torch.tensor([len(utterance.features) for utterance in kept]),
        "phones": torch.from_numpy(phones),
        "phone_count": torch.tensor([len(utterance.phones) for utterance in kept]),
    }
    return Utterances(columns, inventory, [utterance.sentence for utterance in kept], skipped, folding)


def _by_speaker(utterances: Iterable[Utterance]) -> dict[str, Scale]:
    said: defaultdict[str, list[Utterance]] = defaultdict(list)
    for utterance in utterances:
        said[utterance.speaker].append(utterance)
    return {speaker: Scale.of(his) for speaker, his in said.items()}
