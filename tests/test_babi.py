"""The bAbI reader: exact on small files, checked by counts on the real ones; corrupt files give clear errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import real_data
from fuzz import survive

from fathom.core.errors import DataError
from fathom.data import babi
from fathom.data.base import SPLITS

STORY = (
    "1 Mary got the milk there.\n"
    "2 John moved to the bedroom.\n"
    "3 What is Mary carrying? \tmilk\t1\n"
    "4 Mary got the football.\n"
    "5 What is Mary carrying?\tmilk,football\t1 4\n"
    "1 John went.\n"
    "2 Where is John?\tbedroom\t1\n"
)


def write_task(folder: Path, train: str = STORY, test: str = STORY, task: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, text in (("train", train), ("test", test)):
        (folder / f"qa{task}_{babi.TASKS[task - 1]}_{part}.txt").write_bytes(text.encode())
    return folder


def as_text(stories: babi.Stories, item: int) -> tuple[list[str], str, str]:
    """A question back in words: the remembered sentences, the question, the answer."""

    def text(numbers: torch.Tensor) -> str:
        return " ".join(stories.vocabulary[number] for number in numbers.tolist()).rstrip()

    columns = stories.columns
    answer = stories.vocabulary[int(columns["answer"][item])]
    return [text(sentence) for sentence in columns["story"][item]], text(columns["question"][item]), answer


def test_reads_what_was_written(tmp_path: Path) -> None:
    stories = babi.read(write_task(tmp_path), "test")
    words = "bedroom carrying football got is john mary milk milk,football moved the there to went what where"
    assert stories.vocabulary == ["", *words.split()]
    assert [as_text(stories, item) for item in range(3)] == [
        (["john moved to the bedroom", "mary got the milk there", ""], "what is mary carrying", "milk"),
        (
            ["mary got the football", "john moved to the bedroom", "mary got the milk there"],
            "what is mary carrying",
            "milk,football",
        ),
        (["john went", "", ""], "where is john", "bedroom"),
    ]
    assert {name: tuple(column.shape) for name, column in stories.columns.items()} == {
        "story": (3, 3, 5),
        "question": (3, 5),
        "answer": (3,),
    }
    assert all(column.dtype == torch.int64 for column in stories.columns.values())


def test_memory_keeps_the_most_recent_sentences(tmp_path: Path) -> None:
    stories = babi.read(write_task(tmp_path), "test", capacity=2)
    assert stories.columns["story"].shape == (3, 2, 5)
    assert as_text(stories, 1)[0] == ["mary got the football", "john moved to the bedroom"]


def test_lines_may_end_as_on_windows(tmp_path: Path) -> None:
    ours, theirs = write_task(tmp_path / "unix"), write_task(tmp_path / "dos", train=STORY.replace("\n", "\r\n"))
    assert babi.read(theirs).columns["story"].equal(babi.read(ours).columns["story"])


def test_the_last_tenth_of_training_is_for_validation(tmp_path: Path) -> None:
    places = [*["attic", "cellar"] * 13, "moon"]
    train = "".join(f"1 Ada went to the {place}.\n2 Where is Ada?\t{place}\t1\n" for place in places)
    write_task(tmp_path, train, STORY)
    splits = {split: babi.read(tmp_path, split) for split in SPLITS}
    assert [len(stories) for stories in splits.values()] == [27, 25, 2, 3]
    assert [as_text(splits["validation"], item)[2] for item in range(2)] == ["cellar", "moon"]
    assert splits["train"].vocabulary == splits["test"].vocabulary, "a word has one number in every split"
    assert len({stories.columns["story"].shape[1:] for stories in splits.values()}) == 1


def test_too_few_questions_to_hold_out_any(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="too few training questions of task 1"):
        babi.read(write_task(tmp_path), "validation")


def test_folders_are_found_from_above_and_from_within(tmp_path: Path) -> None:
    inner = write_task(tmp_path / "tasks_1-20_v1-2" / "en")
    expected = babi.read(inner).columns["story"]
    for folder in (tmp_path, tmp_path / "tasks_1-20_v1-2"):
        assert babi.read(folder).columns["story"].equal(expected)
    with pytest.raises(DataError, match="is the subset en, but en-10k was requested"):
        babi.read(inner, subset="en-10k")
    with pytest.raises(DataError, match="no folder en-10k and no qa.*the folder must contain the unpacked bAbI tasks"):
        babi.read(tmp_path, subset="en-10k")


def test_all_tasks_share_one_vocabulary_and_need_every_file(tmp_path: Path) -> None:
    for task in range(1, 21):
        place = f"{'abcdefghijklmnopqrst'[task - 1]}house"
        story = f"1 Ada went to the {place}.\n2 Where is Ada?\t{place}\t1\n"
        write_task(tmp_path, story, story, task=task)
    stories = babi.read(tmp_path, task=0)
    assert len(stories) == 20
    assert len(stories.vocabulary) == 1 + 20 + 6, "nil, the houses, and: ada went to the where is"
    assert [as_text(stories, item)[2][0] for item in range(20)] == list("abcdefghijklmnopqrst")
    (tmp_path / "qa7_counting_test.txt").unlink()
    with pytest.raises(DataError, match=r"qa7_counting_test\.txt: no such file"):
        babi.read(tmp_path, task=0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: truncated: the file must end with a question"),
        ("1 Ada went.\n", "line 2: truncated: the file must end with a question"),
        ("1 A.\n2 W?\ta\t1\n3 B.\n", "line 4: truncated: the file must end with a question"),
        ("1 Ada went.\n2 Where is Ada?\tattic\t1", "line 2: truncated: the last line has no line end"),
        ("1 Ada went.\n\n2 Where is Ada?\tattic\t1\n", "line 2: '' is not a number"),
        ("Ada went.\n", "line 1: 'Ada went.' is not a number"),
        ("1 Ada went.\n3 Where is Ada?\tattic\t1\n", "line 2: numbered 3, expected 2, or 1 for a new story"),
        ("2 Ada went.\n3 Where is Ada?\tattic\t2\n", "line 1: numbered 2, expected 1"),
        ("1 Ada went.\n1 Ada went.\n2 Where?\tattic\t1\n", "line 2: a new story begins, but the previous one does not"),
        ("1 Ada went\n2 Where is Ada?\tattic\t1\n", "line 1: 'Ada went' is not words .* '.' at the end"),
        ("1 Ada  went.\n2 Where is Ada?\tattic\t1\n", "line 1: 'Ada  went.' is not words"),
        ("1 Ada w3nt.\n2 Where is Ada?\tattic\t1\n", "line 1: 'Ada w3nt.' is not words"),
        ("1 Ada went.\n2 Where is Ada\tattic\t1\n", "line 2: 'Where is Ada' is not words .* '\\?' at the end"),
        ("1 Ada went.\n2 Where is Ada?\tattic\n", "line 2: .* is not a number, a space, and a sentence or a question"),
        ("1 Ada went.\n2 Where is Ada?\tattic\t1\t1\n", "line 2: .* is not a number, a space, and a sentence or"),
        ("1 Ada went.\n2 Where is Ada?\t\t1\n", "line 2: the answer '' is not a word or a list"),
        ("1 Ada went.\n2 Where is Ada?\tattic,\t1\n", "line 2: the answer 'attic,' is not a word or a list"),
        ("1 Ada went.\n2 Where is Ada?\tattic\t\n", "line 2: the supporting facts '' are not line numbers"),
        ("1 Ada went.\n2 Where is Ada?\tattic\t2\n", "line 2: the supporting fact 2 is not the number of an earlier"),
        ("1 Ada went.\n2 Where is Ada?\tattic\t0\n", "line 2: the supporting fact 0 is not the number of an earlier"),
        ("1 Where is Ada?\tattic\t1\n", "line 1: the supporting fact 1 is not the number of an earlier"),
        ("1 A.\n2 W?\ta\t1\n3 B.\n4 W?\ta\t2\n", "line 4: the supporting fact 2 is not the number of an earlier"),
        ("1 A.\n2 B.\n3 W?\ta\t2\n1 C.\n2 W?\ta\t2\n", "line 5: the supporting fact 2 is not the number of an earlier"),
        (f"1 {'very ' * 64}far.\n2 Where?\tattic\t1\n", "line 1: 65 words, expected at most 64"),
        (f"{'9' * 5000} Ada went.\n", "line 1: '9999.*' is not a number"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, problem: str) -> None:
    write_task(tmp_path, test=text)
    with pytest.raises(DataError, match=rf"qa1_single-supporting-fact_test\.txt: {problem}"):
        babi.read(tmp_path)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = write_task(tmp_path) / "qa1_single-supporting-fact_train.txt"
    path.write_bytes(STORY.encode().replace(b"bedroom", b"b\xe9droom", 1))
    with pytest.raises(DataError, match=r"_train\.txt: line 2: not UTF-8 text \(byte 0xe9\)"):
        babi.read(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match=r"_train\.txt: cannot be read: Is a directory"):
        babi.read(tmp_path)


def test_a_missing_task_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"qa2_two-supporting-facts_train\.txt: no such file"):
        babi.read(write_task(tmp_path), task=2)


def check_stories(stories: babi.Stories) -> None:
    """Numbers within the vocabulary, words before nil, sentences before empty ones, an answer to every question."""
    story, question, answer = (stories.columns[name] for name in ("story", "question", "answer"))
    assert story.shape[2] == question.shape[1] <= babi.MAX_SENTENCE_WORDS
    assert story.shape[1] <= 50
    assert len(story) == len(question) == len(answer) > 0
    assert 1 <= int(answer.min()) <= int(answer.max()) < len(stories.vocabulary)
    sentences = torch.cat([story, question.unsqueeze(1)], 1)
    assert 0 <= int(sentences.min()) <= int(sentences.max()) < len(stories.vocabulary)
    is_word = sentences != babi.NIL
    assert not (is_word[..., 1:] & ~is_word[..., :-1]).any(), "nil between words"
    is_sentence = is_word[:, :-1].any(2)
    assert not (is_sentence[:, 1:] & ~is_sentence[:, :-1]).any(), "an empty memory between sentences"
    assert is_sentence[:, 0].all(), "a question about nothing"
    assert is_word[:, -1].any(1).all(), "a question without words"
    assert all(word.replace(",", "").isalpha() and word == word.lower() for word in stories.vocabulary[1:])


def test_corrupt_files_are_refused_or_valid(tmp_path: Path) -> None:
    write_task(tmp_path)
    path = tmp_path / "qa1_single-supporting-fact_test.txt"
    refused, accepted = survive(path, lambda: check_stories(babi.read(tmp_path)), count=3000)
    assert refused > 2400, "hardly a change leaves the numbering, the marks and the references whole"
    assert accepted > 10, "a letter for another is a word like any other"


def replayed(stories: babi.Stories) -> list[str]:
    """Answers found by reading: the last place of the person that a task 1 question asks for."""
    answers = []
    for item in range(len(stories)):
        sentences, question, _ = as_text(stories, item)
        person = question.split()[-1]
        answers.append(next(sentence.split()[-1] for sentence in sentences if sentence.startswith(f"{person} ")))
    return answers


def test_synthetic_stories_are_task_1_in_other_words() -> None:
    stories = babi.synthetic(0)
    check_stories(stories)
    assert {name: tuple(column.shape) for name, column in stories.columns.items()} == {
        "story": (2000, 10, 6),
        "question": (2000, 6),
        "answer": (2000,),
    }
    assert len(stories.vocabulary) == 20
    assert replayed(stories) == [as_text(stories, item)[2] for item in range(len(stories))]
    counts = stories.columns["answer"].bincount()
    assert counts[counts > 0].min() > 250, "six places, about equally likely"
    assert (counts > 0).sum() == 6


def test_synthetic_stories_follow_the_seed_and_the_shape_asked_for() -> None:
    assert babi.synthetic(1).columns["story"].equal(babi.synthetic(1).columns["story"])
    assert not babi.synthetic(1).columns["story"].equal(babi.synthetic(2).columns["story"])
    for memory, words in ((1, 6), (2, 11), (15, 9), (50, 7)):
        stories = babi.synthetic(0, memory=memory, words=words, items=100)
        check_stories(stories)
        assert stories.columns["story"].shape[1:] == (memory, words)
        assert replayed(stories) == [as_text(stories, item)[2] for item in range(len(stories))]


# vocabulary with nil, sentences in memory and words in a sentence of each task of the real en
REAL_SIZES = [
    (20, 10, 6), (34, 50, 6), (35, 50, 7), (15, 2, 7), (40, 50, 7), (36, 26, 6), (44, 34, 6), (46, 50, 6), (24, 10, 7),
    (25, 10, 9), (27, 10, 8), (21, 10, 8), (27, 10, 8), (26, 14, 8), (18, 8, 5), (18, 9, 4), (19, 2, 11), (19, 15, 9),
    (32, 5, 10), (36, 12, 7),
]  # fmt: skip


@pytest.mark.realdata
@pytest.mark.parametrize("task", range(1, 21))
def test_real_tasks(task: int) -> None:
    train, kept, valid, test = (babi.read(real_data("babi"), split, task=task) for split in SPLITS)
    assert (len(train), len(kept), len(valid), len(test)) == (1000, 900, 100, 1000)
    assert (len(test.vocabulary), *test.columns["story"].shape[1:]) == REAL_SIZES[task - 1]
    for stories in (train, kept, valid, test):
        check_stories(stories)


@pytest.mark.realdata
def test_real_task_1() -> None:
    train = babi.read(real_data("babi"))
    people_and_places = "bathroom bedroom daniel garden hallway john kitchen mary office sandra"
    others = "back is journeyed moved the to travelled went where"
    assert train.vocabulary[1:] == sorted(f"{people_and_places} {others}".split())
    sentences, question, answer = as_text(train, 1)
    assert sentences[:4] == [
        "sandra moved to the garden",
        "daniel went back to the hallway",
        "john went to the hallway",
        "mary moved to the bathroom",
    ]
    assert sentences[4:] == [""] * 6
    assert (question, answer) == ("where is daniel", "hallway")
    for split in ("train", "validation", "test"):
        stories = babi.read(real_data("babi"), split)
        assert replayed(stories) == [as_text(stories, item)[2] for item in range(len(stories))]


@pytest.mark.realdata
def test_real_joint() -> None:
    everything = babi.read(real_data("babi"), "validation", task=0)
    assert len(everything) == 2000
    assert (len(everything.vocabulary), *everything.columns["story"].shape[1:]) == (175, 50, 11)
    assert "apple,football,milk" in everything.vocabulary


@pytest.mark.realdata
def test_real_ten_thousand_lack_one_file() -> None:
    train = babi.read(real_data("babi"), task=1, subset="en-10k")
    assert len(train) == 10_000
    with pytest.raises(DataError, match=r"en-10k/qa3_three-supporting-facts_train\.txt: no such file"):
        babi.read(real_data("babi"), task=3, subset="en-10k")
