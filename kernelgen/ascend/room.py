"""Runs in the compiler's own environment: a request as JSON on stdin, the answer as one line of JSON on stdout.

Needs triton-ascend and ascendnpu-ir and nothing of kernelgen. A kernel's file imports torch for its wrapper alone; a
stand-in satisfies that.

  ttir        Triton's own IR; from here on every operation knows the line of the kernel that it comes from
  ttadapter   tensors and loops (linalg), by triton-adapter-opt; unstructured accesses are marked
  hivm        buffers placed in UB and L0C, by bishengir-compile; it needs the proprietary hivmc only after that
  object      for this CPU: ttadapter through LLVM, to run what was lowered
"""

import ctypes
import importlib.metadata
import importlib.util
import json
import platform
import re
import subprocess
import sys
import tempfile
import types
from math import prod
from pathlib import Path
from typing import Any

Json = dict[str, Any]

BYTES = {"i1": 1, "i8": 1, "i16": 2, "f16": 2, "bf16": 2, "i32": 4, "f32": 4, "i64": 8, "f64": 8}
TO_LLVM = (
    "--adapt-triton-kernel", "--execution-engine-convert-hfusion-to-upstream",
    "--execution-engine-convert-hivm-to-upstream", "--decompose-tensor-concat", "--convert-elementwise-to-linalg",
    "--empty-tensor-to-alloc-tensor", "--one-shot-bufferize=allow-return-allocs-from-loops=true",
    "--buffer-deallocation-pipeline", "--convert-bufferization-to-memref", "--expand-strided-metadata",
    "--convert-linalg-to-loops", "--convert-scf-to-cf", "--lower-affine", "--arith-expand", "--convert-vector-to-llvm",
    "--convert-math-to-llvm", "--convert-math-to-libm", "--finalize-memref-to-llvm", "--convert-func-to-llvm",
    "--convert-cf-to-llvm", "--convert-index-to-llvm", "--convert-arith-to-llvm", "--reconcile-unrealized-casts",
)  # fmt: skip
"""Passes of bishengir-opt that make code for a CPU of linalg."""
SUM = re.compile(
    r"\s*%\w+ = linalg\.reduce ins\((?P<source>%[\w#]+) : tensor<(?P<lead>(?:\d+x)*)(?P<length>\d+)x(?P<kind>\w+)>\)"
    r" outs\(%\w+ : tensor<[^>]*>\) dimensions = \[\d+\]"
)
OWN_ATTRIBUTES = (
    r" attributes \{[^}]*\}", r"\{(tt|hacc)\.[^}]*\}", r"\{hivm\.[^}]*\}", r"\{DiscreteMemAccess\}",
    r"\{ExtractedLoadOrStore\}",
)  # fmt: skip
"""What the LLVM dialect of Triton's own build cannot read."""


class Stand(types.ModuleType):
    """A module all of whose attributes exist."""

    def __getattr__(self, name: str) -> type:
        return type(name, (), {})


def load(path: str, kernel: str) -> Any:
    """The jit function of a kernel's file."""
    sys.modules.setdefault("torch", Stand("torch"))
    spec = importlib.util.spec_from_file_location("kernel_file", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernel_file"] = module
    spec.loader.exec_module(module)
    return getattr(module, kernel)


def to_ttir(function: Any, request: Json) -> tuple[Any, Json, Json]:
    """Triton IR, its metadata, and the stages that follow."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend

    target = GPUTarget("npu", request["target"], 0)
    backend = make_backend(target)
    options = backend.parse_options(request["options"])
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source = ASTSource(function, signature=request["signature"], constants=request["constants"])
    module = source.make_ir(options, backend.get_codegen_implementation(), backend.get_module_map(), context)
    metadata = {"target": target, **options.__dict__}
    stages: Json = {}
    backend.add_stages(stages, options)
    module = stages["ttir"](module, metadata)
    module.context = context  # it must live as long as the module
    return module, metadata, stages


class Places:
    """From an operation's location to the line of the kernel's file."""

    def __init__(self, text: str, path: str) -> None:
        self.names = dict(re.findall(r"^(#loc\w*) = loc\((.*)\)$", text, re.MULTILINE))
        self.path = str(path)

    def line(self, operation: str) -> int:
        """The innermost line of the file that an operation stands at; 0 where it stands in none."""
        found = re.findall(r"loc\((#loc\w*|\"[^)]*)\)\s*$", operation)
        return self._resolve(found[-1], 0) if found else 0

    def _resolve(self, text: str, depth: int) -> int:
        if depth > 20:
            return 0
        # of a call the callee stands first: a helper of the file, or one of Triton's, whose caller is then meant
        for part in re.findall(r"#loc\w*|\"[^\"]+\":\d+:\d+", text):
            if part.startswith("#"):
                found = self._resolve(self.names.get(part, ""), depth + 1)
            else:
                path, line, _ = part.rsplit(":", 2)
                found = int(line) if path.strip('"') == self.path else 0
            if found:
                return found
        return 0


def finding(kind: str, line: int, text: str) -> Json:
    return {"kind": kind, "line": line, "text": text}


def lost_masks(ttir: str, path: str) -> list[Json]:
    """Loads and stores whose mask the compiler drops, because it is no interval: it then touches what lies outside."""
    from triton.backends.ascend.utils import _get_triton_adapter_opt_path

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ttir.mlir")
        source.write_text(ttir)
        done = subprocess.run(
            [_get_triton_adapter_opt_path(), str(source), "--mlir-print-debuginfo",
             "--discrete-mask-access-conversion=compile-on-910-95=False force-simt-template=False"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        return []
    before, after = (accesses(text, Places(text, path)) for text in (ttir, done.stdout))
    return [
        finding("discrete mask", line, f"the mask of this {kind} is no interval: everything is {verb}, then chosen")
        for (kind, line), masked in before.items()
        for verb in ["read" if kind == "load" else "read and written"]
        if masked > after.get((kind, line), 0) and line
    ]  # fmt: skip


def accesses(text: str, places: Places) -> dict[tuple[str, int], int]:
    """How many loads and stores of every line have a mask."""
    found: dict[tuple[str, int], int] = {}
    for operation in re.findall(r"^.*\btt\.(?:load|store) .*$", text, re.MULTILINE):
        kind = "load" if "tt.load" in operation else "store"
        operands = (
            operation.split(f"tt.{kind} ")[1].split(" : ")[0].split(" cacheModifier")[0].split(" evictionPolicy")[0]
        )
        key = kind, places.line(operation)
        found[key] = found.get(key, 0) + (operands.count("%") > (1 if kind == "load" else 2))
    return found


def inline_assembly(ttir: str, path: str) -> list[Json]:
    places = Places(ttir, path)
    return [
        finding("inline assembly", places.line(operation), "assembly of another processor: nothing here can run it")
        for operation in re.findall(r"^.*tt\.elementwise_inline_asm .*$", ttir, re.MULTILINE)
    ]


def slow_operations(linalg: str, path: str) -> list[Json]:
    """Accesses one element at a time, and integer arithmetic that has no vector instruction."""
    places = Places(linalg, path)
    found: dict[tuple[str, int], Json] = {}
    for line in linalg.splitlines():
        kind = None
        if "ExtractedLoadOrStore" in line or "DiscreteMemAccess" in line:
            kind = "scalar fallback", "read or written element by element: the places are no intervals"
        elif re.search(r"arith\.(?:addi|subi|muli|cmpi|divsi|remsi|floordivsi|maxsi|minsi)\b.*tensor<[^>]*xi64>", line):
            kind = "int64", "int64 arithmetic on every element, which no vector instruction does"
        elif re.search(r"arith\.(?:divsi|remsi|floordivsi)\b.*tensor<[^>]*xi32>", line):
            kind = "scalar fallback", "integer division of every element, which no vector instruction does"
        if kind is not None:
            where = places.line(line)
            if where:
                found.setdefault((kind[0], where), finding(kind[0], where, kind[1]))
    return list(found.values())


def plan(linalg: str, request: Json, folder: Path) -> Json:
    """Where everything goes in UB and L0C, by the compiler itself."""
    import ascendnpuir

    program = Path(ascendnpuir.__file__).parent / "bin" / "bishengir-compile"
    source = folder / "kernel.mlir"
    source.write_text(re.sub(r', mix_mode\s*=\s*"[^"]*"', "", linalg))
    buffered = request["options"].get("multibuffer", True)
    done = subprocess.run(
        [program, source, f"--target={request['target']}", f"--enable-auto-multi-buffer={buffered}",
         "--enable-auto-bind-sub-block=True", "--enable-hfusion-compile=true", "--enable-hivm-compile=true",
         "--enable-triton-kernel-compile=true", f"--save-temps={folder}", "-o", folder / "out"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    log = done.stdout + done.stderr
    planned = folder / "module.hivm.opt.mlir"
    text = planned.read_text() if planned.exists() else ""
    overflow = re.search(r"(\w+) overflow, requires (\d+) bits while (\d+) bits", log)
    dropped = "set enable-auto-multi-buffer to false and retrying" in log
    line, said = refusal(log, request["path"])
    return {
        "planned": bool(text) and not overflow,
        "overflow": [overflow[1].lower(), int(overflow[2]) // 8, int(overflow[3]) // 8] if overflow else None,
        "multibuffer_dropped": dropped and not overflow,
        "ub_bytes": used(text, "ub"),
        "l0c_bytes": used(text, "cc"),
        "l1_bytes": used(text, "cbuf"),
        "message": "" if text else said,
        "line": 0 if text else line,
    }


def refusal(log: str, path: str) -> tuple[int, str]:
    """The line of the kernel's file that the compiler stumbles over, 0 if it names none, and what it says of it."""
    found = re.findall(r'loc\("([^"]*)":(\d+):\d+\): error: (.*)', log)
    # that the pipeline failed is said of the kernel's first line, before the reason or after it
    line, said = max(((int(n), said) for file, n, said in found if file == path), default=(0, log.strip()))
    return line, said[:300]


def used(hivm: str, space: str) -> int:
    """The end of the last buffer that was placed in a memory."""
    ends = [0]
    buffer = r"pointer_cast\(([^)]*)\)[^:]*: memref<([\dx]*?)x?([a-z]+\d+)(?:, [^#>]*)?, #hivm\.address_space<" + space
    for offsets, sizes, kind in re.findall(buffer + ">>", hivm):
        count = prod(int(n) for n in sizes.split("x") if n)
        size = -(-count // 8) if kind == "i1" else count * BYTES.get(kind, 4)  # a mask has one bit an element there
        for offset in re.findall(r"%c(\d+)_i64", offsets):
            ends.append(int(offset) + size)
    return max(ends)


def in_steps(linalg: str) -> str:
    """Sums along the last dimension made in steps of less than 64 elements.

    One after the other, as a CPU runs a reduction, the rounding errors of a long sum grow as they do on no hardware
    that joins halves.
    """
    halved = in_two_steps(linalg)
    return linalg if halved == linalg else in_steps(halved)


def in_two_steps(linalg: str) -> str:
    """Every such sum of 64 or more, whose length is a power of two, in two steps of about the same length."""
    lines, out, number = linalg.split("\n"), [], linalg.count("_parts = linalg.reduce")
    for at, line in enumerate(lines):
        found = SUM.match(line) if "arith.addf" in "".join(lines[at + 2 : at + 3]) else None
        length = int(found["length"]) if found else 0
        if found is None or length < 64 or length & (length - 1):
            out.append(line)
            continue
        number += 1
        short = 1 << (length.bit_length() // 2)
        lead, kind, rank = found["lead"], found["kind"], found["lead"].count("x")
        parts, wide = f"tensor<{lead}{short}x{kind}>", f"tensor<{lead}{short}x{length // short}x{kind}>"
        groups = ", ".join([*(f"[{i}]" for i in range(rank)), f"[{rank}, {rank + 1}]"])
        shape = ", ".join([*lead.split("x")[:-1], str(short), str(length // short)])
        name = f"%step{number}"
        out += [
            f"{name}_wide = tensor.expand_shape {found['source']} [{groups}] output_shape [{shape}] : "
            f"tensor<{lead}{length}x{kind}> into {wide}",
            f"{name}_zero = arith.constant 0.0 : {kind}",
            f"{name}_empty = tensor.empty() : {parts}",
            f"{name}_start = linalg.fill ins({name}_zero : {kind}) outs({name}_empty : {parts}) -> {parts}",
            f"{name}_parts = linalg.reduce ins({name}_wide : {wide}) outs({name}_start : {parts}) "
            f"dimensions = [{rank + 1}]",
            f"(%in: {kind}, %init: {kind}) {{",
            f"{name}_sum = arith.addf %in, %init : {kind}",
            f"linalg.yield {name}_sum : {kind}",
            "}",
            line.replace(f"ins({found['source']} : tensor<{lead}{length}x{kind}>)", f"ins({name}_parts : {parts})"),
        ]
    return "\n".join(out)


def build(linalg: str, folder: Path) -> Json:
    """A shared object for this CPU of what was lowered."""
    import ascendnpuir
    from triton._C.libtriton import ir, llvm

    program = Path(ascendnpuir.__file__).parent / "bin" / "bishengir-opt"
    source = folder / "linalg.mlir"
    source.write_text(in_steps(linalg))
    done = subprocess.run([program, source, *TO_LLVM], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"object": "", "object_message": first_error(done.stderr)}
    text = done.stdout
    for pattern in OWN_ATTRIBUTES:
        text = re.sub(pattern, "", text)
    lowered = folder / "llvm.mlir"
    lowered.write_text(text)
    try:
        context = ir.context()
        ir.load_dialects(context)
        module = ir.parse_mlir_module(str(lowered), context)
        llvm.init_targets()
        triple = machine()
        assembly = folder / "kernel.s"
        assembly.write_text(
            llvm.translate_to_asm(str(llvm.to_module(module, llvm.context())), triple, "", "", [], False, False)
        )
    except RuntimeError as error:
        return {"object": "", "object_message": first_error(str(error))}
    runtime = Path(__file__).with_name("runtime.c")
    library = folder / "kernel.so"
    done = subprocess.run(
        ["cc", "-O2", "-w", "-fPIC", "-shared", assembly, runtime, "-o", library, "-lm"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        return {"object": "", "object_message": first_error(done.stderr)}
    return {"object": library.name, "object_message": ""}


def machine() -> str:
    return {"x86_64": "x86_64", "aarch64": "aarch64"}[platform.machine()] + "-unknown-linux-gnu"


def first_error(text: str) -> str:
    lines = [line for line in text.splitlines() if "error" in line] or text.strip().splitlines() or ["no reason given"]
    return lines[0].split("error: ")[-1][:300]


def lower(request: Json) -> Json:
    """Everything that is known of one kernel without running it, and an object that runs it on the CPU."""
    folder = Path(request["folder"])
    function = load(request["path"], request["kernel"])
    module, metadata, stages = to_ttir(function, request)
    ttir = str(module)
    found = [*inline_assembly(ttir, request["path"]), *lost_masks(ttir, request["path"])]
    linalg = stages["ttadapter"](module, metadata)
    linalg = linalg.decode() if isinstance(linalg, bytes) else str(linalg)
    found += slow_operations(linalg, request["path"])
    mode = re.search(r'mix_mode\s*=\s*"(\w+)"', linalg)
    planned = plan(linalg, request, folder)
    built = {"object": "", "object_message": "assembly of another processor"}
    if not any(one["kind"] == "inline assembly" for one in found):  # LLVM would end the process
        built = build(linalg, folder)
    return {"findings": found, "cores": mode[1] if mode else "aiv", **planned, **built}


def versions(request: Json) -> Json:
    """What is installed; says at once whether it can be loaded."""
    import ascendnpuir
    import triton

    program = Path(ascendnpuir.__file__).parent / "bin" / "bishengir-compile"
    ctypes.CDLL(None)
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"bishengir-compile does not run: {done.stderr.strip()[:200]}")
    found = {name: importlib.metadata.version(name) for name in ("triton-ascend", "ascendnpu-ir")}
    return {**found, "triton": triton.__version__}


def main() -> None:
    request = json.load(sys.stdin)
    try:
        answer = {"lower": lower, "versions": versions}[request["op"]](request)
    except Exception as error:
        text = getattr(error, "stderr", b"") or str(error)
        text = text.decode() if isinstance(text, bytes) else text
        answer = {"error": f"{type(error).__name__}: {' '.join(text.split())[:400]}"}
    print("\n" + json.dumps(answer))


main()
