"""Numbers published in the papers, with their sources, for comparison with ours.

Tables are the CSV files in this folder; single numbers from the text of a paper are constants here. Workloads have
Fathom's names.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

FATHOM = "Adolf, Rama, Reagen, Wei and Brooks, Fathom: Reference Workloads for Modern Deep Learning Methods, IISWC 2016"
MINSKY = (
    "Guignard, Schild, Bederián, Wolovick and Vega, Performance Characterization of State-Of-The-Art Deep Learning "
    "Workloads on an IBM Minsky Platform, HICSS 2018"
)
POWER_STUDY = (
    "Mazuecos Pérez, Seiler, Bederián, Wolovick and Vega, Power Efficiency Analysis of a Deep Learning Workload on an "
    "IBM Minsky Platform, CARLA 2018"
)
GUIDE = "Wünsche, A Beginners Guide to Performance Factors of Machine Learning Applications, University of Magdeburg"
COOKBOOK = "Vassilieva, Characterization and Benchmarking of Deep Learning, Hewlett Packard Labs (slides)"

SOURCES = {  # table -> its source
    "fathom_table1_survey": f"{FATHOM}, Table I",
    "fathom_2016_code": (
        "Derived from the public code of the 2016 suite, github.com/rdadolf/fathom, commit 1dc013d (not printed in the "
        "paper; memnet's parameters are approximate, and what it says of the 2013 paper was not read there again)"
    ),
    "fathom_fig3_op_percent": f"{FATHOM}, Fig. 3",
    "fathom_table2_workloads": f"{FATHOM}, Table II",
    "minsky_table1_gpu_efficiency": f"{MINSKY}, Table 1",
    "minsky_table2_sections": f"{MINSKY}, Table 2",
    "power_study_statements": f"{POWER_STUDY} (statements of its abstract and slides; its figures are images)",
    "guide_table1_threads": f"{GUIDE}, Table I",
    "guide_doubling_gpus": f"{GUIDE}, section IV-C (text)",
    "cookbook_models": COOKBOOK,
    "dlbs_models": "Counted from the model definitions of the Deep Learning Benchmarking Suite, Hewlett Packard",
    "memn2n_babi_error_percent": (
        "Sukhbaatar, Szlam, Weston and Fergus, End-To-End Memory Networks, 2015, Table 1 (a transcription confirmed by "
        "its column means alone, which are the printed ones; its single cells were not read again)"
    ),
}

MACHINE = "a 4 GHz Core i7-6700K under TensorFlow 0.8"  # of the Fathom paper, unless it says otherwise
MINSKY_MACHINE = "two POWER8 and a Tesla P100 under TensorFlow 1.0"
MINSKY_LAUNCHES = 200  # measured per workload, after 10 for warm-up
MINSKY_START_PERCENT = 61  # "almost", of the run time of the smallest models: Python, TensorFlow and GPUs, section 4.5
MINSKY_FOUR_GPUS_PERCENT = 14  # "about", of that of the smallest workload: initialising all four GPUs, section 4.1
OUTSIDE_OPS_PERCENT = (1.0, 2.0)  # "typically less than 1-2 %" of the time, Fathom V-A
HEAVY_TYPES = (5, 15)  # number of op types that usually take more than 90 % of the time, Fathom V-B
FULLY_CONNECTED_PERCENT = {"alexnet": "11", "vgg": "7", "residual": "< 1"}  # of the time, Fathom V-B
FULLY_CONNECTED_WORDING = (
    "Of alexnet it speaks of two layers of locally-connected neurons; that network has three fully connected layers."
)
OPTIMIZER_PERCENT = {"deepq": {8: 7.0}}  # workload -> threads -> the optimizer's share of the time, Fathom V-E
SIMILARITY_IN_TEXT = 0.4  # "about 0.4" between these two clusters, Fathom V-C
CLUSTERS_IN_TEXT = (("seq2seq", "memnet"), ("speech", "autoenc"))
SCALING_WELL, SCALING_BADLY = ("alexnet", "residual", "vgg"), ("autoenc", "memnet")  # up to 20 cores, Minsky, Fig. 2


CATEGORIES = {  # of Table I -> its features, in order; the deepest network is a number of its own
    "neuronal style": ("fully connected", "convolutional", "recurrent"),
    "learning task": ("inference", "supervised", "unsupervised", "reinforcement"),
    "application domain": ("vision", "speech", "language modeling", "function approximation"),
}
STYLES = {"Full": "fully connected", "Convolutional": "convolutional", "Recurrent": "recurrent"}  # Table II -> Table I
DOMAINS = {  # data set of Table II -> domains of Table I. The paper marks the suite as a whole; this is our reading
    "WMT-15": ("language modeling",),
    "bAbI": ("language modeling",),
    "TIMIT": ("speech",),
    "MNIST": ("vision",),
    "ImageNet": ("vision",),
    "Atari ALE": ("vision", "function approximation"),
}


@dataclass(frozen=True)
class SurveyedPaper:
    """A column of Fathom's Table I: a paper on hardware for deep learning, or Fathom itself."""

    reference: int | None  # its number in the paper's references; None for Fathom
    name: str
    authors: str
    year: int
    layers: int  # of its deepest network
    features: frozenset[str]


@dataclass(frozen=True)
class CodeFacts:
    """What the public code of the 2016 suite builds, counted; its paper does not print it."""

    layers: int
    parameters: int
    note: str


@dataclass(frozen=True)
class WorkloadFacts:
    """A row of Fathom's Table II."""

    name: str
    year: int
    style: str
    layers: int
    task: str
    dataset: str


@dataclass(frozen=True)
class GpuEfficiency:
    """A row of Minsky's Table 1."""

    kernel_over_api_time: float
    memcpy_percent: float  # of kernel time


@dataclass(frozen=True)
class Sections:
    """A row of Minsky's Table 2, normalised to the wall time without a GPU."""

    init: float
    setup: float
    run: float
    main: float
    wall: float


@dataclass(frozen=True)
class PowerStatement:
    """What the power study says of capping clocks, in words and as a number."""

    percent: float
    statement: str
    where: str  # abstract or slides


@dataclass(frozen=True)
class ReferenceModel:
    """The size of a network; None where the source gives no number. The slides call giga-MACs "GFLOPs"."""

    name: str
    parameters: int | None
    mebibytes: float | None
    forward_gmac: float | None
    weight_layers: int | None = None


@cache
def op_percent() -> dict[str, dict[str, float]]:
    """Workload -> op type -> percent of the execution time, in the order of Fathom's Fig. 3; 0 means below 1."""
    return {
        row["workload"]: {kind: float(value) for kind, value in row.items() if kind != "workload"}
        for row in _rows("fathom_fig3_op_percent")
    }


@cache
def survey() -> list[SurveyedPaper]:
    """The 16 papers of Fathom's Table I in its order, and Fathom last."""
    features = [feature for own in CATEGORIES.values() for feature in own]
    return [
        SurveyedPaper(
            reference=int(row["reference"]) if row["reference"] else None,
            name=row["name"],
            authors=row["authors"],
            year=int(row["year"]),
            layers=int(row["layers"]),
            features=frozenset(feature for feature in features if row[feature] == "1"),
        )
        for row in _rows("fathom_table1_survey")
    ]


@cache
def code_of_2016() -> dict[str, CodeFacts]:
    return {
        row["workload"]: CodeFacts(int(row["layers"]), int(row["parameters"]), row["note"])
        for row in _rows("fathom_2016_code")
    }


@cache
def workloads() -> list[WorkloadFacts]:
    return [
        WorkloadFacts(
            name=row["model"],
            year=int(row["year"]),
            style=row["style"],
            layers=int(row["layers"]),
            task=row["task"],
            dataset=row["dataset"],
        )
        for row in _rows("fathom_table2_workloads")
    ]


@cache
def gpu_efficiency() -> dict[str, GpuEfficiency]:
    return {
        row["workload"].lower(): GpuEfficiency(
            kernel_over_api_time=float(row["kernel_time_over_api_time"]),
            memcpy_percent=float(row["memcpy_kernels_pct"]),
        )
        for row in _rows("minsky_table1_gpu_efficiency")
    }


@cache
def sections() -> dict[tuple[str, str], Sections]:
    """(workload, "CPU" or "CPU+GPU") -> sections."""
    return {
        (row["workload"].lower(), row["mode"]): Sections(
            init=float(row["INIT"]),
            setup=float(row["SETUP"]),
            run=float(row["RUN"]),
            main=float(row["MAIN"]),
            wall=float(row["WALL"]),
        )
        for row in _rows("minsky_table2_sections")
    }


@cache
def power_statements() -> dict[str, PowerStatement]:
    """saved_energy, workloads_less_edp and workloads_no_time_lost -> what is said of it."""
    return {
        row["quantity"]: PowerStatement(float(row["percent"]), row["statement"], row["where"])
        for row in _rows("power_study_statements")
    }


@cache
def thread_seconds() -> dict[str, dict[int, float]]:
    """Framework -> threads -> seconds for a minibatch of 64 of a fully connected network on 4 cores (i7-3820)."""
    return {
        row["framework"]: {int(name[1:]): float(row[name]) for name in ("t1", "t2", "t4", "t8") if row[name] != "na"}
        for row in _rows("guide_table1_threads")
    }


@cache
def doubling_percent() -> dict[str, float]:
    """Framework -> by how much training time falls when the number of GPUs is doubled; 50 % would be ideal."""
    return {row["framework"]: float(row["percent"]) for row in _rows("guide_doubling_gpus")}


@cache
def babi_error_percent() -> dict[str, dict[str, float]]:
    """bAbI task (or mean_1k, mean_10k) -> variant of the network -> test error in percent.

    Only the means of the columns are confirmed: a cell by itself is a guide, and no result.
    """
    return {
        row["task"]: {name: float(value) for name, value in row.items() if name != "task"}
        for row in _rows("memn2n_babi_error_percent")
    }


@cache
def cookbook_models() -> list[ReferenceModel]:
    return [
        ReferenceModel(row["name"], int(row["params"]), float(row["MB"]), float(row["GFLOPs_forward"]))
        for row in _rows("cookbook_models")
    ]


@cache
def dlbs_models() -> list[ReferenceModel]:
    return [
        ReferenceModel(
            name=row["model"],
            parameters=None if row["params"] == "NA" else int(row["params"]),
            mebibytes=_number(row["MiB"]),
            forward_gmac=_number(row["fwd_GMAC"]),
            weight_layers=None if row["weight_layers"] == "NA" else int(row["weight_layers"]),
        )
        for row in _rows("dlbs_models")
    ]


def _rows(name: str) -> list[dict[str, str]]:
    text = (files("fathom") / "published" / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _number(text: str) -> float | None:
    return None if text == "NA" else float(text)
