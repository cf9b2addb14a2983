"""Traces of several ranks: read from a folder, collectives matched, stragglers and imbalance by exact counts."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import fathom
from sample_records import record_of

from fathom.analysis.compare_traces import compare_traces
from fathom.analysis.ranks import Spread, rank_group
from fathom.core.depth import Collective, TraceDepth
from fathom.core.errors import DataError
from fathom.core.record import Record
from fathom.trace.ranks import from_traces, processes_for, rank_of

COMM = {"Collective name": "allreduce", "dtype": "Float", "Group size": 2, "Process Group Name": "0"}


def document(rank: int | None, computation: float, waits: Sequence[float], steps: int = 2) -> dict[str, Any]:
    """A rank that computes and then waits in an all-reduce, in each step."""
    events: list[dict[str, Any]] = []
    time = 1000.0 * (rank or 0)  # ranks have clocks of their own

    def add(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> None:
        events.append({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args})

    for step in range(steps):
        length = 20 + computation + waits[step]
        add("user_annotation", f"ProfilerStep#{step}", time, length)
        add("cpu_op", "aten::mm", time + 1, 4)
        add("cuda_runtime", "cudaLaunchKernel", time + 2, 1, correlation=2 * step + 1)
        add("kernel", "gemm", time + 10, computation, tid=7, correlation=2 * step + 1)
        add("cuda_runtime", "cudaLaunchKernel", time + 6, 1, correlation=2 * step + 2)
        sizes = {"In msg nelems": 100 + step, "Out msg nelems": 100 + step}
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
        add("kernel", name, time + 10 + computation, waits[step], 9, correlation=2 * step + 2, **COMM, **sizes)
        time += length
    found: dict[str, Any] = {"traceEvents": events}
    return found if rank is None else found | {"distributedInfo": {"rank": rank, "world_size": 2}}


def write(path: Path, content: dict[str, Any]) -> None:
    data = json.dumps(content).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rank 1 computes longer, and so arrives last; rank 0 waits."""
    write(tmp_path / "traces" / "b.json.gz", document(0, 100, [50, 80]))
    write(tmp_path / "traces" / "a.json", document(1, 130, [20, 30]))
    return tmp_path / "traces"


def no_warning(problem: str) -> None:
    raise AssertionError(problem)


def test_all_ranks_of_a_folder(folder: Path) -> None:
    records = from_traces(folder, no_warning)
    assert [rank_of(record) for record in records] == [0, 1]
    assert [record.spec.workload for record in records] == ["b.json.gz", "a.json"]
    assert processes_for(folder) == 1


def test_processes_read_the_same(folder: Path) -> None:
    alone, together = from_traces(folder, no_warning), from_traces(folder, no_warning, processes=2)
    assert [record.profile for record in alone] == [record.profile for record in together]


def test_stragglers_and_imbalance(folder: Path) -> None:
    group = rank_group(from_traces(folder, no_warning))
    (found,) = group.collectives
    assert (found.name, found.calls, found.unmatched, found.straggler) == ("all_reduce", 2, 0, 1)
    assert found.waited_s == pytest.approx({0: 80e-6, 1: 0.0})
    assert found.last == {0: 0, 1: 2}
    assert group.computation is not None
    assert (group.computation.low_rank, group.computation.high_rank) == (0, 1)
    assert group.computation.imbalance == pytest.approx(130 / 115 - 1)
    assert [each.high for each in group.computation_per_step] == pytest.approx([130e-6, 130e-6])
    assert [each.waited_s for each in group.times] == pytest.approx([80e-6, 0.0])
    assert (group.ranks, group.world_size) == ([0, 1], 2)
    assert not any("no trace here" in note for note in group.notes)


def test_missing_ranks_are_told(folder: Path) -> None:
    (folder / "a.json").unlink()
    group = rank_group(from_traces(folder, no_warning))
    assert any("1 of 2 ranks have no trace here: 1" in note for note in group.notes)
    assert [(each.calls, each.straggler) for each in group.collectives] == [(0, None)]


def test_rank_of_the_file_name(tmp_path: Path) -> None:
    for name in ("worker10_step_12.pt.trace.json", "job-rank_2.json", "Rank-3.json"):
        write(tmp_path / name, document(None, 10, [5, 5]))
    assert [rank_of(record) for record in from_traces(tmp_path, no_warning)] == [2, 3, 10]


def test_what_is_no_set_of_ranks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no traces"):
        from_traces(tmp_path, no_warning)
    write(tmp_path / "one.json", document(0, 10, [5, 5]))
    write(tmp_path / "two.json", document(0, 10, [5, 5]))
    with pytest.raises(DataError, match="both of rank 0"):
        from_traces(tmp_path, no_warning)
    write(tmp_path / "two.json", document(1, 10, [5, 5]) | {"distributedInfo": {"rank": 1, "world_size": 8}})
    with pytest.raises(DataError, match="different runs"):
        from_traces(tmp_path, no_warning)
    write(tmp_path / "two.json", document(None, 10, [5, 5]))
    with pytest.raises(DataError, match="two.json: no rank"):
        from_traces(tmp_path, no_warning)


def test_other_files_are_named_and_skipped(folder: Path) -> None:
    (folder / "snapshot.json").write_text("{}")
    problems: list[str] = []
    assert len(from_traces(folder, problems.append)) == 2
    assert len(problems) == 1
    assert "snapshot.json" in problems[0]


def collective(seconds: list[float], steps: list[int | None], size: int = 4, name: str = "all_reduce") -> Collective:
    return Collective(name=name, group="0", ranks="", size=2, seconds=seconds, steps=steps, bytes=[size] * len(seconds))


def group_of(record: Record, *found: Collective) -> Any:
    """Ranks that differ in their collectives only."""
    assert record.profile is not None
    records = [
        dataclasses.replace(
            record, profile=dataclasses.replace(record.profile, depth=TraceDepth(rank=rank, collectives=[each]))
        )
        for rank, each in enumerate(found)
    ]
    return rank_group(records).collectives[0]


def test_calls_are_matched_where_ranks_agree(folder: Path) -> None:
    record = from_traces(folder, no_warning)[0]
    # a trace that began one call later: only the second step agrees
    found = group_of(record, collective([5, 1, 2, 4], [0, 0, 1, 1]), collective([3, 9, 1], [0, 1, 1]))
    assert (found.calls, found.unmatched) == (2, 2)
    assert found.waited_s == {0: 3, 1: 7}
    # messages of different sizes are not the same call
    found = group_of(record, collective([1.0], [0], 4), collective([2.0], [0], 8))
    assert (found.calls, found.unmatched) == (0, 1)
    found = group_of(record, collective([1.0], [0], 4, "all_to_all"), collective([2.0], [0], 8, "all_to_all"))
    assert found.calls == 1
    # sends and receives are not the same call on two ranks
    found = group_of(record, collective([1.0], [0], 4, "send"), collective([2.0], [0], 4, "send"))
    assert found.calls == 0
    # nobody was last where all left at once
    found = group_of(record, collective([1.0], [0]), collective([1.0], [0]))
    assert (found.last, found.straggler) == ({0: 0, 1: 0}, None)


def test_spread_names_the_ranks() -> None:
    spread = Spread.of({3: 1.0, 5: 4.0, 7: 2.0})
    assert spread == Spread(low=1.0, low_rank=3, median=2.0, high=4.0, high_rank=5)
    assert spread.imbalance == 1.0
    assert Spread.of({0: 0.0}).imbalance is None


Run = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return functools.partial(fathom, monkeypatch)


def test_command_keeps_a_record_of_each_rank(
    run: Run, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("profile", "--trace", folder, "--out", tmp_path / "records", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["records"]) == len(list((tmp_path / "records").glob("*.json"))) == 2
    assert found["collectives"][0]["last"] == {"0": 0, "1": 2}
    assert run("profile", "--trace", folder, "--out", tmp_path / "records") == 0
    assert "rank 1, 2 of 2 calls" in capsys.readouterr().out


def test_traces_of_different_names_are_compared(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a.json", document(0, 100, [50] * 8, steps=8))
    write(tmp_path / "b.json.gz", document(0, 130, [50] * 8, steps=8))
    assert run("compare", tmp_path / "a.json", tmp_path / "b.json.gz", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["types"][0]["name"] == "MatMul"
    assert found["types"][0]["difference_s"] == pytest.approx(30e-6)
    assert found["kernels"][0]["name"] == "gemm"
    low, high = found["types"][0]["interval_s"]
    assert (low, high) == pytest.approx((30e-6, 30e-6))  # all steps are alike
    assert run("compare", tmp_path / "a.json", tmp_path / "b.json.gz") == 0
    assert "gemm" in capsys.readouterr().out


def test_records_of_traces_with_different_names_are_compared(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, computation in (("one", 100), ("two", 130)):
        write(tmp_path / f"{name}.json", document(0, computation, [50, 50]))
        assert run("profile", "--trace", tmp_path / f"{name}.json", "--out", tmp_path / name) == 0
    capsys.readouterr()
    assert run("compare", tmp_path / "one", tmp_path / "two", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["types"][0]["difference_s"] == pytest.approx(30e-6)
    assert found["types"][0]["interval_s"] is None  # two steps bound nothing


def test_folders_of_ranks_are_compared_rank_by_rank(folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "other" / "rank0.json", document(0, 110, [50, 80]))
    write(tmp_path / "other" / "rank1.json", document(1, 160, [20, 30]))
    found = compare_traces(from_traces(folder, no_warning), from_traces(tmp_path / "other", no_warning))
    matmul = next(each for each in found.types if each.name == "MatMul")
    assert matmul.ranks is not None
    assert (matmul.ranks.low_rank, matmul.ranks.high_rank) == (0, 1)
    assert (matmul.ranks.low, matmul.ranks.high, matmul.difference_s) == pytest.approx((10e-6, 30e-6, 20e-6))
    assert matmul.interval_s is None


def test_traces_are_not_compared_with_runs(
    run: Run, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "run.json").write_text(json.dumps(record_of().to_json()))
    assert run("compare", folder, tmp_path / "runs") == 2
    assert "compare traces with traces" in capsys.readouterr().err
