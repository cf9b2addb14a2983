"""fathom advise --html: predicted steps of every combination, as the table behind the page's form."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from fathom.cli.commands._advise_plan import MOST_PRICE, PlanOptions, devices, planned, targets, uncertainty
from fathom.cli.terminal import human
from fathom.core.errors import BadOption
from fathom.core.store import check_writable
from fathom.predict import rules
from fathom.predict.plan import MOST, Choice, cannot_join
from fathom.predict.target import Target
from fathom.report import advise_page
from fathom.report.advise_page import Form, FormDevice, FormModel, FormRefusal, FormStep

if TYPE_CHECKING:
    from fathom.workloads.base import Workload


def write_page(models: Sequence[tuple[str, Workload]], options: PlanOptions, path: Path) -> None:
    check_writable(path)
    known = devices(options)
    shown, steps, refusals = [], [], []
    for name, workload in models:
        found, _ = planned(workload, options, known)
        shown.append(FormModel(name=name, item=workload.item_of(options.phase)))
        steps += [_step(name, choice) for choice in found.choices]
        refusals += [FormRefusal(model=name, **dataclasses.asdict(each)) for each in found.impossible]
    if not steps:
        raise BadOption(f"no combination is possible: {refusals[0].why if refusals else 'no setting'}")
    form = Form(
        models=shown,
        devices=[
            FormDevice(
                name=each.name,
                memory_gb=None if each.memory_bytes is None else each.memory_bytes / 1e9,
                tdp_w=each.tdp_w,
                gpu=each.gpu,
            )
            for each in targets(known)
        ],
        steps=steps,
        refusals=[*refusals, *_not_joined(targets(known), options.counts, {each.interconnect for each in steps})],
        items=options.job.items,
        epochs=options.job.epochs,
        most=MOST,
        most_price=MOST_PRICE,
        uncertainty=uncertainty(known),
        threads_per_gpu=rules.THREADS_PER_GPU,
        ram_per_gpu_memory=rules.RAM_PER_GPU_MEMORY,
        rules_source=rules.SOURCE,
        prices=dict(options.job.prices),
    )
    human.print(f"page: {advise_page.write(form, path)}", soft_wrap=True)


def _not_joined(devices: Sequence[Target], counts: Sequence[int], links: Iterable[str | None]) -> list[FormRefusal]:
    """The form has every link beside every device: why those do not fit that a plan does not even compare."""
    found = []
    for device, link in product(devices, sorted(filter(None, links))):
        for count in sorted(each for each in counts if each > 1):
            if (why := cannot_join(device.model, count, link)) is not None:
                found.append(FormRefusal(model=None, why=why, device=device.name, count=count, interconnect=link))
    return found


def _step(name: str, choice: Choice) -> FormStep:
    estimate = choice.estimate
    return FormStep(
        model=name,
        device=choice.device,
        count=choice.count,
        interconnect=choice.interconnect,
        batch=choice.batch,
        items=estimate.batch,
        precision=choice.precision,
        engine=choice.engine,
        step_s=estimate.step_s,
        low_s=estimate.low_s,
        high_s=estimate.high_s,
        exposed_s=estimate.exposed_s,
        memory_bytes=estimate.memory_bytes,
        bound_by=estimate.bound_by,
    )
