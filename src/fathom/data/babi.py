"""bAbI, twenty question-answering tasks on short stories: a reader of its text files and a synthetic replacement."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fathom.core.errors import DataError
from fathom.core.files import MB, read_bytes
from fathom.data.base import InMemory

EXPECTS = "the unpacked bAbI tasks: tasks_1-20_v1-2 with its folders en and en-10k, or what is in one of these"
SUBSETS = ("en", "en-10k")  # 1,000 or 10,000 training questions per task
TASKS = (
    "single-supporting-fact",
    "two-supporting-facts",
    "three-supporting-facts",
    "two-arg-relations",
    "three-arg-relations",
    "yes-no-questions",
    "counting",
    "lists-sets",
    "simple-negation",
    "indefinite-knowledge",
    "basic-coreference",
    "conjunction",
    "compound-coreference",
    "time-reasoning",
    "basic-deduction",
    "basic-induction",
    "positional-reasoning",
    "size-reasoning",
    "path-finding",
    "agents-motivations",
)
PUBLISHED = 1000  # questions of each task to train on, and as many to test on, that papers tell errors of
_IN_ENGLISH = re.compile(rb"^[0-9]+ (?:Does|How|Is|What|Where|Who|Why) [^\t\n]*\t", re.MULTILINE)  # a question of bAbI
MOST_BYTES = 32 * MB  # of one file: the largest has 2.5 MB
NIL = 0  # padding of sentences and stories
MAX_SENTENCE_WORDS = 64  # bAbI has at most 11; limits the batch size that a corrupt line could cause

Words = tuple[str, ...]


@dataclass(frozen=True)
class Question:
    """A question, the sentences before it (oldest first), and the answer as one vocabulary entry."""

    story: tuple[Words, ...]
    words: Words
    answer: str


class Stories(InMemory):
    """Questions as word ids.

    story [items, memory, words] has the most recent sentence first, as in the paper; question [items, words];
    answer [items]. Sentences are padded on the right with NIL.
    """

    compared = ("story", "question")

    def __init__(self, vocabulary: list[str], per_task: Sequence[Stories] = (), **columns: Tensor) -> None:
        super().__init__(**columns)
        self.vocabulary = vocabulary  # word id -> word
        self.per_task = per_task  # of a joint dataset: its tasks one by one, with vocabularies and shapes of their own


def read(folder: Path, split: str = "train", *, task: int = 1, subset: str = "en", capacity: int = 50) -> Stories:
    """The questions of one task, or of all tasks (0).

    Of the training questions, train_subset is the first nine tenths and validation is the rest. Vocabulary and shapes
    are those of train and test together, so that splits agree. A question has the last `capacity` sentences.
    """
    source = _subset_folder(folder, subset)
    tasks = [_splits(source, number, capacity) for number in (range(1, len(TASKS) + 1) if task == 0 else [task])]
    for number, splits in enumerate(tasks, task or 1):
        if not splits[split]:
            problem = f"too few training questions of task {number} to hold out a tenth for validation"
            raise DataError.at(source, problem)

    def encode(chosen: Sequence[dict[str, list[Question]]], per_task: Sequence[Stories] = ()) -> Stories:
        everything = [question for splits in chosen for part in ("train", "test") for question in splits[part]]
        return _encode([question for splits in chosen for question in splits[split]], everything, per_task=per_task)

    return encode(tasks, [encode([splits]) for splits in tasks] if task == 0 else ())


def is_published(folder: Path, subset: str, task: int) -> bool:
    """Whether these are the questions that papers tell errors of; bAbI comes in Hindi and with shuffled letters, too.

    A look, as the reader checks the files.
    """
    try:
        source = _subset_folder(folder, subset)
        numbers = range(1, len(TASKS) + 1) if task == 0 else [task]
        contents = [read_bytes(path, MOST_BYTES) for number in numbers for path in _paths(source, number)]
    except DataError:
        return False
    return all(each.count(b"\t") == 2 * PUBLISHED == 2 * len(_IN_ENGLISH.findall(each)) for each in contents)


def _paths(folder: Path, number: int) -> list[Path]:
    return [folder / f"qa{number}_{TASKS[number - 1]}_{part}.txt" for part in ("train", "test")]


def _splits(folder: Path, number: int, capacity: int) -> dict[str, list[Question]]:
    training, testing = (read_file(path, capacity) for path in _paths(folder, number))
    kept = len(training) - len(training) // 10
    return {"train": training, "train_subset": training[:kept], "validation": training[kept:], "test": testing}


def synthetic(seed: int, *, memory: int = 10, words: int = 6, items: int = 2000) -> Stories:
    """People move between places; questions ask where they are. By default as large and as hard as task 1."""
    rng = np.random.default_rng(seed)
    per_story = (memory + 1) // 2
    text = "".join(_synthetic_story(rng, memory, words) for _ in range(-(-items // per_story)))
    questions = parse(text.encode(), Path("synthetic"), memory)
    return _encode(questions, questions, words)


def _synthetic_story(rng: np.random.Generator, sentences: int, words: int) -> str:
    """Every sentence is a move; a question about a person follows every second sentence and the last."""
    people = ("Ada", "Bruno", "Clara", "Dmitri")
    places = ("attic", "cellar", "harbour", "library", "market", "orchard")
    moves = ("moved", "went", *(["went back"] if words > 5 else []), "travelled", "journeyed")
    lines: list[str] = []
    seen: dict[str, tuple[str, int]] = {}
    for sentence in range(1, sentences + 1):
        person, place = people[rng.integers(4)], places[rng.integers(6)]
        lines.append(f"{person} {moves[rng.integers(len(moves))]} to the {place}.")
        seen[person] = (place, len(lines))
        if sentence % 2 == 0 or sentence == sentences:
            person = sorted(seen)[rng.integers(len(seen))]
            lines.append(f"Where is {person}? \t{seen[person][0]}\t{seen[person][1]}")
    return "".join(f"{number} {line}\n" for number, line in enumerate(lines, 1))


def read_file(path: Path, capacity: int) -> list[Question]:
    try:
        content = read_bytes(path, MOST_BYTES)
    except DataError as error:
        if isinstance(error.__context__, FileNotFoundError):
            raise DataError.at(path, f"no such file; expected {EXPECTS}") from None
        raise
    return parse(content, path, capacity)


def parse(content: bytes, path: Path, capacity: int) -> list[Question]:
    """The questions of a file; every line is checked. The path is used in error messages."""
    questions: list[Question] = []
    story: deque[Words] = deque(maxlen=capacity)
    facts: set[int] = set()  # line numbers of the story's sentences
    number, asked = 0, True
    for line, text in _lines(content, path):
        try:
            previous, (number, fields) = number, _fields(text)
            if number == 1 and asked:
                story.clear()
                facts.clear()
            elif number == 1:
                raise _Malformed("a new story begins, but the previous one does not end with a question")
            elif number != previous + 1:
                raise _Malformed(f"numbered {number}, expected {previous + 1}, or 1 for a new story")
            asked = len(fields) == 3
            if asked:
                questions.append(_question(*fields, story=story, facts=facts))
            else:
                story.append(_words(fields[0], "."))
                facts.add(number)
        except _Malformed as problem:
            raise DataError.at(path, str(problem), line=line) from None
    if not questions or not asked:
        raise DataError.at(path, "truncated: the file must end with a question", line=content.count(b"\n") + 1)
    return questions


class _Malformed(ValueError):
    """What is wrong with a line; the caller adds the line number."""


def _lines(content: bytes, path: Path) -> Iterator[tuple[int, str]]:
    try:
        *lines, rest = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError.at(path, f"not UTF-8 text (byte {content[error.start]:#04x})", line=line) from None
    if rest:
        raise DataError.at(path, "truncated: the last line has no line end", line=len(lines) + 1)
    return ((number, line.removesuffix("\r")) for number, line in enumerate(lines, 1))


def _fields(text: str) -> tuple[int, list[str]]:
    """The line number, and one field (a sentence) or three (question, answer, supporting facts)."""
    match = re.fullmatch(r"([1-9][0-9]{0,8}) ([^\t]*)(?:\t([^\t]*)\t([^\t]*))?", text)
    if match is None:
        wanted = "a number, a space, and a sentence or a question<tab>answer<tab>supporting facts"
        raise _Malformed(f"{_quoted(text)} is not {wanted}")
    number, *fields = (group for group in match.groups() if group is not None)
    return int(number), fields


def _question(text: str, answer: str, support: str, *, story: deque[Words], facts: set[int]) -> Question:
    if not re.fullmatch(r"[A-Za-z]+(,[A-Za-z]+)*", answer):
        raise _Malformed(f"the answer {_quoted(answer)} is not a word or a list of words joined by commas")
    if not re.fullmatch(r"[0-9]{1,9}( [0-9]{1,9})*", support):
        raise _Malformed(f"the supporting facts {_quoted(support)} are not line numbers with spaces between them")
    for fact in map(int, support.split()):
        if fact not in facts:
            raise _Malformed(f"the supporting fact {fact} is not the number of an earlier sentence of this story")
    return Question(tuple(story), _words(text, "?"), answer.lower())


def _words(text: str, end: str) -> Words:
    """A sentence in lower case, without its full stop or question mark."""
    sentence = text.removesuffix(" ")
    if not re.fullmatch(rf"[A-Za-z]+( [A-Za-z]+)*\{end}", sentence):
        raise _Malformed(f"{_quoted(text)} is not words with single spaces between them and {end!r} at the end")
    words = tuple(sentence[:-1].lower().split())
    if len(words) > MAX_SENTENCE_WORDS:
        raise _Malformed(f"{len(words)} words, expected at most {MAX_SENTENCE_WORDS}")
    return words


def _quoted(text: str) -> str:
    return ascii(text if len(text) <= 60 else text[:57] + "...")


def _encode(
    chosen: Sequence[Question], everything: Sequence[Question], least_words: int = 0, per_task: Sequence[Stories] = ()
) -> Stories:
    """The chosen questions as word ids, with the vocabulary and the shapes of all questions."""
    sentences = {sentence for question in everything for sentence in (*question.story, question.words)}
    words = {word for sentence in sentences for word in sentence} | {question.answer for question in everything}
    vocabulary = ["", *sorted(words)]
    number = {word: index for index, word in enumerate(vocabulary)}

    # each distinct sentence is encoded once; a story is a row of indices of sentences, 0 being the empty one
    row = {sentence: index for index, sentence in enumerate(sorted(sentences), 1)}
    table = np.full((len(row) + 1, max(least_words, *map(len, sentences))), NIL)
    for sentence, index in row.items():
        table[index, : len(sentence)] = [number[word] for word in sentence]
    pointers = np.zeros((len(chosen), max(len(question.story) for question in everything)), int)
    for item, question in enumerate(chosen):
        pointers[item, : len(question.story)] = [row[sentence] for sentence in reversed(question.story)]
    return Stories(
        vocabulary,
        per_task,
        story=torch.from_numpy(table[pointers]),
        question=torch.from_numpy(table[[row[question.words] for question in chosen]]),
        answer=torch.tensor([number[question.answer] for question in chosen]),
    )


def _subset_folder(folder: Path, subset: str) -> Path:
    for candidate in (folder / "tasks_1-20_v1-2" / subset, folder / subset):
        if candidate.is_dir():
            return candidate
    if folder.name in SUBSETS and folder.name != subset:
        raise DataError.at(folder, f"is the subset {folder.name}, but {subset} was requested")
    if not any(folder.glob("qa*.txt")):
        raise DataError.at(folder, f"no folder {subset} and no qa*.txt; the folder must contain {EXPECTS}")
    return folder
