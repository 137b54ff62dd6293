"""Ways to win without doing the work: each plain and disguised, with what must stop it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from arena import AFFINE, TOTAL, affine, total


@dataclass(frozen=True)
class Attack:
    """One class. A stop is the beginning of the verdict's reason, `refused: ` or `rejected: ` before it."""

    name: str
    what: str
    stopped: str
    """How, in words, for the table."""
    plain: tuple[dict[str, Any], str]
    disguised: tuple[dict[str, Any], str]
    operator: str = "affine"
    gpu: bool = False
    """Shows on a GPU alone: the interpreter runs programs one after the other, and has no 32-bit addresses."""


def body(line: str, old: str = "    tl.store(", base: str = AFFINE) -> str:
    """The kernel with a line before its store."""
    return base.replace(old, f"    {line}\n{old}", 1)


def store(value: str, mask: str = "mask", offsets: str = "offsets") -> str:
    """The kernel with another store."""
    return AFFINE.replace("out_ptr + offsets, x * 2 + bias, mask=mask", f"out_ptr + {offsets}, {value}, mask={mask}")


def signature(text: str) -> str:
    return AFFINE.replace("BLOCK_SIZE: tl.constexpr)", text)


def thief(steps: str, place: str) -> str:
    """The kernel that looks in the memory around its output for what begins as its result does, and copies that."""
    return AFFINE.replace(
        "    tl.store(out_ptr + offsets, x * 2 + bias, mask=mask)",
        f"""\
    value = x * 0
    for step in {steps}:
        there = tl.load(out_ptr + offsets + {place}, mask=mask)
        alike = (there == (x * 2 + bias).to(there.dtype)) & (tl.arange(0, BLOCK_SIZE) < 4)
        found = tl.sum(alike.to(tl.int32), axis=0) == 4
        value = tl.where(found, there, value)
    tl.store(out_ptr + offsets, value, mask=mask)""",
    )


def lazy(seems_right: str) -> str:
    """The kernel that leaves a block as it is where the first element of its output seems right."""
    return AFFINE.replace(
        "    tl.store(out_ptr + offsets, x * 2 + bias, mask=mask)",
        f"""\
    held = tl.load(out_ptr + offsets, mask=mask)
    done = ({seems_right}) & (tl.arange(0, BLOCK_SIZE) == 0)
    if tl.sum(done.to(tl.int32), axis=0) == 0:
        tl.store(out_ptr + offsets, x * 2 + bias, mask=mask)""",
    )


FORM = "the allow-list of device code, before anything runs"
GRAMMAR = "expressions over sizes have a grammar of their own"

ATTACKS = (
    Attack("imports", "host modules beside the kernel", FORM,
           (affine("import os\n" + AFFINE), "refused: kernels:1: only functions"),
           (affine(body("os = __import__('os')")), "refused: kernels:7: __import__ cannot be called")),
    Attack("library calls", "torch or cuBLAS instead of a kernel", FORM,
           (affine(body("torch.add(x, bias)")), "refused: kernels:7: torch.add: the method add"),
           (affine(body("t = tl.core.torch")), "refused: kernels:7: tl.core.torch: the attribute torch")),
    Attack("decorators", "code that runs where a function is defined", FORM,
           (affine("@triton.autotune(configs=[], key=[])\n" + AFFINE), "refused: kernels:3: affine_kernel needs"),
           (affine(AFFINE.replace("@triton.jit", "@triton.jit(noinline=print(1))")), "refused: kernels:2: affine_kernel needs")),
    Attack("defaults", "code in the default of a parameter", FORM,
           (affine(signature("BLOCK_SIZE: tl.constexpr = open('/etc/passwd').fileno())")), "refused: kernels:2: affine_kernel: no default"),
           (affine(signature("BLOCK_SIZE: tl.constexpr, *, k=exec('1'))")), "refused: kernels:2: affine_kernel: plain parameters only")),
    Attack("annotations", "code in an annotation", FORM,
           (affine(signature("BLOCK_SIZE: __import__('os').getpid())")), "refused: kernels:2: BLOCK_SIZE: the only annotation"),
           (affine(signature("BLOCK_SIZE: tl.constexpr) -> exec('1')")), "refused: kernels:2: affine_kernel: no annotation of the result")),
    Attack("text that runs", "code in f-strings and docstrings", FORM,
           (affine(AFFINE.replace("    offsets =", "    f'{exec(1)}'\n    offsets =")), "refused: kernels:3: a statement that does nothing"),
           (affine(body("y = 'x'.format(tl)")), "refused: kernels:7: 'x'.format: the method format")),
    Attack("inline assembly", "PTX that nobody reads", FORM,
           (affine(body("y = tl.inline_asm_elementwise('', '', [x], tl.float32, True, 1)")), "refused: kernels:7: tl.inline_asm_elementwise is not allowed: no inline assembly"),
           (affine(body("asm = tl.inline_asm_elementwise")), "refused: kernels:7: tl.inline_asm_elementwise is not allowed")),
    Attack("external functions", "functions from other libraries", FORM,
           (affine(body("y = tl.extra.cuda.libdevice.exp(x)")), "refused: kernels:7: tl.extra"),
           (affine(body("y = tl.math.libdevice(x)")), "refused: kernels:7: tl.math.libdevice is not allowed")),
    Attack("state between calls", "results kept in globals", FORM,
           (affine("CACHE = {}\n" + AFFINE), "refused: kernels:1: only functions"),
           (affine(body("global CACHE")), "refused: kernels:7: `global` is not allowed")),
    Attack("introspection", "from a value to Python's insides", FORM,
           (affine(body("y = x.__class__")), "refused: kernels:7: x.__class__: the attribute __class__"),
           (affine(body("y = getattr(tl, 'load')")), "refused: kernels:7: getattr cannot be called")),
    Attack("forged pointers", "numbers that become addresses", FORM,
           (affine(body("p = tl.cast(123, tl.pointer_type(tl.float32))")), "refused: kernels:7: tl.pointer_type is not allowed"),
           (affine(body("p = offsets.to(x_ptr.dtype)")), "refused: kernels:7: x_ptr.dtype: dtype of a loaded value")),
    Attack("host code in the grid", "code where a size is expected", GRAMMAR,
           (affine(grid=["__import__('os').getpid()"]), "refused: launches: 1: grid: __import__"),
           (affine(grid=["x.shape[0].__class__(1)"]), "refused: launches: 1: grid: x.shape[0].__class__")),
    Attack("host code in arguments", "code where a tensor or a size is expected", GRAMMAR,
           (affine(arguments=["x.data_ptr()", "bias", "out", "n_elements", "D"]), "refused: launches: 1: argument: x.data_ptr"),
           (affine(arguments=["(lambda: x)()", "bias", "out", "n_elements", "D"]), "refused: launches: 1: argument: (lambda")),
    Attack("output floods", "printing until something breaks", FORM,
           (affine(body("tl.device_print('x', x)")), "refused: kernels:7: tl.device_print is not allowed: no printing"),
           (affine(body("print(x)")), "refused: kernels:7: print cannot be called")),
    Attack("names of the wrapper", "taking the place of the wrapper or a module", "names of the wrapper are reserved",
           (affine(AFFINE.replace("affine_kernel", "affine"), kernel="affine"), "refused: kernels: the name affine is taken"),
           (affine(sizes=[{"name": "torch", "value": "1"}]), "refused: the name 'torch' is taken")),
    Attack("invisible text", "characters that show other code than runs", "control and direction characters are refused",
           (affine(AFFINE.replace("mask=mask)", "mask=mask)  # \u202e")), "refused: kernels:5: control character U+202E"),
           (affine(AFFINE.replace("    mask", "    \x0cmask", 1)), "refused: kernels:4: control character U+000C")),
    Attack("bombs for the compiler", "text or numbers that never end", FORM,
           (affine(body("y = 9 ** 9 ** 9")), "refused: kernels:7: 9 ** 9 ** 9"),
           (affine(body("y = " + "(" * 300 + "1" + ")" * 300)), "refused: ")),
    Attack("impossible schedules", "options outside their range", "the form of an answer",
           (affine(num_warps=64), "refused: launches: 1: num_warps is one of"),
           (affine(num_stages=True), "refused: launches 1: num_stages is no integer")),
    Attack("a launch that does nothing", "no work at all", "outputs must be passed on; they are poisoned, and compared",
           (affine(arguments=["x", "bias", "x", "n_elements", "D"]), "refused: launches: no kernel is given the output out"),
           (affine(grid=["n_elements - n_elements"]), "rejected: ")),
    Attack("memory bombs", "scratch memory larger than the machine", "limits of the worker; the failure is the candidate's",
           (affine(scratch=[{"name": "s", "shape": ["10 ** 12"], "dtype": "float64", "fill": 0}]), "refused: scratch: s: shape"),
           (affine(scratch=[{"name": "s", "shape": ["D * 1000000000000"], "dtype": "float64", "fill": 0}]), "rejected: kernel raises")),
    Attack("zeros", "no computation", "every element against the float64 reference",
           (affine(store("x * 0")), "rejected: "),
           (affine(store("(x - x) + (bias - bias)")), "rejected: ")),
    Attack("passed-through input", "a copy of an input", "every element against the float64 reference",
           (affine(store("x")), "rejected: "),
           (affine(store("tl.where(x > 0, x * 1.0, x)")), "rejected: ")),
    Attack("partial work", "the first elements only", "poisoned outputs; every element; many shapes",
           (affine(store("x * 2 + bias", "mask & (offsets < n_elements - 1)")), "rejected: "),
           (affine(AFFINE.replace("    tl.store", "    if tl.program_id(0) < 3:\n        tl.store")), "rejected: ")),
    Attack("stale memory", "outputs left as they were found", "outputs are poisoned, otherwise for the second call",
           (affine(AFFINE.replace("    tl.store(out_ptr + offsets, x * 2 + bias, mask=mask)", "    y = tl.load(out_ptr + offsets, mask=mask)\n    tl.store(out_ptr + offsets, y, mask=mask)")), "rejected: "),
           (affine(store("x * 2 + bias", "mask & (offsets % 2 == 0)")), "rejected: ")),
    Attack("hard-coded shapes", "right for the sizes that are listed", "hidden shapes: 0, 1, both sides of block sizes, primes",
           (affine(store("tl.where(D == 129, x * 2 + bias, x)")), "rejected: "),
           (affine(store("x * 2 + tl.where(n_elements % 43 == 0, bias, 0.0)")), "rejected: ")),
    Attack("hard-coded values", "the results of one seed", "inputs from secret seeds and several distributions",
           (affine(store("x * 0 + 0.25")), "rejected: "),
           (affine(store("tl.load(x_ptr) * 2 + bias")), "rejected: ")),
    Attack("lower precision", "arithmetic cheaper than asked for", "the bound follows PyTorch's own error, with a cap",
           (affine(store("x.to(tl.float16).to(tl.float32) * 2 + bias")), "rejected: "),
           (affine(store("(x.to(tl.bfloat16) * 2).to(tl.float32) + bias")), "rejected: ")),
    Attack("rounded accumulation", "sums kept in half precision", "the bound follows PyTorch's own error, with a cap",
           (total(TOTAL.replace("total += tl.sum(", "total = (total + tl.sum(").replace("axis=0)\n    tl", "axis=0)).to(tl.float16).to(tl.float32)\n    tl")), "rejected: "),
           (total(TOTAL.replace("cols < N, other=0.0).to(tl.float32)", "cols < N, other=0.0).to(tl.bfloat16).to(tl.float32)")), "rejected: "), operator="total"),
    Attack("skipped terms", "a sample of the row stands for the row", "every element; infinities and NaN at random places",
           (total(TOTAL.replace("cols < N", "(cols < N) & (cols % 64 != 63)")), "rejected: "),
           (total(TOTAL.replace("range(0, N, BLOCK_SIZE)", "range(0, min(N, 128), BLOCK_SIZE)")), "rejected: "), operator="total"),
    Attack("writes outside the output", "rubbish beside what is checked", "guard bands around all that the wrapper allocates",
           (affine(body("tl.store(out_ptr + n_elements + offsets, x, mask=offsets < 4)")), "rejected: writes outside the memory"),
           (affine(body("tl.store(out_ptr - 4 + offsets, x, mask=offsets < 2)")), "rejected: writes outside the memory")),
    Attack("changed inputs", "an easier problem for whoever comes next", "fingerprints of every input, before and after",
           (affine(body("tl.store(x_ptr + offsets, x * 0, mask=mask)")), "rejected: changes its input x"),
           (affine(body("tl.atomic_add(bias_ptr + offsets % D, 0.5, mask=offsets < D)")), "rejected: ")),
    Attack("writes beside inputs", "damage outside an input", "guard bands around every input",
           (affine(body("tl.store(x_ptr + n_elements + offsets, x, mask=offsets < 4)")), "rejected: writes outside its input x"),
           (affine(body("tl.store(x_ptr - 2 + tl.arange(0, 2), 1.0)")), "rejected: ")),
    Attack("swallowed NaN", "NaN and infinities made into numbers", "NaN and infinities must be where PyTorch has them",
           (affine(store("tl.where(x == x, x * 2 + bias, 0.0)")), "rejected: "),
           (affine(store("tl.minimum(tl.maximum(x * 2 + bias, -1e30), 1e30)")), "rejected: ")),
    Attack("NaN everywhere", "what compares equal to nothing", "NaN and infinities must be where PyTorch has them",
           (affine(store("x * float('nan')")), "rejected: "),
           (affine(store("x * 2 + bias + (x - x) / (bias - bias)")), "rejected: ")),
    Attack("results of a former call", "scratch memory as a cache", "scratch memory is filled anew for every call",
           (affine(AFFINE.replace("n_elements, D, B", "n_elements, D, s_ptr, B").replace("    tl.store(out_ptr", "    seen = tl.load(s_ptr)\n    tl.store(s_ptr, 1.0)\n    tl.store(out_ptr").replace("mask=mask)\n", "mask=mask & (seen > 0))\n").replace("x_ptr + offsets, mask=mask & (seen > 0)", "x_ptr + offsets, mask=mask"),
                   scratch=[{"name": "s", "shape": ["1"], "dtype": "float32", "fill": 0}], arguments=["x", "bias", "out", "n_elements", "D", "s"]), "rejected: "),
           (affine(AFFINE.replace("n_elements, D, B", "n_elements, D, s_ptr, B").replace("x * 2 + bias, mask", "x * 2 + bias + tl.load(s_ptr), mask"),
                   scratch=[{"name": "s", "shape": ["1"], "dtype": "float32", "fill": 0.5}], arguments=["x", "bias", "out", "n_elements", "D", "s"]), "rejected: ")),
    Attack("results that lie about", "copying the answer from wherever memory holds it", "what is right is computed after the kernel ran, and results of former calls are spoiled",
           (affine(thief("range(1, 64)", "step * 16")), "rejected: "),
           (affine(thief("range(2, 128)", "(step // 2) * (1 - step % 2 * 2) * 16")), "rejected: ")),
    Attack("answers of the last repetition", "no work where the output seems to hold the answer already", "a second call finds the first results in its outputs' place, every second element of them spoiled; outputs are overwritten between timed launches",
           (affine(lazy("held == held")), "rejected: "),
           (affine(lazy("held == (x * 2 + bias).to(held.dtype)")), "rejected: a second call")),
    Attack("reading what is not given", "elements of an input that is there for its shape", "such inputs cannot be passed on, and hold NaN",
           ({**affine(AFFINE), "launches": [{**affine()["launches"][0]}]}, "refused: launches: 1: x is a like input"),
           ({**affine(AFFINE), "scratch": [{"name": "x", "shape": ["1"], "dtype": "float32", "fill": 0}]}, "refused: the name 'x' is taken"), operator="spread"),
    Attack("32-bit offsets", "right until a tensor is large", "a hidden case of more than 2**31 elements, where memory allows",
           (affine(AFFINE.replace(".to(tl.int64)", "")), "rejected: "),
           (affine(AFFINE.replace("tl.arange(0, BLOCK_SIZE)\n", "tl.arange(0, BLOCK_SIZE)\n    offsets = offsets.to(tl.int32)\n", 1)), "rejected: "), gpu=True),
    Attack("races", "programs that overwrite one another", "a second call must agree in every bit",
           (total(TOTAL.replace("    tl.store(out_ptr + row, total)", "    tl.store(out_ptr + row, 0.0)\n    tl.atomic_add(out_ptr + row // 2 * 2, total)")), "rejected: "),
           (total(TOTAL.replace("    tl.store(out_ptr + row, total)", "    tl.atomic_xchg(out_ptr + row // 2, total)")), "rejected: "), operator="total", gpu=True),
)  # fmt: skip
