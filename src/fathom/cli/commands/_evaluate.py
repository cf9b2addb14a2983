"""Error tables of fathom predict: on a machine's own records, and beside published results."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from fathom.cli.terminal import count, human, print_json, print_table, print_text, skipped
from fathom.core.errors import BadOption, UnknownName
from fathom.core.files import replace_whole
from fathom.core.record import Record
from fathom.core.spec import EAGER
from fathom.core.store import read_nonempty
from fathom.predict import campaign as campaigns
from fathom.predict.campaign import Campaign
from fathom.predict.errors import errors_file
from fathom.predict.evaluation import FITS, LEVEL, Score, Summary, summaries
from fathom.predict.evaluation import evaluate as scored
from fathom.predict.from_records import campaign_of, case_of, usable
from fathom.predict.other_batches import Case
from fathom.predict.predictors.names import AUTO, ROOFLINE, WITH_EXTRA
from fathom.predict.predictors.regression import has_scikit_learn
from fathom.predict.target import check_engine
from fathom.trace.step_work import StepWork


def evaluate(
    folders: Sequence[Path], calibration: Path, on: str | None, predictor: str, engine: str, as_json: bool
) -> None:
    """With the calibration of the records' machine; where there is none, with the op rows of the other workloads."""
    check_engine(engine)
    chosen = _predictors(predictor)
    records = read_nonempty(folders, skipped)
    machine, own = _machine(records, on, engine)
    path, campaign, cases = _material(own, machine, calibration, engine)
    scores = scored(campaign, cases, chosen)
    found = summaries(scores)
    if as_json:
        rows = [_row(each) for each in scores]
        print_json({"machine": machine, "engine": engine, "scores": rows, "summaries": _plain(found)})
    else:
        _print(machine, scores, found)
        source = f"{path}" if path else "op rows of the other workloads (no calibration of this machine)"
        human.print(f"predicted from {source}", style="dim", highlight=False)
    if path is not None and predictor == AUTO:  # last: a folder that cannot be written to costs no answer
        replace_whole(errors_file(path, engine), msgspec.json.format(msgspec.json.encode(found), indent=1))


def _machine(records: Sequence[Record], on: str | None, engine: str) -> tuple[str, list[Record]]:
    labels = sorted({each.machine_label for each in usable(records, engine, slow_host=True)})
    chosen = [label for label in labels if on is None or on.lower() in label.lower()]
    if len(chosen) != 1:
        hint = (
            "choose one by --on" if len(chosen) > 1 else f"no undisturbed profiled runs of {engine} among these records"
        )
        raise BadOption(f"{hint}: {', '.join(chosen or labels) or 'none'}")
    return chosen[0], [each for each in records if each.machine_label == chosen[0]]


def _material(
    records: Sequence[Record], machine: str, calibration: Path, engine: str
) -> tuple[Path | None, Campaign, list[Case]]:
    for path in campaigns.find(calibration):
        found = campaigns.read(path)
        if found.machine == machine and (found.gpu or found.threads in _threads(records)):
            from fathom.measure.calibration.cases import cases_of

            return path, found, cases_of(records, machine, engine)
    if engine != EAGER:
        raise BadOption(f"steps of {engine} are predicted from a calibration of {machine}; {calibration} has none")
    return None, campaign_of(records), [case_of(each) for each in usable(records)]


def _threads(records: Sequence[Record]) -> set[int | None]:
    """Of the runs that are compared: a calibration with others would say nothing of them."""
    return {each.machine.cpu.threads for each in usable(records)}


def _predictors(asked: str) -> list[str]:
    """The one that was asked for, beside the roofline; else all that are installed."""
    if asked in FITS:
        return list(dict.fromkeys([ROOFLINE, asked]))
    if asked != AUTO:
        raise UnknownName.among("predictor to evaluate", asked, (AUTO, *FITS))
    if has_scikit_learn():
        return list(FITS)
    human.print("without regressions: pip install 'fathom[predict]'", style="yellow")
    return [name for name in FITS if name not in WITH_EXTRA]


def _print(machine: str, scores: Sequence[Score], found: Sequence[Summary]) -> None:
    for situation in dict.fromkeys(each.situation for each in scores):
        names = list(dict.fromkeys(each.predictor for each in scores if each.situation == situation))
        rows: dict[tuple[object, ...], list[object]] = {}
        for each in scores:
            if each.situation == situation:
                key = each.workload, each.phase, each.batch, each.measured_s  # a step may have been measured twice
                rows.setdefault(key, [*key]).append(100 * each.error)
        columns = ["workload", "phase", "batch", "measured (s)", *(f"{name} (error %)" for name in names)]
        print_table(f"{machine}, {situation}", columns, list(rows.values()))
    columns = [
        "situation",
        "predictor",
        "steps",
        "mean error (%)",
        "median (%)",
        "largest (%)",
        "interval x/÷",
        "covered (%)",
    ]
    print_table("Absolute errors of step time", columns, [_summary_row(each) for each in found])
    print_text(f"Intervals aim at {LEVEL:.0%}; covered: by intervals from the other workloads' errors.")


def _summary_row(each: Summary) -> list[object]:
    errors = [100 * error for error in (each.mean_error, each.median_error, each.largest_error)]
    covered = None if each.coverage is None else 100 * each.coverage
    return [each.situation, each.predictor, each.cases, *errors, each.factor, covered]


def _row(each: Score) -> dict[str, object]:
    return dataclasses.asdict(each) | {"error": each.error}


def _plain(found: Sequence[Summary]) -> list[dict[str, object]]:
    return [dataclasses.asdict(each) for each in found]


def scaling(folders: Sequence[Path], as_json: bool) -> None:
    """Jobs of ddp beside predictions from one rank's steps and the machine's collectives."""
    from fathom.predict.rank_steps import cases_of

    cases = cases_of(read_nonempty(folders, skipped), _step_of_rank)
    rows = [[each.workload, each.scaling, each.ranks, each.batch, 1e3 * each.alone_s, 1e3 * each.measured_s,
             1e3 * each.predicted_s, 100 * each.error, 100 * (each.independent_s / each.measured_s - 1)]
            for each in cases]  # fmt: skip
    summary = {
        "jobs": len(cases),
        "mean_error": statistics.mean(abs(each.error) for each in cases),
        "median_error": statistics.median(abs(each.error) for each in cases),
        "largest_error": max(abs(each.error) for each in cases),
        "mean_error_of_independent_ranks": statistics.mean(
            abs(each.independent_s / each.measured_s - 1) for each in cases
        ),
    }
    if as_json:
        plain = [dataclasses.asdict(each) | {"error": each.error} for each in cases]
        print_json({"jobs": plain, "summary": summary})
        return
    columns = ["workload", "scaling", "ranks", "batch per rank", "one rank (ms)", "measured (ms)", "predicted (ms)"]
    print_table("Steps of several ranks", [*columns, "error (%)", "error of independent ranks (%)"], rows)
    print_text(
        f"Mean absolute error {summary['mean_error']:.1%} over {count(len(cases), 'job')} (median "
        f"{summary['median_error']:.1%}, largest {summary['largest_error']:.0%}); "
        f"{summary['mean_error_of_independent_ranks']:.1%} if ranks did not slow each other."
    )


def _step_of_rank(record: Record, batch: int) -> StepWork:
    from fathom.cli.commands.predict import step_of

    spec = record.spec
    options = dict(spec.options)
    return step_of(spec.workload, "train", spec.precision or "fp32", max(1, batch), spec.preset, options, False)


def published(as_json: bool) -> None:
    from fathom.predict.beside_published import COLUMNS, rows

    found = rows(_step)
    if as_json:
        print_json([dict(zip(COLUMNS, row, strict=True)) for row in found])
        return
    print_table("Published results beside predictions", COLUMNS, found)


def _step(workload: str, phase: str, batch: int, gpu: bool) -> StepWork:
    from fathom.engine.step_work import step_work
    from fathom.measure.own.cost import step_of_target
    from fathom.predict.beside_published import GUIDE_NETWORK
    from fathom.workloads.base import workload_class

    if workload == GUIDE_NETWORK:
        return step_of_target(f"{__name__}:guide_network", phase, "fp32", batch, gpu=gpu)
    return step_work(workload_class(workload).configured("paper", batch=batch), phase, gpu=gpu)


def guide_network() -> tuple[Any, ...]:
    """FCN-5 as a user's own model: the module, a batch and its loss."""
    import torch

    from fathom.frameworks.networks.fcn5 import FullyConnected

    network = FullyConnected()
    batch = torch.zeros(network.batch, network.features), torch.zeros(network.batch, dtype=torch.long)
    return network.torch_module(), batch, "cross_entropy"
