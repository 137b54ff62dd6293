"""The only Jinja environment: a plan in, the text of its files out. Templates print; everything was decided before."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelgen import custom
from kernelgen.families import (
    independent_dims,
    kept_inputs,
    limits,
    multiplied_dtype,
    products,
    stored_dtype,
    uniform_outputs,
)
from kernelgen.families.kernel import body_of
from kernelgen.families.line import LINE, fit
from kernelgen.frontend.masks import OPERATION
from kernelgen.plan import ChoicesPlan, Plan, StepsPlan, WrittenPlan
from kernelgen.spec.model import OPTION, SCALAR, OperatorSpec, TensorSpec
from kernelgen.tile.scans import LARGEST_GROWTH
from kernelgen.wrapper import checks, copied_back, file_text, one_file, results, sequence

if TYPE_CHECKING:
    from jinja2 import Environment


@functools.cache
def environment() -> Environment:
    """Strict: an undefined name in a template is an error."""
    import jinja2

    env = jinja2.Environment(
        loader=jinja2.PackageLoader("kernelgen"), undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, autoescape=False,
    )  # fmt: skip
    env.filters["suffix"] = lambda text, end: f"{text}{end}"
    env.filters["spaced"] = _spaced
    env.filters["python"] = lambda value: repr(value).replace("'", '"')
    env.filters["quoted"] = lambda text: f'"{text}"'
    env.globals.update(
        condition=_condition, raise_error=_raise_error, fit=fit, comment=_comment,
        largest_growth=LARGEST_GROWTH,
    )  # fmt: skip
    return env


def render(template: str, **context: Any) -> str:
    """One template as text that ends in one newline."""
    text = environment().get_template(template).render(**context)
    text = re.sub(r"\n{4,}", "\n\n\n", text)
    text = re.sub(r"[ \t]+\n", "\n", text)
    return text.rstrip("\n") + "\n"


def triton_source(plan: Plan) -> str:
    """The text of NAME_triton.py. Raises custom.Refused for a proposed kernel that breaks its form."""
    if plan.table and plan.table[0].schedule.variant == custom.ADOPTED:
        return custom.adopted_source(plan.spec, plan.table[0].schedule)
    if isinstance(plan, WrittenPlan) or custom.is_foreign(plan.table):
        return _proposed_source(plan)
    from kernelgen.definition import step_notes

    said = (*step_notes(plan), *_written(plan.spec), *plan.notes)
    notes = [wrapped for note in said for wrapped in textwrap.wrap(_sentence(note), LINE)]
    if isinstance(plan, ChoicesPlan) and (file := one_file(plan)):
        return render("triton.py.jinja", **_common(plan.spec), file=file, notes=notes)
    if isinstance(plan, StepsPlan | ChoicesPlan):
        return render("calls.py.jinja", **_common(plan.spec), sequence=_sequence(plan), notes=notes)
    return render("triton.py.jinja", **_common(plan.spec), file=file_text(plan), notes=notes)


def _written(spec: OperatorSpec) -> list[str]:
    given = list(spec.written)
    names = " and ".join(filter(None, [", ".join(given[:-1]), *given[-1:]]))
    return [f"writes into {names}, which must not share memory with any other input"] if given else []


def _sequence(plan: StepsPlan | ChoicesPlan) -> dict[str, Any]:
    """The kernels and calls of a file of several kernels, each of which has a function of its own."""
    found = sequence(plan)
    several_keys = any(len(g.file.key.names) > 1 for g in found.groups)
    groups = [_function(g.spec, g.function) | {"file": g.file, "table": g.table} for g in found.groups]
    return {
        "groups": groups,
        "several_keys": several_keys,
        "bodies": [_function(b.spec, b.function) | {"lines": b.lines, "filled": b.filled} for b in found.bodies],
        "helpers": found.helpers,
        "functions": found.functions,
        "imports": found.imports,
        "guard": found.guard,
    }


def _proposed_source(plan: Plan) -> str:
    """A kernel that no family wrote, in a wrapper of ours."""
    answer = custom.answer_of(plan.spec, plan.table[0].schedule)
    text = render("custom.py.jinja", **_common(plan.spec), **custom.file_context(plan.spec, answer))
    custom.check_file(text, plan.spec, answer)
    return text


def baseline_source(spec: OperatorSpec) -> str:
    """The text of NAME_baseline.py."""
    return render(
        "baseline.py.jinja", **_common(spec), reference=_reference(spec),
        uses_functional=_uses(spec, "F"), uses_math=_uses(spec, "math"),
        random_mask=_random_mask() if _uses(spec, OPERATION) else "",
    )  # fmt: skip


def _random_mask() -> str:
    """The function that a reference draws with, for a file that is to run on its own."""
    from kernelgen.frontend.random_mask import random_mask

    return inspect.getsource(random_mask).rstrip()


def operator_context(spec: OperatorSpec) -> dict[str, Any]:
    """What the templates of a package with a registered operator print of a spec."""
    return _common(spec)


def accuracy_context(spec: OperatorSpec, uniform: Collection[str] = ()) -> dict[str, Any]:
    """What the template of an accuracy test prints of an operator that is judged as a whole. `uniform`: the outputs of
    which all elements are the same."""
    return {"operator": _whole(spec, uniform), "name": spec.name, "header": _header(spec), "cases": spec.accuracy}


def quartet(plan: Plan) -> dict[str, str]:
    """Every generated file of an operator by its name, `optimization_log.md` left out."""
    from kernelgen.definition import definition_context

    spec, name = plan.spec, plan.spec.name
    judged = {"operator": _operator(plan), "name": name, "header": _header(spec)}
    return {
        f"{name}_triton.py": triton_source(plan),
        f"{name}_baseline.py": baseline_source(spec),
        f"{name}_accuracy.py": render("accuracy.py.jinja", **judged, cases=spec.accuracy),
        f"{name}_performance.py": render("performance.py.jinja", **judged, cases=spec.performance),
        "definition.md": render("definition.md.jinja", **definition_context(plan)),
    }


def interface_hash(spec: OperatorSpec) -> str:
    """Changes with the operator's interface or meaning, not with its schedules."""
    parts = [repr((t.name, t.shape, t.dtype, t.role, *_interface(t))) for t in (*spec.inputs, *spec.outputs)]
    parts += [c.text for c in spec.constraints] + ([] if spec.deterministic else ["any order"])
    parts += [f"{output} into {given}" for given, output in spec.written.items()]
    parts += [f"float32 by {spec.precision}"] if spec.precision else []
    return hashlib.sha256("\n".join([spec.name, *parts]).encode()).hexdigest()[:16]


def _interface(tensor: TensorSpec) -> tuple[object, ...]:
    """What a parameter is beside a tensor that every call gives."""
    kind = () if tensor.kind == "float" else (tensor.kind, tensor.values)
    return ("optional",) if tensor.optional else (tensor.default, *kind) if tensor.role in (SCALAR, OPTION) else ()


def _operator(plan: Plan) -> dict[str, Any]:
    if isinstance(plan, WrittenPlan):  # nothing is known of the reference but what it returns: it is judged whole
        return _whole(plan.spec)
    plans = [one.plan for one in plan.alternatives] if isinstance(plan, ChoicesPlan) else [plan]
    exact = all(body_of(one).exact and not isinstance(one, StepsPlan) for one in plans)
    rows, kept = independent_dims(plan), kept_inputs(plan).values()
    judged = _judged(plan.spec, rows, exact, uniform_outputs(plan), kept)
    judged["any_order"] = any(body_of(one).any_order for one in plans)
    return (
        judged
        | {"stored": stored_dtype(plan), "has_calls": bool(plan.calls), "multiplied": multiplied_dtype(plan)}
        | {"limits": limits(plan), "rounded": dict.fromkeys(size for one in plans for size in one.rounded)}
        | ({"as_tf32": True} if any(p.kept == "float32" for p in products(plan)) else {})
    )


def _whole(spec: OperatorSpec, uniform: Collection[str] = ()) -> dict[str, Any]:
    return _judged(spec, dict.fromkeys(t.name for t in (*spec.inputs, *spec.outputs)), False, uniform)


def _judged(
    spec: OperatorSpec,
    rows: Mapping[str, int | None],
    exact: bool,
    uniform: Collection[str],
    kept: Collection[str] = (),
) -> dict[str, Any]:
    return {
        "name": spec.name,
        "inputs": [
            {
                "name": t.name,
                "shape": t.shape,
                "dtype": "int64" if t.role == SCALAR and t.kind == "int" else t.dtype,
                "like": t.role == "like",
                "rows": rows[t.name],
                "below": t.below,
                "offsets": t.offsets,
                "is_ends": t.is_ends,
                "uniform": False,
                "finite": t.role == "scale",
                "number": t.default if t.role == SCALAR else None,
                "into": None,
                "kept": False,
            }
            for t in spec.inputs
            if t.role != OPTION
        ],
        "outputs": [
            {
                "name": t.name,
                "shape": t.shape,
                "dtype": t.dtype,
                "like": False,
                "rows": rows[t.name],
                "below": None,
                "offsets": None,
                "is_ends": False,
                "uniform": t.name in uniform,
                "finite": False,
                "number": None,
                "into": t.into,
                "kept": t.name in kept,
            }
            for t in spec.outputs
        ],
        "exact": exact,
        "fixed": [(t.name, t.values[0]) for t in spec.inputs if t.role == OPTION and len(t.values) == 1],
        "limits": (),
        "rounded": (),
        "stored": "",
        "multiplied": "",
        "as_tf32": spec.precision == "tf32",
        "any_order": False,
    }


def _header(spec: OperatorSpec) -> str:
    source = spec.path.rsplit("/", 1)[-1]
    return f"# @generated by kernelgen from {source}. Edits are kept only until the next `kernelgen new --force`."


def _common(spec: OperatorSpec) -> dict[str, Any]:
    function, given = _function(spec, spec.name), [_parameter(t, False) for t in spec.inputs]
    checked = function["signature"] if spec.inputs == spec.tensors else _signature("check_inputs", given, "None")
    return {
        "spec": spec, "header": _header(spec), "summary": _wrapped(spec.summary, len(spec.name) + 5),
        "names": ", ".join(t.name for t in spec.inputs),
        "tensors": checked, "checks": checks(spec), **function,
        "copies": copied_back(spec), "returned": results(spec),
    }  # fmt: skip


def _parameter(tensor: TensorSpec, has_default: bool) -> str:
    kind, default = "torch.Tensor" + " | None" * tensor.optional, "None"
    if tensor.role in (SCALAR, OPTION):
        kind, default = tensor.kind, repr(tensor.default).replace("'", '"')
    elif not tensor.optional:
        return f"{tensor.name}: {kind}"
    return f"{tensor.name}: {kind} = {default}" if has_default else f"{tensor.name}: {kind}"


def _signature(name: str, parameters: Sequence[str], returns: str) -> str:
    signature = ", ".join(parameters)
    if len(f"def {name}({signature}) -> {returns}:") > LINE:
        signature = "\n" + "".join(f"    {parameter},\n" for parameter in parameters)
    return signature


def _function(spec: OperatorSpec, name: str) -> dict[str, Any]:
    """What is printed of a function that takes and returns the tensors of a spec."""
    parameters = [_parameter(t, name == spec.name) for t in spec.inputs]
    returns = "torch.Tensor" if len(spec.outputs) == 1 else f"tuple[{', '.join(['torch.Tensor'] * len(spec.outputs))}]"
    signature = _signature(name, parameters, returns)
    return {
        "function": name, "signature": signature, "returns": returns,
        "results": ", ".join(o.name for o in spec.outputs), "contract": _contract(spec),
    }  # fmt: skip


def _wrapped(text: str, used: int) -> str:
    lines = textwrap.wrap(_sentence(text), LINE - 3, initial_indent=" " * used)
    return "\n".join(lines).strip()


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."


def _contract(spec: OperatorSpec) -> str:
    """Shapes and dtypes in a docstring: `x[..., D], bias[D] -> out[..., D] (T in float16, bfloat16, float32).`"""

    def show(tensor: Any) -> str:
        place = f" in {tensor.into}" if tensor.into else ""
        if isinstance(tensor, TensorSpec) and tensor.role in (SCALAR, OPTION):
            return str(tensor.name)
        left_out = " or None" if tensor.optional else ""
        return f"{tensor.name}[{', '.join(str(e) for e in tensor.shape)}]{place}{left_out}"

    fixed = [
        f"{t.name} {t.dtype}"
        for t in (*spec.inputs, *spec.outputs)
        if t.dtype not in dict(spec.dtypes) and t.role not in (SCALAR, OPTION)
    ]
    kinds = [f"{', '.join(values)}" for _, values in spec.dtypes] + fixed
    text = (
        f"{', '.join(show(t) for t in spec.inputs)} -> {', '.join(show(t) for t in spec.outputs)}; {'; '.join(kinds)}."
    )
    lines = textwrap.wrap(text, LINE - 8)
    return "\n    ".join(lines) + ("\n    " if len(lines) > 1 else "")


def _reference(spec: OperatorSpec) -> str:
    """The spec's source with the operator's function named `reference`."""
    tree = ast.parse(spec.reference)
    function = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == spec.name)
    lines = spec.reference.rstrip("\n").split("\n")
    line = lines[function.lineno - 1]
    lines[function.lineno - 1] = line.replace(f"def {spec.name}(", "def reference(", 1)
    return _spaced("\n".join(lines))


def _spaced(source: str) -> str:
    """A module with two blank lines before every function but the first, and parameters that are too many for a line on
    one of their own, as ruff format leaves it."""
    source = re.sub(rf"^(?=.{{{LINE + 1},}}$)(def \w+\()(.*)(\):)$", r"\1\n    \2\n\3", source, flags=re.MULTILINE)
    lines = source.rstrip("\n").split("\n")
    for function in ast.parse(source).body[:0:-1]:
        start = function.lineno - 1
        while lines[start - 1].startswith("#"):  # what is said of a function stays with it
            start -= 1
        first = start
        while not lines[first - 1].strip():
            first -= 1
        if isinstance(function, ast.FunctionDef):
            lines[first:start] = ["", ""]
    return "\n".join(lines)


def _uses(spec: OperatorSpec, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(ast.parse(spec.reference)))


# Lines that ruff format breaks in a fixed way; templates call these with what they print.


def _comment(text: str) -> str:
    return "\n".join(textwrap.wrap(text, LINE, initial_indent="# ", subsequent_indent="# "))


def _condition(condition: str) -> str:
    line = f"    if {condition}:"
    if len(line) <= LINE:
        return line
    head, _, members = condition.partition(" not in (")
    inner = members.rstrip(")")
    if members and len(f"        {inner}") <= LINE:
        return "\n".join([f"    if {head} not in (", *(f"        {m}," for m in inner.split(", ")), "    ):"])
    if condition.startswith("((") and condition.endswith(")).any()"):
        inner = condition[1:-7]
        inner = inner if len(f"        {inner}") <= LINE else inner.replace(" | ", "\n        | ")
        return f"    if (\n        {inner}\n    ).any():"
    for word in (" or ", " and ", " | "):
        if word in condition:
            parts = condition.replace(word, f"\n        {word.strip()} ")
            return f"    if (\n        {parts}\n    ):"
    return line


def _raise_error(message: str) -> str:
    """One f-string where it fits, else several that Python joins."""
    line = f"        raise ValueError({_fstring(message)})"
    if len(line) <= LINE:
        return line
    if len(f"            {_fstring(message)}") <= LINE:
        return f"        raise ValueError(\n            {_fstring(message)}\n        )"
    parts = [_fstring(part) for part in _chunks(message, LINE - 16)]
    return "\n".join(["        raise ValueError(", *(f"            {part}" for part in parts), "        )"])


def _fstring(text: str) -> str:
    return ("f" if "{" in text else "") + '"' + text.replace('"', '\\"') + '"'


def _chunks(message: str, width: int) -> list[str]:
    """Cut before words, never inside a replacement field."""
    words = re.findall(r"(?:\{[^}]*\}|[^\s{])+\s*", message)
    chunks, current = [], ""
    for word in words:
        if current and len(current + word) > width:
            chunks.append(current)
            current = ""
        current += word
    return [*chunks, current]
