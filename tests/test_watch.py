"""`kernelgen watch`: runs as their journals grow, in the terminal and as pages of this machine's own."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from rounds_fakes import FakeEvaluator, make_plan, run, write_kernel

from kernelgen import journal
from kernelgen.cli import main, watch
from kernelgen.evaluate import Candidate
from kernelgen.journal import FILE
from kernelgen.outcomes import Evaluation
from kernelgen.report import glances


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one finished run."""
    monkeypatch.chdir(tmp_path)
    write_kernel(tmp_path, make_plan())
    run(tmp_path, rounds=1)
    return tmp_path


def test_a_run_is_seen_while_it_goes_and_after(here: Path) -> None:
    seen = []

    def look(step: str, candidate: Candidate, found: Evaluation) -> Evaluation:
        seen.extend(glances(here / "logs")[:1] if step == "search" else ())
        return found

    run(here, FakeEvaluator(twist=look), rounds=2)
    assert {one.state for one in seen} == {"running"}
    assert seen[1].doing.startswith("round 1: ")
    assert (seen[1].done, seen[0].done) == (1, 0)
    assert seen[1].planned > 1
    assert seen[1].best
    assert "v2.0, 2.000x" in seen[1].result
    after = glances(here / "logs")
    assert [one.state for one in after] == ["finished", "finished"]
    assert after[0].updated > after[1].updated, "the newest first"
    assert after[0].doing == "finished 2 rounds"


def test_a_run_that_was_killed_and_one_that_is_damaged(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder,) = journal.runs(here / "logs" / "toy")
    lines = (folder / FILE).read_bytes().splitlines(keepends=True)
    candidates = [i for i, line in enumerate(lines) if b'"kind":"candidate"' in line]
    (folder / FILE).write_bytes(b"".join(lines[: candidates[2]]) + lines[candidates[2]][:20])
    (one,) = glances(here / "logs")
    assert (one.state, one.done) == ("stopped", 2)
    (folder / FILE).write_bytes(lines[0] + b"{}\n" + b"".join(lines[2:]))
    assert main(["watch"]) == 0
    assert f"{FILE}:2: damaged record" in capsys.readouterr().out
    assert main(["watch", "to*", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "damaged"
    assert main(["watch", "x*", "--once"]) == 0
    assert "logs/ has no runs yet" in capsys.readouterr().err


@pytest.fixture
def port(here: Path) -> Iterator[int]:
    with ThreadingHTTPServer((watch.HOST, 0), partial(watch._Pages, ())) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def get(port: int, path: str, **headers: str) -> tuple[int, str, str | None]:
    connection = http.client.HTTPConnection(watch.HOST, port)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.getheader("ETag")


def test_the_pages_are_polled_and_say_what_the_terminal_says(port: int, here: Path) -> None:
    status, text, tag = get(port, "/")
    assert status == 200
    assert 'href="/toy"' in text
    assert "finished 1 round" in text
    assert "If-None-Match" in text, "it polls itself"
    assert get(port, "/", **{"If-None-Match": tag or ""})[:2] == (304, "")
    status, text, _ = get(port, "/toy")
    assert (status, "Rounds" in text, "If-None-Match" in text) == (200, True, True)
    run(here, rounds=2)
    assert get(port, "/", **{"If-None-Match": tag or ""})[0] == 200, "another run is news"
    assert get(port, "/nothing")[0] == 404
    assert get(port, "/../pyproject.toml")[0] == 404
    assert get(port, "/", Host="somewhere.example")[0] == 403


def test_a_port_that_is_taken_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind((watch.HOST, 0))
        taken.listen()
        assert main(["watch", "--serve", str(taken.getsockname()[1])]) == 2
    said = capsys.readouterr().err
    assert "address already in use; choose another port, or 0 for any free one" in said
    assert len(said.splitlines()) == 1
    assert main(["watch", "--serve", "99999"]) == 2
    assert "must be a whole number from 0 to 65535" in capsys.readouterr().err
