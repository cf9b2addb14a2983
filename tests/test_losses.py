"""What a report says of losses is what they do: they fall, rise, or neither beyond the scatter of batches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from sample_records import record_of

from fathom.analysis.losses import trend
from fathom.core.record import Record
from fathom.report import runs, write

OVERSHOOT = [239.0, 769.0, 758.0, 865.0, 489.0, 704.0, 494.0]  # the first updates of a CTC loss, and no more
RISING = [1.0, 1.1, 1.3, 1.2, 1.5, 1.9, 2.2, 2.1]
FALLING = [7.0, 6.9, 6.5, 6.6, 6.0, 5.1, 5.2, 4.0]


def trained(workload: str, losses: Sequence[float]) -> Record:
    return record_of(workload, None, losses=list(losses))


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        (FALLING, "falls"),
        (RISING, "rises"),
        (OVERSHOOT, "no significant trend"),
        ([5.0] * 20, "no significant trend"),
        ([5.0, 4.0, 3.0, 2.0], "too few steps"),
        ([5.0, 4.0, 3.0, 2.0, 1.0], "falls"),
        ([*FALLING[:4], 500.0, *FALLING[4:]], "falls"),  # one batch with a huge loss
    ],
)
def test_the_trend_of_losses(losses: list[float], expected: str) -> None:
    assert trend(losses) == expected


def test_no_sentence_says_more_than_the_losses_do() -> None:
    records = [trained("speech", OVERSHOOT), trained("vgg", FALLING), trained("memnet", RISING)]
    found, said = runs.losses(records), runs.losses_in_words(records)
    assert said.startswith(
        "The loss falls in 1 of 3 training runs. It rises: memnet on Laptop CPU, 4 cores (1 to 2.10 in"
    )
    assert "No significant trend: speech on Laptop CPU, 4 cores (239 to 494 in 7 steps)." in said
    assert "p below 0.05" in said
    assert [(each.workload, each.alarming) for each in found] == [("memnet", True), ("speech", False), ("vgg", False)]
    assert runs.losses_in_words([]) == ""


@pytest.mark.parametrize("name", ["report.html", "report.md"])
def test_a_report_prints_the_rule_it_applies(tmp_path: Path, name: str) -> None:
    records = [trained("speech", OVERSHOOT), trained("memnet", RISING)]
    text = write(records, tmp_path / name).read_text()
    assert "must fall" not in text
    assert "The loss falls in 0 of 2 training runs." in text
    assert "239 to 494 in 7 steps" in text
    if name.endswith("html"):
        assert re.search(r'in 8 steps: <span class="alarm">rises</span>', text)
    else:
        assert re.search(r"\| memnet \|.*\| rises \|", text)


def test_every_training_run_is_counted_and_not_the_longest_alone() -> None:
    """A run of fp32 falls; shorter ones in other precisions and with other seeds rise, each of them."""
    rising = [
        record_of("vgg", None, losses=RISING, spec=change)
        for change in ({"precision": "bf16"}, {"seed": 3}, {"seed": 4})
    ]
    said = runs.losses_in_words([trained("vgg", FALLING * 1 + [FALLING[-1] - 0.1]), *rising])
    assert said.startswith("The loss falls in 1 of 4 training runs. It rises: vgg on Laptop CPU, 4 cores (1 to 2.10 in")
    many = runs.losses_in_words(rising * 3 + [trained("memnet", OVERSHOOT)])
    assert "It rises: vgg on Laptop CPU, 4 cores (9 runs)." in many
    assert "The loss falls in 0 of 10 training runs." in many


@pytest.mark.parametrize("steps", [20, 40, 100])
@pytest.mark.parametrize("falls_in", [0.1, 0.2])
def test_a_loss_that_falls_fast_at_first_falls(steps: int, falls_in: float) -> None:
    """Its bend is no correlation of noise: about a line it looks like one."""
    random = np.random.default_rng(steps)
    at = np.arange(steps)
    found = [
        trend((2 + 5 * np.exp(-at / (falls_in * steps)) + 0.05 * random.standard_normal(steps)).tolist())
        for _ in range(40)
    ]
    assert found.count("falls") >= 28
    assert found.count("rises") == 0


def test_losses_of_runs_bound_to_some_cores_are_those_of_the_whole_machine() -> None:
    bound = record_of("vgg", None, losses=RISING * 2, spec={"cores": (0,)})
    (found,) = runs.losses([trained("vgg", FALLING), bound])
    assert found.values == FALLING


def test_losses_that_wander_have_no_trend_more_often_than_allowed() -> None:
    """A stationary series whose neighbours correlate by 0.6: without a correction a third of them seem to have one."""
    random = np.random.default_rng(1)
    called = 0
    for _ in range(200):
        noise, losses = random.standard_normal(60), [0.0]
        for each in noise:
            losses.append(0.6 * losses[-1] + each)
        called += trend([10 + each for each in losses[1:]]) != "no significant trend"
    assert called <= 30
