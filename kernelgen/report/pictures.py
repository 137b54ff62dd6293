"""Pictures of a run for papers and slides, by Altair: PNG of 300 dots an inch, dark on white, labels in full.

The page draws its own, in its own colours and to the width of the screen.
"""

from __future__ import annotations

import math
from typing import Any

from kernelgen.errors import UsageError
from kernelgen.report.story import Story

WIDTH, DOTS = 360, 300
"""Points and dots an inch: a column of a paper."""
COLOURS = {"eager": "#1a7f5a", "torch.compile": "#0969da"}


def pictures(story: Story) -> dict[str, bytes]:
    """The speedups and the roofline of a run as PNG, by name; none of what the run does not know.

    Raises UsageError where Altair is not installed.
    """
    try:
        import altair  # noqa: F401
        import vl_convert
    except ModuleNotFoundError as missing:
        raise UsageError(f"--png needs {missing.name}: pip install 'kernelgen[report]'") from None
    charts = {"speedup": _speedups(story), "roofline": _roofline(story)}
    return {
        f"{story.operator}-{name}.png": vl_convert.vegalite_to_png(chart, ppi=DOTS)
        for name, chart in charts.items()
        if chart is not None
    }


def _speedups(story: Story) -> dict[str, Any] | None:
    """A bar a case and baseline with its interval, and the line at 1."""
    import altair as alt

    rows = [
        {
            "case": case.case,
            "over": bar.name,
            "speedup": bar.speedup,
            "low": bar.interval.low if bar.interval else bar.speedup,
            "high": bar.interval.high if bar.interval else bar.speedup,
            "shown": f"{bar.speedup:.2f}x",
        }
        for case in story.cases
        for bar in case.bars
        if bar.name in COLOURS
    ]
    if not rows:
        return None
    colour = alt.Color(
        "over:N",
        title=None,
        scale=alt.Scale(domain=[*COLOURS], range=[*COLOURS.values()]),
        legend=alt.Legend(orient="top"),
    )
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("case:N", title=None, sort=None), yOffset=alt.YOffset("over:N", sort=[*COLOURS])
    )
    layers = [
        base.mark_bar().encode(x=alt.X("speedup:Q", title="speedup, 95 % interval"), color=colour),
        base.mark_rule(color="black").encode(x="low:Q", x2="high:Q"),
        base.mark_text(align="left", dx=4).encode(x="high:Q", text="shown:N"),
        alt.Chart(alt.Data(values=[{"one": 1}])).mark_rule(strokeDash=[4, 3], color="black").encode(x="one:Q"),
    ]
    return _titled(story, alt.layer(*layers), width=WIDTH, height=alt.Step(16))


def _roofline(story: Story) -> dict[str, Any] | None:
    """Memory's slope and the ceilings of arithmetic, a dot a case."""
    import altair as alt

    if not story.points or not story.bandwidth:
        return None
    ceilings = sorted({p.ceiling for p in story.points})
    knees = [ceiling / story.bandwidth for ceiling in ceilings]
    left, right = min(p.intensity for p in story.points) / 4, 4 * max(*knees, *(p.intensity for p in story.points))
    roofs = [
        {"roof": n, "intensity": at, "rate": min(at * story.bandwidth, ceiling)}
        for n, (ceiling, knee) in enumerate(zip(ceilings, knees, strict=True))
        for at in (left, knee, right)
    ]
    dots = [{"case": p.case, "intensity": p.intensity, "rate": p.rate} for p in story.points]
    rates = [*(p.rate for p in story.points), *ceilings, left * story.bandwidth]
    x = alt.X("intensity:Q", title="FLOP/byte", scale=_logarithmic(left, right), axis=_decades(left, right, "~g"))
    y = alt.Y(
        "rate:Q",
        title="FLOP/s",
        scale=_logarithmic(min(rates) / 2, 2 * max(rates)),
        axis=_decades(min(rates) / 2, 2 * max(rates), "~s"),
    )
    layers = [
        alt.Chart(alt.Data(values=roofs)).mark_line(color="#57606a").encode(x=x, y=y, detail="roof:N"),
        alt.Chart(alt.Data(values=dots))
        .mark_point(filled=True, size=50)
        .encode(x=x, y=y, color=alt.Color("case:N", title=None, sort=None)),
    ]
    return _titled(story, alt.layer(*layers), width=WIDTH, height=240)


def _logarithmic(low: float, high: float) -> Any:
    import altair as alt

    return alt.Scale(type="log", domain=[low, high], nice=False)


def _decades(low: float, high: float, number: str) -> Any:
    """An axis with a line at each power of ten."""
    import altair as alt

    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    return alt.Axis(values=[10.0**power for power in powers], format=number)


def _titled(story: Story, chart: Any, **size: Any) -> dict[str, Any]:
    """The chart as Vega-Lite, above it what was run and whether it was measured."""
    import altair as alt

    device = dict(story.machine).get("device", "unknown device")
    title = alt.Title(story.operator, subtitle=f"{device}, {story.cases[0].source}", anchor="start")
    document: dict[str, Any] = chart.properties(title=title, **size).configure_view(stroke=None).to_dict()
    return document
