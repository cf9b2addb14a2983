"""Subwords and their numbers: byte-pair encoding by SentencePiece, learnt from raw text, which comes back exactly.

Characters that the training text lacks are spelt in bytes; spaces, quotes and hyphens are part of the subwords.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from fathom.core.errors import BadOption
from fathom.data._vocabulary import EOS, GO, PAD, UNK

LEARNT_FROM = 1_000_000  # sentences, the first of a larger text


class Subwords:
    """A vocabulary of subwords; the special numbers are those of words."""

    def __init__(self, model: bytes) -> None:
        self._model = SentencePieceProcessor(model_proto=model)

    @classmethod
    def learnt(cls, lines: Iterable[str], size: int) -> Subwords:
        """At most `size` subwords, special ones, the 256 bytes and every character of the text included."""
        model = io.BytesIO()
        try:
            SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
                model_writer=model,
                model_type="bpe",
                vocab_size=size,
                hard_vocab_limit=False,  # a short text has fewer
                character_coverage=1.0,
                byte_fallback=True,
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,
                input_sentence_size=LEARNT_FROM,
                shuffle_input_sentence=False,
                pad_id=PAD,
                bos_id=GO,
                eos_id=EOS,
                unk_id=UNK,
                minloglevel=2,
            )
        except RuntimeError as error:
            least = re.search(r"\d+ vs (\d+)", str(error))
            hint = f"; it takes at least {least[1]}: --set source_vocabulary=N, target_vocabulary=N" if least else ""
            raise BadOption(f"no vocabulary of {size} subwords can be made of this text{hint}") from None
        return cls(model.getvalue())

    def __len__(self) -> int:
        return int(self._model.get_piece_size())

    def encode(self, text: str) -> list[int]:
        numbers: list[int] = self._model.encode(text)
        return numbers

    def sentence(self, numbers: Iterable[int]) -> str:
        text: str = self._model.decode(list(numbers))
        return text
