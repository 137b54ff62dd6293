"""What a worker cannot do: real processes that try. A candidate is device code and never gets this far; this is the second wall."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelgen import devices
from kernelgen.errors import NoDeviceError
from kernelgen.outcomes import Status
from kernelgen.worker import client, confine, private, protocol
from kernelgen.worker.client import Failed, Worker
from kernelgen.worker.confine import LANDLOCK, LOOSE, NAMESPACE, SECCOMP, Confinement, landlock, seccomp

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces, landlock and seccomp are Linux's")


@dataclass
class Place:
    """A confined worker, and what it must not reach."""

    worker: Worker
    candidates: Path
    secret: Path
    port: int
    reached: list[object]
    folder: Path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("confine")
    (root / "candidates").mkdir()
    secret = root / "secret.txt"
    secret.write_text("canary")
    folder = private.make(root / "work")
    reached: list[object] = []
    with socket.socket() as listener, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "sk-canary")
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.2)
        threading.Thread(target=accept, args=(listener, reached), daemon=True).start()
        wanted = Confinement((str(root / "candidates"),), (str(folder),))
        with Worker("compile", private.variables(folder), folder / "cwd", wanted) as worker:
            yield Place(worker, root / "candidates", secret, listener.getsockname()[1], reached, folder)


def accept(listener: socket.socket, reached: list[object]) -> None:
    while listener.fileno() >= 0:
        try:
            reached.append(listener.accept())
        except TimeoutError:
            continue
        except OSError:
            return


def attempt(place: Place, name: str, code: str) -> str:
    """What became of some host code in the worker: `done: ...` with the value of `result`, or the error's name."""
    path = place.candidates / f"{name}.py"
    lines = "\n".join(f"        {line}" for line in code.strip().splitlines())
    path.write_text(
        "import ctypes, os, signal, socket, subprocess, sys\n"
        f"SECRET, PORT, PARENT = {str(place.secret)!r}, {place.port}, {os.getpid()}\n"
        "def scale(x):\n    result = None\n    try:\n"
        f"{lines}\n"
        "    except OSError as error:\n        raise RuntimeError(f'refused: {type(error).__name__}')\n"
        "    raise RuntimeError(f'done: {result}')\n"
    )
    facts = asdict(devices.find("cpu", "sm_90").facts)
    case = {"label": "one", "inputs": [[[64], "float32"]]}
    with pytest.raises(Failed) as caught:
        place.worker.call("compile", {"path": str(path), "function": "scale", "device": facts, "cases": [case]}, 60.0)
    return caught.value.message.removeprefix("CompileError: RuntimeError: ")


NEEDS_LANDLOCK = pytest.mark.skipif(landlock.abi() < 6, reason="this kernel's landlock does not know it")
NEEDS_SECCOMP = pytest.mark.skipif(os.uname().machine not in seccomp.CALLS, reason="system calls not known")

FILES = {
    "read_the_canary": "result = open(SECRET).read()",
    "write_beside_it": "result = open(SECRET + '.new', 'w').write('x')",
    "overwrite_it": "result = open(SECRET, 'a').write('x')",
    "truncate_it": "result = os.truncate(SECRET, 0)",
    "remove_it": "result = os.remove(SECRET)",
    "link_it": "os.symlink(SECRET, os.environ['TMPDIR'] + '/link'); result = open(os.environ['TMPDIR'] + '/link').read()",
    "list_the_root": "result = os.listdir('/root' if os.path.isdir('/root') else '/home')",
    "read_shadow": "result = open('/etc/hostname').read()",
    "the_parents_environment": "result = open(f'/proc/{PARENT}/environ').read()",
    "the_parents_memory": "result = open(f'/proc/{PARENT}/mem', 'rb')",
    "what_the_kernel_shows_of_it": "result = os.open('/proc/self/comm', os.O_WRONLY)",
    "overwrite_torch": "import torch; result = open(torch.__file__, 'a')",
    "overwrite_the_judge": "import kernelgen.judge; result = open(kernelgen.judge.__file__, 'a')",
    "a_child_that_reads": "if not subprocess.run(['cat', SECRET], capture_output=True).stdout: raise OSError",
    "kill_the_parent": "os.kill(PARENT, 0)",
}
CALLS = {
    "loopback": "socket.create_connection(('127.0.0.1', PORT), 2)",
    "datagrams": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "unix_sockets": "socket.socket(socket.AF_UNIX)",
    "a_new_session": "os.setsid()",
    "a_group_of_its_own": "os.setpgid(0, 0)",
    "trace_the_parent": "if ctypes.CDLL(None, use_errno=True).ptrace(16, PARENT, 0, 0) == -1: raise OSError",
    "a_new_namespace": "if ctypes.CDLL(None, use_errno=True).unshare(0x10000000) == -1: raise OSError",
}


@NEEDS_LANDLOCK
@pytest.mark.parametrize("name", FILES)
def test_files_and_processes_outside_are_out_of_reach(place: Place, name: str) -> None:
    assert attempt(place, name, FILES[name]).startswith("refused: ")
    assert place.secret.read_text() == "canary"


@NEEDS_SECCOMP
@pytest.mark.parametrize("name", CALLS)
def test_the_network_and_other_processes_are_out_of_reach(place: Place, name: str) -> None:
    assert attempt(place, name, CALLS[name]).startswith("refused: ")
    assert place.reached == []


def test_no_secret_is_in_its_environment(place: Place) -> None:
    said = attempt(place, "environment", "result = dict(os.environ)")
    assert said.startswith("done: {")
    assert "sk-canary" not in said
    assert "OPENAI" not in said


def test_home_temporary_files_and_cache_are_its_own(place: Place) -> None:
    code = "import tempfile; result = [os.path.expanduser('~'), tempfile.gettempdir(), os.environ['TRITON_CACHE_DIR']]"
    said = attempt(place, "home", code)
    assert said.count(str(place.folder)) == 3
    code = "open(os.path.expanduser('~/f'), 'w').write('x'); result = open(os.path.expanduser('~/f')).read()"
    assert attempt(place, "own", code) == "done: x"


def test_limits_hold(place: Place) -> None:
    code = "import resource; result = [resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_NOFILE)[1] <= 4096]"
    assert attempt(place, "limits", code) == "done: [(0, 0), True]"
    code = "f = open(os.environ['TMPDIR'] + '/big', 'wb'); signal.signal(signal.SIGXFSZ, signal.SIG_IGN); f.truncate(5 << 30)"
    assert attempt(place, "big_file", code).startswith("refused: ")


@NEEDS_LANDLOCK
@NEEDS_SECCOMP
def test_what_was_achieved_is_said(place: Place) -> None:
    lines = place.worker.confinement()
    assert "files: reads listed folders, writes its own (landlock" in " ".join(lines)
    assert "seccomp" in " ".join(lines)


def test_an_unconfined_worker_says_so(tmp_path: Path) -> None:
    with Worker("compile", {}, tmp_path) as worker:
        assert any(line.startswith("missing: everything else") for line in worker.confinement())


def test_what_a_driver_does_not_bear_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The strongest confinement that a worker starts with is kept for those that follow it."""
    tried: list[tuple[str, ...]] = []
    delicate(monkeypatch, tried, lambda walls: bool({LANDLOCK, SECCOMP} & set(walls)))
    folder = private.make(tmp_path)
    with Worker("once", private.variables(folder), folder / "cwd", Confinement((), (str(folder),))) as worker:
        worker.start()
        assert worker._confinement is not None
        assert worker._confinement.walls == (LOOSE, NAMESPACE)
        assert [name for name, _ in worker._confinement.refused] == [LANDLOCK, SECCOMP]
        assert all("exited with 1: no such file: /dev/nvidia9" in why for _, why in worker._confinement.refused)
        before = len(tried)
        worker._discard(worker._running(), "a fault")
        worker.start()  # what was found out serves those that follow
        assert tried[before:] == [(LOOSE, NAMESPACE)]
    assert tried[0] == (LANDLOCK, NAMESPACE, SECCOMP)
    assert sorted(tried[1:6]) == sorted([(LANDLOCK,), (LOOSE,), (NAMESPACE,), (SECCOMP,), ()])
    assert tried[6:before] == [(LOOSE, NAMESPACE)] * 2


def test_walls_that_are_borne_alone_and_not_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    delicate(monkeypatch, [], lambda walls: {LANDLOCK, SECCOMP} <= set(walls))
    with Worker("once", {}, tmp_path, Confinement()) as worker:
        worker.start()
        assert worker._confinement is not None
        assert worker._confinement.walls == (LANDLOCK, NAMESPACE)
        assert worker._confinement.refused[0][1].startswith("beside landlock and namespace: ")


def test_a_worker_that_never_starts_is_not_the_walls_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[str, ...]] = []
    delicate(monkeypatch, tried, lambda walls: True)
    with (
        Worker("once", {}, tmp_path, Confinement()) as worker,
        pytest.raises(NoDeviceError, match="no such file: /dev/nvidia9"),
    ):
        worker.start()
    assert () in tried


def delicate(
    monkeypatch: pytest.MonkeyPatch, tried: list[tuple[str, ...]], breaks: Callable[[tuple[str, ...]], bool]
) -> None:
    """Workers that end at once behind certain walls, as a driver would, and answer behind the others."""
    reply = protocol.encode(protocol.Reply(1, Status.OK, {})).decode().strip()
    answers = f"import sys; sys.stdin.readline(); print({reply!r}, flush=True); sys.stdin.read()"
    ends = "import sys; sys.exit('no such file: /dev/nvidia9') if sys.stdin.readline() else 0"

    class Delicate(client.Process):
        def command(self, role: str, confinement: Confinement | None) -> list[str]:
            assert confinement is not None
            tried.append(confinement.walls)
            return [sys.executable, "-c", ends if breaks(confinement.walls) else answers]

    monkeypatch.setattr(client, "Process", Delicate)


@NEEDS_LANDLOCK
def test_where_reading_is_free_writing_is_not(tmp_path: Path) -> None:
    """The form for drivers that open files nobody knows of."""
    folder = private.make(tmp_path / "work")
    (tmp_path / "canary").write_text("canary")
    code = (
        "import json, sys, os; from kernelgen.worker import confine; "
        "w = confine.Confinement((), (sys.argv[1],), True, ('landlock for writes',)); a = confine.confine(w); "
        "canary, own = sys.argv[2], sys.argv[1] + '/own'\n"
        "def attempt(path, flags):\n"
        "    try: return os.close(os.open(path, flags)) or 'done'\n"
        "    except OSError as error: return type(error).__name__\n"
        "W, C = os.O_WRONLY, os.O_WRONLY | os.O_CREAT\n"
        "print(json.dumps([attempt(canary, 0), attempt(canary, W), attempt(own, C), attempt('/dev/null', W), "
        "attempt('/proc/self/comm', W), attempt('/dev/mine', C), a.holds]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), str(tmp_path / "canary")], capture_output=True, text=True, check=True
    )
    *found, holds = json.loads(done.stdout)
    assert found == ["done", "PermissionError", "done", "done", "done", "PermissionError"]
    assert "files: writes its own folder and devices alone, reads everything" in " ".join(holds)


def test_folders_of_dead_runs_are_removed(tmp_path: Path) -> None:
    (tmp_path / "999999999-abc").mkdir()
    (tmp_path / "unrelated").mkdir()
    mine = private.make(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"unrelated", mine.name}
    assert mine.stat().st_mode & 0o077 == 0
    private.remove(mine)
    assert not mine.exists()


NAMES_A_THREAD = """
import ctypes, json, os, sys, threading
from kernelgen.worker import confine
confine.confine(confine.Confinement((), (sys.argv[1],), sys.argv[2] == "gpu", (sys.argv[3],)))
said = []
def name():
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as file:
            said.append(file.write("cuda"))
    except OSError as error:
        said.append(type(error).__name__)
thread = threading.Thread(target=name); thread.start(); thread.join()
try:
    said.append(open("/proc/sys/kernel/core_pattern", "r+").read())
except OSError as error:
    said.append(type(error).__name__)
print(json.dumps(said))
"""


@NEEDS_LANDLOCK
@pytest.mark.parametrize(
    ("role", "wall", "named"),
    [("gpu", LANDLOCK, 4), ("gpu", LOOSE, 4), ("cpu", LANDLOCK, "PermissionError")],
)
def test_cuda_may_name_its_threads_and_nothing_else_in_proc(
    tmp_path: Path, role: str, wall: str, named: object
) -> None:
    """Seen on an H200: without this the driver ends with error 304, "OS call failed"."""
    command = [sys.executable, "-c", NAMES_A_THREAD, str(tmp_path), role, wall]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [named, "PermissionError"]


def test_a_compiler_in_a_place_of_its_own_is_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its headers and libraries lie beside its `bin`; a user's home is never let in for it."""
    prefix = tmp_path / "opt" / "gcc"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "gcc").write_text("#!/bin/sh\n")
    (prefix / "bin" / "gcc").chmod(0o755)
    monkeypatch.setenv("PATH", str(prefix / "bin"))
    monkeypatch.delenv("CC", raising=False)
    assert confine._compilers() == [str(prefix)]
    monkeypatch.setattr("pwd.getpwall", lambda: [SimpleNamespace(pw_dir=str(prefix))])
    assert confine._compilers() == []
