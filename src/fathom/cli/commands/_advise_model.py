"""fathom advise for a slow model: its profile, trials of settings where asked for, and what to change first."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fathom.analysis.advice import MEASURED, OTHER_BATCH, PREDICTED, Change, changes, in_code
from fathom.cli.commands._advise_options import Asked
from fathom.cli.terminal import count, human, print_json, print_table, print_text, progress_bar
from fathom.core.advice import Setting, SettingTrial
from fathom.core.errors import FathomError, Refused
from fathom.core.fingerprint import Machine
from fathom.core.formatting import listed
from fathom.core.record import Record
from fathom.core.spec import OWN
from fathom.core.store import Store
from fathom.experiments import advise
from fathom.experiments.isolate import isolated
from fathom.experiments.own import profile_target
from fathom.experiments.trials import KeptTrials

if TYPE_CHECKING:
    from fathom.workloads.base import Workload

PROFILED_STEPS, PROFILED_S = 100, 3.0  # at most
MOST_SOURCES = 200  # files beside a model's own that are looked at for changes


def advise_model(asked: Asked, as_json: bool) -> None:
    store = Store(asked.out)
    store.check_writable()
    record = profiled(asked)
    path = store.add(record)
    usual = usual_of(asked, record)
    ops = [(row.layer, row.op, row.shapes) for row in record.profile.rows] if record.profile else []
    known = [*identity(record.machine, ops), source_digest(asked.name) if asked.own else ""]
    found = searched(asked, usual, known) if asked.verify else advise.Found([], Setting())
    advice = changes(record, found.helpful, found.trials)
    basis = ""
    if not asked.verify and not usual.step:
        predicted, basis = _predicted(asked, usual)
        advice = sorted([*advice, *predicted], key=lambda change: -change.times)
    if as_json:
        print_json(document(asked, record, path, usual, found, advice) | {"prediction": basis})
        return
    _print(record, advice, asked)
    if basis:
        human.print(f"Predictions: {basis}", highlight=False, soft_wrap=True)
    _print_untried(usual, found, asked)
    if asked.verify:
        print_trials(found)
    human.print(f"record: {path}", soft_wrap=True)


def _predicted(asked: Asked, usual: advise.Usual) -> tuple[list[Change], str]:
    """What the profile cannot tell: batches and precisions that were not profiled."""
    from fathom.cli.commands._advise_predicted import predicted_changes

    try:
        workload = _simulated(asked)
    except FathomError as error:
        return [], f"its step cannot be simulated: {error}"
    return predicted_changes(workload, usual, advise.candidates(usual), asked.calibration)


def _simulated(asked: Asked) -> Workload:
    from fathom.measure.own.cost import workload_on_meta
    from fathom.workloads.base import workload_class

    if asked.own:
        return workload_on_meta(asked.name, asked.loss, asked.optimizer)
    options = dict(asked.spec.options) | ({} if asked.spec.batch is None else {"batch": asked.spec.batch})
    return workload_class(asked.name).configured(asked.spec.preset, **options)


def profiled(asked: Asked) -> Record:
    """With source lines, where a user's own code has any."""
    if asked.own:
        spec = asked.spec
        settings = {"phase": spec.phase, "device": spec.device, "precision": spec.precision, "threads": spec.threads}
        settings |= {"loss": asked.loss, "optimizer": asked.optimizer, "stacks": True}
        return profile_target(asked.name, asked.timeout_s, **settings)
    spec = replace(asked.spec, kind="profiled", steps=PROFILED_STEPS, budget_s=PROFILED_S)
    record = isolated(spec, heartbeat_timeout_s=asked.timeout_s)
    if record.outcome != "ok" or record.profile is None:
        raise Refused(f"{asked.name} was not profiled: {record.reason or 'its record has no profile'}")
    return record


def usual_of(asked: Asked, record: Record) -> advise.Usual:
    """How the model runs now, as its profile found it."""
    threads = asked.spec.threads or record.machine.cpu.threads
    common: dict[str, Any] = {"device": record.device, "phase": asked.spec.phase, "threads": threads}
    if asked.own:
        batch = None if asked.keep_batch else record.spec.batch
        step, precision = record.spec.source == "step", record.spec.precision
        return advise.Usual(**common, precision=precision, batch=batch, own=True, step=step)
    workload = _simulated(asked)
    return advise.Usual(
        **common,
        precision=asked.spec.precision,
        batch=None if asked.keep_batch else workload.batch,
        data=asked.spec.data is not None and not workload.interactive,
    )


def identity(machine: Machine, model: Iterable[Sequence[str]]) -> list[Any]:
    """What trials depend on beside the command line: the machine, the versions, and the parts of the model."""
    return [machine.digest, machine.commit, dict(machine.libraries), sorted({tuple(part) for part in model})]


def source_digest(target: str) -> str:
    """Of the code that a model is in, with what is beside it: an edited model is another one, whatever ops it has."""
    path = Path(*target.partition(":")[0].split("."))
    files = [path.with_suffix(".py"), *sorted((path if path.is_dir() else path.parent).glob("*.py"))[:MOST_SOURCES]]
    contents = b"\0".join(file.read_bytes() for file in files if file.is_file())
    return hashlib.sha256(contents).hexdigest()


def searched(asked: Asked, usual: advise.Usual, known: list[Any], also: Sequence[Setting] = ()) -> advise.Found:
    """A bar for all trials, and a line for each that has ended; `also` are settings to try beside the usual ones.

    Trials of a search that was interrupted are not made again, as long as what is `known` (identity) is as it was.
    """
    singles = list(dict.fromkeys([*advise.candidates(usual), *also]))
    spec, given = replace(advise.spec_of(asked.spec, asked.trial_s), device=usual.device), asked.given
    if asked.own:
        spec = replace(spec, preset=OWN, source="model", seed=None)
        given = given | {"computes_in": usual.precision}
    kept = KeptTrials(asked.out, [spec.to_json(), given, *known])
    if kept.found:
        human.print(f"{count(kept.found, 'trial')} of an interrupted search: {kept.path}", soft_wrap=True)
    with progress_bar() as bar:
        task = bar.add_task("trials", total=len(singles) + advise.MOST_COMBINED + advise.CONFIRMED)
        current = bar.add_task("")
        rounded: dict[str, list[list[float]]] = {}

        def attempt(setting: Setting, against: Setting) -> SettingTrial:
            named = f"{setting}, against {against}" if against.changes else str(setting)
            bar.reset(current, description=named, total=None)
            watch = partial(_progressed, bar, current)
            trial = kept.trial(
                setting,
                against,
                lambda: advise.in_process(spec, given, setting, against, watch, asked.timeout_s, rounded),
            )
            advise.keep_rounded(trial, rounded)
            bar.advance(task)
            bar.console.print(f"{named}: {outcome(trial)}", highlight=False, soft_wrap=True)
            return trial

        found = advise.search(singles, attempt)
    kept.finish()
    return found


def _progressed(bar: Any, task: Any, done: int, total: int) -> None:
    bar.update(task, completed=done, total=total)


def outcome(trial: SettingTrial) -> str:
    """A trial in a few words."""
    if trial.failed is not None:
        return f"does not apply: {trial.failed}" if trial.refused else f"failed: {trial.failed}"
    wrong = f"; results differ: {trial.disagreement}" if trial.disagreement else ""
    return f"{advise.gain(trial):.3g} times as many items per second{wrong}"


def _print(record: Record, advice: list[Change], asked: Asked) -> None:
    from fathom.analysis.overview import overview

    print_text(f"{record.spec.workload}, {record.spec.phase} on {record.device}")
    for line in overview(record).lines(record):
        print_text(f"  {line}")
    if not advice:
        told = "No setting that was tried makes it faster" if asked.verify else "The profile names nothing to change"
        print_text(f"{told}.")
        return
    print_text("What to change, most important first:")
    for number, change in enumerate(advice, 1):
        print_text(f"  {number}. {in_words(change)}")
    if any(change.caution == OTHER_BATCH for change in advice):
        print_text(f"  * {OTHER_BATCH}")
    if any(change.disturbed for change in advice):
        print_text("  disturbed: other programs used the machine; measure again when it is quiet")


def in_words(change: Change) -> str:
    if change.known == MEASURED:
        star = " *" if change.caution else ""
        interval = f"{change.low:.3g} to {change.high:.3g}"
        how = "measured, disturbed" if change.disturbed else "measured"
        return f"{change.times:.3g} times as fast ({interval}, {how}): {change.what}{star}; {change.evidence}"
    bound, source = ("up to ", "from the profile") if change.known != PREDICTED else ("about ", PREDICTED)
    star = " *" if change.caution else ""
    return f"{bound}{change.times:.3g} times as fast ({source}): {change.what}{star}; {change.evidence}"


def _print_untried(usual: advise.Usual, found: advise.Found, asked: Asked) -> None:
    if asked.verify:
        faster = {trial.setting for trial in found.helpful}
        sound = [trial.setting for trial in found.trials if advise.is_sound(trial)]
        if slower := [str(each) for each in dict.fromkeys(sound) if each not in faster]:
            print_text(f"Tried and not faster: {listed(slower)}")
        return
    settings = [str(setting) for setting in advise.candidates(usual)]
    print_text(f"--verify measures up to {count(len(settings), 'setting')} beside this one: {'; '.join(settings)}")


def print_trials(found: advise.Found) -> None:
    """Every setting tried, then the advised one as it was measured again, and those nearest to it against it."""
    rows = [trial_row(trial) for trial in sorted(found.trials, key=lambda each: -_gain_or_nothing(each))]
    if rows:
        print_table("Settings tried, each against the usual one in its own process", COLUMNS, rows)
    print_text(f"Advised: {found.advised} ({in_code(found.advised)})")
    if found.confirmed:
        again = [[str(trial.against), *trial_row(trial)] for trial in found.confirmed]
        print_table("Measured again, in fresh processes", ["against", *COLUMNS], again)
    if found.distance is not None:
        print_text(f"{100 * found.distance:.1f} % slower than the best of those measured again")
    if found.better is not None:
        print_text(f"Measured again, {found.better} is faster: take that one ({in_code(found.better)})")


COLUMNS = ["setting", "times the items/s", "95 % interval", "ms a step", "items a step", "start (s)", "agrees", "note"]


def trial_row(trial: SettingTrial) -> list[Any]:
    if trial.trial is None:
        return [str(trial.setting), *[None] * 6, outcome(trial)]
    from fathom.analysis.statistics import ratio_interval

    interval, run = ratio_interval([trial.gains]), trial.trial.engine
    note = f"disturbed: {'; '.join(trial.disturbed)}" if trial.disturbed else ""
    shown = f"{interval.low:.3g} to {interval.high:.3g}"
    times = [interval.median, shown, 1000 * run.step_s, trial.items, run.preparation_s]
    return [str(trial.setting), *times, trial.agreement, note]


def _gain_or_nothing(trial: SettingTrial) -> float:
    return advise.gain(trial) if trial.trial is not None else 0.0


def document(
    asked: Asked, record: Record, path: Path, usual: advise.Usual, found: advise.Found, advice: list[Change]
) -> dict[str, Any]:
    """One JSON document: every turn of every trial is in it."""
    plain = [dataclasses.asdict(each) | {"setting": each.setting.changes if each.setting else None} for each in advice]
    tried = {name: [each.to_json() for each in getattr(found, name)] for name in ("trials", "confirmed")}
    return {
        "workload": asked.name,
        "record": str(path),
        "machine": record.machine_label,
        "usual": dataclasses.asdict(usual),
        "changes": plain,
        "advised": found.advised.changes if asked.verify else None,
        "distance_from_best": found.distance,
        "better": None if found.better is None else found.better.changes,
        "untried": [] if asked.verify else [str(each) for each in advise.candidates(usual)],
        **tried,
    }
