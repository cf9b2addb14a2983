"""The section of a user's model in a report: its tree adds up, its charts have tables, it stands before the suite's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_records import GPU, LAPTOP, op_row, profile_of, record_of

from fathom import report
from fathom.analysis import own_model
from fathom.analysis.finding import Chart, Finding
from fathom.analysis.tree import NODES, Node, pruned, tree
from fathom.core.record import OpRow, Profile, Record
from fathom.core.traced import Held, Lane, Memory, RowKernels, SourceLine, Sources, Timeline, Wait
from fathom.report.charts import figure
from fathom.report.colours import Colours
from fathom.report.text import chart_table


def rows(place: str = GPU) -> list[OpRow]:
    return [
        op_row("Conv2D", 0.5, place=place, layer="net.first", op="aten::conv2d", flop=4e9),
        op_row("Add", 0.1, place=place, layer="net.first", op="aten::add", flop=1e9, phase="backward"),
        op_row("MatMul", 0.2, place=place, layer="net.head", op="aten::mm", flop=None),
        op_row("ApplySGD", 0.1, place=place, op="aten::add_", role="optimizer"),
    ]


KERNELS = RowKernels(
    names=["gemm", "void sum<float>(int)"],
    rows=[0, 0, 1, 2, 3],
    kernels=[0, 1, 1, 0, 1],
    calls=[2, 1, 1, 3, 1],
    seconds=[0.4, 0.1, 0.1, 0.2, 0.1],
)
SOURCES = Sources(
    lines=[
        SourceLine(
            line="net.py(7): forward",
            seconds=0.72,
            backward_s=0.1,
            calls=5,
            types={"Conv2D": 0.5, "Add": 0.1},
            libraries={"timm/layers.py(3): forward": 0.36},
        )
    ],
    other_s=0.1,
    unknown_s=0.08,
    waits=[Wait(call="cudaStreamSynchronize", op="aten::item", line="train.py(3): step", calls=2, seconds=0.05)],
    exact=False,
)
MEMORY = Memory(
    device="cuda:0",
    step=1,
    times_s=[0.0, 0.4, 1.0],
    allocated=[10**9, 4 * 10**9, 10**9],
    peak_bytes=4 * 10**9,
    peak_s=0.4,
    kinds={"activations": 24 * 10**8, "optimizer state": 10**9, "gradients": 6 * 10**8},
    held=[Held(kind="activations", phase="forward", layer="net.first", op="aten::conv2d", bytes=10**9, allocations=3)],
)
TIMELINE = Timeline(
    step_s=1.0,
    resolution_us=500.0,
    names=["aten::conv2d", "gemm"],
    types=["Conv2D", "MatMul"],
    lanes=[
        Lane(name="thread 1", on_device=False, begin_us=[0.0], us=[6e5], names=[0], counts=[1]),
        Lane(name="GPU 0 stream 7", on_device=True, begin_us=[1e5, 5e5], us=[3e5, 4e5], names=[1, 0], counts=[4, 1]),
    ],
)


def full(place: str = GPU, **changes: Any) -> Profile:
    kernels = KERNELS if place == GPU else None
    details = {"row_kernels": kernels, "sources": SOURCES, "memory": MEMORY, "timeline": TIMELINE}
    return profile_of(rows(place), outside_s=0.1, **{**details, **changes})


def users(name: str = "mine", place: str = GPU, **changes: Any) -> Record:
    spec = {"options": {"trace": "0a1b"}, "phase": changes.pop("phase", "train")}
    return record_of(name, place=place, spec=spec, profile=changes.pop("profile", full(place)), **changes)


def only(records: list[Record]) -> Finding:
    (finding,) = own_model.findings(records)
    return finding


def chart(kind: str) -> Chart:
    return next(each for each in only([users()]).charts if each.kind == kind)


def flattened(node: Node) -> list[Node]:
    return [node, *(below for child in node.children.values() for below in flattened(child))]


@pytest.mark.parametrize("place", [GPU, LAPTOP])
def test_children_add_up_to_their_parent(place: str) -> None:
    root = tree(full(place), "mine")
    assert root.seconds == pytest.approx(0.9)
    for node in flattened(root):
        if node.children:
            assert sum(child.seconds for child in node.children.values()) == pytest.approx(node.seconds)
    assert {node.kind for node in flattened(root)} == {"all", "module", "op"} | ({"kernel"} if place == GPU else set())


def test_a_path_is_modules_then_op_then_kernel() -> None:
    found = {" > ".join(path): node for path, node in pruned(tree(full(), "mine"))}
    assert found["mine > net > first > aten::conv2d > gemm"].calls == 2
    assert found["mine > net > first"].seconds == pytest.approx(0.6), "forward and backward"
    assert found["mine > (optimizer) > aten::add_"].seconds == pytest.approx(0.1)
    assert found["mine > net > first"].flop == 5e9
    assert found["mine > net"].flop is None, "that of one op is not known"
    assert found["mine > net > first > aten::conv2d"].described(1.0) == (
        "500 ms per step, 50 % of the step, 1 call, 4 GFLOP"
    )


def test_profiles_at_two_batches_are_two_sections() -> None:
    found = own_model.findings([users(items_per_step=8), users(items_per_step=64), users(items_per_step=64)])
    titles = [f"Your model: mine, training of {items} items on NVIDIA H200" for items in (8, 64)]
    assert [finding.title for finding in found] == titles


def test_small_nodes_are_one_and_nothing_is_lost() -> None:
    many = [op_row("Add", 1e-6, layer=f"net.{n}") for n in range(50)] + [op_row("MatMul", 1.0, layer="net.head")]
    nodes = pruned(tree(profile_of(many), "mine"))
    rest = next(node for path, node in nodes if path[-1] == "(50 smaller)")
    assert rest.seconds == pytest.approx(50e-6)
    assert len(nodes) == 5


def test_a_tree_has_a_bounded_number_of_nodes() -> None:
    many = [op_row("Add", 1e-3, layer=f"net.{n}.a.b") for n in range(900)]
    nodes = pruned(tree(profile_of(many), "mine"))
    assert len(nodes) <= NODES
    assert nodes[0][1].seconds == pytest.approx(0.9)


def test_an_op_and_a_module_of_one_name_are_two_nodes() -> None:
    both = [op_row("Add", 0.5, layer="net", op="add"), op_row("Mul", 0.5, layer="net.add", op="mul")]
    paths = [tuple(path) for path, _ in pruned(tree(profile_of(both), "mine"))]
    assert len(paths) == len(set(paths)) == 5


def test_the_section_says_what_matters_in_words() -> None:
    finding = only([users()])
    assert finding.title == "Your model: mine"
    assert finding.summary == (
        "1 s per training step on NVIDIA H200. The device is busy for 90 % of it. Most time in one class of ops: "
        "convolution, 50 %. Peak memory 3.73 GiB on cuda:0: activations 60 %, optimizer state 25 %, gradients 15 %. "
        "The ops called by net.py(7): forward take 80 % of op time."
    )
    assert [each.kind for each in finding.charts] == ["icicle", "timeline", "line"]
    lines, waits, kinds, held = finding.tables
    assert lines.rows[0][1:5] == [pytest.approx(720), pytest.approx(80), pytest.approx(100 / 9), 5]
    assert lines.rows[0][-2:] == ["Conv2D 69 %, Add 14 %", "timm/layers.py(3): forward 50 %"]
    assert waits.rows == [
        ["train.py(3): step", "aten::item", "cudaStreamSynchronize", 2, pytest.approx(50), pytest.approx(5)]
    ]
    assert kinds.rows[0] == ["activations", 2400.0, 60.0]
    assert held.rows[0][2:4] == ["net.first", "aten::conv2d"]


def test_what_was_not_recorded_is_left_out() -> None:
    plain = profile_of(rows(LAPTOP))
    finding = only([users(place=LAPTOP, profile=plain)])
    assert [each.kind for each in finding.charts] == ["icicle"]
    assert finding.tables == []
    assert "memory" not in finding.summary


def test_memory_that_is_a_lower_bound_says_so() -> None:
    memory = replace(MEMORY, is_lower_bound=True, kinds={}, held=[])
    finding = only([users(profile=full(memory=memory))])
    assert "Peak memory at least 3.73 GiB on cuda:0." in finding.summary
    assert any("lower bound" in note for note in finding.notes)


def test_an_icicle_that_plotly_accepts() -> None:
    trace = figure(chart("icicle"), Colours([]))["data"][0]
    values = dict(zip(trace["ids"], trace["values"], strict=True))
    for whole, value in values.items():
        parts = [values[id_] for id_, parent in zip(trace["ids"], trace["parents"], strict=True) if parent == whole]
        assert sum(parts) <= value
    assert trace["parents"].count("") == 1


def test_a_timeline_has_its_rectangles_in_milliseconds() -> None:
    drawn = figure(chart("timeline"), Colours([]))
    columns = [zip(each["base"], each["x"], each["y"], strict=True) for each in drawn["data"]]
    bars = {bar for column in columns for bar in column}
    assert bars == {(0.0, 600.0, "thread 1"), (100.0, 300.0, "GPU 0 stream 7"), (500.0, 400.0, "GPU 0 stream 7")}
    assert drawn["layout"]["yaxis"]["categoryarray"] == ["thread 1", "GPU 0 stream 7"]
    patterns = [each["marker"]["pattern"]["shape"] for each in drawn["data"]]
    assert len(set(patterns)) == len(patterns), "classes differ by more than colour"


def test_charts_as_tables() -> None:
    nested = chart_table(chart("icicle"))
    assert [row[0] for row in nested.rows[:4]] == ["mine", "· net", "· · first", "· · · aten::conv2d"]
    assert [row[2] for row in nested.rows[:2]] == [pytest.approx(100), pytest.approx(100 * 8 / 9)]
    lanes = chart_table(chart("timeline"))
    assert lanes.rows[1] == ["GPU 0 stream 7", 2, 700.0, pytest.approx(700 / 9), "Convolution", "aten::conv2d", 400.0]


def test_a_report_has_users_models_before_the_suites_findings(tmp_path: Path) -> None:
    records = [users(), users(phase="infer"), record_of("vgg", rows(), place=GPU)]
    text = report.write(records, tmp_path / "report.md").read_text()
    headings = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    trained = headings.index("Your model: mine, training on NVIDIA H200")
    assert trained < headings.index("Your model: mine, inference on NVIDIA H200")
    assert trained < headings.index("Which op types take the time?")
    assert not any("vgg" in heading for heading in headings)
    page = report.write(records, tmp_path / "report.html").read_text()
    assert "Your model: mine" in page


def test_of_one_model_the_last_profile_is_shown() -> None:
    earlier = users(started="2026-01-01T00:00:00", profile=full(memory=None))
    later = users(started="2026-02-01T00:00:00")
    assert only([later, earlier]) == only([later])


def test_failed_runs_and_workloads_have_no_section() -> None:
    assert own_model.findings([users(outcome="failed", profile=None), record_of("vgg", rows(), place=GPU)]) == []
