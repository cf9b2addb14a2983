"""Alpha-beta models of collectives: hand-computed costs, simulated messages, limits, crossings, calibration."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from sample_records import record_of

from fathom import published
from fathom.core.errors import BadOption, DataError, UnknownName
from fathom.core.ranks import ALL_REDUCE, Collective, Ranks
from fathom.core.record import Record
from fathom.experiments.ranks import collectives
from fathom.predict.calibration import calibrate
from fathom.predict.catalogue import device, interconnect
from fathom.predict.communication import (
    ALGORITHMS,
    Cost,
    Link,
    cost,
    crossing_bytes,
    fastest,
    hierarchical_seconds,
    parameter_server,
    seconds,
)

US, GB = 1e-6, 1e9
LINK = Link(1 * US, 1 * GB)
EVERY = [(operation, name) for operation, own in ALGORITHMS.items() for name in own]


@pytest.mark.parametrize(
    ("operation", "algorithm", "ranks", "messages", "wire_bytes"),
    [  # of 1200 bytes, by hand
        ("all-reduce", "ring", 2, 2, 1200),
        ("all-reduce", "ring", 3, 4, 1600),
        ("all-reduce", "ring", 4, 6, 1800),
        ("all-reduce", "tree", 3, 4, 4800),
        ("all-reduce", "tree", 4, 4, 4800),
        ("all-reduce", "tree", 5, 6, 7200),
        ("all-reduce", "double-tree", 4, 4, 2400),
        ("all-reduce", "recursive-doubling", 4, 2, 2400),
        ("all-reduce", "recursive-doubling", 3, 3, 3600),
        ("all-reduce", "recursive-doubling", 6, 4, 4800),
        ("all-reduce", "halving-doubling", 4, 4, 1800),
        ("all-reduce", "halving-doubling", 3, 4, 3600),
        ("all-gather", "ring", 4, 3, 900),
        ("all-gather", "recursive-doubling", 4, 2, 900),
        ("all-gather", "recursive-doubling", 6, 3, 1000),
        ("reduce-scatter", "ring", 6, 5, 1000),
        ("reduce-scatter", "recursive-halving", 4, 2, 900),
        ("reduce-scatter", "recursive-halving", 3, 3, 2200),
        ("broadcast", "tree", 8, 3, 3600),
        ("broadcast", "scatter-gather", 4, 5, 1800),
        ("send-receive", "direct", 4, 1, 1200),
    ],
)
def test_costs_by_hand(operation: str, algorithm: str, ranks: int, messages: int, wire_bytes: float) -> None:
    found = cost(operation, algorithm, ranks, 1200)
    assert found.messages == messages
    assert found.wire_bytes == pytest.approx(wire_bytes)
    assert seconds(operation, algorithm, ranks, 1200, LINK) == pytest.approx(messages * US + wire_bytes / GB)


@pytest.mark.parametrize(("operation", "algorithm"), EVERY)
def test_one_rank_sends_nothing_and_more_bytes_never_take_less(operation: str, algorithm: str) -> None:
    slow_start = Link(1 * US, GB, base_s=1.0)
    assert cost(operation, algorithm, 1, 1e9) == Cost(0, 0.0)
    assert seconds(operation, algorithm, 1, 1e9, slow_start) == 0.0
    for ranks in range(2, 40):
        found = cost(operation, algorithm, ranks, 1e6)
        assert found.messages >= 1
        assert cost(operation, algorithm, ranks, 0).wire_bytes == 0
        assert cost(operation, algorithm, ranks, 3e6).wire_bytes == pytest.approx(3 * found.wire_bytes)
        assert cost(operation, algorithm, ranks, 3e6).messages == found.messages


@pytest.mark.parametrize("algorithm", ALGORITHMS[ALL_REDUCE])
def test_no_all_reduce_is_below_the_bounds(algorithm: str) -> None:
    """At least ceil(log2 n) messages, at least 2(n-1)/n of the message (Patarasu and Yuan)."""
    for ranks in range(2, 70):
        found = cost(ALL_REDUCE, algorithm, ranks, 1.0)
        assert found.messages >= math.ceil(math.log2(ranks))
        assert found.wire_bytes >= 2 * (ranks - 1) / ranks - 1e-12


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_a_ring_of_real_messages_has_this_cost(ranks: int) -> None:
    """Each rank has n chunks; it sends one to the next in every round, and the sum arrives everywhere."""
    data = [[10 * rank + chunk for chunk in range(ranks)] for rank in range(ranks)]
    wanted = [sum(column) for column in zip(*data, strict=True)]
    rounds = 0
    for shift, adds in [(0, True)] * (ranks - 1) + [(1, False)] * (ranks - 1):
        step = rounds % (ranks - 1) if ranks > 1 else 0
        sent = [
            (rank, (rank + shift - step) % ranks, data[rank][(rank + shift - step) % ranks]) for rank in range(ranks)
        ]
        for rank, chunk, value in sent:
            there = data[(rank + 1) % ranks]
            there[chunk] = there[chunk] + value if adds else value
        rounds += 1
    assert data == [wanted] * ranks
    chunk_bytes = 4
    assert cost(ALL_REDUCE, "ring", ranks, ranks * chunk_bytes) == Cost(rounds, rounds * chunk_bytes)


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_recursive_doubling_of_real_messages_has_this_cost(ranks: int) -> None:
    known, rounds, distance = [{rank} for rank in range(ranks)], 0, 1
    while distance < ranks:
        known = [known[rank] | known[rank ^ distance] for rank in range(ranks)]
        rounds, distance = rounds + 1, 2 * distance
    assert all(each == set(range(ranks)) for each in known)
    assert cost(ALL_REDUCE, "recursive-doubling", ranks, 100) == Cost(rounds, 100.0 * rounds)


def test_limits_of_a_ring() -> None:
    large = 1e15
    assert seconds(ALL_REDUCE, "ring", 8, large, LINK) == pytest.approx(2 * 7 / 8 * large / GB, rel=1e-9)
    assert seconds(ALL_REDUCE, "ring", 8, 0, LINK) == pytest.approx(14 * US)
    assert seconds(ALL_REDUCE, "ring", 1000, large, LINK) < 2 * large / GB + 1


@pytest.mark.parametrize("ranks", [4, 7, 16, 1024])
def test_a_tree_wins_below_the_crossing_and_a_ring_above(ranks: int) -> None:
    for few in ("tree", "double-tree"):
        size = crossing_bytes(ALL_REDUCE, few, "ring", ranks, LINK)
        assert size is not None
        at = [seconds(ALL_REDUCE, name, ranks, size, LINK) for name in (few, "ring")]
        assert at[0] == pytest.approx(at[1])
        for factor in (0.5, 2):
            tree, ring = (seconds(ALL_REDUCE, name, ranks, factor * size, LINK) for name in (few, "ring"))
            assert (tree < ring) == (factor < 1)


def test_the_crossing_by_hand_and_where_there_is_none() -> None:
    """4 ranks: 4 messages instead of 6, and 4 m instead of 1.5 m bytes: m = 2 alpha bandwidth / 2.5."""
    assert crossing_bytes(ALL_REDUCE, "tree", "ring", 4, LINK) == pytest.approx(2 * 1000 / 2.5)
    assert crossing_bytes(ALL_REDUCE, "ring", "tree", 4, LINK) is None
    assert crossing_bytes(ALL_REDUCE, "halving-doubling", "ring", 4, LINK) is None  # never worse
    assert fastest(ALL_REDUCE, 16, 8, LINK)[0] == "recursive-doubling"
    assert fastest(ALL_REDUCE, 15, 1e9, LINK)[0] == "ring"
    assert fastest(ALL_REDUCE, 1, 1e9, LINK)[1] == 0.0


def test_parameter_servers() -> None:
    assert parameter_server(1, 100) == Cost(0, 0)
    assert parameter_server(5, 100) == Cost(8, 800)
    assert parameter_server(5, 100, servers=2) == Cost(8, 400)
    assert parameter_server(4, 100, servers=4) == Cost(6, 150)  # a shard on every worker: a ring's bytes
    assert parameter_server(4, 100, dedicated=True) == Cost(8, 800)
    assert parameter_server(4, 100, servers=8, dedicated=True) == Cost(16, 200)  # the workers' links are the limit
    with pytest.raises(BadOption, match="no more than the workers"):
        parameter_server(2, 100, servers=3)


def test_paleos_formulas() -> None:
    """OneToAll 2(n-1)D, Tree 2 ceil(log2 n)D, Butterfly ceil(log2 n)D, all over B and without latency."""
    for ranks in (2, 4, 8, 64):
        rounds = math.ceil(math.log2(ranks))
        assert parameter_server(ranks, 7.0).wire_bytes == 2 * (ranks - 1) * 7.0
        assert cost(ALL_REDUCE, "tree", ranks, 7.0).wire_bytes == 2 * rounds * 7.0
        assert cost(ALL_REDUCE, "recursive-doubling", ranks, 7.0).wire_bytes == rounds * 7.0


def test_hierarchical_all_reduce() -> None:
    inside, between = Link(1 * US, 100 * GB), Link(10 * US, 10 * GB)
    size = 8e8
    by_hand = 2 * (3 * US + 0.75 * size / (100 * GB)) + 2 * 10 * US + 1.0 * size / 4 / (10 * GB / 4)
    assert hierarchical_seconds(2, 4, size, inside, between) == pytest.approx(by_hand)
    rails = 2 * (3 * US + 0.75 * size / (100 * GB)) + 2 * 10 * US + 1.0 * size / 4 / (10 * GB)
    assert hierarchical_seconds(2, 4, size, inside, between, links_per_node=4) == pytest.approx(rails)
    assert hierarchical_seconds(2, 4, size, inside, between, links_per_node=9) == pytest.approx(rails)
    assert hierarchical_seconds(1, 4, size, inside, between) == seconds(ALL_REDUCE, "ring", 4, size, inside)
    assert hierarchical_seconds(6, 1, size, inside, between) == seconds(ALL_REDUCE, "ring", 6, size, between)
    assert hierarchical_seconds(1, 1, size, inside, between) == 0.0


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean all-reduce"):
        cost("allreduce", "ring", 2, 1)
    with pytest.raises(UnknownName, match="algorithm of broadcast"):
        cost("broadcast", "ring", 2, 1)
    for ranks, size in ((0, 1.0), (2, -1.0), (2, math.nan), (2, math.inf)):
        with pytest.raises(BadOption):
            cost(ALL_REDUCE, "ring", ranks, size)
    for alpha, bandwidth in ((-1.0, 1.0), (0.0, 0.0), (math.nan, 1.0)):
        with pytest.raises(BadOption):
            Link(alpha, bandwidth)


@pytest.mark.parametrize("fully_connected", ["acoustic_model", "deep_mnist", "sensor_net"])
def test_the_cookbook_a_fast_interconnect_matters_more_to_fully_connected_networks(fully_connected: str) -> None:
    """8 P100 at their peak, batch 32 each, gradients after the backward pass: step on 10 GbE over that on EDR."""
    ratios: dict[str, float] = {}
    for model in published.dlbs_models():
        if model.parameters is not None and model.forward_gmac is not None:
            compute = 32 * 3 * 2 * model.forward_gmac * 1e9 / (device("P100").fp32_flop_per_s or 0)
            slow, fast = (
                compute + seconds(ALL_REDUCE, "ring", 8, 4 * model.parameters, Link.of(interconnect(name)))
                for name in ("10GbE", "EDR")
            )
            ratios[model.name] = slow / fast
    convolutional = {name: each for name, each in ratios.items() if name.startswith(("resnet", "vgg", "inc", "goog"))}
    assert len(convolutional) == 14
    assert ratios[fully_connected] > 2 * max(convolutional.values())


def measured(times: dict[tuple[int, int], float]) -> list[Record]:
    records = []
    for ranks in sorted({ranks for ranks, _ in times}):
        (spec,) = collectives([ranks], "cpu", 1024, 65536, [ALL_REDUCE])
        timed = [
            Collective(operation=ALL_REDUCE, message_bytes=size, sample_s=[took] * 3, calls=1)
            for (count, size), took in times.items()
            if count == ranks
        ]
        part = Ranks(backend="gloo", ranks=ranks, collectives=timed)
        records.append(replace(record_of("autoenc"), spec=spec, warmup_s=[], losses=[], ranks=part, step_s=[]))
    return records


@pytest.mark.parametrize("algorithm", ["ring", "tree", "recursive-doubling"])
def test_calibration_finds_algorithm_and_link_again(algorithm: str) -> None:
    link = Link(5 * US, 2 * GB, base_s=30 * US)
    sizes = [1 << power for power in range(10, 27, 4)]
    times = {(n, size): seconds(ALL_REDUCE, algorithm, n, size, link) for n in (2, 3, 6, 8, 16) for size in sizes}
    (found,) = calibrate([*measured(times), record_of("vgg")])
    assert (found.algorithm, found.ranks, found.backend) == (algorithm, (2, 3, 6, 8, 16), "gloo")
    assert found.link.alpha_s == pytest.approx(link.alpha_s, rel=1e-6)
    assert found.link.base_s == pytest.approx(link.base_s, rel=1e-6)
    assert found.link.bytes_per_s == pytest.approx(link.bytes_per_s, rel=1e-6)
    assert found.largest_error < 1e-6
    assert found.extrapolated_error is not None
    assert found.extrapolated_error < 1e-6
    assert found.seconds(64, 1e6) == pytest.approx(seconds(ALL_REDUCE, algorithm, 64, 1e6, link))


def test_calibration_from_one_number_of_ranks_and_from_none() -> None:
    times = {(4, size): 60 * US + 1.5 * size / GB for size in (1024, 1 << 20)}
    (found,) = calibrate(measured(times))
    assert (found.algorithm, found.link.base_s, found.extrapolated_error) == ("ring", 0.0, None)
    assert found.link.alpha_s == pytest.approx(10 * US)
    assert set(found.equally_good) == ALGORITHMS[ALL_REDUCE].keys() - {"ring"}
    powers = {(n, size): seconds(ALL_REDUCE, "tree", n, size, LINK) for n in (2, 4, 8) for size in (1024, 1 << 20)}
    (found,) = calibrate(measured(powers))
    assert (found.algorithm, found.equally_good) == ("tree", ("recursive-doubling",))
    flat = calibrate(measured({(2, 1024): 1e-3, (2, 4096): 1e-3}))
    assert flat[0].link.seconds(Cost(2, 0.0)) == pytest.approx(1e-3, rel=1e-3)
    with pytest.raises(DataError, match="fathom collectives"):
        calibrate([record_of("vgg")])
