"""AN4: features or recordings, transcripts and dictionary; the real corpus, and thousands of corrupt files."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
from conftest import real_data
from fuzz import survive
from test_timit import check_utterances, noise, sphere

from fathom.core.errors import DataError
from fathom.data import _audio, an4
from fathom.data._audio import Sizes

SIZES = Sizes(frames=20, phones=8)


def mfc(frames: int, seed: int = 0) -> bytes:
    numbers = np.random.default_rng(seed).normal(0, 5, frames * 13)
    return struct.pack(">i", len(numbers)) + numbers.astype(">f4").tobytes()


def corpus(folder: Path, recordings: bool = False) -> Path:
    etc = folder / "etc"
    etc.mkdir()
    (etc / "an4.phone").write_text("AH\nEY\nK\nN\nOW\nS\nSIL\nT\nW\n")
    (etc / "an4.dic").write_text("A    AH\nA(2)  EY\nONE  W AH N\nTWO  T OW\nK  K EY\n")
    for split, names in (("train", ("an1-fash-b", "cen2-fash-b")), ("test", ("an3-mmxg-b",))):
        (etc / f"an4_{split}.fileids").write_text("".join(f"an4_clstk/x/{name}\n" for name in names))
        transcripts = "".join(
            f"{words} ({name})\n" for words, name in zip(("ONE A", "<s> TWO K </s>"), names, strict=False)
        )
        (etc / f"an4_{split}.transcription").write_text(transcripts)
        for seed, name in enumerate(names):
            path = folder / ("wav" if recordings else "feat") / "an4_clstk" / "x" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if recordings:
                path.with_suffix(".sph").write_bytes(sphere(noise(1500 + 500 * seed)))
            else:
                path.with_suffix(".mfc").write_bytes(mfc(10 + seed, seed))
    return folder


def test_reads_what_was_written(tmp_path: Path) -> None:
    train, test = (
        an4.read(corpus(tmp_path) if split == "train" else tmp_path, split, SIZES) for split in ("train", "test")
    )
    assert check_utterances(train)
    assert check_utterances(test)
    assert train.columns["frames"].tolist() == [10, 11]
    assert train.sentences == ["ONE A", "TWO K"]
    phones = [train.transcript(row[:4].tolist()) for row in train.columns["phones"]]
    assert phones == ["W AH N EY", "T OW K EY"], "A is the letter, never the article"
    static = np.frombuffer(mfc(10), ">f4", offset=4).reshape(10, 13)
    found = train.columns["features"][0, :10, :13].numpy()
    assert np.corrcoef(found[:, 5], static[:, 5])[0, 1] == pytest.approx(1, abs=1e-5)
    everything = np.concatenate([train.columns["features"][0, :10], train.columns["features"][1, :11]])
    assert np.abs(everything.mean(0)).max() < 1e-5
    assert everything.std(0) == pytest.approx(1, abs=1e-4)


def test_features_can_be_normalised_by_speaker(tmp_path: Path) -> None:
    train = an4.read(corpus(tmp_path), "train", SIZES)
    (tmp_path / "etc" / "an4_train.fileids").write_text("an4_clstk/x/an1-fash-b\nan4_clstk/y/cen2-fash-b\n")
    (tmp_path / "feat" / "an4_clstk" / "y").mkdir()
    loud = np.frombuffer(mfc(11, 1), ">f4", offset=4) * 3 + 7
    moved = struct.pack(">i", len(loud)) + loud.astype(">f4").tobytes()
    (tmp_path / "feat" / "an4_clstk" / "y" / "cen2-fash-b.mfc").write_bytes(moved)
    apart = an4.read(tmp_path, "train", SIZES, by_speaker=True)
    for row, frames in enumerate((10, 11)):
        alone = apart.columns["features"][row, :frames].numpy()
        assert np.abs(alone.mean(0)).max() < 1e-5
        assert alone.std(0) == pytest.approx(1, abs=1e-4)
    assert check_utterances(train)
    assert check_utterances(apart)


def test_recordings_are_read_where_there_are_no_features(tmp_path: Path) -> None:
    train = an4.read(corpus(tmp_path, recordings=True), "train", SIZES)
    assert train.columns["frames"].tolist() == [7, 11]
    assert check_utterances(train)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (
            "an4_train.fileids",
            "../../secret\nb\n",
            "fileids: line 1: a path below feat or wav was expected, not '../../s",
        ),
        ("an4_train.fileids", "a\n", "transcription: 2 transcripts for 1 utterances of an4_train.fileids"),
        ("an4_train.transcription", "ONE (an1-fash-b)\nONE (b)\n", r"line 2: words and \(cen2-fash-b\) were expected"),
        ("an4_train.transcription", "ONE (an1-fash-b)\n(cen2-fash-b)\n", r"line 2: words and \(cen2-fash-b\) were"),
        ("an4_train.transcription", "NIL (an1-fash-b)\nA (cen2-fash-b)\n", "line 1: 'NIL' is not in an4.dic"),
        ("an4.dic", "A AH\nONE W UH N\n", "an4.dic: line 2: a new word and phones of an4.phone were expected"),
        ("an4.dic", "A AH\nA EY\n", "an4.dic: line 2: a new word"),
        ("an4.phone", "AH\nEY\nAH\n", "an4.phone: line 3: a new phone in capital letters was expected, not 'AH'"),
        ("an4.phone", "\n".join(f"A{chr(65 + n // 26)}{chr(65 + n % 26)}" for n in range(62)), "1 to 61 phones were"),
        ("an4.phone", "AH\nE\xe9\n", "an4.phone: byte 4: plain ASCII text was expected"),
    ],
)
def test_a_bad_text_file_names_its_line(tmp_path: Path, name: str, content: str, problem: str) -> None:
    (corpus(tmp_path) / "etc" / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match=problem):
        an4.read(tmp_path, "train", SIZES)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\0\0", "byte 2: truncated"),
        (mfc(10)[:-4], "byte 0: the header declares 130 numbers .13 per frame., the file has 516 bytes"),
        (struct.pack(">i", 12) + bytes(48), "byte 0: the header declares 12 numbers"),
        (b"\x7f\xff\xff\xff" + bytes(52), "byte 0: the header declares 2147483647 numbers"),
        (mfc(10)[:8] + struct.pack(">f", np.nan) + mfc(10)[12:], "byte 8: nan is not a cepstral coefficient"),
        (mfc(10)[:8] + struct.pack(">f", -1e30) + mfc(10)[12:], "byte 8: -1.*e.30 is not a cepstral coefficient"),
    ],
)
def test_a_bad_feature_file_names_its_byte(tmp_path: Path, content: bytes, problem: str) -> None:
    path = corpus(tmp_path) / "feat" / "an4_clstk" / "x" / "an1-fash-b.mfc"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"an1-fash-b.mfc: {problem}"):
        an4.read(tmp_path, "train", SIZES)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (corpus(tmp_path) / "feat" / "an4_clstk" / "x" / "cen2-fash-b.mfc").unlink()
    with pytest.raises(DataError, match="fileids: line 2: feat/an4_clstk/x/cen2-fash-b.mfc does not exist"):
        an4.read(tmp_path, "train", SIZES)


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("feat/an4_clstk/x/an1-fash-b.mfc", 1000),
        ("etc/an4_train.transcription", 800),
        ("etc/an4_train.fileids", 1000),
        ("etc/an4.dic", 800),
        ("etc/an4.phone", 800),
    ],
)
def test_corrupt_files_are_refused_or_valid(tmp_path: Path, name: str, least: int) -> None:
    corpus(tmp_path)

    def read() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_utterances(an4.read(tmp_path, "train", SIZES))

    refused, accepted = survive(tmp_path / name, read, count=1500)
    assert refused > least
    assert refused + accepted == 1500


@pytest.mark.realdata
def test_real_an4() -> None:
    folder = real_data("an4")
    train, test = (an4.read(folder, split, Sizes(639, 46)) for split in ("train", "test"))
    assert (len(train), len(test)) == (948, 130)
    assert train.skipped == test.skipped == {}
    assert int(train.columns["frames"].sum()) == 253_682
    assert int(test.columns["frames"].sum()) == 35_570
    assert int(train.columns["frames"].max()) == 639
    assert check_utterances(train, Sizes(639, 46))
    assert check_utterances(test, Sizes(639, 46))
    assert train.sentences[3] == "U M N Y H SIX"
    assert train.transcript(train.columns["phones"][3, :14].tolist()) == "Y UW EH M EH N W AY EY CH S IH K S"
    assert len(train.phones) == 34
    assert (int(train.columns["phone_count"].sum()), int(test.columns["phone_count"].sum())) == (14_035, 2_003)
    letters = dict.fromkeys(word for sentence in train.sentences for word in sentence.split() if len(word) == 1)
    assert sorted(letters) == list("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    spelt = {sentence: row for row, sentence in enumerate(train.sentences)}
    row = spelt["J E A N"]
    phones = train.transcript(train.columns["phones"][row, : train.columns["phone_count"][row]].tolist())
    assert phones == "JH EY IY EY EH N"
    short = an4.read(folder, "train", Sizes(120, 16))
    assert (len(short), short.skipped) == (109, {"with more than 120 frames": 839})


@pytest.mark.realdata
def test_our_cepstra_agree_with_those_of_sphinx() -> None:
    """Eight utterances come as recordings too: another front end (40 filters, 130-6800 Hz), the same speech."""
    recordings, features = real_data("an4-sph-mini") / "wav", real_data("an4") / "feat"
    paths = sorted(recordings.rglob("*.sph"))
    assert len(paths) == 8
    for path in paths:
        theirs = an4.read_mfc(features / path.relative_to(recordings).with_suffix(".mfc"))
        ours = _audio.mfcc(_audio.read_samples(path))
        assert len(theirs) - len(ours) == 1, "Sphinx pads the last window"
        for order in (1, 2, 3, 4):
            assert np.corrcoef(ours[:, order - 1], theirs[:-1, order])[0, 1] > 0.75
        assert np.corrcoef(ours[:, 12], theirs[:-1, 0])[0, 1] > 0.75, "the log energy against the zeroth cepstrum"
