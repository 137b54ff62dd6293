"""How many of torch's own operators kernelgen takes: torch's samples of each as references, generated, run and compared.

    python tests/breadth/torch_samples.py [NAME ...] [--table docs/torch_samples.md]

Of every operator of torch's list (`op_db`) that is pointwise, a reduction, indexing, a shape, a loss, a norm, a pool or
a scan, in float32 and forward, up to three samples of different forms become specs of the sizes that they have. Each is
generated, its kernels run (in Triton's interpreter without a GPU), and the result is compared with torch's. torch's list
needs the package `expecttest`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import re
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernelgen import judge

judge.prepare()

import torch  # noqa: E402

from kernelgen import families, frontend, render  # noqa: E402
from kernelgen.errors import SpecError, UnsupportedError  # noqa: E402
from kernelgen.spec.model import OperatorSpec, Place, TensorSpec  # noqa: E402

SAMPLES = 3
LIMIT_S = 60
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
DTYPES = {getattr(torch, d): d for d in ("float32", "int8", "int16", "int32", "int64", "uint8", "bool")}

LEFT_OUT = {
    "linear algebra": r"linalg\.(?!cross|diagonal|vecdot|vector_norm)|.*cholesky|lu$|lu_|qr$|geqrf|ormqr|svd|pca_|matrix_exp|"
    r"pinverse|triangular_solve|logdet|norm/nuc|norm/fro|nn\.functional\.multi_head",
    "products and convolutions": r"(add|badd|addb|b|m|spars)+mm?$|bmm|addmm|mm$|mv$|addmv|addbmm|baddbmm|matmul|__rmatmul__|"
    r"einsum|tensordot|inner|.*conv(_transpose)?\dd|nn\.functional\.(linear|bilinear|scaled_dot)|cdist|corrcoef|cov$",
    "FFT": r"fft\.|stft|istft",
    "complex": r".*complex|conj|resolve_|real$|imag|cdouble|cfloat|chalf|polar$|angle|isreal",
    "sparse": r"sparse|to_sparse|.*sampled_addmm",
    "random": r"rand|normal|cauchy|exponential|geometric|log_normal|uniform|bernoulli|multinomial|nn\.functional\.(dropout|"
    r"alpha_dropout|feature_alpha_dropout/with_train|fractional|rrelu)|.*_lowrank",
    "creates tensors without inputs": r"signal\.|arange|linspace|logspace|ones$|zeros$|full$|eye$|empty|new_empty|scalar_tensor",
    "returns no tensor, or depends on memory layout": r"allclose|equal$|item|broadcast_shapes|resize|set_|jiterator|as_strided|hash_|"
    r"to$|.*_backward",
    "in float64": r"double|float_power",
    "internal functions of torch": r"bmm/triton|nn\.functional\.linear_cross|_chunk_cat|_unsafe_",
}  # fmt: skip
"""Operators that are not counted, and why, by patterns that their names begin with."""


@dataclass(frozen=True)
class Found:
    """What became of one sample."""

    operator: str
    call: str
    outcome: str
    """right, wrong, refused, broken (a fault of kernelgen's), or call (torch's own, with nothing around it)."""
    reason: str = ""


def operators(names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """torch's operators that count, by name."""
    from torch.testing._internal.common_methods_invocations import op_db

    wanted = set(names)
    for info in op_db:
        name = info.name + (f"/{info.variant_test_name}" if info.variant_test_name else "")
        if torch.float32 in info.dtypes and (name in wanted if wanted else left_out(name) is None):
            yield name, info


def left_out(name: str) -> str | None:
    return next((why for why, pattern in LEFT_OUT.items() if re.match(f"(?:{pattern})", name)), None)


def written(name: str) -> str | None:
    """How a person writes an operator: `torch.special.i0e(`, `.T`."""
    if name == "__getitem__":
        return "[]"
    for prefix in ("torch", "torch.Tensor", "torch.ops.aten"):
        owner: Any = torch if prefix == "torch" else torch.Tensor if prefix == "torch.Tensor" else torch.ops.aten
        path = name.replace("torch.ops.aten.", "")
        for part in path.split("."):
            owner = getattr(owner, part, None)
        if owner is None:
            continue
        if prefix == "torch.Tensor":
            return f".{name}(" if callable(owner) else f".{name}"
        return f"F.{name[14:]}(" if name.startswith("nn.functional.") else f"{prefix}.{path}("
    return None


class Unwritten(Exception):
    """A sample that no spec says: tensors without elements, of other dtypes."""


def text_of(name: str, sample: Any) -> tuple[str, list[torch.Tensor]]:
    """The call that a sample stands for, and its tensors x0, x1, ..."""
    tensors: list[torch.Tensor] = []

    def shown(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            if value.dtype not in DTYPES or not value.numel() or value.layout != torch.strided:
                raise Unwritten
            known = [i for i, t in enumerate(tensors) if t is value]
            if not known:
                tensors.append(value)
            return f"x{known[0] if known else len(tensors) - 1}"
        if isinstance(value, list | tuple):
            inner = ", ".join(map(shown, value))
            return f"[{inner}]" if isinstance(value, list) else f"({inner},)" if len(value) == 1 else f"({inner})"
        if isinstance(value, slice):
            return f"slice({value.start}, {value.stop}, {value.step})"
        if isinstance(value, float) and not -1e30 < value < 1e30:
            return f'float("{value}")'
        if value is Ellipsis:
            return "..."
        if value is None or isinstance(value, int | float | str | torch.dtype | torch.memory_format):
            return repr(value)
        raise Unwritten

    form = written(name.partition("/")[0])
    if form is None:
        raise Unwritten
    values = [shown(v) for v in (sample.input, *sample.args)]
    values += [f"{k}={shown(v)}" for k, v in sample.kwargs.items() if k != "device"]
    if form == "[]":
        return f"{values[0]}[{values[1]}]", tensors
    if form.startswith("."):
        return f"{values[0]}{form}" + (f"{', '.join(values[1:])})" if form.endswith("(") else ""), tensors
    return f"{form}{', '.join(values)})", tensors


def samples(name: str, info: Any) -> list[tuple[str, list[torch.Tensor], list[torch.Tensor]]]:
    """Calls of different forms with their tensors and what torch returns for them."""
    torch.manual_seed(0)
    forms: dict[Any, tuple[str, list[torch.Tensor], list[torch.Tensor]]] = {}
    for sample in itertools.islice(info.sample_inputs("cpu", torch.float32, requires_grad=False), 200):
        with contextlib.suppress(Unwritten):
            text, tensors = text_of(name, sample)
            tensors = [t.detach().clone(memory_format=torch.contiguous_format) for t in tensors]
            result = called(text, tensors)
            results = [result] if isinstance(result, torch.Tensor) else result
            if not isinstance(results, list | tuple) or not all(isinstance(r, torch.Tensor) for r in results):
                continue
            if not all(r.dtype in DTYPES and r.numel() for r in results) or not tensors:
                continue
            form = re.sub(r"[\d.]+", "", text), tuple(t.ndim for t in tensors)
            forms.setdefault(form, (text, tensors, list(results)))
    found = sorted(forms.values(), key=lambda f: -max(t.ndim for t in f[1]))
    return [found[i * len(found) // SAMPLES] for i in range(SAMPLES)] if len(found) > SAMPLES else found


def called(text: str, tensors: list[torch.Tensor]) -> Any:
    scope = {"torch": torch, "F": torch.nn.functional, **{f"x{i}": t.clone() for i, t in enumerate(tensors)}}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return eval(text, scope)
    except Exception:
        raise Unwritten from None


def spec_of(text: str, tensors: list[torch.Tensor], results: list[torch.Tensor]) -> OperatorSpec:
    def declared(prefix: str, of: list[torch.Tensor]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(f"{prefix}{i}", tuple(t.shape), DTYPES[t.dtype]) for i, t in enumerate(of))

    inputs = declared("x", tensors)
    source = f"def op({', '.join(t.name for t in inputs)}):\n    return {text}\n"
    return OperatorSpec("op", "One of torch's.", inputs, declared("out", results), (), (), source, Place(1, 1), (), ())


def tried(name: str, text: str, tensors: list[torch.Tensor], results: list[torch.Tensor]) -> Found:
    def late(*_: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_S)
    try:
        spec = spec_of(text, tensors, results)
        graph, notes = frontend.trace(spec)
        plan = families.lower(spec, graph, notes)
        module = load(render.triton_source(plan))
        made = module.op(*(t.clone() for t in tensors))
        for got, expected in zip([made] if isinstance(made, torch.Tensor) else made, results, strict=True):
            torch.testing.assert_close(got.cpu(), expected, equal_nan=True, **TOLERANCE)
        return Found(name, text, "right")
    except UnsupportedError as error:
        reason = error.mistakes[0].message.removeprefix("unsupported: ")
        return Found(name, text, "call" if reason.startswith("nothing left for a kernel") else "refused", reason)
    except SpecError as error:
        return Found(name, text, "refused", error.mistakes[0].message)
    except AssertionError as error:
        return Found(name, text, "wrong", " ".join(str(error).split())[:160])
    except TimeoutError:
        return Found(name, text, "broken", f"not done after {LIMIT_S} s")
    except Exception as error:
        return Found(name, text, "broken", f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")
    finally:
        signal.alarm(0)


_FOLDER = Path(tempfile.mkdtemp(prefix="kernelgen-samples-"))
_NUMBER = itertools.count()


def load(text: str) -> Any:
    path = _FOLDER / f"generated_{next(_NUMBER)}.py"
    path.write_text(text, encoding="utf-8")
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="operators, all that count if none is named")
    parser.add_argument("--table", type=Path, help="write a table to this file")
    parser.add_argument("--lines", type=Path, help="append what became of every sample to this file, and resume there")
    options = parser.parse_args()
    known: list[Found] = []
    if options.lines and options.lines.exists():
        known = [Found(**json.loads(line)) for line in options.lines.read_text(encoding="utf-8").splitlines()]
    done, found = {f.operator for f in known}, list(known)
    for name, info in operators(options.names):
        if name in done:
            continue
        of_one = [tried(name, *sample) for sample in samples(name, info)]
        of_one = of_one or [Found(name, "", "unwritten", "no sample that a spec says")]
        for one in of_one:
            found.append(one)
            print(f"{one.outcome:8} {name:40} {one.call[:100]} {one.reason[:150]}", flush=True)
        if options.lines:
            with options.lines.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(one)) + "\n" for one in of_one)
    print(summary(found))
    if options.table:
        options.table.write_text(table(found), encoding="utf-8")
    return 0


def by_operator(found: list[Found]) -> dict[str, list[Found]]:
    return {name: list(of) for name, of in itertools.groupby(found, key=lambda f: f.operator)}


def summary(found: list[Found]) -> str:
    counted = {n: of for n, of in by_operator(found).items() if of[0].outcome != "unwritten"}
    right = sum(all(f.outcome == "right" for f in of) for of in counted.values())
    cases = Counter(f.outcome for of in counted.values() for f in of)
    return (
        f"{right} of {len(counted)} operators right in every sample ({100 * right / max(len(counted), 1):.0f} %); "
        f"samples: {', '.join(f'{n} {k}' for k, n in cases.most_common())}"
    )


def table(found: list[Found]) -> str:
    """The committed page: the figure, and why what is not right is not, by reason."""
    reasons: dict[str, set[str]] = {}
    for one in found:
        if one.outcome not in ("right", "unwritten"):
            reason = one.reason if one.outcome == "refused" else f"{one.outcome}: {one.reason}"
            reasons.setdefault(re.sub(r"\((supported|take in).*\)", "", reason).strip().replace("|", "\\|"), set()).add(
                one.operator
            )
    rows = sorted(reasons.items(), key=lambda row: (-len(row[1]), row[0]))
    lines = [
        "# torch's own operators",
        "",
        "Generated by `python tests/breadth/torch_samples.py --table docs/torch_samples.md`. Each operator is tried with up to "
        f"{SAMPLES} of",
        "torch's own samples for it, as references with the sizes of the samples, forward only, in float32.",
        "",
        f"torch {torch.__version__.partition('+')[0]}: {summary(found)}.",
        "",
        "| reason | operators |",
        "|---|---|",
        *(f"| {reason} | {', '.join(f'`{n}`' for n in sorted(names))} |" for reason, names in rows),
        "",
        "Not counted:",
        "",
        *(f"- {why}" for why in LEFT_OUT),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
