"""A reversible word tokeniser, and vocabularies of the most frequent words, cached between runs."""

from __future__ import annotations

import contextlib
import hashlib
import html
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fathom.core.files import cache_path, replace_whole

SPECIALS = ("<pad>", "<go>", "<eos>", "<unk>")
PAD, GO, EOS, UNK = range(4)

GLUE = "￭"  # on a punctuation mark: there is no space on this side
_TOKEN = re.compile(r"\w+|([^\w\s])")


def tokenise(text: str, lowercase: bool = False) -> list[str]:
    """Words and single punctuation marks; marks carry the missing spaces: l'homme. -> l, ￭'￭, homme, ￭.

    Words are unmarked, so that "homme" is one vocabulary entry in every context. HTML escapes such as &apos;, which the
    Moses tools write, are decoded first.
    """
    if "&" in text:
        text = html.unescape(text)
    tokens: list[str] = []
    end = -1  # of the previous token
    for match in _TOKEN.finditer(text.lower() if lowercase else text):
        token, is_mark, touches = match.group(), match.group(1) is not None, match.start() == end
        if touches and is_mark:
            token = GLUE + token
        elif touches:  # two words never touch, so the previous token is a mark
            tokens[-1] += GLUE
        tokens.append(token)
        end = match.end()
    return tokens


def detokenise(tokens: Iterable[str]) -> str:
    """The text with single spaces; exact for the output of tokenise(), readable for any other tokens."""
    return re.sub(f" ?{GLUE} ?", "", " ".join(tokens))


class Vocabulary:
    """Words by id, the four special tokens first."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self._ids = {word: id_ for id_, word in enumerate(words)}
        if tuple(words[: len(SPECIALS)]) != SPECIALS or len(self._ids) != len(words):
            raise ValueError("a vocabulary must start with the special tokens and have no word twice")

    @classmethod
    def most_frequent(cls, counts: Counter[str], size: int) -> Vocabulary:
        """At most `size` words, special tokens included; equally frequent words are in alphabetical order."""
        ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
        return cls([*SPECIALS, *(word for word, _ in ranked[: size - len(SPECIALS)])])

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, tokens: Iterable[str]) -> list[int]:
        return [self._ids.get(token, UNK) for token in tokens]

    def decode(self, ids: Iterable[int]) -> str:
        return detokenise(self.words[id_] for id_ in ids)


def cached(identity: Mapping[str, Any], build: Callable[[], list[Vocabulary]]) -> list[Vocabulary]:
    """The result of build(), or the cached result of an earlier build of the same identity.

    A damaged cache file is rebuilt; a cache folder that cannot be written is ignored.
    """
    rules = {"tokeniser": _TOKEN.pattern, "glue": GLUE, "specials": SPECIALS}
    key = hashlib.sha256(json.dumps([identity, rules], sort_keys=True).encode()).hexdigest()
    path = cache_path(f"vocabulary-{key[:32]}.json")
    if path is None:
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
        raise ValueError("checksum mismatch")
    return [Vocabulary(words) for words in content["words"]]


def _save(path: Path, vocabularies: list[Vocabulary]) -> None:
    words = [vocabulary.words for vocabulary in vocabularies]
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(path, json.dumps({"sha256": _digest(words), "words": words}))


def _digest(words: Any) -> str:
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()
