"""Words and their numbers: a reversible tokeniser, and vocabularies of the most frequent words, kept between runs."""

from __future__ import annotations

import contextlib
import hashlib
import html
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

SPECIALS = ("<pad>", "<go>", "<eos>", "<unk>")
PAD, GO, EOS, UNK = range(4)

GLUE = "￭"  # on a punctuation mark: no space on this side
_TOKEN = re.compile(r"\w+|([^\w\s])")


def tokenise(text: str, lowercase: bool = False) -> list[str]:
    """Words and single punctuation marks; the marks remember where they touched: l'homme. -> l, ￭'￭, homme, ￭.

    Words stay bare, so that "homme" is one word of the vocabulary wherever it stands. Text from the Moses tools
    escapes some marks (&apos;); they are read as the marks they stand for.
    """
    if "&" in text:
        text = html.unescape(text)
    tokens: list[str] = []
    end = -1  # where the token before ended
    for match in _TOKEN.finditer(text.lower() if lowercase else text):
        token, is_mark, touches = match.group(), match.group(1) is not None, match.start() == end
        if touches and is_mark:
            token = GLUE + token
        elif touches:  # two words never touch, so the token before is a mark
            tokens[-1] += GLUE
        tokens.append(token)
        end = match.end()
    return tokens


def detokenise(tokens: Iterable[str]) -> str:
    """The text again, with single spaces; exact for what tokenise() gave, readable for what a network invents."""
    return re.sub(f" ?{GLUE} ?", "", " ".join(tokens))


class Vocabulary:
    """Words by number, the four special ones first."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self._numbers = {word: number for number, word in enumerate(words)}
        if tuple(words[: len(SPECIALS)]) != SPECIALS or len(self._numbers) != len(words):
            raise ValueError("a vocabulary starts with the special words and names each word once")

    @classmethod
    def most_frequent(cls, counts: Counter[str], size: int) -> Vocabulary:
        """At most `size` words, special ones included; equally frequent words in the order of the alphabet."""
        ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
        return cls([*SPECIALS, *(word for word, _ in ranked[: size - len(SPECIALS)])])

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, tokens: Iterable[str]) -> list[int]:
        return [self._numbers.get(token, UNK) for token in tokens]

    def sentence(self, numbers: Iterable[int]) -> str:
        return detokenise(self.words[number] for number in numbers)


def cached(identity: Mapping[str, Any], build: Callable[[], list[Vocabulary]]) -> list[Vocabulary]:
    """What build() gives, from the user's cache folder when the same identity was built before.

    A cache is only a convenience: one that is damaged is built anew, one that cannot be written is done without.
    """
    rules = {"tokeniser": _TOKEN.pattern, "glue": GLUE, "specials": SPECIALS}
    key = hashlib.sha256(json.dumps([identity, rules], sort_keys=True).encode()).hexdigest()
    try:
        path = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / f"fathom/vocabulary-{key[:32]}.json"
    except RuntimeError:  # a user without a home, as in some containers
        return build()
    try:
        return _load(path)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        vocabularies = build()
        _save(path, vocabularies)
        return vocabularies


def _load(path: Path) -> list[Vocabulary]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if content["sha256"] != _digest(content["words"]):
        raise ValueError("the words are not those that were written")
    return [Vocabulary(words) for words in content["words"]]


def _save(path: Path, vocabularies: list[Vocabulary]) -> None:
    """Written beside its place and moved there: a reader sees all of it or nothing."""
    words = [vocabulary.words for vocabulary in vocabularies]
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            draft = Path(scratch) / path.name
            draft.write_text(json.dumps({"sha256": _digest(words), "words": words}), encoding="utf-8")
            draft.replace(path)


def _digest(words: Any) -> str:
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()
