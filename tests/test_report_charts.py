"""Charts as Plotly gets them: axes, brackets, trees, and colours that everyone can tell apart."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_report import WORKLOADS, record, sample_records, tree

from fathom import report
from fathom.analysis.finding import Band, Chart, Series, Span
from fathom.report import charts
from fathom.report.colours import Colours
from fathom.report.text import chart_table


def test_a_workload_keeps_its_colour_and_no_two_series_look_the_same() -> None:
    colours = Colours(sample_records())
    series = [
        *(Series(name=name, x=[], y=[]) for name in WORKLOADS),
        *(Series(name=name, workload="vgg", x=[], y=[]) for name in ("vgg train", "on 4 cores")),
        Series(name="2016", role="published", x=[], y=[]),
        Series(name="(outside ops)", role="remainder", x=[], y=[]),
        *(Series(name=f"type {n}", x=[], y=[]) for n in range(30)),
    ]
    names = [each.name for each in series]
    chart = Chart(kind="line", title="", x_title="", y_title="", series=series)
    looks = dict(zip(names, colours.looks(chart), strict=True))
    assert len({looks[name].colour for name in WORKLOADS}) == 8
    assert {looks[name].colour for name in ("vgg", "vgg train", "on 4 cores")} == {colours.workload("vgg")}
    assert len(set(looks.values())) == len(names)
    assert (looks["2016"].colour, looks["(outside ops)"].colour) == ("var(--quiet)", "var(--rest)")
    assert Colours([record("vgg")]).workload("vgg") == colours.workload("vgg")  # in every report
    assert Colours([record("my.module:make")]).workload("my.module:make") == "var(--ink)"
    few = Chart(
        kind="bar", title="", x_title="", y_title="", series=[Series(name=f"type {n}", x=[], y=[]) for n in (3, 29)]
    )
    assert len({look.colour for look in colours.looks(few)}) == 2


def palette() -> dict[str, tuple[str, str]]:
    css = (Path(report.__file__).parent / "style.css").read_text()
    return {name: (light, dark) for name, light, dark in re.findall(r"(--\w+): light-dark\((#\w{6}), (#\w{6})\)", css)}


VISIONS: dict[
    str, list[float]
] = {  # linear RGB as seen without one kind of cone: Machado, Oliveira and Fernandes, 2009, full severity
    "all cones": [1, 0, 0, 0, 1, 0, 0, 0, 1],
    "no long": [0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998],
    "no medium": [0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.01182, 0.04294, 0.968881],
    "no short": [1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.3039],
}
OKLAB = (  # Ottosson, 2020: to the cones, and from their cube roots to a space in which distance is difference as seen
    [0.41222147, 0.53633254, 0.05144599, 0.2119035, 0.68069955, 0.10739696, 0.08830246, 0.28171884, 0.6299787],
    [0.21045426, 0.79361779, -0.00407205, 1.9779985, -2.42859221, 0.45059371, 0.02590404, 0.78277177, -0.80867577],
)


def linear(colour: str) -> Any:
    part = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def perceived(rgb: Any) -> Any:
    cones, lab = (np.reshape(matrix, (3, 3)) for matrix in OKLAB)
    return lab @ np.cbrt(cones @ np.clip(rgb, 0, 1))


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("prefix", ["--w", "--o"])
def test_the_colour_blind_can_tell_colours_apart(theme: int, vision: str, prefix: str) -> None:
    colours = [pair[theme] for name, pair in palette().items() if re.fullmatch(rf"{prefix}\d", name)]
    assert len(colours) >= 7
    seen = [perceived(np.reshape(VISIONS[vision], (3, 3)) @ linear(colour)) for colour in colours]
    assert min(float(np.linalg.norm(one - other)) for one, other in combinations(seen, 2)) > 0.06


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_heat_rises_in_even_steps_of_lightness_and_text_can_be_read(theme: int) -> None:
    lightness = [float(perceived(linear(palette()[f"--heat{step}"][theme]))[0]) for step in range(5)]
    steps = [after - before for before, after in pairwise(lightness)]
    assert all(step < 0 for step in steps) if theme == 0 else all(step > 0 for step in steps)
    assert max(map(abs, steps)) < 2 * min(map(abs, steps))
    weights = np.array([0.2126, 0.7152, 0.0722])
    page_light = float(weights @ linear(palette()["--page"][theme]))
    for name in ("--ink", "--soft", "--accent", "--alarm"):
        own = float(weights @ linear(palette()[name][theme]))
        assert (max(own, page_light) + 0.05) / (min(own, page_light) + 0.05) > 4.5, name


def test_bars_that_share_a_colour_are_hatched_in_it() -> None:
    series = [Series(name=name, workload="vgg", x=["a"], y=[1.0]) for name in ("vgg train", "vgg infer")]
    chart = Chart(kind="bar", title="", x_title="", y_title="", series=series)
    plain, hatched = (trace["marker"] for trace in charts.figure(chart, Colours([]))["data"])
    assert plain["color"] == hatched["color"]
    assert "pattern" not in plain
    assert (hatched["pattern"]["shape"], hatched["pattern"]["fillmode"]) == ("/", "overlay")  # else it is colourless


def test_bands_of_a_heat_map_are_brackets_over_their_columns() -> None:
    bands = [Band(label="A", columns=2), Band(label="B", columns=1)]
    chart = Chart(kind="heatmap", title="", x_title="", y_title="", bands=bands,
                  series=[Series(name="vgg", x=["Add", "Mul", "MatMul"], y=[1.0, None, 99.0])])  # fmt: skip
    figure = charts.figure(chart, Colours([]))
    ends = [re.findall(r"([-\d.]+),", shape["path"]) for shape in figure["layout"]["shapes"]]
    assert [(float(points[0]), float(points[-1])) for points in ends] == [(-0.42, 1.42), (1.58, 2.42)]
    assert [(label["text"], label["x"]) for label in figure["layout"]["annotations"]] == [("A", 0.5), ("B", 2.0)]
    (trace,) = figure["data"]
    assert trace["text"] == [["1", "", "99"]]
    assert trace["customdata"][0][1] == "not measured"
    assert trace["colorscale"] == charts.SEQUENTIAL
    below = Chart(kind="heatmap", title="", x_title="", y_title="", series=[Series(name="vgg", x=["Add"], y=[-3.0])])
    assert charts.figure(below, Colours([]))["data"][0]["colorscale"] == charts.DIVERGING


def test_named_stretches_of_a_line_chart_are_shaded_under_their_labels() -> None:
    spans = [Span(label="idle", begin=0.0, end=5.0), Span(label="<steps>", begin=6.0, end=12.0)]
    line = Series(name="GPU 0", x=[0.0, 6.0, 12.0], y=[80.0, 300.0, 310.0])
    chart = Chart(kind="line", title="", x_title="s", y_title="W", series=[line], spans=spans)
    layout = charts.figure(chart, Colours([]))["layout"]
    assert [(shape["x0"], shape["x1"], shape["yref"]) for shape in layout["shapes"]] == [
        (0, 5, "paper"),
        (6, 12, "paper"),
    ]
    assert [(label["text"], label["x"]) for label in layout["annotations"]] == [("idle", 2.5), ("&lt;steps&gt;", 9.0)]
    assert len({shape["opacity"] for shape in layout["shapes"]}) == 2, "neighbours differ"
    close = [Span(label=name, begin=at, end=at + 1.0) for at, name in enumerate(("idle", "setup", "warm-up", "x" * 9))]
    labels = charts.figure(replace(chart, spans=[*close, Span(label="y", begin=4.0, end=20.0)]), Colours([]))["layout"]
    assert ["yshift" in label for label in labels["annotations"]] == [False, True, False, True, False]


def test_lines_of_reference_differ_and_long_upright_labels_leave_the_bars_their_room() -> None:
    series = [Series(name=name, role="target", x=[1, 2], y=[1, 2]) for name in ("ideal", "Gustafson")]
    figure = charts.figure(Chart(kind="line", title="", x_title="", y_title="", series=series), Colours([]))
    assert len({trace["line"]["dash"] for trace in figure["data"]}) == 2
    bars = Series(
        name="WALL", x=[f"{name}, Example Processor of {n} cores" for n in (2, 16) for name in WORKLOADS], y=[]
    )
    tall = Chart(kind="bar", title="", x_title="", y_title="", series=[bars])
    few = replace(tall, series=[replace(bars, x=bars.x[:4])])
    assert charts.figure(tall, Colours([]))["height"] >= charts.figure(few, Colours([]))["height"] + 100


def test_slanted_labels_of_several_lines_have_room() -> None:
    """On a phone the second line of one ran into the first of the next."""

    def width(label: str) -> int:
        bars = Series(name="1 thread", x=[f"{label} {n}" for n in range(7)], y=[1.0] * 7)
        return charts.least_width(Chart(kind="bar", title="", x_title="", y_title="", series=[bars]))

    assert width("Conv2DBackInput, convolution") >= 7 * 60 > width("Relu")


def test_a_name_keeps_colour_and_pattern_where_names_are_more_than_colours() -> None:
    def chart(names: list[str]) -> Chart:
        series = [Series(name=name, x=[], y=[]) for name in names]
        return Chart(kind="stacked", title="", x_title="", y_title="", series=series)

    colours, names = Colours([]), [f"layer {n}" for n in range(12)]
    first, second = (dict(zip(own, colours.looks(chart(own)), strict=True)) for own in (names, names[:0:-1]))
    assert all(first[name] == second[name] for name in second)


def test_a_dendrogram_has_its_leaves_on_the_axis_and_its_distances_at_the_merges() -> None:
    figure = charts.figure(tree(), Colours([]))
    assert figure["layout"]["yaxis"]["tickvals"] == [0, 1, 2]
    assert figure["layout"]["yaxis"]["ticktext"] == ["vgg", "residual", "alexnet"]
    branches, heights, tips = figure["data"]
    assert branches["x"] == [0, 0.003, 0.003, 0, None, 0.003, 0.015, 0.015, 0, None]
    assert (heights["x"], heights["y"], heights["text"]) == ([0.003, 0.015], [0.5, 1.25], ["0.003", "0.015"])
    assert tips["marker"]["color"] == [Colours([]).workload(name) for name in ("vgg", "residual", "alexnet")]
    assert chart_table(tree()).rows == [["vgg", "residual", 0.003], ["vgg, residual", "alexnet", 0.015]]


def test_axes_are_what_they_are_said_to_be() -> None:
    def layout(kind: Any, x: list[Any], y: list[Any], **own: Any) -> Any:
        chart = Chart(kind=kind, title="", x_title="", y_title="", series=[Series(name="a", x=x, y=y)], **own)
        return charts.figure(chart, Colours([]))["layout"]

    assert layout("bar", ["2014", "2015"], [1, 2])["xaxis"]["type"] == "category"  # no dates
    assert layout("bar", [1, 2, 4], [1, 2, 3])["xaxis"]["type"] == "category"
    threads = layout("line", [1, 2, 4, 8], [8.0, 4.0, 2.5, 2.0], log_x=True)["xaxis"]
    assert (threads["type"], threads["tickvals"]) == ("log", [1, 2, 4, 8])
    assert layout("scatter", [0.1, 50.0], [1e9, 1e12], log_y=True)["yaxis"]["tickformat"] == "~s"
    assert (
        layout("line", [0, 1], [0.0, float("inf")], log_y=True)["yaxis"]["type"] == "linear"
    )  # nothing to take the log of


def test_shares_have_one_scale_and_their_sums_come_first() -> None:
    bands = [Band(label="A Elementwise", columns=2, total="all A"), Band(label="B Matrix", columns=1, total="all B")]
    bands.append(Band(label="rest", columns=2))
    x = ["Add", "Mul", "MatMul", "other ops", "outside ops"]
    chart = Chart(kind="heatmap", title="", x_title="", y_title="", bands=bands, unit="%", limits=(0, 100),
                  series=[Series(name="vgg", x=x, y=[10.0, None, 20.0, 4.0, 66.0])])  # fmt: skip
    figure = charts.figure(chart, Colours([]))
    (trace,) = figure["data"]
    assert (trace["zmin"], trace["zmax"]) == (0, 100)
    assert trace["x"] == ["other ops", "outside ops", "all A", "all B", "Add", "Mul", "MatMul"]
    assert trace["z"] == [[4.0, 66.0, 10.0, 20.0, 10.0, None, 20.0]]
    labels = [(label["text"], label["x"]) for label in figure["layout"]["annotations"]]
    assert labels == [("rest", 0.5), ("totals", 2.5), ("A Elementwise", 4.5), ("B Matrix", 6.0)]
    assert figure["least_width"] < 300
    assert trace["customdata"][0][:2] == ["4 %", "66 %"]


def test_nothing_is_inferred_from_a_title_or_a_name() -> None:
    plain = Chart(kind="heatmap", title="Percent of a step", x_title="", y_title="",
                  series=[Series(name="rest", x=["Add"], y=[7.0])])  # fmt: skip
    assert charts.figure(plain, Colours([]))["data"][0]["zmax"] == 7.0
    names = [Series(name=name, x=[1, 2], y=[3, 4]) for name in ("roof", "target")]
    scatter = Chart(kind="scatter", title="", x_title="", y_title="", series=names)
    assert {trace["mode"] for trace in charts.figure(scatter, Colours([]))["data"]} == {"markers"}
    lines = Chart(kind="line", title="", x_title="", y_title="", series=names)
    assert {trace["mode"] for trace in charts.figure(lines, Colours([]))["data"]} == {"lines+markers"}


def test_dendrograms_of_one_page_have_one_scale() -> None:
    joint = Series(name="a and b", x=[0, 0.9, 0.9, 0], y=[0, 0, 1, 1], text=["a", "", "", "b"])
    far = Chart(kind="dendrogram", title="", x_title="", y_title="", series=[joint])
    ranges = [charts.figure(each, Colours([]))["layout"]["xaxis"]["range"] for each in (tree(), far)]
    assert ranges[0] == ranges[1]


def test_boxes_keep_their_height_beside_a_far_value() -> None:
    near = [0.98, 0.99, 1.0, 1.01, 1.02] * 4
    chart = Chart(kind="box", title="", x_title="", y_title="",
                  series=[Series(name="vgg", x=["Add"] * 21, y=[*near, 30.0])])  # fmt: skip
    layout = charts.figure(chart, Colours([]))["layout"]
    low, high = layout["yaxis"]["range"]
    assert 0.9 < low < 0.98
    assert 1.02 < high < 1.1
    assert layout["annotations"][0]["text"] == "1 outlier not shown (30)"
    calm = Chart(kind="box", title="", x_title="", y_title="", series=[Series(name="vgg", x=["Add"] * 20, y=near)])
    assert "range" not in charts.figure(calm, Colours([]))["layout"]["yaxis"]


def curve(*values: float) -> Series:
    return Series(name="seed 0", x=[*range(len(values))], y=[*values])


def striving(*series: Series) -> Any:
    return charts.figure(Chart(kind="line", title="", x_title="s", y_title="", series=[*series]), Colours([]))


def test_the_axis_shows_how_a_curve_comes_near_its_target() -> None:
    target = Series(name="target", role="target", x=[0, 8], y=[30.0, 30.0])
    figure = striving(curve(-500, -90, 2, 20, 24, 26, 28, 29, 31), target)
    assert figure["layout"]["yaxis"]["range"] == pytest.approx([18.9, 32.1])
    (note,) = figure["layout"]["annotations"]
    assert note["text"] == "3 early values not shown (-500 to 2)"
    assert (note["xanchor"], note["yanchor"]) == ("right", "bottom")
    assert figure["data"][1]["mode"] == "lines"
    falling = striving(curve(900, 500, 70, 40, 34, 32, 31, 30, 29), target)
    assert falling["layout"]["annotations"][0]["yanchor"] == "top"


def test_an_axis_is_whole_where_nothing_lies_far_off_or_nothing_is_striven_for() -> None:
    target = Series(name="target", role="target", x=[0, 8], y=[30.0, 30.0])
    for series in ([curve(29, 28, 27, 31)], [curve(30, 30, 30), target], [curve(29, 28, 27, 31), target], [target]):
        assert "range" not in striving(*series)["layout"]["yaxis"]
    assert "range" not in striving(curve(-500, -90, 2, 20, 24, 26))["layout"]["yaxis"]
    assert "range" not in striving(curve(-500, 18, 24, 31), target)["layout"]["yaxis"], "of so few, each counts"
    assert "range" not in striving(curve(float("nan"), float("inf")), target)["layout"]["yaxis"]


def test_a_line_of_many_points_is_drawn_by_its_extremes() -> None:
    y: list[float | None] = [1.0 + (at % 7) * 1e-3 for at in range(40_000)]
    y[12_345], y[30_001], y[20_000] = 9.0, 0.1, None
    long = Series(name="memnet", x=list(range(40_000)), y=list(y), text=[f"step {at}" for at in range(40_000)])
    short = Series(name="vgg", x=[0, 1], y=[2.0, 3.0])
    chart = Chart(kind="line", title="", x_title="step", y_title="ms", series=[long, short])
    thin, whole = charts.figure(chart, Colours([]))["data"]
    assert len(thin["x"]) == len(thin["y"]) == len(thin["customdata"]) <= charts.MOST_POINTS
    shown = dict(zip(thin["x"], thin["y"], strict=True))
    assert (shown[0], shown[12_345], shown[30_001]) == (1.0, 9.0, 0.1)
    assert max(shown) == 39_999
    assert all(y[at] == value for at, value in shown.items()), "points are left out and never changed"
    assert thin["customdata"][thin["x"].index(12_345)] == "step 12345"
    assert (whole["x"], whole["y"]) == ([0, 1], [2.0, 3.0])
    assert len(long.y) == 40_000, "tables and exports have all of it"


def test_a_line_chart_keeps_the_limits_that_it_names() -> None:
    series = [Series(name="a", x=[1, 2], y=[8600.0, 8700.0])]
    chart = Chart(kind="line", title="t", x_title="x", y_title="y", series=series)
    assert "range" not in charts.figure(chart, Colours([]))["layout"]["yaxis"]
    assert charts.figure(replace(chart, limits=(0.0, 9000.0)), Colours([]))["layout"]["yaxis"]["range"] == [0.0, 9000.0]


def test_values_that_cannot_be_drawn_are_refused_and_not_left_out() -> None:
    Series(name="a", x=[1, 2, 3], y=[1.5, None, "lane"])
    with pytest.raises(TypeError, match="a: tuple is nothing to draw"):
        Series(name="a", x=[1], y=[(1.0, 2.0)])
