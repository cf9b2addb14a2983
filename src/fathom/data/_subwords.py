"""A subword vocabulary: lossless byte-pair encoding by SentencePiece, trained on raw text.

Characters that the training text lacks are encoded as bytes; spaces, quotes and hyphens are part of the subwords.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from fathom.core.errors import BadOption
from fathom.data._vocabulary import EOS, GO, PAD, UNK

MAX_TRAINING_SENTENCES = 1_000_000  # the first ones of a larger text


class Subwords:
    """A vocabulary of subwords, if wanted of small letters alone; special tokens have the ids of word vocabularies."""

    def __init__(self, model: bytes, lowercase: bool = False) -> None:
        self._model = SentencePieceProcessor(model_proto=model)
        self._lowercase = lowercase

    @classmethod
    def train(cls, lines: Iterable[str], size: int, lowercase: bool = False) -> Subwords:
        """At most `size` subwords, including special tokens, the 256 bytes and every character of the text."""
        model = io.BytesIO()
        try:
            SentencePieceTrainer.train(
                sentence_iterator=(line.lower() for line in lines) if lowercase else iter(lines),
                model_writer=model,
                model_type="bpe",
                vocab_size=size,
                hard_vocab_limit=False,  # a short text has fewer
                character_coverage=1.0,
                byte_fallback=True,
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,
                input_sentence_size=MAX_TRAINING_SENTENCES,
                shuffle_input_sentence=False,
                pad_id=PAD,
                bos_id=GO,
                eos_id=EOS,
                unk_id=UNK,
                minloglevel=2,
            )
        except RuntimeError as error:
            least = re.search(r"\d+ vs (\d+)", str(error))
            hint = f"; at least {least[1]} are needed: --set source_vocabulary=N, target_vocabulary=N" if least else ""
            raise BadOption(f"cannot build a vocabulary of {size} subwords from this text{hint}") from None
        return cls(model.getvalue(), lowercase)

    def __len__(self) -> int:
        return int(self._model.get_piece_size())

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._model.encode(text.lower() if self._lowercase else text)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        text: str = self._model.decode(list(ids))
        return text
