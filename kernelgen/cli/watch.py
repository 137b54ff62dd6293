"""`kernelgen watch`: runs as they go, in the terminal or as a page of this machine's own."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelgen.cli.names import LOGS
from kernelgen.cli.terminal import Json, emit, note, table
from kernelgen.errors import KernelgenError, UsageError
from kernelgen.settings import checked, whole

if TYPE_CHECKING:
    from rich.table import Table

    from kernelgen.report import Glance

HOST = "127.0.0.1"
EVERY_S = 1.0
LARGEST_PORT = 65535
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"


def watch(
    names: Annotated[list[str] | None, typer.Argument(metavar="[GLOB...]", help="Only matching operators.")] = None,
    serve: Annotated[
        str | None, typer.Option("--serve", metavar="PORT", help=f"Serve a page on {HOST} instead; 0: any free port.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    json: Json = False,
) -> None:
    """Show running and past runs, live.

    Ctrl-C ends the display; the runs continue. If stdout is not a terminal, the runs are printed once.
    """
    wanted = tuple(names or ())
    if serve is not None:
        _serve(int(checked("--serve", serve, whole(0, LARGEST_PORT))), wanted)
    elif json:
        emit([asdict(one) for one in _runs(wanted)])
    elif once or not sys.stdout.isatty():
        _print(_runs(wanted))
    else:
        _live(wanted)


def _runs(names: Sequence[str]) -> list[Glance]:
    from kernelgen.report import glances

    return [one for one in glances(LOGS) if not names or any(fnmatchcase(one.operator, glob) for glob in names)]


COLUMNS = ("operator", "run", "state", "result", "round", "candidates", "best")


def _row(one: Glance) -> tuple[str, ...]:
    candidates = f"{one.done} of {one.planned}" if one.planned else "–"
    best = f"{one.best:.3f}x" if one.best else "–"
    return (one.operator, one.run, one.state, one.result or "–", one.doing, candidates, best)


def _print(runs: Sequence[Glance]) -> None:
    if runs:
        print(table([COLUMNS, *map(_row, runs)]))
    else:
        note("logs/ has no runs yet: `kernelgen optimize NAME` starts one")


def _live(names: Sequence[str]) -> None:
    """The table again and again until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    try:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                live.update(_drawn(_runs(names)[: max(console.height - 4, 1)]), refresh=True)
                time.sleep(EVERY_S)
    except KeyboardInterrupt:
        _print(_runs(names))


def _drawn(runs: Sequence[Glance]) -> Table:
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, caption="Ctrl-C ends this; the runs go on", caption_justify="left")
    for name in COLUMNS:
        drawn.add_column(name, overflow="fold" if name == "result" else "ellipsis", no_wrap=name != "result")
    for one in runs:
        style = {"running": "green", "damaged": "red"}.get(one.state, "")
        drawn.add_row(
            *(Text(cell, style=style if name == "state" else "") for name, cell in zip(COLUMNS, _row(one), strict=True))
        )
    return drawn


def _serve(port: int, names: Sequence[str]) -> None:
    try:
        server = ThreadingHTTPServer((HOST, port), partial(_Pages, names))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"--serve {port}: {reason}; choose another port, or 0 for any free one") from None
    with server:
        note(f"http://{HOST}:{server.server_port}/ shows the runs; Ctrl-C stops the server, the runs continue")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


class _Pages(BaseHTTPRequestHandler):
    """`/`: every run; `/NAME`: the report of an operator's newest run. Only reads, and only for this machine."""

    def __init__(self, names: Sequence[str], *rest: object) -> None:
        self._names = names
        super().__init__(*rest)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        # A page of another site could have its name resolve to this machine, and read what is here.
        if self.headers.get("Host", "").partition(":")[0] not in (HOST, "localhost"):
            return self.send_error(HTTPStatus.FORBIDDEN)
        name = self.path.partition("?")[0].strip("/")
        try:
            text = _page(name, self._names)
        except KernelgenError as error:
            return self.send_error(HTTPStatus.NOT_FOUND, str(error).partition("\n")[0])
        body = text.encode()
        tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        if self.headers.get("If-None-Match") == tag:
            self.send_response(HTTPStatus.NOT_MODIFIED)
            return self.end_headers()
        self.send_response(HTTPStatus.OK)
        for header, value in {
            "Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(body)), "ETag": tag,
            "Cache-Control": "no-store", "Content-Security-Policy": POLICY,
        }.items():  # fmt: skip
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(body)
        return None

    def log_message(self, format: str, *args: object) -> None:
        """Requests are nobody's news."""


def _page(name: str, names: Sequence[str]) -> str:
    """Raises KernelgenError for an operator without runs, or with a damaged journal."""
    from kernelgen.cli.names import Quartet, quartets
    from kernelgen.report import overview, page, story

    runs = _runs(names)
    if not name:
        return overview(runs)
    if name not in {one.operator for one in runs}:
        raise UsageError("there is no run of such an operator")
    quartet = next((q for q in quartets() if q.name == name), Quartet(name, Path("operators") / name))
    return page([story(name, quartet.file("triton"), LOGS / name)], live=True)
