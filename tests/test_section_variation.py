"""Fig. 4 of the Minsky study: mean and standard deviation of every section beside the means in print."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sample_records import launch, record_of, sections_of

from fathom import published
from fathom.analysis.finding import Finding
from fathom.analysis.questions import section_variation, variance
from fathom.core.record import Record

SECTIONS = {"INIT": 0.1, "SETUP": 0.2, "RUN": 0.6, "MAIN": 0.9, "WALL": 1.0}  # parts of a sample's wall time


def launches(workload: str, walls: list[float], gpu: bool = False, **spec: Any) -> list[Record]:
    return [launch(workload, wall_s, gpu=gpu, spec=spec) for wall_s in walls]


def row(finding: Finding, workload: str, section: str) -> dict[str, Any]:
    (table,) = finding.tables
    rows = [dict(zip(table.columns, cells, strict=True)) for cells in table.rows]
    (found,) = [each for each in rows if (each["workload"], each["section"]) == (workload, section)]
    return found


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_has_mean_and_deviation_over_the_cpus_mean_wall_time(section: str) -> None:
    cpu, gpu = [8.0, 10.0, 12.0], [1.0, 2.0, 6.0]
    finding = section_variation.analyse([*launches("vgg", cpu), *launches("vgg", gpu, gpu=True)])
    found, part = row(finding, "vgg", section), SECTIONS[section]
    for mode, walls in (("CPU", cpu), ("CPU+GPU", gpu)):
        assert found[f"{mode}: launches"] == 3
        assert found[f"{mode}: mean"] == pytest.approx(part * statistics.fmean(walls) / 10)
        assert found[f"{mode}: standard deviation"] == pytest.approx(part * statistics.stdev(walls) / 10)
        printed = published.sections()["vgg", mode]
        assert found[f"{mode}: published mean"] == getattr(printed, section.lower())


def test_all_that_is_printed_stands_beside_ours() -> None:
    names = list(published.op_percent())
    every = [each for name in names for gpu in (False, True) for each in launches(name, [1.0, 2.0, 3.0], gpu=gpu)]
    finding = section_variation.analyse(every)
    theirs = {
        (name, mode, section): row(finding, name, section)[f"{mode}: published mean"]
        for name in names
        for mode in ("CPU", "CPU+GPU")
        for section in SECTIONS
    }
    printed = {
        (name, mode, section): getattr(sections, section.lower())
        for (name, mode), sections in published.sections().items()
        for section in SECTIONS
    }
    assert {key: value for key, value in theirs.items() if value is not None} == printed
    assert len(printed) == 7 * 2 * 5
    assert "Not in the study: speech." in finding.notes


def test_no_deviation_is_ascribed_to_the_study() -> None:
    finding = section_variation.analyse(launches("vgg", [8.0, 10.0, 12.0]))
    assert not any("published" in column and "deviation" in column for column in finding.tables[0].columns)
    assert any("draws how they vary and prints no numbers" in note for note in finding.notes)


def test_inference_has_no_published_mean() -> None:
    found = row(section_variation.analyse(launches("vgg", [8.0, 10.0, 12.0], phase="infer")), "vgg", "RUN")
    assert found["CPU: published mean"] is None
    assert found["CPU+GPU: launches"] is None


def test_three_launches_a_side_are_not_tested() -> None:
    finding = section_variation.analyse([*launches("vgg", [8.0, 10.0, 12.0]), *launches("vgg", [1.0] * 3, gpu=True)])
    assert "3 launches a side cannot show a difference between CPU and GPU; at least 5 are needed." in finding.summary
    assert "lower" not in finding.summary
    assert {row(finding, "vgg", section)["smallest detectable ratio"] for section in SECTIONS} == {None}
    assert not any("Brown-Forsythe" in note for note in finding.notes)


def test_a_difference_is_found_in_the_section_that_it_was_planted_in() -> None:
    """RUN scatters on the CPU alone; INIT and SETUP do not differ."""
    random = np.random.default_rng(1)

    def program(gpu: bool, noise: float) -> Record:
        quiet, loud = 1 + 0.01 * random.standard_normal(2), 1 + noise * random.standard_normal()
        sections = replace(sections_of(10.0), init_s=quiet[0], setup_s=quiet[1], run_s=6 * loud)
        return replace(launch("vgg", 10.0 + 6 * (loud - 1), gpu=gpu), sections=replace(sections, wall_s=10 * loud))

    records = [program(gpu, 0.001 if gpu else 0.2) for gpu in (False, True) for _ in range(20)]
    finding = section_variation.analyse(records)
    results = {section: row(finding, "vgg", section)["variation with a GPU"] for section in SECTIONS}
    assert (results["RUN"], results["WALL"]) == ("lower", "lower")
    assert (results["INIT"], results["SETUP"]) == ("no significant difference",) * 2
    assert "INIT 0 and 0 of 1; SETUP 0 and 0 of 1; RUN 1 and 0 of 1" in finding.summary
    smallest = variance.detectable_ratio(20, 20)
    assert smallest is not None
    assert f"is {smallest:.2f}." in finding.summary, "what the test could have shown stands beside what it showed"
    assert any("Of 5 such tests, about 0 are significant by chance alone." in note for note in finding.notes)


def test_a_gpu_without_its_cpu_has_no_unit_and_few_launches_no_answer() -> None:
    assert section_variation.analyse(launches("vgg", [1.0] * 5, gpu=True)).summary.startswith("Not measured")
    assert section_variation.analyse(launches("vgg", [1.0, 2.0])).summary.startswith("Not measured")
    assert section_variation.analyse([record_of("vgg")]).tables == []


def test_charts_have_the_deviation_of_every_section_in_either_mode() -> None:
    finding = section_variation.analyse(
        [*launches("vgg", [8.0, 10.0, 12.0]), *launches("vgg", [1.0, 2.0, 3.0], gpu=True)]
    )
    cpu, gpu = finding.charts
    assert {series.name: series.y for series in cpu.series} == {
        name: pytest.approx([0.2 * part]) for name, part in SECTIONS.items()
    }
    assert {series.name: series.y for series in gpu.series} == {
        name: pytest.approx([0.1 * part]) for name, part in SECTIONS.items()
    }
