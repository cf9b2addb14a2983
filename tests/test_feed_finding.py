"""What feed runs say: exact shares of waiting, the cheapest setting that keeps the device busy, what it would take."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import fathom
from sample_records import GPU, LAPTOP, MACHINES, record_of

from fathom.analysis.feed_runs import sweeps
from fathom.analysis.finding import analyse
from fathom.analysis.questions import feed
from fathom.core.errors import DataError
from fathom.core.feeding import Feeding, FeedTimes, Transfer
from fathom.core.record import Record
from fathom.core.store import Store
from fathom.experiments import study


def fed(
    way: Feeding | None, input_s: float, wait_s: float, *, compute_s: float = 1.0, place: str = LAPTOP, **changes: Any
) -> Record:
    """Ten steps of 100 items; each waits so long and then computes."""
    used = changes.pop("used", way)
    copies = [
        Transfer(bytes=1000, pinned=True, seconds=[1e-6, 1e-6, 9.0]),
        Transfer(bytes=1000, pinned=False, seconds=[4e-6] * 3),
    ]
    times = FeedTimes(
        used=used,
        input_s=[input_s] * 10,
        compute_s=[compute_s] * 20,
        wait_s=[wait_s] * 10,
        batch_bytes=10**8,
        transfers=copies if place == GPU else [],
    )
    spec = {"kind": "feed", "feeding": way, "device": "cpu" if place == LAPTOP else "cuda:0"}
    return record_of(
        "alexnet",
        spec=spec,
        place=place,
        **{"feed": times, "step_s": [wait_s + compute_s] * 10, "warmup_s": [], **changes},
    )


def way(workers: int, prefetch: int = 4) -> Feeding:
    return Feeding(workers=workers, prefetch=prefetch if workers else 0)


RUNS = [fed(way(0), 3.0, 3.0), fed(way(2), 1.5, 0.5), fed(way(4), 0.75, 0.03), fed(way(4, 1), 0.8, 0.02)]


def test_the_cheapest_setting_that_keeps_the_device_busy_is_chosen() -> None:
    (sweep,) = sweeps(RUNS)
    assert [round(each.waiting, 4) for each in sweep.ways] == [0.75, 0.3333, 0.0196, 0.0291]
    assert sweep.chosen is not None
    assert sweep.chosen.used == way(4, 1), "as many workers, fewer batches in flight"
    finding = feed.analyse(RUNS)
    assert finding.summary == (
        "alexnet on Laptop CPU, 4 cores: 4 workers, prefetch 1 keeps the device busy (1.96 % of the time waiting) and "
        "is the cheapest that does."
    )
    rows = [dict(zip(finding.tables[0].columns, row, strict=True)) for row in finding.tables[0].rows]
    assert [row["busy"] for row in rows] == ["no", "no", "yes, cheapest", "yes"]
    first, last = rows[0], rows[-1]
    assert first["input alone (items/s)"] == pytest.approx(100 / 3)
    assert first["compute alone (items/s)"] == 100
    assert (first["both (items/s)"], first["device waits (%)"]) == (25, 75)
    assert last["per reader"] == pytest.approx(100 / 0.75 / 4)
    assert len(finding.tables) == 1
    assert any(note.startswith("Host-to-device bandwidth: not on a CPU") for note in finding.notes)


def test_sweeps_at_two_batches_are_told_apart() -> None:
    large = [replace(run, spec=replace(run.spec, batch=512)) for run in RUNS]
    assert [sweep.name for sweep in sweeps([*RUNS, *large])] == ["alexnet (batch 512)", "alexnet (batch default)"]
    elsewhere = [replace(run, machine=MACHINES[GPU]) for run in RUNS]
    assert [sweep.name for sweep in sweeps([*RUNS, *elsewhere])] == ["alexnet"] * 2, "their machines tell them apart"


def test_one_launch_that_waits_is_enough_not_to_be_chosen() -> None:
    (sweep,) = sweeps([*RUNS, fed(way(4, 1), 0.8, 0.4)])
    assert sweep.chosen is not None
    assert sweep.chosen.used == way(4)


def test_where_no_setting_does_it_says_how_many_workers_would() -> None:
    finding = feed.analyse(RUNS[:2])
    assert finding.summary == (
        "alexnet on Laptop CPU, 4 cores: no setting keeps the device busy; it waits 33.3 % of the time with 2 workers, "
        "prefetch 4. About 3 workers would keep up, if each has a core of its own."
    )


def test_input_that_is_fast_enough_alone_needs_no_more_workers() -> None:
    summary = feed.analyse([fed(way(0), 0.2, 0.2), fed(way(2), 0.1, 0.1)]).summary
    assert summary.endswith("Input alone is fast enough: beside compute it lacks cores, or a worker that reads ahead.")


def test_bursts_count_by_their_sum_and_not_by_the_median_step() -> None:
    """Four workers: three batches at once for nothing, and then a wait for the next four."""
    steps, waits = [1.0, 1.0, 1.0, 5.0] * 3, [0.0, 0.0, 0.0, 4.0] * 3
    run = fed(way(4), 2.0, 0.0)
    assert run.feed is not None
    run = replace(run, step_s=steps, feed=replace(run.feed, wait_s=waits))
    (sweep,) = sweeps([run])
    assert (sweep.ways[0].waiting, sweep.ways[0].fed_s, sweep.ways[0].slowdown) == (0.5, 2.0, 1.0)


def test_readers_that_take_cores_from_compute_are_seen() -> None:
    run = fed(way(2), 1.0, 0.0)
    (sweep,) = sweeps([replace(run, step_s=[1.5] * 10)])
    assert sweep.ways[0].slowdown == 1.5


def test_bandwidth_is_of_the_median_copy_and_says_how_many_gpus_a_link_serves() -> None:
    runs = [fed(replace(way(4), pinned=True, overlapped=True), 0.5, 0.0, place=GPU)]
    finding = feed.analyse(runs)
    assert finding.tables[1].rows == [["NVIDIA H200", "1000 bytes", 1.0, 0.25]]
    assert any("takes 100 ms at 1 GB/s; one such link could serve 10 of these GPUs" in note for note in finding.notes)
    assert finding.summary.startswith("alexnet on NVIDIA H200: 4 workers, prefetch 4, pinned, overlapped keeps")


def test_a_set_kept_on_the_device_has_no_readers() -> None:
    (sweep,) = sweeps([fed(None, 0.01, 0.0), fed(way(1), 0.2, 0.0)])
    assert [each.name for each in sweep.ways] == ["kept on the device (default)", "1 worker, prefetch 4"]
    assert sweep.ways[0].input_per_core is None
    assert feed.analyse([fed(None, 0.01, 0.5)]).summary.endswith("kept on the device (default).")


@pytest.mark.parametrize(("found", "name"), [("1.9.0", "simplejpeg"), (None, "Pillow")])
def test_what_decodes_images_is_named(found: str | None, name: str) -> None:
    run = fed(way(1), 0.2, 0.0, item="image")
    real = replace(
        run, spec=replace(run.spec, data="imagenet"), machine=replace(run.machine, libraries={"simplejpeg": found})
    )
    assert f"JPEG is decoded by {name}. `benchmarks/jpeg.py` compares decoders." in feed.analyse([real]).notes
    assert not any("JPEG" in note for note in feed.analyse([run]).notes)


def test_failed_cells_are_named_and_other_questions_do_not_count_feed_runs() -> None:
    failed = fed(way(8), 1.0, 0.0, outcome="failed", reason="worker killed", step_s=[], feed=None)
    finding = feed.analyse([*RUNS, failed])
    note = "Not shown: failed runs: alexnet, 8 workers, prefetch 4, pageable: worker killed."
    assert finding.notes[-1] == note
    assert feed.analyse([failed]).summary.startswith("Not measured: every feed run failed.")
    assert not analyse("phases", RUNS).answered
    assert not analyse("suite", RUNS).answered


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"wait_s": [0.1]}, "wait_s has 1 values for 10 steps"),
        ({"compute_s": []}, "no times of input alone"),
        ({"input_s": []}, "no times of input alone"),
        ({"transfers": [Transfer(bytes=0, pinned=True, seconds=[1.0])]}, "a copy of no bytes"),
        ({"transfers": [Transfer(bytes=1, pinned=True, seconds=[])]}, "a copy of no bytes"),
    ],
)
def test_records_that_no_run_can_have_left_are_refused(change: dict[str, Any], told: str) -> None:
    assert RUNS[0].feed is not None
    wrong = replace(RUNS[0], feed=replace(RUNS[0].feed, **change))
    with pytest.raises(DataError, match=told):
        Record.from_json(wrong.to_json())


@pytest.mark.usefixtures("on_the_laptop")
def test_the_command_resumes_goes_on_after_a_failure_and_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Feeding | None] = []

    def run(spec: Any, *_: Any) -> Record:
        made.append(spec.feeding)
        if spec.feeding == way(1) and len(made) < 4:
            return fed(way(1), 1.0, 0.0, outcome="failed", reason="worker killed", step_s=[], feed=None)
        record = fed(spec.feeding, 0.5, 0.0 if spec.feeding and spec.feeding.workers else 1.0)
        return replace(record, spec=spec)

    monkeypatch.setattr(study, "_run", run)  # in place of worker processes
    arguments = ("feed", "alexnet", "--device", "cpu", "--workers", "0,1", "--prefetch", "4", "--runs", "1")
    assert fathom(monkeypatch, *arguments, "--out", tmp_path, "--json") == 1, "a cell failed"
    assert sorted(map(str, made)) == ["1 worker, prefetch 4, pageable", "None", "no workers, pageable"]
    assert len(json.loads(capsys.readouterr().out)["tables"][0]["rows"]) == 2
    del made[:]
    made += [None] * 4
    assert fathom(monkeypatch, *arguments, "--out", tmp_path, "--json") == 0
    assert made[4:] == [way(1)], "only what failed is run again"
    assert "1 worker, prefetch 4 keeps the device busy" in json.loads(capsys.readouterr().out)["summary"]
    assert len(list(Store(tmp_path).records())) == 4, "the failed run is kept"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--workers", "two"], "--workers takes whole numbers such as 0,1,2, not 'two'"),
        (["--prefetch", ""], "--prefetch takes whole numbers"),
        (["--copies", "pined"], "no kind of copies 'pined'; did you mean pinned?"),
        (["--copies", ","], "--copies takes"),
        (["--workers", "9999"], "--workers takes 0 to"),
    ],
)
def test_wrong_options_are_one_line(
    arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fathom(monkeypatch, "feed", "alexnet", "--device", "cpu", *arguments) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert fathom(monkeypatch, "feed", "deepq", "--device", "cpu") == 2
    assert "deepq makes its batches by acting in an environment" in capsys.readouterr().err
