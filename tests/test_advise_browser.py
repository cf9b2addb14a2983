"""The form of fathom advise --html in a real browser: its arithmetic, its refusals, what it shows, and no request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fathom.report.advise_page import Form, FormDevice, FormModel, FormRefusal, FormStep, page

pytestmark = pytest.mark.browser
HOUR_S = 3600


def step(device: str, count: int, batch: int, step_s: float, link: str | None = None, **changes: Any) -> FormStep:
    fields: dict[str, Any] = {
        "model": "net",
        "device": device,
        "count": count,
        "interconnect": link,
        "batch": batch,
        "items": batch,
        "precision": "fp32",
        "engine": "eager",
        "step_s": step_s,
        "low_s": 0.5 * step_s,
        "high_s": 2 * step_s,
        "exposed_s": 0.25 * step_s if count > 1 else 0.0,
        "memory_bytes": 3_000_000_000,
        "bound_by": "compute",
    }
    return FormStep(**(fields | changes))


FORM = Form(
    models=[FormModel(name="net", item="image"), FormModel(name="</script><b>odd", item="frame")],
    devices=[
        FormDevice(name="Fast", memory_gb=80.0, tdp_w=700.0),
        FormDevice(name="Slow", memory_gb=12.0, tdp_w=None),
    ],
    steps=[
        step("Fast", 1, 10, 0.36),
        step("Fast", 1, 20, 0.6),
        step("Fast", 1, 20, 0.5, engine="cudagraph"),
        step("Fast", 2, 10, 0.4, "Wire"),
        step("Fast", 2, 10, 3.0, "String"),
        step("Slow", 1, 10, 3.6),
        step("Slow", 1, 7, 1.0, model="</script><b>odd"),
    ],
    refusals=[
        FormRefusal(model="net", why="needs 13 GB, Slow has 12 GB", device="Slow", batch=20, precision="fp32"),
        FormRefusal(model="net", why="no bf16 peak of Slow is known", device="Slow", precision="bf16"),
        FormRefusal(model=None, why="Slow has no Wire", device="Slow", interconnect="Wire"),
    ],
    items=10_000.0,
    epochs=10.0,
    most=1e18,
    most_price=1e9,
    uncertainty="Half to twice as long.",
    rules_source="the slides",
    prices={"Fast": 2.5},
)
CHOICE = {"items": 10_000, "epochs": 10, "model": "net", "device": "Fast", "count": 1, "interconnect": None}
CHOICE |= {"batch": 10, "precision": "fp32", "price": None}


@pytest.fixture
def form(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """The page, freshly opened; a test must leave the console empty."""
    path = tmp_path / "page.html"
    path.write_text(page(FORM), encoding="utf-8")
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 1200, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    browser.get(path.as_uri())
    assert browser.execute_script("return document.documentElement.hasAttribute('data-ready')")
    yield browser
    assert browser.get_log("browser") == []


def answer(form: Any, **changes: Any) -> Any:
    return form.execute_script("return advise.answer(arguments[0])", CHOICE | changes)


def choose(form: Any, **values: object) -> None:
    for name, value in values.items():
        form.execute_script(
            "const field = document.getElementById(arguments[0]); field.value = arguments[1];"
            "for (const kind of ['input', 'change']) field.dispatchEvent(new Event(kind, {bubbles: true}))",
            name,
            str(value),
        )


def text(form: Any, name: str) -> str:
    return str(form.execute_script("return document.getElementById(arguments[0]).innerText", name))


def test_hours_are_steps_times_the_step(form: Any) -> None:
    found = answer(form)
    assert found["hours"] == pytest.approx(1000 * 10 * 0.36 / HOUR_S)  # one hour
    assert found["low"] == pytest.approx(0.5)
    assert found["high"] == pytest.approx(2.0)
    assert found["rate"] == pytest.approx(10 / 0.36)
    assert found["kwh"] == pytest.approx(0.7)
    assert found["cost"] is None


def test_an_epoch_ends_with_a_whole_step(form: Any) -> None:
    assert answer(form, items=10_001)["hours"] == pytest.approx(1001 * 10 * 0.36 / HOUR_S)
    assert answer(form, items=1, epochs=1)["hours"] == pytest.approx(0.36 / HOUR_S)


def test_several_devices_share_the_steps_and_add_up_in_cost(form: Any) -> None:
    found = answer(form, count=2, interconnect="Wire", price=2.0)
    assert found["hours"] == pytest.approx(500 * 10 * 0.4 / HOUR_S)
    assert found["cost"] == pytest.approx(2 * 2.0 * found["hours"])
    assert found["kwh"] == pytest.approx(2 * 0.7 * found["hours"])


def test_what_is_not_known_is_not_zero(form: Any) -> None:
    assert answer(form, device="Slow")["kwh"] is None


def test_the_faster_engine_answers(form: Any) -> None:
    assert answer(form, batch=20)["step"]["engine"] == "cudagraph"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"device": "Slow", "batch": 20}, "needs 13 GB, Slow has 12 GB"),
        ({"device": "Slow", "precision": "bf16"}, "no bf16 peak of Slow is known"),
        ({"count": 2}, "several accelerators need an interconnect"),
        ({"batch": 11}, "not among the settings that were predicted"),
        ({"items": 0}, "data size and epochs must be above 0"),
        ({"items": None}, "data size and epochs must be above 0"),
        ({"epochs": -1}, "data size and epochs must be above 0"),
        ({"items": 1e300, "epochs": 1e300}, "data size and epochs must be below 1e+18"),
        ({"price": -1}, "a price must be 0 or more"),
        ({"price": 1e12}, "a price must be below 1e+9"),
        ({"device": "Slow", "count": 2, "interconnect": "Wire"}, "Slow has no Wire"),
    ],
)
def test_what_cannot_be_is_told(form: Any, changes: dict[str, Any], why: str) -> None:
    assert answer(form, **changes) == {"refused": why}


def test_next_changes_are_of_one_axis_and_faster(form: Any) -> None:
    asked = CHOICE | {"device": "Fast", "count": 2, "interconnect": "String"}
    found = form.execute_script("return advise.changes(arguments[0])", asked)
    assert [(each["axis"], each["to"]) for each in found] == [("interconnect", "Wire"), ("count", 1)]
    assert found[0]["times"] == pytest.approx(7.5)
    slow = form.execute_script("return advise.changes(arguments[0])", CHOICE | {"device": "Slow"})
    assert [(each["axis"], each["to"], each["times"]) for each in slow] == [("device", "Fast", pytest.approx(10))]
    nothing = form.execute_script("return advise.changes(arguments[0])", CHOICE | {"items": 1e300, "epochs": 1e300})
    assert nothing == []


def test_what_is_possible_instead_is_told(form: Any) -> None:
    asked = CHOICE | {"device": "Slow", "batch": 20}
    found = form.execute_script("return advise.changes(arguments[0])", asked)
    assert [(each["axis"], each["to"], each["times"]) for each in found] == [
        ("device", "Fast", None),
        ("batch", 10, None),
    ]
    choose(form, device="Slow", batch=20)
    assert text(form, "next") == "Possible with one change"
    assert "device: Fast" in text(form, "changes")


def test_a_long_job_has_readable_numbers(form: Any) -> None:
    choose(form, items=1e17, epochs=1e17)
    assert text(form, "hours") == "4.17e+27 days"
    assert len(text(form, "bounds")) < 40


def test_rules_follow_the_count(form: Any) -> None:
    asked = CHOICE | {"count": 2, "interconnect": "Wire"}
    found = form.execute_script("return advise.rules(arguments[0])", asked)
    assert found[0] == "4 CPU threads: 2 per GPU"
    assert found[1] == "320 GB of RAM: 2 x GPU memory x number of GPUs"
    assert found[2].startswith("25 % of a step is communication that Wire does not hide")


def test_the_page_answers_at_once_and_shows_its_uncertainty(form: Any) -> None:
    assert text(form, "hours") == "1 hour"
    assert text(form, "bounds") == "30 minutes to 2 hours"
    bar = form.execute_script(
        "const box = (name) => document.querySelector(name).getBoundingClientRect();"
        "const [range, inner] = [box('#range'), box('#range i')];"
        "return [(inner.left - range.left) / range.width, inner.width / range.width]"
    )
    assert bar == pytest.approx([0.25, 0.75], abs=0.01)
    choose(form, items=20_000)
    assert text(form, "hours") == "2 hours"
    choose(form, items=0)
    assert text(form, "refusal") == "Not possible: data size and epochs must be above 0"
    assert text(form, "hours") == ""


def test_the_form_itself(form: Any) -> None:
    assert form.execute_script("return document.getElementById('interconnect').disabled")
    choose(form, count=2, interconnect="Wire")
    assert not form.execute_script("return document.getElementById('interconnect').disabled")
    assert "communication that Wire does not hide" in text(form, "rules")
    choose(form, count=1, device="Slow", batch=20)
    assert text(form, "refusal") == "Not possible: needs 13 GB, Slow has 12 GB"
    assert form.execute_script("return document.getElementById('price').value") == ""
    choose(form, device="Fast")
    assert form.execute_script("return document.getElementById('price').value") == "2.5"
    assert "no price given" not in text(form, "facts")


def test_a_model_with_an_odd_name_is_a_name(form: Any) -> None:
    choose(form, model="</script><b>odd", device="Slow")
    assert form.execute_script("return document.getElementById('batch').value") == "7"
    assert "frames a second" in text(form, "facts")
    assert form.execute_script("return document.querySelectorAll('b').length") == 1  # the mark of the range


def test_nothing_is_fetched(form: Any) -> None:
    form.get_log("performance")  # what the browser did before, it did for itself
    address = form.current_url
    form.refresh()
    log = [json.loads(entry["message"])["message"] for entry in form.get_log("performance")]
    asked = {each["params"]["request"]["url"] for each in log if each["method"] == "Network.requestWillBeSent"}
    assert {url for url in asked if not url.startswith("data:")} == {address}


@pytest.mark.parametrize("width", [320, 1200])
def test_it_fits_a_phone_and_a_desk(form: Any, width: int) -> None:
    size = {"width": width, "height": 700, "deviceScaleFactor": 1, "mobile": width < 500}
    form.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    assert form.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")


def test_it_opens_with_something_possible(browser: Any, tmp_path: Path) -> None:
    """The first device, batch and precision of the lists need not fit together."""
    old = [step("Slow", 1, 10, 3.6), step("Fast", 1, 5, 0.3, precision="bf16")]
    refused = [FormRefusal(model="net", why="it does not fit", device="Slow", batch=5)]
    form = replace(FORM, devices=FORM.devices[::-1], steps=old[::-1], refusals=refused)
    path = tmp_path / "form.html"
    path.write_text(page(form))
    browser.get(path.as_uri())
    chosen = browser.execute_script(
        "return ['device', 'batch', 'precision'].map(x => document.getElementById(x).value)"
    )
    assert chosen == ["Slow", "10", "fp32"]
    assert text(browser, "refusal") == ""
