"""The report in a real browser: charts draw, tables sort, themes turn, a phone can read it, and nothing is fetched."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sample_report import any_finding, sample_findings, sample_records

from fathom import report
from fathom.trace.taxonomy import GROUPS

pytest.importorskip("selenium.webdriver", reason="selenium is not installed: no browser test")

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

pytestmark = pytest.mark.browser
MARKS = {  # what a chart of each kind is made of, once it has drawn
    "bar": ".barlayer .point path",
    "stacked": ".barlayer .point path",
    "line": ".scatterlayer .trace .lines path",
    "scatter": ".scatterlayer .trace .points path",
    "box": ".boxlayer path.box",
    "heatmap": ".heatmaplayer image",
    "dendrogram": ".scatterlayer .trace .points path",
    "icicle": ".iciclelayer .slice path.surface",
    "timeline": ".barlayer .point path",
}
DRAWN = "return document.documentElement.hasAttribute('data-ready')"
CHARTS = [chart for finding in sample_findings() for chart in finding.charts]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report.html(sample_records(), sample_findings(), "A study"), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The report opened on a wide screen in the light, every chart drawn; a test must leave the console empty."""
    opened(browser, address)
    yield browser
    left(browser)


@pytest.fixture
def phone(browser: Any, address: str) -> Iterator[Any]:
    """The same on a small screen that is touched."""
    opened(browser, address, width=360, height=740, phone=True)
    yield browser
    left(browser)


def opened(browser: Any, address: str, width: int = 1300, height: int = 900, phone: bool = False) -> None:
    seen(browser, width, height, phone)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": light(True)})
    browser.get(address)
    until(browser, DRAWN)


def left(browser: Any) -> None:
    browser.execute_script("localStorage.clear()")
    assert browser.get_log("browser") == []


def light(wanted: bool) -> list[dict[str, str]]:
    return [{"name": "prefers-color-scheme", "value": "light" if wanted else "dark"}]


def seen(browser: Any, width: int, height: int, phone: bool = False) -> None:
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": phone})


def reopened(browser: Any) -> None:
    browser.refresh()
    until(browser, DRAWN)


def until(browser: Any, script: str) -> None:
    WebDriverWait(browser, 60).until(lambda each: each.execute_script(script))


def ask(browser: Any, script: str, *arguments: Any) -> Any:
    return browser.execute_script(f"return {script}", *arguments)


def colour(browser: Any, selector: str, what: str) -> str:
    return str(ask(browser, "getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]", selector, what))


def test_every_chart_has_drawn_its_marks(page: Any) -> None:
    ids = ask(page, "[...document.querySelectorAll('.plot')].map((plot) => plot.id)")
    assert len(ids) == len(CHARTS)
    size = "((box) => box.width * box.height)(mark.getBoundingClientRect())"  # none where there is no value
    count = f"[...document.querySelectorAll(arguments[0])].filter((mark) => {size} > 0).length"
    counts = [ask(page, count, f"#{name} {MARKS[chart.kind]}") for name, chart in zip(ids, CHARTS, strict=True)]
    assert all(counts), dict(zip(ids, counts, strict=True))
    drawn = {chart.title: count for chart, count in zip(CHARTS, counts, strict=True)}
    assert drawn["Classes"] == 8 * len(GROUPS)
    assert drawn["Time per item"] == 3 * 7 + 8  # three series lack their last value, the published one has it
    assert drawn["Cumulative share"] == 8
    assert drawn["Roofline"] == 8 * 3
    assert drawn["Op times"] == 3 * 6
    assert drawn["Tree"] == 2 + 3  # joints and leaves
    assert drawn["Step"] == 5
    assert drawn["Timeline"] == 4


def test_an_icicle_is_walked_with_the_keys_and_says_where_it_is(page: Any) -> None:
    name = next(f"{plot}" for plot in ask(page, "[...document.querySelectorAll('.plot')].map((plot) => plot.id)")
                if ask(page, "document.getElementById(arguments[0]).data[0].type", plot) == "icicle")  # fmt: skip
    page.execute_script("document.getElementById(arguments[0]).focus()", name)
    level = "document.getElementById(arguments[0]).data[0].level"
    said = "document.getElementById(arguments[0]).closest('figure').querySelector('.said').textContent"
    seen_at = []
    for key in (Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_UP, Keys.ARROW_UP):
        ActionChains(page).send_keys(key).perform()
        seen_at.append(ask(page, level, name))
    assert seen_at == ["1", "4", "1", "2", "1", "0"]
    ActionChains(page).send_keys(Keys.ARROW_DOWN).perform()
    assert ask(page, said, name) == "features: 0.7 ms"
    ActionChains(page).send_keys(Keys.ARROW_RIGHT).perform()
    assert "<script>" in ask(page, said, name), "as letters"


def test_nothing_is_fetched_but_the_file_itself(page: Any, address: str) -> None:
    page.get_log("performance")  # what the browser did before, it did for itself
    reopened(page)
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = {event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"}
    assert {url for url in asked if not url.startswith("data:")} == {address}
    offered = ask(page, "[...new Set([...document.querySelectorAll('.modebar-btn')].map((each) => each.ariaLabel))]")
    assert sorted(offered) == [
        "Download plot as a PNG",
        "Pan",
        "Reset axes",
        "Zoom",
        "Zoom in",
        "Zoom out",
    ]  # no upload


def test_charts_have_names_for_those_who_do_not_see_them(page: Any) -> None:
    labels = ask(
        page, "[...document.querySelectorAll('.plot[role=img], .plot[role=application]')].map((plot) => plot.ariaLabel)"
    )
    assert [label.split(":")[0] for label in labels] == [chart.title for chart in CHARTS]
    heading = "document.getElementById(each.getAttribute('aria-labelledby')).textContent"
    headings = f"[...document.querySelectorAll('figure.chart')].map((each) => {heading})"
    assert ask(page, headings) == [chart.title for chart in CHARTS]


def test_a_table_sorts_by_click_and_by_key_and_keeps_what_is_missing_last(page: Any) -> None:
    table = page.find_element("xpath", "//figure[figcaption='Shares']//table")
    workload, share, calls, _ = table.find_elements("css selector", "th button")

    def column(index: int) -> list[str]:
        return [cell.text for cell in table.find_elements("css selector", f"tbody td:nth-child({index})")]

    assert column(1) == ["vgg", "alexnet", "deepq"]
    share.click()
    assert column(2) == ["9.2", "12.5", "—"]  # as numbers: as text, 12.5 would come first
    assert share.find_element("xpath", "..").get_attribute("aria-sort") == "ascending"
    share.click()
    assert column(2) == ["12.5", "9.2", "—"]
    calls.send_keys(Keys.ENTER)
    assert column(3) == ["100", "20,000", "—"]
    assert share.find_element("xpath", "..").get_attribute("aria-sort") is None
    workload.send_keys(Keys.SPACE)
    assert column(1) == ["alexnet", "deepq", "vgg"]
    assert table.find_element("css selector", "td[data-missing]").get_attribute("title") == "not measured"


def test_the_theme_turns_and_the_charts_with_it(page: Any) -> None:
    def look() -> tuple[str, str, str]:
        legend, bar = (colour(page, f"#chart-4-1 {each}", "fill") for each in (".legendtext", ".barlayer .point path"))
        return colour(page, "body", "backgroundColor"), legend, bar

    by_day = look()
    page.find_element("id", "theme").click()
    until(page, "return getComputedStyle(document.querySelector('#chart-4-1 .legendtext')).fill !== 'rgb(27, 34, 48)'")
    by_night = look()
    assert by_day[0] == "rgb(255, 255, 255)"
    assert by_night[0] == "rgb(18, 22, 28)"
    assert not set(by_day) & set(by_night)
    reopened(page)
    assert look() == by_night  # remembered
    page.find_element("id", "theme").click()
    assert colour(page, "body", "backgroundColor") == by_day[0]


def test_the_system_decides_until_the_reader_does(page: Any) -> None:
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": light(False)})
    assert colour(page, "body", "backgroundColor") == "rgb(18, 22, 28)"
    until(page, "return getComputedStyle(document.querySelector('#chart-4-1 .legendtext')).fill !== 'rgb(27, 34, 48)'")


def test_a_point_tells_its_text_letter_by_letter(page: Any) -> None:
    page.execute_script("document.querySelector('#chart-5-1').scrollIntoView({ block: 'center' })")
    points = page.find_elements("css selector", "#chart-5-1 .scatterlayer .trace:first-of-type .points path")
    ActionChains(page).move_to_element(points[1]).perform()
    until(page, "return document.querySelector('#chart-5-1 .hoverlayer .hovertext') !== null")
    told = page.find_element("css selector", "#chart-5-1 .hoverlayer").text
    assert '<script>alert("x")</script>' in told
    assert "seq2seq" in told
    assert "FLOP/byte: 2" in told


def test_a_chart_zooms_where_it_is_dragged_and_comes_back(page: Any) -> None:
    page.execute_script("document.querySelector('#chart-2-1').scrollIntoView({ block: 'center' })")
    wide = ask(page, "document.getElementById('chart-2-1').layout.xaxis.range")
    plane = page.find_element("css selector", "#chart-2-1 .nsewdrag")
    ActionChains(page).move_to_element(plane).click_and_hold().move_by_offset(150, 60).release().perform()
    until(page, "return document.getElementById('chart-2-1').layout.xaxis.autorange === false")
    close = ask(page, "document.getElementById('chart-2-1').layout.xaxis.range")
    assert wide[0] < close[0] < close[1] < wide[1]
    page.find_element("css selector", "#chart-2-1 [aria-label='Reset axes']").click()
    until(page, f"return document.getElementById('chart-2-1').layout.xaxis.range[0] === {wide[0]}")


def test_a_phone_scrolls_tables_and_charts_but_never_the_page(phone: Any) -> None:
    assert ask(phone, "document.documentElement.scrollWidth") == 360
    inner = ask(phone, "[...document.querySelectorAll('.scroll')].map((box) => [box.clientWidth, box.scrollWidth])")
    assert max(shown for shown, _ in inner) <= 360
    assert any(whole > shown for shown, whole in inner)
    assert ask(phone, "document.getElementById('chart-2-1').layout.dragmode") is False  # a finger scrolls the page


def test_the_contents_open_and_close_on_a_phone(phone: Any) -> None:
    contents, menu = phone.find_element("id", "contents"), phone.find_element("id", "menu")
    assert not contents.is_displayed()
    menu.click()
    assert contents.is_displayed()
    assert menu.get_attribute("aria-expanded") == "true"
    ActionChains(phone).send_keys(Keys.ESCAPE).perform()
    assert not contents.is_displayed()
    menu.click()
    contents.find_element("link text", "How it was measured").click()
    assert not contents.is_displayed()
    until(phone, "return Math.abs(document.getElementById('method').getBoundingClientRect().top) < 200")


def test_contents_stay_in_view_on_a_wide_screen(page: Any) -> None:
    page.find_element("link text", "How it was measured").click()
    until(page, "return document.querySelector('#contents [aria-current]')?.hash === '#method'")
    assert page.find_element("id", "contents").is_displayed()
    assert not page.find_element("id", "menu").is_displayed()


def test_charts_of_awkward_values_draw_too(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "awkward.html"
    path.write_text(report.html([], [any_finding(random.Random(seed)) for seed in range(12)], "Awkward"), "utf-8")
    opened(browser, path.as_uri())
    assert ask(browser, "document.querySelectorAll('.plot:not([data-drawn])').length") == 0
    assert ask(browser, "document.querySelectorAll('.plot[data-drawn] .main-svg').length") >= 36
    left(browser)


def test_paper_is_white_has_no_contents_and_cuts_no_chart(page: Any) -> None:
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": light(False)})
    seen(page, width=680, height=960)  # A4 between its margins
    page.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert colour(page, "body", "backgroundColor") == "rgb(255, 255, 255)"
    assert colour(page, "nav", "display") == "none"
    assert colour(page, "#chart-4-1 .legendtext", "fill") == "rgb(27, 34, 48)"
    right = ask(page, "[...document.querySelectorAll('.plot')].map((plot) => plot.getBoundingClientRect().right)")
    assert max(right) <= 680
    hidden = "[...document.querySelectorAll('.scroll')].filter((box) => getComputedStyle(box).overflowX !== 'visible')"
    assert ask(page, f"{hidden}.length") == 0
    page.execute_script("dispatchEvent(new Event('afterprint'))")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": light(True)})
    assert ask(page, "document.documentElement.hasAttribute('data-theme')") is False
