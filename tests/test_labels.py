"""A machine is its fingerprint: two of the same make are never pooled, and one in two folders is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_records import record_of

from fathom.analysis.compare import compare
from fathom.analysis.finding import Table, analyse
from fathom.analysis.frame import frame
from fathom.analysis.labels import labelled
from fathom.analysis.questions.cores import curves_of
from fathom.core.errors import DataError
from fathom.core.fingerprint import Cpu, Gpu, Machine
from fathom.core.record import Record
from fathom.core.store import Store, read
from fathom.machine.host import host_id
from fathom.report import runs, write
from fathom.report.machines import machines

CPU = Cpu(name="Neoverse-N1", logical_cores=2, physical_cores=2, affinity=[0, 1], threads=2)
ONE = Machine(cpu=CPU, memory_bytes=24 * 2**30, system="Linux 6.18 aarch64", host_id="0a")
OTHER = replace(ONE, host_id="0b")


def run_of(machine: Machine, step_s: float = 1.0, folder: str | None = None, **more: Any) -> Record:
    return record_of(
        "memnet", None, machine=machine, step_s=[step_s] * 10, warmup_s=[step_s] * 2, origin=folder, **more
    )


def stored(folder: Path, records: Sequence[Record]) -> Path:
    for record in records:
        Store(folder).add(record)
    return folder


def column(table: Table, name: str) -> list[float]:
    return sorted(float(str(row[table.columns.index(name)])) for row in table.rows)


def labels(records: Sequence[Record]) -> list[str]:
    return [record.machine_label for record in labelled(records)]


@pytest.mark.parametrize(
    "other",
    [
        OTHER,
        replace(ONE, host_id=None),
        replace(ONE, memory_bytes=48 * 2**30),
        replace(ONE, system="Linux 6.18 x86_64"),
        replace(ONE, cpu=replace(CPU, logical_cores=4)),
    ],
)
def test_two_machines_with_the_same_processor_are_named_by_their_folders(other: Machine) -> None:
    assert labels([run_of(ONE, folder="results/a"), run_of(other, folder="results/b")]) == [
        "Neoverse-N1 (results/a), 2 cores",
        "Neoverse-N1 (results/b), 2 cores",
    ]


@pytest.mark.parametrize(
    "later",
    [
        replace(ONE, cpu=replace(CPU, clock_mhz=1900.0, load_average=[6.0, 5.0, 4.0], threads=1, governor="powersave")),
        replace(ONE, cpu=replace(CPU, microcode="0x2"), boot_time="2026-01-02T00:00:00+00:00", python="3.13.1"),
        replace(ONE, system="Linux 6.19 aarch64", commit="abc", libraries={"torch": "2.12"}, blas="mkl"),
        replace(ONE, memory_bytes=24 * 2**30 - 2**25, gpus=[Gpu(name="NVIDIA H200", temperature_c=60.0)]),
    ],
)
def test_one_machine_in_two_folders_is_one(later: Machine) -> None:
    records = [run_of(ONE, folder="results/study"), run_of(later, folder="results/repeat")]
    assert labels(records) == ["Neoverse-N1, 2 cores"] * 2
    assert len(machines(labelled(records))) == 1
    assert len(analyse("phases", records).tables[0].rows) == 1


def test_fewer_cores_of_one_machine_keep_their_label() -> None:
    bound = run_of(replace(ONE, cpu=replace(CPU, affinity=[1])))
    assert labels([run_of(ONE), bound]) == ["Neoverse-N1, 2 cores", "Neoverse-N1, 1 core"]


def test_two_machines_in_one_folder_are_numbered_in_the_order_of_their_runs() -> None:
    later = run_of(ONE, folder="a", started="2026-01-02T00:00:00.000+00:00")
    earlier = run_of(OTHER, folder="a", started="2026-01-01T00:00:00.000+00:00")
    assert labels([later, earlier]) == ["Neoverse-N1 (machine 2), 2 cores", "Neoverse-N1 (machine 1), 2 cores"]


def test_cards_of_one_name_are_told_apart_on_one_host_and_on_two() -> None:
    def on_card(machine: Machine, uuid: str, folder: str) -> Record:
        card = replace(machine, gpus=[Gpu(name="NVIDIA H200", uuid=uuid)])
        return run_of(card, folder=folder, device="cuda:0", gpu_uuid=uuid)

    records = [on_card(ONE, "GPU-1", "a"), on_card(ONE, "GPU-2", "a"), on_card(OTHER, "GPU-3", "b"), run_of(ONE)]
    assert [label.partition(" (")[2] for label in labels(records)[:2]] == ["a, card 1)", "a, card 2)"]
    assert labels(records)[2] == "NVIDIA H200 (b)"
    assert labels([records[0], records[0]]) == ["NVIDIA H200"] * 2


def test_labels_of_labels_are_the_same() -> None:
    once = labelled([run_of(ONE, folder="a"), run_of(OTHER, folder="b")])
    assert labelled(once) == once


def test_no_question_pools_two_machines_into_a_value_that_neither_measured(tmp_path: Path) -> None:
    quiet = stored(tmp_path / "quiet", [run_of(ONE, 3.60e-3)])
    loaded = stored(tmp_path / "loaded", [run_of(OTHER, 11.9e-3)])
    records = read([quiet, loaded], on_unreadable=pytest.fail)
    assert column(analyse("phases", records).tables[1], "step, median (ms)") == pytest.approx([3.6, 11.9])
    assert column(runs.headline(labelled(records)), "step (ms)") == pytest.approx([3.6, 11.9])
    assert sorted(frame(records).groupby("machine").step_median_s.median()) == pytest.approx([3.6e-3, 11.9e-3])
    report = write(records, tmp_path / "report.md").read_text()
    assert f"Neoverse-N1 ({quiet}), 2 cores" in report
    assert "7.75" not in report


def test_core_scaling_curves_of_two_machines_are_two() -> None:
    bound = [
        run_of(machine, folder=folder, spec={"cores": (0,), "threads": 1})
        for machine, folder in ((ONE, "a"), (OTHER, "b"))
    ]
    assert [curve.name for curve in curves_of(labelled(bound))] == [
        "memnet on Neoverse-N1 (a)",
        "memnet on Neoverse-N1 (b)",
    ]


def test_core_scaling_curves_of_other_settings_say_which() -> None:
    bound = [run_of(ONE, spec={"cores": (0,), "threads": 1, "batch": batch}) for batch in (None, 64)]
    assert [curve.name for curve in curves_of(labelled(bound))] == ["memnet (batch default)", "memnet (batch 64)"]


def test_a_side_of_two_machines_is_not_compared() -> None:
    (found,) = compare([run_of(ONE, 1.0), run_of(OTHER, 3.0)], [run_of(ONE, 2.0)])
    assert (found.verdict, found.ratio) == ("not comparable", None)
    assert found.remark == "A has runs of 2 machines: compare folders of one machine each"
    (alone,) = compare([run_of(ONE, 1.0)], [run_of(OTHER, 2.0)])
    assert alone.ratio == pytest.approx(2.0)


@pytest.mark.parametrize("uuids", [("GPU-1", "GPU-2"), (None, None)])
def test_a_side_of_two_cards_of_one_machine_is_not_compared(uuids: tuple[str | None, str | None]) -> None:
    cards = [Gpu(name=name, uuid=uuid) for name, uuid in zip(("A100", "RTX 4090"), uuids, strict=True)]
    machine = replace(ONE, gpus=cards)
    fast, slow = (
        run_of(machine, step_s, device=f"cuda:{index}", gpu_uuid=uuids[index])
        for index, step_s in enumerate((1.0, 3.0))
    )
    (found,) = compare([fast, slow], [fast])
    assert (found.verdict, found.ratio) == ("not comparable", None)
    assert found.remark == "A has runs of 2 GPUs: compare folders of one GPU each"
    (alone,) = compare([fast], [slow])
    assert alone.ratio == pytest.approx(3.0)


def test_a_folder_is_known_to_the_reader_and_not_to_the_file(tmp_path: Path) -> None:
    folder = stored(tmp_path / "a", [run_of(ONE, folder="elsewhere")])
    (path,) = folder.glob("*.json")
    assert "elsewhere" not in path.read_text()
    (record,) = Store(folder).records()
    assert record.origin == str(folder)
    with pytest.raises(DataError, match="unknown field origin"):
        Record.from_json({**record.to_json(), "origin": "a"})


def test_the_id_of_a_host_survives_a_restart_and_a_container_has_that_of_its_host(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    machine, boot = tmp_path / "etc/machine-id", tmp_path / "proc/sys/kernel/random/boot_id"
    machine.write_text("0123\n")
    boot.write_text("first\n")
    before, contained = host_id(tmp_path, container=""), host_id(tmp_path, container="docker")
    boot.write_text("second\n")
    assert host_id(tmp_path, container="") == before != contained
    assert before is not None
    assert "0123" not in before
    assert host_id(tmp_path, container="docker") != contained
    machine.write_text("uninitialized\n")
    assert host_id(tmp_path, container="") is None
    machine.unlink()
    assert host_id(tmp_path, container="") is None
