"""The Cookbook's table of models, reproduced to the last digit, and what its own counts include."""

from __future__ import annotations

import json

import pytest
from conftest import fathom

from fathom import published
from fathom.engine.cookbook import count, counts
from fathom.workloads.base import workload_class
from fathom.workloads.catalogue import suite

COUNTED = {  # trainable, running statistics, factors, biases
    "alexnet": (60_965_224, 0, 0, 0),
    "googlenet": (6_998_552, 0, 0, 0),
    "vgg-16": (138_357_544, 0, 0, 0),
    "vgg": (143_667_240, 0, 0, 0),
    "resnet-50": (25_557_032, 53_120, 53, 64),
    "resnet-101": (44_549_160, 105_344, 104, 0),
    "resnet-152": (60_192_808, 151_424, 155, 0),
    "acoustic_model": (34_678_784, 0, 0, 0),
    "text_cnn": (151_690, 0, 0, 0),
    "deep_mnist": (11_972_510, 0, 0, 0),
    "sensor_net": (2_919_440, 0, 0, 0),
}
HAND = {  # of the networks that are small enough to write out
    "acoustic_model": (540 * 2048 + 2048) + 4 * (2048**2 + 2048) + (2048 * 8192 + 8192),
    "text_cnn": sum(128 * 128 * words + 128 for words in (1, 3, 5)) + 384 * 10 + 10,
    "sensor_net": (784 * 1024 + 1024) + 2 * (1024**2 + 1024) + (1024 * 16 + 16),
}


def test_the_cookbooks_eleven_are_all_in_the_table() -> None:
    assert set(COUNTED) == set(suite("cookbook")) == {each.workload for each in counts(suite("cookbook"))}


@pytest.mark.parametrize("name", COUNTED)
def test_every_count_is_the_cookbooks_to_the_last_digit(name: str) -> None:
    found = count(name)
    assert found is not None
    assert (found.trainable, found.running_statistics, found.factors, found.biases) == COUNTED[name]
    assert found.as_cookbook == found.cookbook
    assert HAND.get(name, found.trainable) == found.trainable


@pytest.mark.parametrize("row", published.cookbook_models(), ids=lambda row: row.name)
def test_the_slides_table_is_reproduced(row: published.ReferenceModel) -> None:
    """Parameters exactly; MB and "GFLOPs", which are MiB and GMAC, to the digits that are printed."""
    found = next(each for name in COUNTED if facts_name(name) == row.name and (each := count(name)))
    assert found.as_cookbook == row.parameters
    assert row.mebibytes is not None
    assert row.forward_gmac is not None
    assert found.as_cookbook * 4 / 2**20 == pytest.approx(row.mebibytes, abs=0.5 if row.mebibytes > 1 else 0.05)
    assert found.mac_per_item / 1e9 == pytest.approx(row.forward_gmac, abs=0.05 if row.forward_gmac > 0.1 else 5e-4)


def facts_name(name: str) -> str | None:
    facts = workload_class(name).facts
    assert facts is not None
    return facts.cookbook


def test_a_workload_that_is_not_the_cookbooks_has_no_count() -> None:
    assert count("memnet") is None


def test_the_command_shows_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert fathom(monkeypatch, "cost", "--json") == 0
    rows = {row["workload"]: row for row in json.loads(capsys.readouterr().out)}
    assert {name: row["as_cookbook"] for name, row in rows.items()} == {
        name: sum(parts) for name, parts in COUNTED.items()
    }
    assert fathom(monkeypatch, "cost") == 0
    assert "25,557,032" in (shown := capsys.readouterr().out)
    assert "25,610,269" in shown
