"""seq2seq learns: it reverses what it has not seen, resumes after a kill, and is evaluated as sacrebleu does."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest
import sacrebleu
import torch
from conftest import real_data
from training_runs import Killed, learning_of, numbers, trained

from fathom.core.errors import BadOption, DataError, UnknownName
from fathom.core.spec import RunSpec
from fathom.data import corpora, wmt
from fathom.data._subwords import Subwords
from fathom.data._vocabulary import EOS, PAD
from fathom.engine.session import Session
from fathom.training import checkpoint
from fathom.training.checkpoint import FOLDER
from fathom.training.trainer import HeldOut, recipe_for, trainer_for
from fathom.training.trainers.seq2seq import TranslationTrainer, batches
from fathom.workloads import seq2seq
from fathom.workloads._translator import Translator
from fathom.workloads.base import Output
from fathom.workloads.seq2seq import Seq2Seq, TranslationRecipe, bleu

RECIPE = Seq2Seq.recipe
LEARNING = {"solver": "adam", "learning_rate": 0.004, "warmup": 20, "target_language": "de", "clip_norm": 1.0}


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, and an interval of one epoch however small the text is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(seq2seq, "SHORTEST_INTERVAL", 1)


def write(folder: Path, **splits: list[tuple[str, str]]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, lines in splits.items():
        for language, side in zip(("en", "de"), zip(*lines, strict=True), strict=True):
            (folder / f"{name}.{language}").write_text("\n".join(side) + "\n", encoding="utf-8")
    return folder


def backwards(folder: Path, train: int, test: int, validation: int = 20) -> Path:
    """Sentences of three to six letters, and the same from their end; no sentence is in two splits."""
    rng = random.Random(0)
    sentences = {tuple(rng.choices("abcdef", k=rng.randint(3, 6))) for _ in range(2 * (train + test + validation))}
    lines = [(" ".join(letters), " ".join(reversed(letters))) for letters in sorted(sentences)]
    rng.shuffle(lines)
    held_out = lines[train + test :][:validation]
    return write(folder, train=lines[:train], test=lines[train : train + test], val=held_out)


def test_it_learns_to_reverse_sequences_it_has_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = backwards(tmp_path / "text", train=3000, test=200)
    monkeypatch.setattr(Seq2Seq, "recipe", dataclasses.replace(RECIPE, stop_at=100.0))
    options = {**LEARNING, "learning_rate": 0.006, "depth": 1, "hidden": 48, "embedding": 32, "batch": 64}
    options |= {"averaging": 0.9, "reverse_source": False}
    record = trained(
        RunSpec(
            workload="seq2seq",
            preset="tiny",
            device="cpu",
            threads=1,
            kind="training",
            data=str(folder),
            evaluations=20,
            options=options,
        )
    )
    scores, translations, attention = learning_of(record).artifacts
    assert [row[0] for row in scores.rows] == ["greedy", "beam of 1"]
    assert learning_of(record).quality == pytest.approx(100.0), "every one of the 200, exactly"
    assert all(line == reference for _, line, reference in translations.rows)
    for row in attention.rows:
        assert sum(row[1:]) == pytest.approx(1, abs=0.03), "all attention is told, but for rounding"


def test_a_killed_run_resumes_to_the_very_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = backwards(tmp_path / "text", train=100, test=10)
    options = {**LEARNING, "subwords": True, "source_vocabulary": 300, "target_vocabulary": 300, "source_length": 16}
    options |= {"target_length": 16, "dropout": 0.2, "averaging": 0.99, "beam": 2, "label_smoothing": 0.1, "hidden": 16}
    spec = RunSpec(
        workload="seq2seq",
        preset="tiny",
        device="cpu",
        kind="training",
        data=str(folder),
        evaluations=4,
        options=options,
    )
    monkeypatch.setenv(FOLDER, str(tmp_path / "checkpoints"))
    monkeypatch.setattr(checkpoint, "INTERVAL_S", 0.0)
    with pytest.raises(Killed):
        trained(spec, die_at=3)
    resumed = trained(spec)
    monkeypatch.delenv(FOLDER)
    whole = trained(spec)
    assert numbers(resumed) == numbers(whole)
    assert learning_of(resumed).resumed == 1
    assert learning_of(resumed).artifacts == learning_of(whole).artifacts
    assert (learning_of(resumed).quality, learning_of(resumed).selected) == (
        learning_of(whole).quality,
        learning_of(whole).selected,
    )


def text_of(folder: Path, languages: Sequence[str], count: int = 50, words: int = 5, **splits: int) -> Path:
    """So many training pairs of distinct sentences in each of these languages, and splits of their own."""
    folder.mkdir(exist_ok=True)
    for name, lines in {"train": count, **splits}.items():
        for code in languages:
            sentences = (f"{name} {code} {n} " + "word " * (words - 3) for n in range(lines))
            (folder / f"{name}.{code}").write_text("\n".join(sentences) + "\n")
    return folder


@pytest.mark.parametrize(
    ("there", "asked", "direction"),
    [
        ("de en", {}, ("en", "de")),
        ("de en", {"source_language": "de"}, ("de", "en")),
        ("de en", {"target_language": "en"}, ("de", "en")),
        ("de en", {"source_language": "de", "target_language": "en"}, ("de", "en")),
        ("en fr", {}, ("en", "fr")),
        ("en fr", {"target_language": "fr"}, ("en", "fr")),
        ("en fr", {"source_language": "fr"}, ("fr", "en")),
        ("en fr", {"target_language": "en"}, ("fr", "en")),
        ("cs de en fr", {}, ("en", "de")),
        ("cs de en fr", {"target_language": "fr"}, ("en", "fr")),
        ("cs de en fr", {"source_language": "fr"}, ("fr", "de")),
        ("cs de en fr", {"source_language": "fr", "target_language": "cs"}, ("fr", "cs")),
        ("de fr", {}, ("de", "fr")),
        ("it pt", {}, ("it", "pt")),
        ("it pt", {"target_language": "it"}, ("pt", "it")),
    ],
)
def test_the_direction_follows_from_what_is_asked_and_what_is_there(
    there: str, asked: dict[str, str], direction: tuple[str, str], tmp_path: Path
) -> None:
    recipe = RECIPE.for_run(text_of(tmp_path, there.split()), asked)
    assert (recipe.options["source_language"], recipe.options["target_language"]) == direction
    assert recipe.taken.startswith(f"{direction[0]} to {direction[1]}, 46 training pairs: source_vocabulary")
    again = RECIPE.for_run(tmp_path, {**recipe.options, **asked})  # as the worker is told
    assert (again.id, again.taken) == (recipe.id, recipe.taken)


def test_a_language_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no train text in en and sv; the folder must contain one sentence per line"):
        RECIPE.for_run(text_of(tmp_path, ["de", "en"]) / "absent", {"target_language": "sv"})
    with pytest.raises(DataError, match=r"train\.sv or train\.sv\.gz is missing"):
        RECIPE.for_run(tmp_path, {"target_language": "sv"})


def sized(
    count: int, words: int = 12, long_sentence: tuple[int, int] = (30, 24), letters: int = 90
) -> TranslationRecipe:
    """The recipe for a text of so many pairs, with so many words in each sentence."""
    total = count * words, 2 * count * words
    text = corpora.TextSizes(
        count, total, (90, letters), long_sentence, validation="val", test="test", is_multi30k=False
    )
    return RECIPE._for_text(text, "fr", "en", {})


@pytest.mark.parametrize(
    ("count", "vocabularies", "dropouts", "evaluations", "interval"),
    [
        (1_000, (2000, 2000), (0.5, 0.2), 93, 20_000),
        (20_000, (4000, 8000), (0.5, 0.2), 93, 20_000),
        (29_000, (6000, 12_000), (0.5, 0.2), 64, 29_000),
        (99_999, (20_000, 32_000), (0.5, 0.2), 19, 99_999),
        (200_000, (32_000, 32_000), (0.3, 0.1), 19, 100_000),
        (1_000_000, (32_000, 32_000), (0.2, 0.0), 40, 100_000),
    ],
)
def test_sizes_follow_from_how_much_text_there_is(
    count: int,
    vocabularies: tuple[int, int],
    dropouts: tuple[float, float],
    evaluations: int,
    interval: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """About as many pairs are learnt from as of Multi30k, and every pair at least four times."""
    monkeypatch.setattr(seq2seq, "SHORTEST_INTERVAL", 20_000)
    recipe = sized(count)
    options = recipe.options
    assert (options["source_vocabulary"], options["target_vocabulary"]) == vocabularies
    assert (options["dropout"], options["word_dropout"]) == dropouts
    assert (recipe.evaluations, recipe.items_per_evaluation) == (evaluations, interval)
    assert evaluations * interval >= max(4 * count, 1_800_000)
    Seq2Seq.configured(recipe.preset, **options)


@pytest.mark.parametrize("words", [1, 2, 7, 13, 24, 40, 45, 46, 200])
def test_lengths_are_multiples_of_four_up_to_eighty(words: int) -> None:
    options = sized(29_000, long_sentence=(words, words)).options
    source, target = options["source_length"], options["target_length"]
    assert source % 4 == target % 4 == 0
    assert target == source + 4
    assert min(1.75 * words - 0.5, 80) <= source <= min(1.75 * words + 4.5, 80)


def test_lengths_follow_from_subwords_where_words_have_many(tmp_path: Path) -> None:
    """Ten long, rare words in each sentence: by the number of words alone, no pair would be short enough."""
    chance = random.Random(3)
    syllables = [first + second for first in "bdfgklmnprst" for second in "aeiou"]

    def line() -> str:
        return " ".join("".join(chance.choices(syllables, k=chance.randint(4, 6))) for _ in range(10))

    for language in ("fi", "sv"):
        for name, count in (("train", 1000), ("test", 20)):
            (tmp_path / f"{name}.{language}").write_text("".join(f"{line()}\n" for _ in range(count)))
    recipe = RECIPE.for_run(tmp_path, {"source_language": "fi", "target_language": "sv"})
    assert 20 < recipe.options["source_length"] <= 80
    assert "left out" not in recipe.taken
    workload = Seq2Seq.configured(recipe.preset, **recipe.options)
    assert len(workload.open(tmp_path, "train_subset")) >= 0.98 * 950
    longer = RECIPE.for_run(tmp_path, {"source_language": "fi", "target_language": "sv", "source_length": 8})
    assert "; 100 % of the pairs are longer and left out" in longer.taken


def test_a_script_of_thousands_of_letters_has_room_for_all(tmp_path: Path) -> None:
    assert sized(20_000, letters=5000).options["target_vocabulary"] == 11_000
    assert sized(20_000, letters=5000).options["source_vocabulary"] == 4000, "the other language has few"
    assert sized(20_000, letters=90_000).options["target_vocabulary"] == 32_000, "and not more"
    lines = [(f"dog {n}", chr(0x4E00 + n % 3000) + chr(0x4E00 + n % 2999)) for n in range(6000)]
    folder = write(tmp_path, train=lines, val=lines[:9], test=lines[:9])
    recipe = RECIPE.for_run(folder, {})
    assert recipe.options["target_vocabulary"] == 7000
    text = Seq2Seq.configured("paper", **recipe.options).real(folder)
    assert (len(text) >= 6000, text.too_long) == (True, 0)


def test_only_multi30k_from_english_to_german_has_a_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seq2seq, "MULTI30K", 50)
    known = text_of(tmp_path / "known", ["en", "de", "fr"], val=5, test_2016_flickr=5)
    other = text_of(tmp_path / "other", ["en", "de"], val=5, test=5)
    part = text_of(tmp_path / "part", ["en", "de"], count=49, val=5, test_2016_flickr=5)
    assert RECIPE.for_run(known, {}).target == 33
    assert "no target" not in RECIPE.for_run(known, {}).taken
    for folder, asked in (
        (known, {"source_language": "de"}),
        (known, {"target_language": "fr"}),
        (other, {}),
        (part, {}),
    ):
        recipe = RECIPE.for_run(folder, asked)
        assert recipe.target is None
        assert recipe.taken.endswith("no target: that of 33 BLEU is for Multi30k from English to German")
    assert RECIPE.for_run(None, {}) is RECIPE


def test_what_was_taken_tells_what_is_used_and_where_the_splits_come_from(tmp_path: Path) -> None:
    recipe = RECIPE.for_run(text_of(tmp_path, ["en", "fr"], count=200, test=5), {"source_vocabulary": 500, "beam": 2})
    assert recipe.taken == (
        "en to fr, 190 training pairs: source_vocabulary 500, target_vocabulary 2000, source_length 12, target_length "
        "16, dropout 0.5, word_dropout 0.2; validation: 10 pairs of the training text, test: test; no "
        "target: that of 33 BLEU is for Multi30k from English to German"
    )


@pytest.mark.parametrize("direction", [("en", "fr"), ("fr", "en")])
def test_any_text_is_trained_on_in_either_direction(direction: tuple[str, str], tmp_path: Path) -> None:
    """With the sizes that were taken, but for a network that a CPU can learn with."""
    folder = text_of(tmp_path / "text", ["en", "fr"], count=120)
    asked = {"source_language": direction[0]}
    recipe = RECIPE.for_run(folder, asked)
    small = {"hidden": 8, "embedding": 8, "depth": 1, "batch": 16, "beam": 2}
    options = {**recipe.options, **asked, **small}
    spec = RunSpec(workload="seq2seq", preset="paper", device="cpu", threads=1, kind="training", evaluations=2)
    record = trained(dataclasses.replace(spec, data=str(folder), options=options))
    found = learning_of(record)
    assert record.outcome == "ok"
    assert (found.target, found.reached, found.curve_split, found.split) == (None, None, "validation", "test")
    assert [point.items for point in found.curve] == [112, 224], "of 120 pairs 12 are held out; whole batches"
    assert found.artifacts[1].rows[0][0].startswith(f"train {direction[0]} ")


def test_scripts_without_spaces_are_counted_otherwise() -> None:
    same, near = (
        ["\u72d7\u5728\u6c99\u53d1\u4e0a\u7761\u89c9\u3002"],
        ["\u72d7\u5728\u6c99\u53d1\u4e0a\u5403\u996d\u3002"],
    )
    codes = {"zh": "zh", "ja": "char", "zh_TW": "zh", "zho-Hans": "zh", "cmn": "zh", "jpn_Jpan": "char", "khm": "char"}
    for language, tokenizer in codes.items():
        score, signature = bleu(near, same, language)
        assert 20 < score < 90, "some of it is right"
        assert f"tok:{tokenizer}" in signature
    assert bleu(near, same)[0] < 5
    for language in ("jav_Latn", "kmr", "loz"):  # they begin like Japanese, Khmer and Lao, and have spaces
        assert "tok:13a" in bleu(near, same, language)[1]


def test_batches_are_of_like_length_and_take_every_sentence_once_an_epoch() -> None:
    workload = Seq2Seq.configured("tiny")
    text = workload.synthetic(0)
    epochs = 6
    stream = batches(text, 16, torch.device("cpu"), seed=3)
    seen = list(islice(stream, epochs * len(text) // 16))
    widest = {(int((batch["source"] != PAD).sum(1).max()), batch["target"].shape[1]) for batch in seen}
    assert {width for _, width in widest} == {8, 10}, (
        "of 4 to 8 words and EOS: rounded up to 8 and 12, as far as there are"
    )
    assert all(batch["target"].shape[0] == 16 for batch in seen)
    assert all((batch["target"] == EOS).any(1).all() for batch in seen), "nothing is cut off"
    rows = Counter(tuple(row) for batch in seen for row in _filled(batch["target"], 10))
    held = Counter(tuple(row) for row in text.columns["target"].tolist())
    assert rows.keys() == held.keys()
    off = [times - epochs * held[row] for row, times in rows.items()]
    assert max(map(abs, off)) <= 1
    assert sum(map(abs, off)) <= 2 * 2 * 16, "what waits for company, and what came early in its place"
    later = list(islice(batches(text, 16, torch.device("cpu"), seed=3, start=5), 3))
    for batch, expected in zip(later, seen[5:], strict=False):
        assert torch.equal(batch["source"], expected["source"])


def _filled(rows: torch.Tensor, width: int) -> list[list[int]]:
    return [row + [PAD] * (width - len(row)) for row in rows.tolist()]


def test_a_length_of_few_sentences_is_no_batch_of_its_own(tmp_path: Path) -> None:
    lines = [("a b", "b a")] * 20 + [("a " * 9, "b " * 9)] * 3 + [("a " * 30, "b " * 30)] * 2
    text = wmt.read(write(tmp_path, train=lines), "train", wmt.Side("en", 9, 40), wmt.Side("de", 9, 40))
    widths = [batch["source"].shape[1] for batch in islice(batches(text, 4, torch.device("cpu"), 0), 25)]
    assert set(widths) == {4, 32}, "the three of nine words go with the two of thirty"
    assert widths.count(4) == 20


def test_the_few_shortest_go_with_those_that_are_longer(tmp_path: Path) -> None:
    lines = [("a", "b")] * 3 + [("a " * 9, "b " * 9)] * 20
    text = wmt.read(write(tmp_path, train=lines), "train", wmt.Side("en", 9, 40), wmt.Side("de", 9, 40))
    widths = [batch["source"].shape[1] for batch in islice(batches(text, 4, torch.device("cpu"), 0), 20)]
    assert set(widths) == {12}


@pytest.mark.parametrize("spread", [0.3, 0.5])
def test_what_is_evaluated_is_the_mean_of_the_weights(spread: float) -> None:
    options = {**LEARNING, "averaging": spread, "warmup": 0}
    spec = RunSpec(workload="seq2seq", preset="tiny", device="cpu", kind="training", options=options)
    with Session(spec).setup() as session:
        trainer = trainer_for(session, recipe_for(session.spec), HeldOut(None, None))
        assert isinstance(trainer, TranslationTrainer)
        mean = trainer.candidate().model.get_parameter("projection.bias")
        before = mean.detach().clone()
        trainer.steps_done = 90  # the beginning, when the mean moves faster, is over
        trainer.step()
        after = session.state.model.get_parameter("projection.bias")
        assert not torch.equal(before, after)
        torch.testing.assert_close(mean, spread * before + (1 - spread) * after)


class Parrot(Seq2Seq):
    """Says what it is told to, to be evaluated."""

    said: tuple[str, ...] = ()

    def answers(self, output: Output, source: wmt.ParallelText) -> list[str]:
        return list(self.said)


def test_quality_is_sacrebleus_of_the_raw_text(tmp_path: Path) -> None:
    references = ['Er sagte: "Ja", und ging.', "Ein Mann-Frau-Spiel für Größere…", "Der Hund schläft auf dem Sofa ."]
    said = ('Er sagte: "Ja" und ging.', "Ein Mann-Frau-Spiel für Große…", "Der Hund schläft auf dem Sofa.")
    folder = write(tmp_path, train=[("a b c d e", "x y z")] * 3, test=[("a b", line) for line in references])
    spec = RunSpec(workload="seq2seq", preset="tiny", device="cpu", data=str(folder), options={"target_language": "de"})
    with Session(spec).setup() as session:
        parrot = Parrot(**vars(session.workload))
        object.__setattr__(parrot, "said", said)
        data = RECIPE.evaluation_data(parrot, folder, "test")
        found = RECIPE.evaluate(parrot, session.state, data)
        scores, shown, _ = RECIPE.artifacts(parrot, session.state, data)
    assert found == sacrebleu.corpus_bleu(list(said), [references]).score
    assert [row[2] for row in scores.rows] == [found, found]
    assert "case:mixed" in scores.rows[0][3]
    assert "tok:13a" in scores.rows[0][3]
    assert shown.rows[1] == ["a b", said[1], references[1]], "the reference is the text, whatever words are known"


@pytest.mark.parametrize("reverse", [False, True])
def test_attention_is_reported_in_the_order_of_the_sentences(
    reverse: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that attends to the letter it is to write, and to the last one for EOS."""
    lines = [("a b c d e f g h i j", "a b c d e f g h i j"), ("e d c b a", "e d c b a")]
    options = {"target_language": "de", "reverse_source": reverse, "source_length": 12, "target_length": 14}
    spec = RunSpec(
        workload="seq2seq", preset="tiny", device="cpu", data=str(write(tmp_path, train=lines)), options=options
    )

    def attention_weights(self: Translator, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        last = source.flip(1) if reverse else source
        ends = last.gather(1, (last != PAD).cumsum(1).argmax(1, keepdim=True))
        wanted = torch.where(target == EOS, ends, target)
        return (wanted.unsqueeze(2) == source.unsqueeze(1)).float()

    monkeypatch.setattr(Translator, "attention_weights", attention_weights)
    with Session(spec).setup() as session:
        workload = session.workload
        assert isinstance(workload, Seq2Seq)
        found = workload.attention_by_fifth(session.state, session.state.source)
    # written fifths of the first are abc de fg hi j., of the second ed c b a . with the dot for EOS
    expected = [[3, 2, 0, 0, 0], [0, 1, 2, 0, 0], [0, 0, 1, 2, 0], [0, 0, 0, 1, 2], [0, 0, 0, 0, 3]]
    torch.testing.assert_close(found, torch.tensor([[n / sum(row) for n in row] for row in expected]))


def test_bleu_by_hand() -> None:
    """Of one, two, three and four words, 5 of 6, 3 of 5, 2 of 4 and 1 of 3 are in the reference, which is as long."""
    score, _ = bleu(["the cat sat on a mat"], ["the cat sat on the mat"])
    assert score == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert bleu(["a b c d e"], ["a b c d e"])[0] == pytest.approx(100)


HARD = [
    '"Ça" — l’été: x-y, „Größe“… ß',
    "漢字 🙂 \u200b\xa0a  b",  # none of these is in the training text
    "",
    "A-B-C's (d)e/f&amp;<unk>!?",
    "ÄÖÜäöüß Straßenbahnhaltestelle",
]


def test_subwords_give_back_any_text() -> None:
    lines = ["Zwei junge weiße Männer sind im Freien.", "Ein Mann, der etwas anstarrt."] * 5
    subwords = Subwords.train(lines, 320)
    assert 290 < len(subwords) <= 320
    for text in [*lines, *HARD]:
        numbers = subwords.encode(text)
        assert subwords.decode(numbers) == text
        assert all(EOS < number < len(subwords) for number in numbers), "no special number, so that EOS is the end"
    assert len(subwords.encode(lines[0])) < len(lines[0]), "not letter by letter"


@pytest.mark.parametrize("subwords", [False, True])
def test_lowercase_holds_for_words_and_for_subwords(subwords: bool, tmp_path: Path) -> None:
    lines = [("A Small house", "Ein Kleines Haus"), ("a small House", "ein kleines haus")] * 5
    folder = write(tmp_path / "text", train=lines, val=lines, test=lines)
    options = {"target_language": "de", "subwords": subwords, "source_length": 20, "target_length": 20}
    workload = Seq2Seq.configured("paper", lowercase=True, **options)
    for split in ("train", "test"):
        text = workload.real(folder, split)
        first, *others = text.columns["target"]
        assert all(torch.equal(row, first) for row in others)
        words = text.target_vocabulary.decode(token for token in text.columns["target"][0].tolist() if token > EOS)
        assert words == "ein kleines haus"


def test_sizes_follow_from_lowercase_text_where_that_is_learnt(tmp_path: Path) -> None:
    """A vocabulary of few subwords spends them on one case, so that sentences are shorter."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=9)) for _ in range(40)]
    cased = [" ".join(rng.choice((word, word.upper())) for word in rng.choices(words, k=5)) for _ in range(200)]
    folder = write(tmp_path / "text", train=[(line, line) for line in cased])
    asked = {"source_vocabulary": 420, "target_vocabulary": 420}
    lengths = [RECIPE.for_run(folder, {**asked, "lowercase": low}).options["source_length"] for low in (False, True)]
    assert lengths[1] < lengths[0]


def test_a_vocabulary_too_small_for_its_letters_is_told() -> None:
    with pytest.raises(BadOption, match="cannot build a vocabulary of 100 subwords from this text; at least 2"):
        Subwords.train(["a b c"], 100)


def test_subwords_of_no_text_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no words in the de text"):
        wmt.read_subwords(
            write(tmp_path, train=[("a", ""), ("b", "")]), "train", wmt.Side("en", 300, 5), wmt.Side("de", 300, 5)
        )


def test_smoothing_spreads_a_share_over_all_words() -> None:
    sharp, smooth = (Seq2Seq.configured("tiny", label_smoothing=share) for share in (0.0, 0.3))
    torch.manual_seed(0)
    model, batch = sharp.model(), sharp.example()
    likely = sharp.forward(model, batch).log_softmax(2)[batch["target"] != PAD]
    expected = 0.7 * sharp.loss(model, batch) - 0.3 * likely.mean()
    torch.testing.assert_close(smooth.loss(model, batch), expected)


def test_an_unknown_solver_is_told() -> None:
    with pytest.raises(UnknownName, match="no solver 'adan'; did you mean adam"):
        Seq2Seq.configured("tiny", solver="adan")


@pytest.mark.realdata
def test_the_recipe_is_ready_for_multi30k() -> None:
    folder = real_data("multi30k")
    recipe = RECIPE.for_run(folder, {})
    assert (recipe.target, recipe.evaluations, recipe.items_per_evaluation) == (33, 64, 29_000)
    assert "en to de, 29,000 training pairs" in recipe.taken
    assert recipe.taken.endswith("64 evaluations; validation: val, test: test_2016_flickr")
    workload = Seq2Seq.configured(recipe.preset, **recipe.options)
    validation, text = (recipe.evaluation_data(workload, folder, split) for split in ("validation", "test"))
    assert (len(validation), len(text)) == (1014, 1000)
    assert text.truncated == 0, "no test sentence is cut"
    source, reference = text.texts()[0]
    assert source == "A man in an orange hat starring at something."
    assert reference == "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt."
    spelt = text.target_vocabulary.decode(n for n in text.columns["target"][0].tolist() if n > EOS)
    assert spelt == reference
