"""The page: stories in, one HTML document out, with its style and its few lines of script inside."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from kernelgen import __version__
from kernelgen.report.glance import Glance
from kernelgen.report.roofline import roofline
from kernelgen.report.story import CaseLine, Story

TEMPLATE = "report.html.jinja"


def page(stories: Sequence[Story], live: bool = False) -> str:
    """The whole document; with several operators it begins with an index. `live`: one that a server makes anew."""
    from markupsafe import Markup

    shown = [
        {
            "story": one,
            "bars": _bars(one.cases),
            "roofline": Markup(roofline(one.points, one.bandwidth)) if one.points and one.bandwidth else "",
            "code": _side_by_side(one.before, one.kernel),
        }
        for one in stories
    ]
    return _document(stories=shown, live=live, runs=())


def overview(runs: Sequence[Glance]) -> str:
    """The page of `kernelgen watch`: every run, each with a link to its operator's page."""
    return _document(stories=(), live=True, runs=runs)


def _document(**values: Any) -> str:
    from kernelgen.render import environment

    template = environment().overlay(autoescape=True).get_template(TEMPLATE)
    return template.render(**values, version=__version__).rstrip("\n") + "\n"


def _bars(cases: Sequence[CaseLine]) -> list[dict[str, Any]]:
    """Each case's bars, lengths and whiskers in per cent of the longest."""
    longest = max(
        (bar.interval.high if bar.interval else bar.speedup for case in cases for bar in case.bars), default=1.0
    )
    longest = max(longest, 1.0)
    return [
        {
            "case": case,
            "one": 100 / longest,
            "bars": [
                {
                    "bar": bar,
                    "width": 100 * bar.speedup / longest,
                    "low": 100 * bar.interval.low / longest if bar.interval else None,
                    "span": 100 * (bar.interval.high - bar.interval.low) / longest if bar.interval else None,
                }
                for bar in case.bars
            ],
        }
        for case in cases
    ]


def _side_by_side(before: str, after: str) -> list[list[tuple[str, bool]]]:
    """Both kernels line by line, each line with whether the other lacks it; the kernel alone where nothing changed."""
    old, new = before.splitlines(), after.splitlines()
    if not before or old == new:
        return [[(line, False) for line in new]]
    changed: tuple[set[int], set[int]] = (set(), set())
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            changed[0].update(range(a, b))
            changed[1].update(range(c, d))
    return [
        [(line, number in lines) for number, line in enumerate(text)]
        for text, lines in zip((old, new), changed, strict=True)
    ]
