"""The hardware catalogue: every number has a source, names are found as people write them, and numbers agree."""

from __future__ import annotations

import csv
import json
from importlib.resources import files

import pytest
from conftest import fathom as run_fathom

from fathom import published
from fathom.core.errors import BadOption, UnknownName
from fathom.predict import catalogue
from fathom.predict.catalogue import PRECISIONS, device, devices, hypothetical, interconnect, interconnects

FOLDER = files("fathom") / "predict" / "catalogue"
WANTED = ["K40", "K80", "P100", "V100", "TPUv2", "A100", "A100-80GB", "H100", "H100-PCIe", "H200", "B200", "MI300X"]
WANTED += ["POWER8", "i7-6700K", "i7-3820", "neoverse-n1"]
LINKS = ["PCIe3", "PCIe4", "PCIe5", *(f"NVLink{generation}" for generation in range(1, 6))]
LINKS += ["FDR", "EDR", "HDR", "NDR", "10GbE", "25GbE", "100GbE"]


def rows(table: str) -> list[dict[str, str]]:
    return list(csv.DictReader((FOLDER / f"{table}.csv").read_text(encoding="utf-8").splitlines()))


def test_every_number_has_one_known_source_and_every_source_is_used() -> None:
    numbers = rows("numbers")
    assert {row["source"] for row in numbers} == {row["id"] for row in rows("sources")}
    assert len({(row["of"], row["quantity"]) for row in numbers}) == len(numbers)
    assert {row["of"] for row in numbers} == devices().keys() | interconnects().keys()
    assert all(source.title and source.kind for source in catalogue.all_sources().values())


def test_a_field_is_known_if_and_only_if_it_has_a_source() -> None:
    fields = {field for field, _ in catalogue.FIELDS.values()}
    for each in devices().values():
        assert {field for field in fields if getattr(each, field) is not None} == each.sources.keys(), each.name
    for link in interconnects().values():
        assert link.sources.keys() == {"bytes_per_s", "latency_s"}, link.name


def test_names_and_aliases_are_unambiguous() -> None:
    meant: dict[str, str] = {}
    for row in [*rows("devices"), *rows("interconnects")]:
        for alias in (row["name"], *filter(None, row["aliases"].split("|"))):
            assert meant.setdefault(catalogue._plain(alias), row["name"]) == row["name"]


@pytest.mark.parametrize(
    ("name", "cores", "ghz", "flop_per_cycle"),
    [("i7-3820", 4, 3.6, 16), ("i7-5930K", 6, 3.5, 32), ("i7-6700K", 4, 4.0, 32), ("POWER8", 10, 4.0, 16)],
)
def test_the_peak_of_a_cpu_is_that_of_all_its_cores(name: str, cores: int, ghz: float, flop_per_cycle: int) -> None:
    assert device(name).fp32_flop_per_s == pytest.approx(cores * ghz * 1e9 * flop_per_cycle)


@pytest.mark.parametrize("name", WANTED)
def test_the_devices_that_were_asked_for_are_there(name: str) -> None:
    assert device(name).sources


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("Tesla K40m", "K40"),
        ("Tesla P100-SXM2-16GB", "P100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_names_that_drivers_report_are_found(reported: str, name: str) -> None:
    assert device(reported).name == name


@pytest.mark.parametrize("name", LINKS)
def test_the_interconnects_that_were_asked_for_have_a_latency(name: str) -> None:
    link = interconnect(name)
    assert link.bytes_per_s > 1e9
    assert link.latency_s is not None
    assert 1e-7 < link.latency_s < 1e-4


def test_units_and_spelling() -> None:
    h200 = device("NVIDIA H200")
    assert h200 is device("H-200")
    assert (h200.bf16_flop_per_s, h200.memory_bytes, h200.memory_bytes_per_s) == (989.4e12, 141e9, 4.8e12)
    assert device("k80").parts == 2
    assert interconnect("pcie 3.0 x16").bytes_per_s == pytest.approx(16 * 8e9 * 128 / 130 / 8, rel=1e-3)
    assert interconnect("InfiniBand FDR").bytes_per_s == pytest.approx(4 * 14.0625e9 * 64 / 66 / 8, rel=1e-3)


def test_lower_precision_is_never_slower_and_matrix_peaks_are_dense() -> None:
    for each in devices().values():
        peaks = [peak for name in PRECISIONS[:3] if (peak := each.peak_flop_per_s(name)) is not None]
        assert peaks == sorted(peaks), each.name
        half = {peak for name in ("bf16", "fp16") if (peak := each.peak_flop_per_s(name)) is not None}
        assert len(half) <= 1
        if each.tf32_flop_per_s and half:
            assert half.pop() / each.tf32_flop_per_s == pytest.approx(2, rel=0.05), each.name


def test_the_cookbooks_slide_of_todays_hardware() -> None:
    """TPU2 180 (four chips), V100 15 and 120, P100 10.6, K40 4.29, K80 8.74 TFLOP/s; V100 later had 15.7 and 125."""
    assert 4 * (device("TPU v2").bf16_flop_per_s or 0) == 180e12
    slide = {"P100": 10.6e12, "K40": 4.29e12, "K80": 8.74e12}
    assert {name: device(name).fp32_flop_per_s for name in slide} == slide
    assert device("V100").fp32_flop_per_s == pytest.approx(15e12, rel=0.05)
    assert device("V100").fp16_flop_per_s == pytest.approx(120e12, rel=0.05)


def test_the_cookbooks_example_of_advice_needs_more_than_eight_p100() -> None:
    """Its form says 120.2 hours for 1e8 items, 10 epochs, ResNet101, count 8: faster than 8 cards at their peak."""
    (resnet,) = [each for each in published.dlbs_models() if each.name == "resnet101"]
    assert resnet.forward_gmac is not None
    flop = 1e8 * 10 * 3 * 2 * resnet.forward_gmac * 1e9
    hours = flop / (8 * (device("P100").fp32_flop_per_s or 0)) / 3600
    assert hours == pytest.approx(148.8, abs=0.1)
    assert hours > 120.2


def test_a_hypothetical_machine() -> None:
    machine = hypothetical(100, 2000, memory_gb=64)
    assert {machine.peak_flop_per_s(name) for name in PRECISIONS} == {1e14}
    assert (machine.memory_bytes, machine.memory_bytes_per_s, machine.tdp_w) == (64e9, 2e12, None)
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(BadOption, match="peak must be"):
            hypothetical(bad, 1)


def test_wrong_names_are_one_line_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="no device 'H300'; did you mean H200"):
        device("H300")
    with pytest.raises(UnknownName, match="did you mean InfiniBand HDR"):
        interconnect("infiniband hddr")
    with pytest.raises(UnknownName, match="there are: K20"):
        device("§§§")
    with pytest.raises(UnknownName, match="precision"):
        device("K40").peak_flop_per_s("fp12")


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_fathom(monkeypatch, "devices") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*devices(), *interconnects()))
    assert run_fathom(monkeypatch, "devices", "edr", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["devices"] == []
    (edr,) = document["interconnects"]
    assert edr["bytes_per_s"] == 12.5e9
    assert edr["sources"]["latency_s"]["url"].startswith("https://github.com/NVIDIA/nccl")
    assert run_fathom(monkeypatch, "devices", "mi300x") == 0
    assert "304/228" in capsys.readouterr().out
    assert run_fathom(monkeypatch, "devices", "nvlink9") == 2
    assert "did you mean NVLink" in capsys.readouterr().err
