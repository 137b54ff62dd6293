"""Workers: real processes, real compiles, and every way in which a candidate can go wrong."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from kernelgen import devices
from kernelgen.outcomes import Status
from kernelgen.worker import resources
from kernelgen.worker.client import Failed, Worker
from kernelgen.worker.process import environment
from kernelgen.worker.protocol import MAX_MESSAGE, ProtocolError, decode_reply, decode_request, facts_from_json

SCALE = Path(__file__).parent / "quartets" / "scale" / "scale_triton.py"
CASES = [
    {"label": "aligned", "inputs": [[[1024, 1024], "float16"]]},
    {"label": "odd", "inputs": [[[3, 129], "float32"]]},
]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    folder = tmp_path_factory.mktemp("worker")
    with Worker("compile", {"TRITON_CACHE_DIR": str(folder / "triton")}, folder) as worker:
        yield worker


def compile_file(worker: Worker, path: Path, arch: str = "sm_90", limit_s: float = 60.0) -> dict[str, Any]:
    facts = asdict(devices.find("cpu", arch).facts)
    return worker.call("compile", {"path": str(path), "function": "scale", "device": facts, "cases": CASES}, limit_s)


def candidate(folder: Path, name: str, body: str = "", **changes: str) -> Path:
    """The scale kernel with some text replaced and `body` at the head of its wrapper."""
    text = SCALE.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    text = text.replace("def scale(x):\n", f"def scale(x):\n    {body}\n" if body else "def scale(x):\n")
    path = folder / f"{name}.py"
    path.write_text(HEAD + text)
    return path


HEAD = """
import contextlib, os, signal, sys, time
def forge():
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, b"{}\\n")
    os._exit(0)
"""
"""What faults are made with; `forge` writes a reply of its own making to every descriptor it finds."""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_compiles_for_a_gpu_that_is_not_here(compiler: Worker, arch: str) -> None:
    result = compile_file(compiler, SCALE, arch)
    facts = {label: facts_from_json(data) for label, data in result["facts"]}
    aligned = facts["aligned"]
    assert aligned.kernel == "scale_kernel"
    assert aligned.arch == arch
    assert aligned.grid == (1024,)
    assert aligned.num_warps == 4
    assert 8 <= aligned.registers <= 64
    assert aligned.spill_bytes == 0
    assert aligned.occupancy == 1.0
    assert aligned.waves == pytest.approx(1024 / (16 * devices.find("cpu", arch).facts.sms))
    assert (aligned.load_bytes, aligned.store_bytes) == (16, 16)
    assert facts["odd"].grid == (1,)


def test_equal_machine_code_has_equal_digests(compiler: Worker, tmp_path: Path) -> None:
    """Other names of files and lines do not count; another grid or other arithmetic does."""
    first = compile_file(compiler, SCALE)["digests"]
    moved = compile_file(compiler, candidate(tmp_path, "moved", "# one line more"))["digests"]
    wider = compile_file(compiler, candidate(tmp_path, "wider", **{"1024": "2048"}))["digests"]
    triple = compile_file(compiler, candidate(tmp_path, "triple", **{"x * 2": "x * 3"}))["digests"]
    assert first == moved
    assert dict(first)["aligned"] not in (dict(wider)["aligned"], dict(triple)["aligned"])


FAULTS = {
    "syntax": ({"x * 2, mask=mask)": "x * 2, mask=mask"}, "", Status.COMPILE_ERROR, "does not load"),
    "type": ({"x * 2": "x * undefined"}, "", Status.COMPILE_ERROR, "undefined"),
    "name": ({"def scale(x)": "def other(x)"}, "", Status.COMPILE_ERROR, "no function scale"),
    "raises": ({}, "raise ValueError('no such shape')", Status.COMPILE_ERROR, "no such shape"),
    "exits": ({}, "sys.exit(3)", Status.COMPILE_ERROR, "SystemExit"),
    "os_exit": ({}, "os._exit(7)", Status.CRASHED, "exit status 7"),
    "segfault": ({}, "os.kill(os.getpid(), signal.SIGSEGV)", Status.CRASHED, "SIGSEGV"),
    "last_words": ({}, "print('goodbye', flush=True); os.abort()", Status.CRASHED, "goodbye"),
    "memory": ({}, "raise MemoryError('host')", Status.OUT_OF_MEMORY, "host"),
    "device_memory": ({}, "raise torch.OutOfMemoryError('CUDA out of memory')", Status.OUT_OF_MEMORY, "CUDA"),
    "forged": ({}, "forge()", Status.CRASHED, "exit status 0"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_typed_and_the_next_candidate_is_unaffected(compiler: Worker, tmp_path: Path, name: str) -> None:
    changes, body, status, words = FAULTS[name]
    with pytest.raises(Failed) as failure:
        compile_file(compiler, candidate(tmp_path, name, body, **changes))
    assert failure.value.status == status
    assert words in failure.value.message
    assert "\n" not in failure.value.message
    assert compile_file(compiler, SCALE)["facts"]


def test_a_kernel_that_fits_no_sm(compiler: Worker, tmp_path: Path) -> None:
    """A transposed tile of 256 KB goes through shared memory: it compiles, and no SM has so much."""
    path = tmp_path / "huge.py"
    path.write_text(TRANSPOSE)
    with pytest.raises(Failed) as failure:
        compile_file(compiler, path, "sm_80")
    assert failure.value.status == Status.LAUNCH_ERROR
    assert "262144 bytes of shared memory fits no SM" in failure.value.message


TRANSPOSE = """
import torch, triton, triton.language as tl
@triton.jit
def scale_kernel(x_ptr, out_ptr, BLOCK_SIZE: tl.constexpr):
    rows = tl.arange(0, BLOCK_SIZE)[:, None]
    columns = tl.arange(0, BLOCK_SIZE)[None, :]
    x = tl.load(x_ptr + rows * BLOCK_SIZE + columns).to(tl.float32)
    tl.store(out_ptr + columns * BLOCK_SIZE + rows, x)
def scale(x):
    out = torch.empty_like(x, dtype=torch.float32)
    scale_kernel[(1,)](x, out, BLOCK_SIZE=256, num_warps=32)
    return out
"""


def test_hangs_and_floods_end_in_time_and_others_go_on(compiler: Worker, tmp_path: Path) -> None:
    """A hang and an endless print are killed with their children while another candidate compiles beside them."""
    mark = tmp_path / "child.pid"
    hang = candidate(tmp_path, "hang", f"os.system('sleep 600 & echo $! > {mark}'); time.sleep(600)")
    flood = candidate(tmp_path, "flood", "while True: os.write(1, b'x' * 65536)")
    start, held = time.monotonic(), memory_mb(os.getpid())
    with ThreadPoolExecutor(3) as pool:
        slow = [pool.submit(compile_file, compiler, path, limit_s=s) for path, s in ((hang, 3.0), (flood, 1.0))]
        good = pool.submit(compile_file, compiler, SCALE)
        assert good.result()["facts"]
        for future in slow:
            with pytest.raises(Failed) as failure:
                future.result()
            assert failure.value.status == Status.TIMEOUT
    assert time.monotonic() - start < 8
    wait_for(lambda: gone(int(mark.read_text())))  # a killed process ends when it gets a core
    assert memory_mb(os.getpid()) < held + 500  # the flood has gigabytes, this process whatever other tests left


def test_a_dead_server_is_replaced(compiler: Worker) -> None:
    assert compile_file(compiler, SCALE)["facts"]
    pid = compiler.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    while compiler.pid is not None:
        time.sleep(0.01)
    assert compile_file(compiler, SCALE)["facts"]
    assert compiler.pid != pid


def test_a_cached_kernel_is_found_again(compiler: Worker) -> None:
    """Every child is a fresh fork, so a second request is fast only if the disk cache serves it."""
    compile_file(compiler, SCALE)
    start = time.monotonic()
    compile_file(compiler, SCALE)
    assert time.monotonic() - start < 2


def test_closing_ends_the_process(tmp_path: Path) -> None:
    worker = Worker("compile", {}, tmp_path)
    worker.start()
    pid = worker.pid
    assert pid is not None
    worker.close()
    assert gone(pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_never_outlives_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    """Not even one whose candidate hangs, when the parent gets no chance to clean up."""
    hang = candidate(tmp_path, "hang", f"open({str(tmp_path / 'hanging')!r}, 'w').close(); time.sleep(600)")
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), str(hang)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    wait_for(lambda: (tmp_path / "hanging").exists())
    children = [int(p) for p in Path(f"/proc/{worker}/task/{worker}/children").read_text().split()]
    assert children
    os.kill(parent.pid, number)
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: all(gone(pid) for pid in (worker, *children)))


PARENT = """
import sys, threading
from dataclasses import asdict
from pathlib import Path
from kernelgen import devices
from kernelgen.worker.client import Worker
worker = Worker("compile", {}, Path(sys.argv[1]))
threading.Thread(target=worker.start).start()  # started from a thread that ends at once
while worker.pid is None: pass
print(worker.pid, flush=True)
facts = asdict(devices.find("cpu").facts)
case = {"label": "a", "inputs": [[[8], "float32"]]}
worker.call("compile", {"path": sys.argv[2], "function": "scale", "device": facts, "cases": [case]}, 600.0)
"""


def test_no_secret_reaches_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = environment({"TRITON_CACHE_DIR": "/cache"})
    assert "secret" not in found.values()
    assert "TRITON_INTERPRET" not in found
    assert found["TRITON_CACHE_DIR"] == "/cache"


GOOD = b'{"id":1,"status":"ok","result":{},"message":"","poisoned":false}'


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"hello",
        b"[]",
        b"{}",
        GOOD.replace(b'"ok"', b'"fine"'),
        GOOD.replace(b'"id":1', b'"id":"1"'),
        GOOD.replace(b'"id":1', b'"id":true'),
        GOOD.replace(b"false", b"0"),
        GOOD.replace(b'"message"', b'"note"'),
        GOOD[:-1] + b',"more":1}',
        b" " * (MAX_MESSAGE + 1),
    ],
)
def test_malformed_messages_are_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_reply(line)
    with pytest.raises(ProtocolError):
        decode_request(line)


def test_a_worker_that_breaks_the_protocol_fails_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake interpreter that writes garbage or too much stands in for a worker gone mad."""
    from kernelgen.errors import NoDeviceError

    for name, code in {"garbage": "print('hello')", "long": f"print('x' * {MAX_MESSAGE + 10})", "mute": "pass"}.items():
        fake = tmp_path / name
        fake.write_text(f"#!{sys.executable} -IS\n{code}\n")
        fake.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(fake))
        with Worker("compile", {}, tmp_path) as worker, pytest.raises(NoDeviceError, match="does not start"):
            worker.start()


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie that nobody reaps has ended, too)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))


def wait_for(condition: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        threading.Event().wait(0.02)


def test_every_form_of_global_access_is_measured() -> None:
    text = """
        @%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
        ld.global.L1::evict_last.L2::cache_hint.v8.b32 { %r1 }, [ %rd1 + 0 ], %rd9;
        ld.volatile.global.b32 { %r2 }, [ %rd2 + 0 ];
        ld.param.b64 %rd3, [scale_kernel_param_0];
        ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r5];
        cp.async.cg.shared.global [ %r80 + 0 ], [ %rd5 + 0 ], 0x10, %r81;
        @%p2 st.global.b16 [ %rd6 + 0 ], { %rs11 };
    """
    assert resources.accesses(text) == resources.Accesses(load_bytes=32, store_bytes=2, loads=4, stores=1)


@pytest.mark.parametrize(
    ("warps", "registers", "shared", "programs"),
    [
        (4, 32, 0, 16),
        (4, 64, 0, 8),
        (8, 64, 0, 4),
        (32, 33, 0, 1),
        (4, 255, 0, 2),
        (4, 32, 100 * 1024, 2),
        (1, 16, 0, 32),
    ],
)
def test_resident_programs_as_the_occupancy_calculator_has_them(
    warps: int, registers: int, shared: int, programs: int
) -> None:
    assert resources.resident_programs(devices.find("cpu", "sm_90").facts, warps, registers, shared) == programs


def test_no_program_fits() -> None:
    facts = devices.find("cpu", "sm_80").facts
    assert resources.resident_programs(facts, 4, 32, 164 * 1024) == 0
    assert resources.resident_programs(facts, 64, 32, 0) == 0


def test_results_of_eight_bit_floats_are_compared() -> None:
    import torch

    from kernelgen.worker.gpu import _close

    right, wrong = (torch.tensor(v).to(torch.float8_e4m3fn) for v in ([1.0, 448.0, math.nan], [1.0, 2.0, math.nan]))
    assert _close(right, right)
    assert not _close(wrong, right)


def test_a_race_takes_what_is_multiplied_as_tf32_for_what_is_not() -> None:
    import torch
    import torch.nn.functional as F

    from kernelgen.judge.stored import tf32
    from kernelgen.worker.gpu import _close

    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(shape, generator=generator) for shape in ((1, 3, 8, 16, 16), (16, 3, 3, 3, 3)))
    exact = torch.softmax(F.conv3d(x, w), 1)
    rounded = torch.softmax(F.conv3d(tf32(x), tf32(w)), 1).float()
    without_a_tap = torch.softmax(F.conv3d(x[..., 1:], w[..., 1:]), 1)
    assert _close(rounded, exact, has_products=True)
    assert not _close(rounded, exact, has_products=False)
    assert not _close(without_a_tap, exact, has_products=True)


def test_a_race_takes_what_is_rounded_on_the_way_for_what_is_not() -> None:
    """A softmax of logits of about 64, which torch's product leaves in half precision and a kernel keeps in float32."""
    import torch
    import torch.nn.functional as F

    from kernelgen.worker.gpu import _check_against
    from kernelgen.worker.operations import WrongError

    def inputs() -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return [torch.randn(shape, generator=generator).half() for shape in ((1024, 4096), (256, 4096))]

    def current(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(F.linear(x.float(), w.float()).half().float(), -1).half()

    def exact(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(F.linear(x.float(), w.float()), -1).half()

    def without_a_tile(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return exact(x[:, :-64], w[:, :-64])

    assert (current(*inputs()) - exact(*inputs())).abs().max() > 2e-2

    def without_columns(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(len(w)) < 192, exact(x, w), 0)

    _check_against(current, exact, inputs(), has_products=True)
    for wrong in (without_a_tile, without_columns, lambda x, w: 0 * exact(x, w)):
        with pytest.raises(WrongError, match="differs"):
            _check_against(current, wrong, inputs(), has_products=True)


@pytest.mark.parametrize(
    ("wanted", "got"),
    [
        ([1.0, math.nan], [1.0, math.inf]), ([1.0, math.inf], [1.0, -math.inf]), ([1.0, -math.inf], [1.0, math.nan]),
        ([6e4, -6e4], [-6e4, 6e4]), ([1.0, 2.0], [1.0, math.nan]),
    ],
)  # fmt: skip
def test_a_race_tells_numbers_from_what_is_none(wanted: list[float], got: list[float]) -> None:
    import torch

    from kernelgen.worker.gpu import _check_against
    from kernelgen.worker.operations import WrongError

    def giving(values: list[float]) -> Any:
        return lambda x: (x[:0], torch.tensor(values, dtype=torch.float16))

    _check_against(giving(wanted), giving(wanted), [torch.randn(4)], has_products=False)
    with pytest.raises(WrongError, match="differs"):
        _check_against(giving(wanted), giving(got), [torch.randn(4)], has_products=False)
