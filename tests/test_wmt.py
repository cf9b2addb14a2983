"""Parallel text and its vocabulary: exact on small files and on real ones; corrupt files give clear errors."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections import Counter
from pathlib import Path

import pytest
from conftest import real_data
from fuzz import mutations, survive

from fathom.core.errors import DataError, UnknownName
from fathom.data import corpora, wmt
from fathom.data._vocabulary import EOS, GLUE, PAD, SPECIALS, UNK, Vocabulary, detokenise, tokenise
from fathom.data.base import SPLITS
from fathom.data.wmt import ParallelText, Side, TokenVocabulary

ENGLISH = "The cat, the dog.\nA cat\n\nThe dog sees the cat and the cat sees the dog .\nthe end\n"
FRENCH = "Le chat, le chien.\nUn chat\nrien\nLe chien voit le chat et le chat voit le chien .\nl'homme\n"


def known(vocabulary: TokenVocabulary) -> Vocabulary:
    """Asserts that it is a word vocabulary."""
    assert isinstance(vocabulary, Vocabulary)
    return vocabulary


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "fathom"


def write(folder: Path, name: str, english: str = ENGLISH, french: str = FRENCH) -> Path:
    (folder / f"{name}.en").write_text(english, encoding="utf-8")
    (folder / f"{name}.fr").write_text(french, encoding="utf-8")
    return folder


def read(folder: Path, split: str = "train", words: int = 50, length: int = 8, lowercase: bool = False) -> ParallelText:
    return wmt.read(folder, split, Side("en", words, length), Side("fr", words, length), lowercase)


def test_tokens_mark_missing_spaces() -> None:
    g = GLUE
    assert tokenise("l'homme (grand) dit : non?!") == [
        *("l", f"{g}'{g}", "homme", f"({g}", "grand", f"{g})", "dit", ":", "non", f"{g}?", f"{g}!")
    ]
    assert tokenise("d&apos; Obama &amp; Co", lowercase=True) == ["d", f"{g}'", "obama", "&", "co"]
    assert tokenise(" \t\n") == []
    assert (
        detokenise(["a", f"{g}.", f"{g}'{g}", "b", f"({g}"]) == "a.'b ("
    )  # any tokens that a network may generate stay readable


def test_detokenising_gives_the_text_again() -> None:
    rng = random.Random(0)
    letters = "aZé9_ß中 \t\u2028.,'’-?!()«»€\u0301"
    for _ in range(2000):
        text = "".join(rng.choice(letters) for _ in range(rng.randint(0, 12)))
        assert detokenise(tokenise(text)) == " ".join(text.split())


def test_rows_are_exact(tmp_path: Path) -> None:
    text = read(write(tmp_path, "train"))
    # "The dog sees the cat and the cat sees the dog ." has 12 tokens and is left out; so is the empty English line
    assert (len(text), text.dropped, text.too_long, text.truncated) == (3, 1, 1, 0)
    source, target = known(text.source_vocabulary), known(text.target_vocabulary)
    assert source.words == [
        *SPECIALS,
        "the",
        "cat",
        "dog",
        "The",
        "sees",
        *sorted([".", "A", "and", "end", "￭,", "￭."]),
    ]
    rows = text.columns["source"].tolist()
    assert rows[0] == [*source.encode(["The", "cat", "￭,", "the", "dog", "￭."]), PAD, PAD]
    assert text.columns["target"][2].tolist() == [*target.encode(["l", "￭'￭", "homme"]), EOS, PAD, PAD, PAD, PAD]
    assert target.decode(target.encode(tokenise("l'homme"))) == "l'homme"


def test_a_held_out_split_is_cut_not_dropped_and_unknown_words_are_unknown(tmp_path: Path) -> None:
    write(tmp_path, "train", "a b\n", "x y\n")
    text = read(write(tmp_path, "test", "b c a b c\n\na\na\n", "y z x y z\nx\nx\n \n"), "test", length=4)
    assert text.columns["source"].tolist() == [[5, UNK, 4, 5], [4, PAD, PAD, PAD]]
    assert text.columns["target"].tolist() == [[5, UNK, 4, EOS], [4, EOS, PAD, PAD]]
    assert (text.dropped, text.too_long, text.truncated) == (2, 0, 1)


def test_the_target_needs_room_for_its_end(tmp_path: Path) -> None:
    write(tmp_path, "train", "a a a\na a a\n", "x x x\nx x\n")
    text = read(tmp_path, length=3)
    assert text.too_long == 1
    assert text.columns["target"].tolist() == [[4, 4, EOS]]


def test_vocabulary_keeps_the_most_frequent(tmp_path: Path) -> None:
    text = read(write(tmp_path, "train"), words=6, lowercase=True)
    assert known(text.source_vocabulary).words == [*SPECIALS, "the", "cat"]
    assert Vocabulary.most_frequent(Counter(b=2, a=2, c=3), 6).words == [*SPECIALS, "c", "a"]


@pytest.mark.parametrize(
    ("names", "train", "validation", "test"),
    [
        (["train", "val", "test_2016_flickr", "test_2017_flickr"], ["train"], "val", "test_2016_flickr"),
        (["train", "valid", "test", "test_2016"], ["train"], "valid", "test"),
        (
            ["train.clean", "train.web", "validation", "tst2012", "tst2013"],
            ["train.clean", "train.web"],
            "validation",
            "tst2012",
        ),
        (["corpus", "dev2010", "devtest", "test.2014"], ["corpus"], "dev2010", "test.2014"),
        (
            [f"opus.en-fr-{split}" for split in ("train", "dev", "test")],
            ["opus.en-fr-train"],
            "opus.en-fr-dev",
            "opus.en-fr-test",
        ),
        (
            ["IWSLT14.TED.dev2010.en-fr", "IWSLT14.TED.tst2011.en-fr", "europarl-v7", "testing.val", "un.valley"],
            ["europarl-v7", "un.valley"],
            "IWSLT14.TED.dev2010.en-fr",
            "testing.val",
        ),
        (
            ["newstest2012", "news-commentary-v10.fr-en", "newstest2014", "newstest2013", "newsdiscussdev2015"],
            ["news-commentary-v10.fr-en"],
            "newstest2013",
            "newstest2014",
        ),
    ],
)
def test_splits(tmp_path: Path, names: list[str], train: list[str], validation: str, test: str) -> None:
    for name in names:
        write(tmp_path, name, f"{name}\n", f"{name}\n")
    expectations = (("train", train), ("train_subset", train), ("validation", [validation]), ("test", [test]))
    for split, expected in expectations:
        assert list(corpora.pairs(tmp_path, split, "en", "fr")) == [(name, name) for name in expected]
    with pytest.raises(UnknownName, match="no split 'tset'; did you mean test?"):
        list(corpora.pairs(tmp_path, "tset", "en", "fr"))


def numbered(count: int, word: str = "w") -> tuple[str, str]:
    """So many different pairs, each side with words of its own."""
    return tuple("".join(f"{side}{word} {side}{n}\n" for n in range(count)) for side in ("e", "f"))  # type: ignore[return-value]


def of_split(folder: Path, split: str) -> list[tuple[str, str]]:
    return list(corpora.pairs(folder, split, "en", "fr"))


@pytest.mark.parametrize(("count", "few"), [(40, 2), (1000, 50), (21_000, 1000)])
def test_without_files_of_their_own_both_splits_are_taken_of_the_training_text(
    tmp_path: Path, count: int, few: int
) -> None:
    write(tmp_path, "corpus", *numbered(count))
    train, rest, validation, test = (of_split(tmp_path, split) for split in SPLITS)
    assert (len(train), len(validation), len(test), len(rest)) == (count, few, few, count - 2 * few)
    assert {*rest, *validation, *test} == set(train)
    kept = set(rest)
    assert rest == [pair for pair in train if pair in kept], "in the order of the text"
    assert of_split(tmp_path, "validation") == validation, "the same whenever it is read"
    assert max(map(train.index, validation[-2:])) > count / 2, "from all of the text"


def test_one_newstest_is_the_test_and_validation_is_taken_of_the_training_text(tmp_path: Path) -> None:
    write(tmp_path, "europarl-v7.fr-en", *numbered(100))
    write(tmp_path, "newstest2013", *numbered(7, "news"))
    assert [left for left, _ in of_split(tmp_path, "test")] == [f"enews e{n}" for n in range(7)]
    validation, rest = of_split(tmp_path, "validation"), of_split(tmp_path, "train_subset")
    assert (len(validation), len(rest), len({*validation, *rest})) == (5, 95, 100)


def test_a_validation_file_leaves_the_test_to_be_taken_of_the_training_text(tmp_path: Path) -> None:
    write(tmp_path, "train", *numbered(100))
    write(tmp_path, "dev", *numbered(7, "dev"))
    assert len(of_split(tmp_path, "validation")) == 7
    test, rest = of_split(tmp_path, "test"), of_split(tmp_path, "train_subset")
    assert (len(test), len(rest), len({*test, *rest})) == (5, 95, 100)


def test_a_pair_that_stands_in_the_text_again_is_in_one_split_alone(tmp_path: Path) -> None:
    """Subtitles and captions repeat themselves: each pair stands there ten times."""
    english, french = numbered(40)
    write(tmp_path, "train", english * 10, french * 10)
    rest, validation, test = (set(of_split(tmp_path, split)) for split in SPLITS[1:])
    assert validation
    assert test
    assert not rest & validation
    assert not rest & test
    assert not validation & test
    assert len(rest | validation | test) == 40


def test_the_vocabulary_of_every_split_of_a_training_run_is_of_what_is_trained_on(tmp_path: Path) -> None:
    write(tmp_path, "train", *numbered(100))
    held_out = {left.split()[1] for split in ("validation", "test") for left, _ in of_split(tmp_path, split)}
    texts = [read(tmp_path, split, words=500) for split in SPLITS[1:]]
    words = [known(text.source_vocabulary).words for text in texts]
    assert words[0] == words[1] == words[2]
    assert not held_out & set(words[0])
    assert len(held_out) == 10
    assert held_out <= set(known(read(tmp_path, "train", words=500).source_vocabulary).words)
    assert (texts[1].columns["source"] == UNK).sum() == 5, "one word of each pair"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["train.en", "train.fr"], ["en", "fr"]),
        (["train.en.txt", "train.de.txt.gz"], ["de", "en"]),
        (["europarl-v7.fr-en.en.gz", "europarl-v7.fr-en.fr.gz", "newstest2013.en", "newstest2013.fr"], ["en", "fr"]),
        (["train.en", "train.de", "train.fr", "train.cs", "val.en", "val.de", "val.xx"], ["cs", "de", "en", "fr"]),
        (["train.pt_BR", "train.zh-Hant"], ["pt_BR", "zh-Hant"]),
        (["train.en", "train.fr", "train.csv", "train.tar.gz", "README.md", "SOURCE.txt", "notes.py"], ["en", "fr"]),
        (["data.zip", "data.tsv"], []),
        (["train.en"], []),
        (["test.en", "test.fr"], []),
    ],
)
def test_languages_are_those_of_training_text_in_two_or_more(
    tmp_path: Path, names: list[str], expected: list[str]
) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert corpora.languages(tmp_path) == expected
    assert corpora.languages(tmp_path / "absent") == []


def test_sizes_of_a_text(tmp_path: Path) -> None:
    """Of 1,000 sentences, 996 have 2 words and 4 have 30; the other language has half as many. 300 have one side."""
    english = ["a b"] * 996 + ["a " * 30] * 4 + ["alone"] * 200 + [""] * 100
    french = ["x"] * 996 + ["x " * 15] * 4 + [""] * 200 + ["seul"] * 100
    write(tmp_path, "train", "\n".join(english) + "\n", "\n".join(french) + "\n")
    for name in ("val", "test_2016_flickr"):
        write(tmp_path, name)
    found = corpora.sizes(tmp_path, "en", "fr")
    assert (found.count, found.words, found.long_sentence) == (1000, (996 * 2 + 120, 996 + 60), (2, 1))
    assert found.letters == (3, 2), "a, b and the space; x and the space"
    assert (found.validation, found.test, found.is_multi30k) == ("val", "test_2016_flickr", True)
    assert corpora.sizes(tmp_path, "fr", "en").words == (996 + 60, 996 * 2 + 120), "the other way round"
    for name in ("val", "test_2016_flickr"):
        for language in ("en", "fr"):
            (tmp_path / f"{name}.{language}").unlink()
    write(tmp_path, "train", *numbered(1000))
    found = corpora.sizes(tmp_path, "en", "fr")
    assert (found.count, found.is_multi30k) == (900, False)
    assert found.validation == found.test == "50 pairs of the training text"


def test_scripts_without_spaces_have_words_too(tmp_path: Path) -> None:
    write(tmp_path, "train", "a dog sleeps\n" * 50, "\u4e00\u4e01\u4e02\u4e03\u4e04\u3002 GPU\n" * 50)
    for name in ("val", "test"):
        write(tmp_path, name)
    assert corpora.sizes(tmp_path, "en", "fr").long_sentence == (3, 5), "two letters a word, the full stop, and GPU"


@pytest.mark.parametrize(("english", "french"), [("", ""), ("\n" * 50, "x\n" * 50), ("a\n" * 50, "x\n" * 50)])
def test_a_text_with_nothing_to_learn_from_is_one_clear_line(tmp_path: Path, english: str, french: str) -> None:
    """No line, no word in one language, or one pair again and again, which is held out."""
    write(tmp_path, "train", english, french)
    write(tmp_path, "test")
    with pytest.raises(DataError, match=r"no training text in en and fr that is not held out$"):
        corpora.sizes(tmp_path, "en", "fr")


def test_too_few_pairs_to_take_a_split_from_is_one_clear_line(tmp_path: Path) -> None:
    write(tmp_path, "train", *numbered(39))
    with pytest.raises(DataError, match="no validation text in en and fr, and too few training pairs") as told:
        corpora.sizes(tmp_path, "en", "fr")
    assert "\n" not in str(told.value)
    assert len(of_split(tmp_path, "train_subset")) == 39, "for a timed run there is enough"


@pytest.mark.parametrize("ending", [".gz", ".txt.gz"])
def test_gzipped_files_read_the_same_and_plain_ones_take_precedence(tmp_path: Path, ending: str) -> None:
    expected = read(write(tmp_path, "train")).columns
    for language in ("en", "fr"):
        path = tmp_path / f"train.{language}"
        (tmp_path / f"train.{language}{ending}").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    columns = read(tmp_path).columns
    assert all((columns[name] == expected[name]).all() for name in expected)
    assert len(read(write(tmp_path, "train", "one\n", "un\n"))) == 1


@pytest.mark.parametrize(
    ("english", "french", "message"),
    [
        ("a\nb\nc\n", "x\ny\n", r"train\.en: 3 lines, but train\.fr has 2$"),
        ("a\nb\n", "x\ny\nz", r"train\.en: 2 lines, but train\.fr has 3$"),
        ("a\nb\n", "x\n\0\n", r"train\.fr: line 2: a zero byte, expected one sentence per line"),
        ("a" * (1 << 20) + "\n", "x\n", r"train\.en: line 1: longer than 1048576 bytes"),
        ("", "", r"train\.en: no words in this file or in train\.fr; the folder must contain one sentence per line"),
        ("a b c d e f g h i\n", "x\n", r"no train pair of at most 8 and 7 tokens among 1"),
    ],
)
def test_bad_text_is_a_one_line_error(tmp_path: Path, english: str, french: str, message: str) -> None:
    write(tmp_path, "train", english, french)
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value)


def test_invalid_utf8_names_file_line_and_byte(tmp_path: Path) -> None:
    write(tmp_path, "train")
    (tmp_path / "train.fr").write_bytes(b"bon\nd\xe9j\xe0\n")
    with pytest.raises(DataError, match=r"train\.fr: line 2: not UTF-8: .* at byte 1 of the line"):
        read(tmp_path)


def test_missing_files_are_an_error_that_names_the_expected_ones(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no train text in en and fr; the folder must contain one sentence per line"):
        read(tmp_path / "absent")
    write(tmp_path, "train")
    for split in ("validation", "test"):
        problem = f"no {split} text in en and fr, and too few training pairs to take it from: 40 are needed; the folder"
        with pytest.raises(DataError, match=problem) as told:
            read(tmp_path, split)
        assert "\n" not in str(told.value)
    (tmp_path / "train.fr").unlink()
    with pytest.raises(DataError, match=r"train\.fr or train\.fr\.gz is missing; the folder must contain"):
        read(tmp_path)


def test_vocabulary_comes_from_the_cache_until_the_text_changes(tmp_path: Path, cache: Path) -> None:
    path = write(tmp_path, "train") / "train.en"
    words = known(read(tmp_path).source_vocabulary).words
    stat = path.stat()
    path.write_text(ENGLISH.replace("cat", "cow"), encoding="utf-8")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # size and time are those of the old file
    assert known(read(tmp_path).source_vocabulary).words == words
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert "cow" in known(read(tmp_path).source_vocabulary).words
    assert known(read(tmp_path, words=6).source_vocabulary).words == [*SPECIALS, "the", "cow"]
    assert [entry.suffix for entry in cache.iterdir()] == [".json"] * 3, "no temporary files are left"


def test_a_damaged_cache_is_rebuilt(tmp_path: Path, cache: Path) -> None:
    words = known(read(write(tmp_path, "train")).source_vocabulary).words
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    swapped = json.loads(whole)
    swapped["words"].reverse()
    damaged = [b"", b"null", b"[" * 100_000, json.dumps(swapped).encode(), *mutations(whole, 300)]
    for content in damaged:
        path.write_bytes(content)
        assert known(read(tmp_path).source_vocabulary).words == words
        assert path.read_bytes() == whole or json.loads(path.read_bytes()) == json.loads(whole)


def test_a_cache_that_cannot_be_written_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(read(write(tmp_path, "train"))) == 3


@pytest.mark.parametrize(("name", "least_refused"), [("train.fr", 400), ("train.en.gz", 1000)])
def test_corrupt_files_are_refused_or_valid(tmp_path: Path, name: str, least_refused: int) -> None:
    write(tmp_path, "train")
    if name.endswith(".gz"):
        (tmp_path / name).write_bytes(gzip.compress(ENGLISH.encode()))
        (tmp_path / "train.en").unlink()

    def check() -> None:
        text = read(tmp_path)
        assert len(text) + text.dropped + text.too_long == 5
        for column, vocabulary in (("source", text.source_vocabulary), ("target", text.target_vocabulary)):
            rows = text.columns[column]
            assert rows.shape == (len(text), 8)
            assert 0 <= int(rows.min()) <= int(rows.max()) < len(vocabulary)
            padded = rows == PAD
            assert not padded[:, 0].any()
            assert (padded.int().diff(dim=1) >= 0).all(), "padding is at the end alone"
        assert ((text.columns["target"] == EOS).sum(1) == 1).all()

    refused, accepted = survive(tmp_path / name, check, count=1500)
    assert refused + accepted == 1500
    assert refused >= least_refused


def test_synthetic_text_has_a_dictionary_and_one_reordering_rule() -> None:
    text = wmt.synthetic(3, Side("en", 100, 9), Side("fr", 90, 12), items=400)
    again = wmt.synthetic(3, Side("en", 100, 9), Side("fr", 90, 12), items=400)
    assert all((text.columns[name] == again.columns[name]).all() for name in text.columns)
    assert (len(text.source_vocabulary), len(text.target_vocabulary)) == (100, 90)
    sources = [[word for word in row if word != PAD] for row in text.columns["source"].tolist()]
    targets = [row[: row.index(EOS)] for row in text.columns["target"].tolist()]
    assert {len(row) for row in sources} == set(range(4, 10))
    # a translation occurs as often as its word in every sentence; over 400 sentences only one candidate is left
    meaning: dict[int, set[int]] = {}
    for source, target in zip(sources, targets, strict=True):
        assert len(source) == len(target)
        for word in set(source):
            matches = {other for other in target if target.count(other) == source.count(word)}
            meaning[word] = meaning.get(word, matches) & matches
    assert all(len(candidates) == 1 for candidates in meaning.values()), "each word has exactly one translation"
    moved = 0
    for source, target in zip(sources, targets, strict=True):
        literal = [next(iter(meaning[word])) for word in source]
        at = 0
        while at < len(literal):
            swapped = literal[at] != target[at]
            assert target[at : at + 2] == literal[at : at + 2][::-1] if swapped else True
            moved += swapped
            at += 2 if swapped else 1
    assert moved > 100, "reordering is part of what has to be learnt"


@pytest.mark.realdata
def test_real_multi30k() -> None:
    folder = real_data("multi30k")
    sides = Side("en", 40_000, 40), Side("de", 40_000, 50)
    train, valid, test = (wmt.read(folder, split, *sides) for split in ("train", "validation", "test"))
    assert (len(train) + train.too_long, len(valid), len(test)) == (29_000, 1014, 1000)
    assert (train.too_long, train.dropped, test.truncated) == (1, 0, 0)
    first = test.source_vocabulary.decode(n for n in test.columns["source"][0].tolist() if n != PAD)
    assert first == (folder / "test_2016_flickr.en").read_text(encoding="utf-8").splitlines()[0]
    for language in ("en", "de", "fr"):
        for line in (folder / f"val.{language}").read_text(encoding="utf-8").splitlines():
            assert detokenise(tokenise(line)) == " ".join(line.split())


@pytest.mark.realdata
def test_real_wmt15() -> None:
    folder = real_data("wmt15-fr-en")
    sides = Side("en", 10_000, 40), Side("fr", 10_000, 50)
    train, rest, validation, test = (wmt.read(folder, split, *sides) for split in SPLITS)
    assert len(rest) + rest.dropped + rest.too_long <= 19_000, "a thousand, wherever they stand"
    assert len(validation) + validation.dropped == 1000
    assert len(train) + train.dropped + train.too_long == 20_000
    assert train.dropped == 36, "one side is empty"
    assert (len(test), test.dropped) == (3000, 0)
    assert len(train.source_vocabulary) == len(train.target_vocabulary) == 10_000
    assert known(train.target_vocabulary).words[4:7] == ["de", "￭.", "￭'￭"]


def test_words_that_are_evaluated_on_are_not_in_a_vocabulary_that_was_cached_before(tmp_path: Path) -> None:
    """Held-out text has files of its own at first; then it is taken of the training text."""
    write(tmp_path, "train", *numbered(100))
    for name in ("val", "test"):
        write(tmp_path, name, *numbered(7, name))
    assert len(known(read(tmp_path, "train_subset", words=500).source_vocabulary)) > 100
    for name in ("val", "test"):
        for language in ("en", "fr"):
            (tmp_path / f"{name}.{language}").unlink()
    held_out = {word for left, _ in of_split(tmp_path, "validation") for word in left.split() if word[1:].isdecimal()}
    assert held_out
    assert not held_out & set(known(read(tmp_path, "validation", words=500).source_vocabulary).words)
