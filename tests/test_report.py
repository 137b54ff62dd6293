"""`kernelgen report`: one page from the journals alone, whatever is in them."""

from __future__ import annotations

import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rounds_fakes import FakeEvaluator, make_plan, run, write_kernel

from kernelgen import journal
from kernelgen.cli import main
from kernelgen.journal import FILE, JournalError
from kernelgen.report import Story, page, pictures, story

MOST = 1.5e6
"""Bytes of one operator's page."""


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rounds on a fake GPU."""
    root = tmp_path_factory.mktemp("once")
    write_kernel(root, make_plan())
    run(root, FakeEvaluator(), rounds=3)
    return root


@pytest.fixture
def found(once: Path, tmp_path: Path) -> Story:
    """Their story; the files are in `tmp_path`, to be spoilt."""
    shutil.copytree(once, tmp_path, dirs_exist_ok=True)
    return told(tmp_path)


def told(root: Path) -> Story:
    return story("toy", root / "operators" / "toy" / "toy_triton.py", root / "logs" / "toy")


class Links(HTMLParser):
    """Every address in a page, and whether its tags close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_says_what_the_run_came_to(tmp_path: Path, found: Story) -> None:
    text = page([found])
    links = Links(text)
    assert links.open == []
    assert [a for a in links.addresses if not a.startswith(("#", "data:"))] == [], "nothing is fetched"
    assert len(text) < MOST
    assert found.head
    assert found.head["title"] in text
    assert found.state == "finished 3 rounds"
    for line in found.cases:
        assert [bar.name for bar in line.bars] == ["eager", "torch.compile", "best of both"]
        assert line.bars[2].speedup == min(bar.speedup for bar in line.bars)
        for bar in line.bars:
            assert bar.interval
            assert f"{bar.speedup:.3f}x <span" in text
            assert f"[{bar.interval.low:.3f}, {bar.interval.high:.3f}]" in text
    assert text.count("<circle") == len(found.points) == len(found.cases)
    assert len(found.tried) == sum(r.kind == "candidate" for r in journal.read(tmp_path / "logs" / "toy" / found.run))
    assert text.count("<mark>") >= 2, "what changed in the kernel is marked on both sides"
    assert "kernelgen optimize toy" in text


def test_a_bar_is_as_long_as_its_speedup(found: Story) -> None:
    text = page([found])
    pairs = re.findall(r'class="fill" style="width:([\d.]+)%".*?<span>([\d.]+)x', text)
    assert len(pairs) == 9
    ratios = [float(width) / float(speedup) for width, speedup in pairs]
    assert max(ratios) - min(ratios) < 0.01 * max(ratios)


def test_names_and_messages_cannot_become_markup(found: Story) -> None:
    hostile = "<script>alert(1)</script>&\"'"
    text = page([Story(hostile, hostile, hostile, state=hostile), found])
    assert "<script>alert" not in text
    assert Links(text).open == []


@pytest.mark.parametrize("at", [1, 3, 8, 20, -1])
def test_a_run_that_was_killed_is_shown_as_far_as_it_got(tmp_path: Path, found: Story, at: int) -> None:
    path = tmp_path / "logs" / "toy" / found.run / FILE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:at]) + lines[at][:20])
    cut = told(tmp_path)
    assert "stopped " in cut.state
    assert "`kernelgen optimize toy` goes on from there" in cut.state
    assert cut.state.split(";")[0] in page([cut])


def test_a_journal_torn_in_its_middle_is_one_clear_line(tmp_path: Path, found: Story) -> None:
    path = tmp_path / "logs" / "toy" / found.run / FILE
    content = path.read_bytes()
    path.write_bytes(content[:200] + b"#" + content[201:])
    with pytest.raises(JournalError, match=r"journal\.jsonl:1: damaged record"):
        told(tmp_path)


def test_a_run_elsewhere_is_shown_by_its_packed_journal(tmp_path: Path, found: Story) -> None:
    runs, kept = tmp_path / "logs" / "toy", tmp_path / "kept"
    kept.mkdir()
    packed = kept / f"{found.run}{journal.PACKED}"
    packed.write_bytes(journal.packed(runs / found.run))
    kernel = tmp_path / "operators" / "toy" / "toy_triton.py"
    assert story("toy", kernel, runs, kept) == found
    shutil.rmtree(runs / found.run)
    assert story("toy", kernel, runs).state == "never optimised"
    there = story("toy", kernel, runs, kept)
    assert (there.run, there.head, there.cases, there.tried) == (found.run, found.head, found.cases, found.tried)
    packed.write_bytes(b"torn")
    with pytest.raises(JournalError, match=r"jsonl\.gz: cannot be read"):
        story("toy", kernel, runs, kept)


def test_the_command_writes_all_operators_and_goes_on_past_a_damaged_one(
    tmp_path: Path, found: Story, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("never", "torn"):
        (tmp_path / "operators" / name).mkdir()
        (tmp_path / "operators" / name / f"{name}_triton.py").write_text("# a kernel\n")
    shutil.copytree(tmp_path / "logs" / "toy", tmp_path / "logs" / "torn")
    (tmp_path / "logs" / "torn" / found.run / FILE).write_text("{}\n{}\n")
    assert main(["report", "--json"]) == 1
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert document["operators"] == ["never", "toy"]
    assert "damaged record" in said.err
    text = (tmp_path / "report.html").read_text()
    assert "never optimised" in text
    assert '<a href="#toy">' in text
    assert main(["report", "t*y", "--out", "one.html"]) == 0
    assert "<a href=" not in (tmp_path / "one.html").read_text(), "one operator needs no index"
    assert main(["report", "toy", "--out", "report.html/below.html"]) == 2
    assert "cannot write here" in capsys.readouterr().err
    assert main(["report", "tox"]) == 2
    assert "did you mean 'toy'?" in capsys.readouterr().err


def test_a_printed_page_begins_with_the_operator_and_each_of_several_on_a_page_of_its_own(found: Story) -> None:
    one, several = page([found]), page([found, Story("never", "", state="never optimised")])
    rule = "section + section, .index + section { break-before: page; }"
    assert rule in one
    assert one.count("break-before") == 1, "nothing breaks before the first"
    assert ('<div class="wide index">' in one, '<div class="wide index">' in several) == (False, True)


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1200, "light")])
def test_a_browser_shows_it_without_an_error(tmp_path: Path, found: Story, width: int, scheme: str) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium on this machine")
    path = tmp_path / "report.html"
    path.write_text(page([found, Story("never", "# a kernel\n", state="never optimised")]))
    wrong: list[str] = []
    with playwright.sync_playwright() as tool:
        opened = tool.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        shown = opened.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True
        ).new_page()
        shown.on("console", lambda message: wrong.append(message.text))
        shown.on("pageerror", lambda error: wrong.append(str(error)))
        shown.on("request", lambda request: wrong.append(request.url) if "report.html" not in request.url else None)
        shown.goto(path.as_uri())
        shown.locator("#toy summary").first.click()
        heads = shown.locator("#toy details table.sort").first.locator("th")
        heads.nth(2).click()
        column = shown.locator("#toy details table.sort").first.locator("tbody td:nth-child(3)").all_inner_texts()
        figures = [float(text) for text in column if text != "–"]
        assert figures == sorted(figures)
        assert shown.evaluate("document.documentElement.scrollWidth") <= width, "nothing is wider than the screen"
        opened.close()
    assert [line for line in wrong if not line.startswith("data:")] == []


def test_pictures_for_papers(
    tmp_path: Path, found: Story, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    monkeypatch.chdir(tmp_path)
    assert main(["report", "toy", "--png", "figures", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)["pictures"]
    assert written == ["figures/toy-speedup.png", "figures/toy-roofline.png"]
    for name in written:
        image = Path(name).read_bytes()
        assert image.startswith(b"\x89PNG\r\n")
        assert int.from_bytes(image[16:20]) > 1000, "300 dots an inch"
    assert pictures(Story("never", "", state="never optimised")) == {}


def test_pictures_without_altair_say_how_to_get_it(
    tmp_path: Path, found: Story, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "altair", None)
    assert main(["report", "toy", "--png", "figures"]) == 2
    assert "--png needs altair: pip install 'kernelgen[report]'" in capsys.readouterr().err
    assert not Path("report.html").exists(), "nothing is written"
