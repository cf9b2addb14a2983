"""RunSpec: kinds that cannot contradict each other, one id for equal work, and the words of older versions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fathom.core.errors import BadOption, UnknownName
from fathom.core.spec import KINDS, RunSpec, read_value

TRAINING = {"kind": "training"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({**TRAINING, "phase": "infer"}, "a training run has phase train, not infer"),
        ({**TRAINING, "steps": 5}, "steps does not apply to a training run"),
        ({**TRAINING, "warmup": 5}, "warmup does not apply to a training run"),
        ({**TRAINING, "budget_s": 5}, "budget_s does not apply to a training run"),
        ({"kind": "program", "budget_s": 5.0}, "budget_s does not apply to a program run"),
        ({"kind": "program", "evaluations": 5}, "evaluations does not apply to a program run"),
        ({"kind": "timed", "evaluations": 5}, "evaluations does not apply to a timed run"),
        ({"kind": "profiled", "evaluations": 5}, "evaluations does not apply to a profiled run"),
        ({"batch": 4, "options": {"batch": 5}}, "batch is given twice: 4 and 5"),
        ({"batch": 0}, "batch must be at least 1, not 0"),
        ({"options": {"batch": 0}}, "batch must be at least 1, not 0"),
        ({"options": {"batch": "four"}}, "batch must be a whole number, not 'four'"),
        ({**TRAINING, "evaluations": 0}, "evaluations must be at least 1, not 0"),
        ({"budget_s": 0}, "a budget must be some seconds, not 0.0"),
        ({"seed": 2**62}, "seed must be below"),
        ({"budget_s": 1e300}, "a budget must be at most 2,592,000 seconds"),
        ({**TRAINING, "evaluations": 10**7}, "evaluations must be 1 to 1,000,000, not 10000000"),
        ({"options": {"batch": 10**12}}, "batch must be 1 to 1,000,000,000, not 1000000000000"),
        ({"cores": ()}, "cores must be numbers of this machine's cores"),
    ],
)
def test_what_contradicts_itself_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=f"^{message}"):
        RunSpec(workload="autoenc", **fields)


def test_a_typed_value_is_a_number_a_switch_or_a_word() -> None:
    typed = ("3", "0.5", "true", "True", "False", "None", "null", "truth", "nearest")
    assert [*map(read_value, typed)] == [3, 0.5, True, True, False, None, None, "truth", "nearest"]


def test_an_unknown_kind_is_told_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="no kind of a run 'trainin'; did you mean training"):
        RunSpec(workload="autoenc", kind="trainin")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"batch": 4}, {"options": {"batch": 4}}),
        ({"batch": 4}, {"batch": 4, "options": {"batch": 4}}),
        ({"device": "cuda"}, {"device": "cuda:0"}),
        ({"device": "cpu"}, {"device": "cpu:3"}),
        ({"data": "mnist"}, {"data": "mnist/"}),
        ({"budget_s": 5}, {"budget_s": 5.0}),
        ({"cores": [0, 1]}, {"cores": (0, 1)}),
        ({"kind": "timed"}, {}),
        ({"options": {"a": 1, "b": 2}}, {"options": {"b": 2, "a": 1}}),
    ],
)
def test_equal_work_is_equal_and_has_one_id(one: dict[str, Any], other: dict[str, Any]) -> None:
    ours, theirs = RunSpec(workload="autoenc", **one), RunSpec(workload="autoenc", **other)
    assert ours == theirs
    assert ours.id == theirs.id


def test_a_whole_number_has_one_id_however_it_is_typed() -> None:
    ids = {RunSpec(workload="autoenc", options={"warm_up": value}).id for value in (1, 1.0)}
    assert len(ids) == 1


@pytest.mark.parametrize(
    "fields",
    [{"batch": 4}, {"device": "cuda:1"}, {"kind": "profiled"}, {"engine": "cudagraph"}, {"seed": 1}, {"data": "mnist"}],
)
def test_other_work_has_another_id(fields: dict[str, Any]) -> None:
    assert RunSpec(workload="autoenc", **fields).id != RunSpec(workload="autoenc").id


@pytest.mark.parametrize(
    ("old", "fields"),
    [
        ({"learn": True, "rounds": 4}, {"kind": "training", "evaluations": 4}),
        ({"learn": True, "rounds": None}, {"kind": "training"}),
        ({"life": True, "steps": 3}, {"kind": "program", "steps": 3}),
        ({"profile": True, "budget_s": 2}, {"kind": "profiled", "budget_s": 2.0}),
        ({"learn": False, "life": False, "profile": False}, {"kind": "timed"}),
        ({"kind": "training", "learn": True}, {"kind": "training"}),
    ],
)
def test_the_switches_of_older_versions_are_understood(old: dict[str, Any], fields: dict[str, Any]) -> None:
    assert RunSpec.from_json({"workload": "autoenc", **old}) == RunSpec(workload="autoenc", **fields)


@pytest.mark.parametrize(
    "both", [{"learn": True, "life": True}, {"kind": "program", "profile": True}, {"profile": True, "learn": True}]
)
def test_two_kinds_at_once_are_refused(both: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match="one run cannot be both"):
        RunSpec.from_json({"workload": "autoenc", **both})


def test_an_unknown_field_is_told_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="no field of a run 'evaluation'; did you mean evaluations"):
        RunSpec.from_json({"workload": "autoenc", "evaluation": 3})


EVERYTHING = {
    "phase": "train",
    "preset": "tiny",
    "device": "cuda:1",
    "precision": "tf32",
    "engine": "cudagraph",
    "batch": 4,
    "power_cap_w": 300.0,
    "clock_cap_mhz": 1200.0,
    "threads": 2,
    "cores": (0, 1),
    "data": "mnist",
    "seed": 3,
    "options": {"latent": 3, "adam": True},
}
LENGTHS = {
    **{"warmup": 1, "steps": 3, "budget_s": 2.5, "evaluations": 4},
    **{"window_s": 20.0, "idle_s": 1.0, "period_s": 0.01, "estimates": True},
}


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("everything", [False, True])
def test_what_differs_from_the_defaults_says_it_all(kind: str, everything: bool) -> None:
    lengths = {name: LENGTHS[name] for name in KINDS[kind]}
    fields: dict[str, Any] = {**EVERYTHING, **lengths} if everything else {}
    spec = RunSpec(workload="autoenc", kind=kind, **fields)
    said = json.loads(json.dumps(spec.non_defaults()))
    assert RunSpec.from_json(said) == spec
    assert RunSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    if not everything:
        assert len(said) == (1 if kind == "timed" else 2)


def test_workers_of_older_checkouts_are_spoken_to_in_their_words() -> None:
    """They knew three switches, and evaluations as rounds."""
    spec = RunSpec(workload="autoenc", kind="training", evaluations=4)
    assert spec.non_defaults() == {"workload": "autoenc", "learn": True, "rounds": 4}
    assert RunSpec(workload="autoenc", kind="profiled").non_defaults() == {"workload": "autoenc", "profile": True}
    assert RunSpec(workload="autoenc", kind="program").non_defaults() == {"workload": "autoenc", "life": True}
    assert RunSpec(workload="autoenc").non_defaults() == {"workload": "autoenc"}


def test_ids_are_those_of_earlier_releases() -> None:
    """Records and checkpoints go by them."""
    assert RunSpec(workload="autoenc").id == "98afbf1a7f73"
    assert RunSpec(workload="deepq", kind="training", device="cuda:0", seed=1).id == "227e24c395d2"


def test_an_energy_run_keeps_its_kind_on_the_way_to_a_worker() -> None:
    """A kind that no older checkout has a switch for is said by its name."""
    spec = RunSpec(workload="autoenc", kind="energy", idle_s=0)
    assert spec.non_defaults() == {"workload": "autoenc", "kind": "energy", "idle_s": 0.0}
    assert (
        RunSpec(workload="autoenc", kind="energy", window_s=5).id
        == RunSpec(workload="autoenc", kind="energy", window_s=5.0).id
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "energy", "window_s": 0}, "a metered window in seconds must be above 0, not 0"),
        ({"kind": "energy", "period_s": -1}, "the period of the meters in seconds must be above 0, not -1"),
        ({"kind": "energy", "idle_s": -5}, "the idle baseline must be some seconds, or 0 for none, not -5"),
        ({"power_cap_w": 0}, "a power cap in watts must be above 0, not 0"),
        ({"clock_cap_mhz": float("inf")}, "a clock cap in MHz must be above 0 and at most 2,592,000, not inf"),
        ({"window_s": 5}, "window_s does not apply to a timed run"),
        ({"kind": "energy", "steps": 3}, "steps does not apply to an energy run"),
    ],
)
def test_what_cannot_be_metered_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        RunSpec(workload="autoenc", **fields)
