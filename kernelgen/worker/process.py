"""One worker as an operating system process: started in its own session, watched, killed with all its children."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import site
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO

from kernelgen.worker.confine import Confinement
from kernelgen.worker.protocol import MAX_MESSAGE, ProtocolError, Reply, Request, decode_reply, encode, one_line

ALLOWED = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "TZ", "VIRTUAL_ENV", "XDG_CACHE_HOME", "CC",
    "PYTHONPYCACHEPREFIX",
    "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "TRITON_LIBCUDA_PATH", "TRITON_PTXAS_PATH",
    "TRITON_CUOBJDUMP_PATH",
)  # fmt: skip
"""The only variables a worker inherits: no key or token of the user's reaches a candidate."""

# Linux kills a process with PDEATHSIG when the *thread* that started it ends, so one thread that lives as
# long as the parent starts them all.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kernelgen-start")


class Died(Exception):
    """The process ended, or had to be ended, before it replied."""


def environment(extra: dict[str, str]) -> dict[str, str]:
    """The scrubbed environment of a worker."""
    kept = {name: os.environ[name] for name in ALLOWED if name in os.environ}
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    # a private HOME must not hide what was installed for the user alone
    base = {"PYTHONUSERBASE": site.getuserbase()} if site.ENABLE_USER_SITE else {}
    return {**kept, **base, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **extra}


class Process:
    """A running worker; `send` returns a future for each request. Thread-safe."""

    def __init__(self, role: str, env: dict[str, str], cwd: Path, confinement: Confinement | None = None) -> None:
        self._pending: dict[int, Future[Reply]] = {}
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._errors: deque[bytes] = deque(maxlen=16)  # the last chunks of stderr, never more than 64 KiB
        self._reason = ""
        self._popen: subprocess.Popen[bytes] = _starter.submit(
            subprocess.Popen,
            self.command(role, confinement),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd=cwd,
            start_new_session=True,
        ).result()
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._read_replies, self._read_errors)
        ]
        for thread in self._threads:
            thread.start()

    def command(self, role: str, confinement: Confinement | None) -> list[str]:
        """What is run."""
        command = [sys.executable, "-P", "-m", "kernelgen.worker", role, str(os.getpid())]
        return command if confinement is None else [*command, json.dumps(confinement.to_json())]

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return not self._reason and self._popen.poll() is None

    def send(self, op: str, args: dict[str, object], limit_s: float) -> Future[Reply]:
        """Hand a request over; its future raises Died when the process ends first."""
        future: Future[Reply] = Future()
        with self._lock:
            request = Request(next(self._ids), op, args, limit_s)
            self._pending[request.id] = future
            try:
                stdin = _pipe(self._popen.stdin)
                stdin.write(encode(request))
                stdin.flush()
            except OSError:
                # Its stdin is closed. The reader fails the request when stdout ends too; if it has, we do.
                if self._reason:
                    self._pending.pop(request.id)
                    future.set_exception(Died(self._reason))
        return future

    def kill(self, reason: str) -> None:
        """End it and everything it started, at once. Every open request fails with `reason`."""
        self._reason = self._reason or reason
        # The session's group may outlive its leader (a ptxas, a sleep), so it is killed in any case.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        with self._lock, contextlib.suppress(OSError):
            _pipe(self._popen.stdin).close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=1)  # an orphan may hold stderr open

    def _read_replies(self) -> None:
        stdout = _pipe(self._popen.stdout)
        while line := stdout.readline(MAX_MESSAGE + 1):
            try:
                reply = decode_reply(line)
            except ProtocolError as error:
                self._fail_all(f"the worker broke the protocol: {error}")
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._popen.pid, signal.SIGKILL)
                break
            with self._lock:
                future = self._pending.pop(reply.id, None)
            if future is not None:
                future.set_result(reply)
        self._popen.wait()
        self._fail_all(self._reason or self._how_it_ended())
        stdout.close()

    def _fail_all(self, reason: str) -> None:
        with self._lock:
            self._reason = self._reason or reason
            pending, self._pending = self._pending, {}
        for future in pending.values():
            future.set_exception(Died(self._reason))

    def _read_errors(self) -> None:
        stderr = _pipe(self._popen.stderr)
        while chunk := os.read(stderr.fileno(), 4096):
            self._errors.append(chunk)
        stderr.close()

    def last_words(self) -> str:
        """The end of its stderr, as an appendix to a message; "" where it said nothing."""
        last = self._last_line()
        return f"; it said: {last}" if last else ""

    def _last_line(self) -> str:
        return one_line(b"".join(self._errors).decode(errors="replace")[-400:])

    def _how_it_ended(self) -> str:
        code = self._popen.wait()
        self._threads[1].join(timeout=1)  # stderr may end after stdout; an orphan may hold it open
        last = self._last_line()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        return f"the worker was {how}" if code < 0 else f"the worker {how}" + (f": {last}" if last else "")


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream
