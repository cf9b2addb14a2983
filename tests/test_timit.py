"""TIMIT: recordings in both containers, the cepstra computed from them, the phones, the splits, and corrupt files."""

from __future__ import annotations

import struct
import warnings
import wave
from pathlib import Path

import numpy as np
import pytest
from conftest import real_data
from fuzz import survive
from numpy.typing import NDArray

from fathom.core.errors import DataError
from fathom.data import _audio, timit
from fathom.data._audio import Sizes, Utterance, Utterances

SIZES = Sizes(frames=20, phones=8)
PHN = "0 400 h#\n400 900 sh\n900 1300 iy\n1300 1999 h#\n"


def noise(count: int = 2000, seed: int = 0) -> NDArray[np.int16]:
    return np.random.default_rng(seed).integers(-3000, 3000, count, np.int16)


def sphere(samples: NDArray[np.int16], order: str = "01", **changes: str | None) -> bytes:
    """A recording as NIST ships it; a field changed to None is left out."""
    fields: dict[str, str | None] = {
        "database_id": "-s5 TIMIT",
        "channel_count": "-i 1",
        "sample_count": f"-i {len(samples)}",
        "sample_rate": "-i 16000",
        "sample_n_bytes": "-i 2",
        "sample_byte_format": f"-s2 {order}",
        "sample_checksum": f"-i {int(samples.view(np.uint16).sum(dtype=np.int64)) & 0xFFFF}",
    }
    fields |= changes
    lines = ["NIST_1A", "   1024", *(f"{name} {value}" for name, value in fields.items() if value), "end_head", ""]
    return "\n".join(lines).encode().ljust(1024) + samples.astype("<i2" if order == "01" else ">i2").tobytes()


def riff(samples: NDArray[np.int16], rate: int = 16_000, extra: bytes = b"") -> bytes:
    body = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, rate, 2 * rate, 2, 16) + extra
    body += b"data" + struct.pack("<I", 2 * len(samples)) + samples.astype("<i2").tobytes()
    return b"RIFF" + struct.pack("<I", len(body)) + body


def write(folder: Path, stem: str, recording: bytes, phones: str | None = PHN) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}.WAV").write_bytes(recording)
    if phones is not None:
        (folder / f"{stem}.PHN").write_text(phones)


def corpus(folder: Path) -> Path:
    """Two speakers in the official layout."""
    for split, speaker in (("TRAIN", "FCJF0"), ("TEST", "MDAB0")):
        for seed, stem in enumerate(("SA1", "SX37", "SI648")):
            write(folder / split / "DR1" / speaker, stem, sphere(noise(seed=seed)))
    (folder / "TRAIN" / "DR1" / "FCJF0" / "SX37.TXT").write_text("0 2000 Critical equipment needs maintenance.\n")
    (folder / "TRAIN" / "DR1" / "FCJF0" / "SI648.WRD").write_text("0 900 a\n900 2000 sailboat\n")
    return folder


def check_utterances(utterances: Utterances, sizes: Sizes = SIZES) -> bool:
    """What holds for the utterances of any source."""
    columns = utterances.columns
    frames, count, phones = columns["frames"].numpy(), columns["phone_count"].numpy(), columns["phones"].numpy()
    assert columns["features"].shape == (len(frames), sizes.frames, 26)
    assert columns["features"].isfinite().all()
    assert phones.shape == (len(frames), sizes.phones)
    assert ((count >= 1) & (count <= sizes.phones) & (count <= frames) & (frames <= sizes.frames)).all()
    assert ((phones > 0) == (np.arange(sizes.phones) < count[:, None])).all()
    assert phones.max() <= len(utterances.phones) <= 61
    assert not columns["features"].numpy()[np.arange(sizes.frames) >= frames[:, None]].any()
    return True


# --- recordings


@pytest.mark.parametrize("order", ["01", "10"])
def test_sphere_in_either_byte_order(tmp_path: Path, order: str) -> None:
    path = tmp_path / "x.wav"
    path.write_bytes(sphere(noise(), order))
    assert (_audio.read_samples(path) == noise()).all()


def test_riff_agrees_with_the_standard_library_and_skips_other_chunks(tmp_path: Path) -> None:
    path = tmp_path / "x.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(noise().astype("<i2").tobytes())
    assert path.read_bytes() == riff(noise())
    assert (_audio.read_samples(path) == noise()).all()
    path.write_bytes(riff(noise(), extra=b"LIST" + struct.pack("<I", 3) + b"abc\0"))
    assert (_audio.read_samples(path) == noise()).all()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"OggS" + bytes(100), "byte 0: neither a NIST SPHERE"),
        (sphere(noise())[:3000], "byte 1024: the header declares 2000 samples, the file has 1976 bytes"),
        (sphere(noise(), sample_coding="-s26 pcm,embedded-shorten-v2.00"), "compressed with shorten .* sph2pipe"),
        (sphere(noise(), sample_coding="-s4 ulaw"), "16-bit mono PCM at 16000 Hz was expected.* sample_coding ulaw"),
        (sphere(noise(), sample_rate="-i 8000"), "the header says .* sample_rate 8000"),
        (sphere(noise(), channel_count=None), "channel_count None"),
        (sphere(noise(), sample_count=None), "the header declares no samples"),
        (sphere(noise(), sample_checksum="-i 1"), "do not match the header's checksum 1"),
        (sphere(noise(), database_id="TIMIT"), "line 3: 'name -type value' was expected, not 'database_id TIMIT'"),
        (b"NIST_1A\n   1024\nsample_count", "byte 8: a header length of at most 28 bytes"),
        (sphere(noise()).replace(b"end_head", b"        "), "byte 1024: the header has no end_head"),
        (sphere(noise(100)), "100 samples are less than one window of 400"),
        (riff(noise())[:-2], "byte 4: the header declares 4044 bytes, the file has 4042"),
        (riff(noise(), rate=44_100), "byte 20: 16-bit mono PCM at 16000 Hz was expected, .* 44100 Hz"),
        (riff(noise()).replace(b"data", b"Data"), "byte 4044: no data chunk"),
        (riff(noise()).replace(b"fmt ", b"Fmt "), "byte 36: whole 16-bit samples after a 'fmt ' chunk"),
        (riff(noise()).replace(b"fmt \x10", b"fmt \x08"), "a 'fmt ' chunk of at least 16 bytes was expected, not 8"),
    ],
)
def test_a_bad_recording_is_an_error(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "x.wav"
    path.write_bytes(content)
    with pytest.raises(DataError, match=problem) as error:
        _audio.read_samples(path)
    assert str(error.value).startswith(f"{path}: ")


# --- features


def test_a_tone_lands_in_its_filter() -> None:
    spectrum_hertz = np.arange(257) * 31.25
    for index in range(26):
        peak = spectrum_hertz[_audio.mel_filters()[:, index].argmax()]
        tone = (8000 * np.sin(2 * np.pi * peak * np.arange(1600) / 16_000)).astype(np.int16)
        energies = (_audio.power_spectrum(_audio.windows(tone)) @ _audio.mel_filters()).mean(0)
        assert abs(int(energies.argmax()) - index) <= (1 if peak < 300 else 0), "low filters are narrower than a window"


def test_filters_cover_every_frequency_once() -> None:
    """Neighbouring triangles add up to one, between the first centre and the last."""
    filters = _audio.mel_filters()
    inside = slice(int(filters[:, 0].argmax()) + 1, int(filters[:, -1].argmax()))
    assert filters[inside].sum(1) == pytest.approx(1)
    assert _audio.mel(1000.0) == pytest.approx(1000, abs=0.1)


def test_spectrum_holds_the_energy_of_the_window() -> None:
    """Parseval: the power of all 512 bands is that of the windowed samples."""
    frames = _audio.windows(noise())
    emphasised = frames.copy()
    emphasised[:, 1:] -= 0.97 * frames[:, :-1]
    power = _audio.power_spectrum(frames)
    whole = 2 * power.sum(1) - power[:, 0] - power[:, -1]
    assert whole == pytest.approx(((emphasised * np.hamming(400)) ** 2).sum(1))


def test_cepstra_are_the_cosine_transform_of_log_filters() -> None:
    frames = _audio.windows(noise())
    assert frames.shape == (11, 400)
    assert (frames[3] * 32768 == noise()[480:880]).all()
    loudness = np.log(_audio.power_spectrum(frames) @ _audio.mel_filters())
    found = _audio.mfcc(noise())
    for order in (1, 7, 12):
        wave_ = np.sqrt(2 / 26) * np.cos(np.pi * order * (np.arange(26) + 0.5) / 26)
        assert found[:, order - 1] == pytest.approx(loudness @ wave_, abs=1e-4)
    assert found[:, 12] == pytest.approx(np.log((frames**2).sum(1)), abs=1e-4)
    assert np.isfinite(_audio.mfcc(np.zeros(800, np.int16))).all(), "the logarithm of silence is bounded"


def test_a_louder_voice_changes_the_energy_alone() -> None:
    quiet, loud = _audio.mfcc(noise() // 2 * 2), _audio.mfcc(noise() // 2 * 4)
    assert loud[:, :12] == pytest.approx(quiet[:, :12], abs=1e-3)
    assert loud[:, 12] - quiet[:, 12] == pytest.approx(2 * np.log(2), abs=1e-4)


def test_the_delta_of_a_ramp() -> None:
    ramp = np.outer(np.arange(9), np.arange(13)).astype(np.float32)
    found = _audio.with_deltas(ramp)
    assert (found[:, :13] == ramp).all()
    assert found[2:-2, 13:] == pytest.approx(np.tile(np.arange(13), (5, 1)), abs=1e-5)
    assert found[0, 14] == pytest.approx((1 + 2 * 2) / 10), "beyond the ends the first and last frame are held"


# --- phones


def test_the_61_phones_fold_to_48_and_39() -> None:
    assert len(set(timit.PHONES)) == len(timit.PHONES) == 61
    assert len(set(timit.folded(timit.PHONES, 48))) == 48
    assert len(set(timit.folded(timit.PHONES, 39))) == 39
    phones = ["h#", "sh", "iy", "hv", "ae", "dcl", "jh", "axr", "q", "zh", "tcl", "pau", "ix", "ao", "h#"]
    assert timit.folded(phones, 39) == [
        "sil",
        "sh",
        "iy",
        "hh",
        "ae",
        "sil",
        "jh",
        "er",
        "sh",
        "sil",
        "sil",
        "ih",
        "aa",
        "sil",
    ]
    assert timit.folded(phones, 48) == [
        "sil",
        "sh",
        "iy",
        "hh",
        "ae",
        "vcl",
        "jh",
        "er",
        "zh",
        "cl",
        "sil",
        "ix",
        "ao",
        "sil",
    ]
    for folded, phone in timit.UNFOLDED.items():
        assert timit.folded([phone], 48) == [folded]
        assert timit.folded([phone], 39) == timit.folded([folded], 39)


def test_official_layout(tmp_path: Path) -> None:
    train, test = (timit.read(corpus(tmp_path), split, SIZES) for split in ("train", "test"))
    assert (len(train), len(test)) == (2, 2)
    assert train.sentences == ["a sailboat", "Critical equipment needs maintenance."]
    assert train.skipped == test.skipped == {"that are SA sentences": 1}
    assert train.transcript(train.columns["phones"][0, :4].tolist()) == "h# sh iy h#"
    assert check_utterances(train)
    assert check_utterances(test)
    assert train.columns["frames"].tolist() == [11, 11]
    everything = train.columns["features"][:, :11].reshape(-1, 26)
    assert everything.mean(0).abs().max() < 1e-4
    assert everything.var(0, unbiased=False).numpy() == pytest.approx(1, abs=1e-3)


def test_plain_text_beside_the_recordings_is_no_reason_to_refuse_them(tmp_path: Path) -> None:
    folder = corpus(tmp_path) / "TRAIN/DR1/FCJF0"
    (folder / "readme.txt").write_text("Recorded in 1987.\nAll rights reserved.\n")
    (folder / "SX37.TXT").write_text("Où est\nl'équipement?\n", encoding="utf-8")
    (folder / "SI648.WRD").write_bytes(b"\xff\xfe")
    assert timit.read(tmp_path, "train", SIZES).sentences == ["\ufffd\ufffd", "Où est l'équipement?"]


def test_test_split_is_scaled_by_the_training_split(tmp_path: Path) -> None:
    corpus(tmp_path)
    for stem in ("SX37", "SI648"):
        write(tmp_path / "TEST" / "DR1" / "MDAB0", stem, sphere(noise() * 3))
    loudness = timit.read(tmp_path, "test", SIZES).columns["features"][:, :11, 12]
    assert loudness.min() > 3, "a test set three times as loud must look loud"


def test_a_flat_folder_gives_every_fourth_utterance_to_the_test_split(tmp_path: Path) -> None:
    for index in range(9):
        write(tmp_path / "test-of-ours", f"a{index}", riff(noise(2000 + 160 * index)))
    write(tmp_path / "test-of-ours", "unmarked", riff(noise()), phones=None)
    train, test = (timit.read(tmp_path, split, SIZES) for split in ("train", "test"))
    assert test.columns["frames"].tolist() == [14, 18]
    assert train.columns["frames"].tolist() == [11, 12, 13, 15, 16, 17, 19]
    assert test.skipped == {"without a .PHN": 1}


def test_suffixes_in_any_case_and_a_second_copy_of_a_recording(tmp_path: Path) -> None:
    write(tmp_path, "sx1", riff(noise()), phones=None)
    (tmp_path / "SX1.phn").write_text(PHN)
    (tmp_path / "sx1.WAV.wav").write_bytes(riff(noise()))
    found = timit.read(tmp_path, "train", SIZES)
    assert (len(found), found.skipped) == (1, {"without a .PHN": 1})


def test_utterances_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    write(tmp_path, "a", riff(noise(2000)))
    write(tmp_path, "b", riff(noise(9000)))
    found = timit.read(tmp_path, "train", SIZES)
    assert (len(found), found.skipped) == (1, {"with more than 20 frames": 1})
    problem = "none of 2 utterances fits in frames=20, phones=3; raise them .the largest here: 54 frames, 4 phones"
    with pytest.raises(DataError, match=problem):
        timit.read(tmp_path, "train", Sizes(20, 3))


def test_an_utterance_that_ctc_cannot_align_is_skipped() -> None:
    features = np.zeros((4, 26), np.float32)
    sizes = Sizes(9, 9)
    assert sizes.reason_to_skip(Utterance(features, [1, 2, 3, 4], "")) is None
    reason = sizes.reason_to_skip(Utterance(features, [1, 2, 2, 3], ""))
    assert reason == "with fewer frames than CTC needs for its phones"


@pytest.mark.parametrize(
    ("phones", "problem"),
    [
        ("0 400 h#\n400 900 shh\n", "x.PHN: line 2: 'shh' is not one of TIMIT's 61 phones"),
        ("0 400 h#\n400 sh\n", "x.PHN: line 2: 'start end label' was expected, not '400 sh'"),
        ("0 400 h#\n400 400 sh\n", "x.PHN: line 2: 400 to 400: the end must be after the start"),
        ("500 900 h#\n400 990 sh\n", "x.PHN: line 2: 400 to 990: .* starts must not decrease"),
        ("0 400 h#\n2000 2100 sh\n", "x.PHN: line 2: a phone starts at sample 2000, the recording has 2000"),
        ("", "x.PHN: empty"),
    ],
)
def test_a_bad_phone_file_names_its_line(tmp_path: Path, phones: str, problem: str) -> None:
    write(tmp_path, "x", riff(noise()), phones)
    with pytest.raises(DataError, match=problem):
        timit.read(tmp_path, "train", SIZES)


def test_an_empty_split_names_the_expected_files(tmp_path: Path) -> None:
    write(tmp_path / "TRAIN", "x", riff(noise()))
    with pytest.raises(DataError, match="no utterance of the test split; the folder must contain TIMIT's TRAIN"):
        timit.read(tmp_path, "test", SIZES)


# --- synthetic


@pytest.mark.parametrize("sizes", [Sizes(120, 16), Sizes(780, 75), Sizes(1, 1), Sizes(5, 9)])
def test_synthetic_utterances_are_valid_and_seeded(sizes: Sizes) -> None:
    one, same, other = (timit.synthetic(seed, sizes, items=40) for seed in (1, 1, 2))
    assert check_utterances(one, sizes)
    assert (one.columns["features"] == same.columns["features"]).all()
    assert (one.columns["features"] != other.columns["features"]).any()
    phones = one.columns["phones"]
    assert ((phones[:, 1:] != phones[:, :-1]) | (phones[:, 1:] == 0)).all(), "no phone is repeated"


def test_synthetic_frames_resemble_their_phones() -> None:
    """Frames of one phone resemble each other across utterances: that is what there is to learn."""
    spoken = timit.synthetic(3, Sizes(60, 10), items=200).columns
    first, last = spoken["features"][:, 0], spoken["features"][range(200), spoken["frames"] - 1]
    opening, closing = spoken["phones"][:, 0], spoken["phones"][range(200), spoken["phone_count"] - 1]
    distance = (first[:, None] - last[None]).pow(2).mean(-1)
    same = opening[:, None] == closing[None]
    assert distance[same].mean() < 0.7
    assert distance[~same].mean() > 1.8


# --- corruption


@pytest.mark.parametrize(("name", "count", "least"), [("sphere", 1500, 1200), ("riff", 1500, 700), ("PHN", 1500, 900)])
def test_corrupt_files_are_refused_or_valid(tmp_path: Path, name: str, count: int, least: int) -> None:
    write(
        tmp_path, "x", riff(noise(900)) if name == "riff" else sphere(noise(900)), "0 300 h#\n300 600 ix\n600 890 d\n"
    )

    def read() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_utterances(timit.read(tmp_path, "train", SIZES))

    path = tmp_path / ("x.WAV" if name in ("sphere", "riff") else f"x.{name}")
    refused, accepted = survive(path, read, count)
    assert refused > least
    assert refused + accepted == count


# --- the real thing


@pytest.mark.realdata
def test_real_recordings_in_timit_layout() -> None:
    folder = real_data("timit-style")
    train, test = (timit.read(folder, split, Sizes(320, 40)) for split in ("train", "test"))
    assert (len(train), len(test), train.skipped) == (6, 2, {"without a .PHN": 4})
    assert check_utterances(train, Sizes(320, 40))
    assert train.sentences[0] == "THE CHILD ALMOST HURT THE SMALL DOG"
    assert train.transcript(train.columns["phones"][0, :8].tolist()) == "dh ax tcl ch ay l dcl d"
    assert train.columns["frames"].tolist() == [285, 313, 270, 199, 174, 186]


@pytest.mark.realdata
def test_a_real_sphere_recording_with_phones_beside_it(tmp_path: Path) -> None:
    """What NIST's own tools wrote, where TIMIT would have it; the word is Yes, cut into phones by guess."""
    real = real_data("an4-sph-mini") / "wav" / "an4_clstk" / "fash" / "an251-fash-b.sph"
    samples = _audio.read_samples(real)
    phones = "0 4000 h#\n4000 5600 y\n5600 8800 eh\n8800 12000 s\n12000 16000 h#\n"
    write(tmp_path / "TRAIN" / "DR1" / "X", "SX1", real.read_bytes(), phones)
    found = timit.read(tmp_path, "train", Sizes(120, 8))
    assert check_utterances(found, Sizes(120, 8))
    assert found.columns["frames"].tolist() == [(len(samples) - 400) // 160 + 1] == [98]
    assert found.transcript(found.columns["phones"][0, :5].tolist()) == "h# y eh s h#"
    spoken = _audio.with_deltas(_audio.mfcc(samples))
    features = found.columns["features"][0, :98].numpy()
    assert features == pytest.approx((spoken - spoken.mean(0)) / spoken.std(0), abs=1e-3)
    loudness = features[:, 12]
    assert loudness[25:75].mean() > loudness[:20].mean(), "the word is in the middle"
