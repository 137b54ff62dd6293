"""The shape of a spec file as pydantic models: they validate it, and the JSON Schema for editors is made from them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, WithJsonSchema
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import NullableSchema, WithDefaultSchema

from kernelgen.spec import leaves
from kernelgen.spec.model import CUSTOM, DTYPES, ELLIPSIS, FAMILIES, ON_REQUEST, PRECISIONS, ROLES, STRATEGIES
from kernelgen.spec.nearest import hint, nearest
from kernelgen.spec.tree import Finding, Map, Seq, Text, Tree, kind, shorten

_NAME_PATTERN = "^[A-Za-z][A-Za-z0-9_]*$"


def _leaf(function: Any, **schema: Any) -> tuple[PlainValidator, WithJsonSchema]:
    return PlainValidator(function), WithJsonSchema(schema)


Name = Annotated[str, *_leaf(leaves.identifier, type="string", pattern=_NAME_PATTERN)]
FreeText = Annotated[str, *_leaf(leaves.text, type="string", minLength=1)]
TensorDtype = Annotated[str, *_leaf(leaves.tensor_dtype)]
DtypeName = Annotated[str, *_leaf(leaves.dtype_name, enum=list(DTYPES))]
Flag = Annotated[bool, *_leaf(leaves.flag, type="boolean")]
Folder = Annotated[str, *_leaf(leaves.folder, type="string")]
Family = Annotated[str, *_leaf(leaves.family, enum=list(FAMILIES))]
Custom = Annotated[str, *_leaf(leaves.custom, enum=[CUSTOM])]
Strategy = Annotated[str, *_leaf(leaves.strategy, enum=[*STRATEGIES, *ON_REQUEST])]
Precision = Annotated[str, *_leaf(leaves.precision, enum=list(PRECISIONS))]
Role = Annotated[str, *_leaf(leaves.role, enum=list(ROLES))]
Rounds = Annotated[int, *_leaf(partial(leaves.bounded, low=1, high=20), type="integer", minimum=1, maximum=20)]
Speedup = Annotated[float, *_leaf(leaves.number, type="number", exclusiveMinimum=0)]
Fraction = Annotated[float, *_leaf(partial(leaves.number, high=1.0), type="number", exclusiveMinimum=0, maximum=1)]
Scalar = Annotated[str, *_leaf(leaves.scalar, enum=list(leaves.SCALARS))]
Plain = Annotated[str, *_leaf(leaves.plain, type=["number", "boolean", "string"])]
SizeEntry = Annotated[
    int | str,
    *_leaf(
        leaves.size,
        anyOf=[{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^([A-Za-z0-9(][\w +*/()-]*|\.{3})$"}],
    ),
]
_LENGTH = {"type": "integer", "minimum": 0}
SizeBinding = Annotated[
    int | list[int], *_leaf(leaves.size_value, anyOf=[_LENGTH, {"type": "array", "items": _LENGTH}])
]
Shape = dict[str, SizeBinding]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_SHAPE = (
    "Sizes from the outermost dimension to the innermost: names, numbers, and one '...' for any number of dimensions. "
    "[] is a zero-dimensional tensor."
)
_DTYPE = "A dtype, or a variable declared under dtypes."


class TensorEntry(_Entry):
    """A tensor that goes in or comes out."""

    name: Name = Field(description="The tensor's name; an input's is the parameter's name in the reference.")
    shape: list[SizeEntry] = Field(description=_SHAPE)
    dtype: TensorDtype = Field(description=_DTYPE)


class InputEntry(TensorEntry):
    """A tensor that goes in, a number or an option."""

    shape: list[SizeEntry] = Field(default=[], description=f"{_SHAPE} A number has none.")
    dtype: TensorDtype = Field(default="float32", description=f"{_DTYPE} A number has none.")
    optional: Flag = Field(
        default=False, description="Whether a call may leave the tensor out: the argument has the default None."
    )
    scalar: Scalar | None = Field(
        default=None,
        description="float or int: a number of Python's, an argument of the function with a default. bool, or one "
        "with values: an option, each value of which has kernels of its own.",
    )
    default: Plain | None = Field(
        default=None, description="The value of a number or an option where a call gives none."
    )
    values: list[Plain] | None = Field(
        default=None, min_length=1, description="What an option may be; other values are refused."
    )
    role: Role = Field(
        default="data",
        description="like: only shape, dtype and device are read. parameter: a weight of a module. constant: data "
        "without a gradient. scale: finite numbers that may multiply a sum and not each of its summands.",
    )
    below: SizeEntry | None = Field(
        default=None, description="The elements are indices from 0 and below this: a number or a size of the inputs."
    )
    offsets: SizeEntry | None = Field(
        default=None, description="The elements say where parts begin and end: from 0 to this, and they never fall."
    )
    ends: SizeEntry | None = Field(
        default=None, description="The elements say where parts end, the last of them at this, and they never fall."
    )
    checked: bool = Field(
        default=False,
        description="Whether the wrapper looks if the elements are so, for which it waits for the device.",
    )


class OutputEntry(TensorEntry):
    """A tensor that comes out."""

    into: Name | None = Field(
        default=None,
        description="The input that the result is written into, which is returned; its shape and dtype are this one's.",
    )


class AccuracyEntry(_Entry):
    """What the kernel is tested on."""

    shapes: list[Shape] = Field(min_length=1, description="One entry a case: every size that occurs in the inputs.")


class PerformanceEntry(_Entry):
    """What the kernel is timed on."""

    shapes: list[Shape] | None = Field(
        default=None, min_length=1, description="One entry a case: every size that occurs in the inputs."
    )
    dtypes: dict[str, Annotated[list[DtypeName], Field(min_length=1)]] = Field(
        default={}, description="Times only these dtypes of a variable; all of them where it is not named."
    )


class TargetEntry(_Entry):
    """What optimize aims at."""

    speedup: Speedup = Field(default=1.0, description="Over PyTorch eager, geometric mean over the performance cases.")
    bandwidth: Fraction | None = Field(default=None, description="Fraction of the device's peak memory bandwidth.")
    l2_hit: Fraction | None = Field(default=None, description="L2 hit rate; checked only where counters can be read.")


class SpecFile(_Entry):
    """An operator: what it means, what it is tested on and what it should reach."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="kernelgen operator spec")

    name: Name = Field(description="The operator's name and that of its function in the reference.")
    type: Family | None = Field(default=None, description="The family the reference should lower to; checked if given.")
    family: Custom | None = Field(
        default=None, description="custom: no family writes the kernel, a language model does, held to the same tests."
    )
    summary: FreeText | None = Field(default=None, description="One sentence: what the operator does.")
    inputs: list[InputEntry] = Field(min_length=1, description="The tensors that go in, in the reference's order.")
    outputs: list[OutputEntry] = Field(min_length=1, description="The tensors that come out, in the returned order.")
    dtypes: dict[str, Annotated[list[DtypeName], Field(min_length=1)]] = Field(
        default={}, description="Dtype variables and the dtypes each ranges over."
    )
    constraints: list[FreeText] = Field(default=[], description="Conditions on the inputs, as Python expressions.")
    reference: FreeText = Field(
        description="The PyTorch function that defines the operator, as a block: 'reference: |'."
    )
    optimization_strategies: list[Strategy] | None = Field(
        default=None,
        min_length=1,
        description="The strategies that optimize may use; all that ask no language model if not given, llm with "
        "family: custom.",
    )
    accuracy: AccuracyEntry | None = Field(
        default=None, description="What the kernel is tested on; a few shapes if not given."
    )
    performance: PerformanceEntry | None = Field(
        default=None, description="What the kernel is timed on; one large shape if not given."
    )
    target: TargetEntry | None = Field(default=None, description="What an optimize run aims at.")
    max_rounds: Rounds = Field(default=5, description="Rounds of one optimize run, unless --rounds says otherwise.")
    folder: Folder | None = Field(
        default=None, description="Where the quartet goes below operators/; the name if not given."
    )
    backward: Flag = Field(
        default=False, description="Whether kernels for the gradients are generated from the reference as well."
    )
    deterministic: Flag = Field(
        default=True,
        description="false: a scatter_add may add floats by atomics, so that two calls differ in bits.",
    )
    precision: Precision | None = Field(
        default=None,
        description="How kernels multiply float32: ieee, tf32x3, three products on tensor cores, or tf32, one; as "
        "torch is set if not given.",
    )
    module: FreeText | None = Field(
        default=None,
        description="The nn.Module the operator was imported from, as a block; its forward calls the operator.",
    )


class _WithoutNull(GenerateJsonSchema):
    """A key may be left out, but an empty one is a mistake: None is no value that a spec can write."""

    def nullable_schema(self, schema: NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: WithDefaultSchema) -> JsonSchemaValue:
        if schema.get("default", ...) is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a spec file, for editors."""
    schema = SpecFile.model_json_schema(schema_generator=_WithoutNull)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def validate(tree: Map) -> tuple[SpecFile | None, list[Finding]]:
    """The file as validated data, None where it has mistakes, and all of these."""
    try:
        return SpecFile.model_validate(tree), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
        misspelt = {_meant(tree, details["loc"]) for details in errors if details["type"] == "extra_forbidden"}
        # a required key that is there under a misspelt name is one mistake, not two
        kept = [details for details in errors if details["type"] != "missing" or details["loc"] not in misspelt]
        found = [_finding(tree, details) for details in kept]
        return None, [finding for finding in found if finding is not None]


def _meant(tree: Map, location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The location that an unknown key was probably meant to have."""
    return (*location[:-1], nearest(str(location[-1]), _missing_keys(tree, location[:-1])) or "")


def _missing_keys(tree: Map, location: tuple[int | str, ...]) -> list[str]:
    """The keys that the mapping at a location could have and has not."""
    return [name for name in _fields_at(location) if name not in cast(Map, _descend(tree, location))]


def _meant_or_known(tree: Map, location: tuple[int | str, ...]) -> str:
    """The tail of a message about an unknown key."""
    key, missing = str(location[-1]), _missing_keys(tree, location[:-1])
    if nearest(key, missing) is None and len(location) > 1 and key in _fields_at(()):
        return f"; '{key}' is a key of the spec itself"
    return hint(key, missing) or hint(key, _fields_at(location[:-1]))


def _finding(tree: Map, error: Any) -> Finding | None:
    """One pydantic error at the place of the value it is about, in this project's words."""
    location, context = error["loc"], error.get("ctx", {})
    if error["type"] == "extra_forbidden":
        parent, key = cast(Map, _descend(tree, location[:-1])), location[-1]
        if key.startswith("\0"):  # the reader has already reported this key
            return None
        return parent.key_place(key), f"unknown key '{shorten(key)}'{_meant_or_known(tree, location)}"
    if error["type"] == "missing":
        return _descend(tree, location[:-1]).place, f"{_where(location[:-1])} needs the key '{location[-1]}'"
    value = _descend(tree, location)
    place = context.get("place") or value.place
    what = f"{_where(location)} "
    match error["type"]:
        case "spec":
            message = context["message"]
            return place, message if message.startswith(("unknown", "'")) else what + message
        case "list_type":
            return place, f"{what}needs a list, got {kind(value)}{_as_list(location[-1])}"
        case "model_type" | "dict_type":
            sizes = "; write it as {M: 1024, N: 4096}" if len(location) > 1 and location[-2] == "shapes" else ""
            return place, f"{what}needs keys and values, got {kind(value)}{sizes}"
        case "too_short":
            return place, f"{what}needs at least one entry"
        case _:
            return place, f"{what}is wrong: {error['msg']}"


def _as_list(key: object) -> str:
    return "; write it as [M, N]" if key == "shape" else ""


def _descend(tree: Tree, location: tuple[int | str, ...]) -> Tree:
    """The value at a pydantic location."""
    for step in location:
        if isinstance(tree, Seq) and isinstance(step, int):
            tree = tree[step]
        elif isinstance(tree, Map) and step in tree:
            tree = tree[Text(str(step), tree.place)]
    return tree


def _where(location: tuple[int | str, ...]) -> str:
    """`inputs[0].shape`, in quotes; the file itself for the empty location."""
    path = "".join(f"[{step}]" if isinstance(step, int) or step == ELLIPSIS else f".{step}" for step in location)
    return f"'{path.removeprefix('.')}'" if path else "a spec"


def _fields_at(location: tuple[int | str, ...]) -> list[str]:
    """The keys that the model at a location knows."""
    head = location[0] if location else ""
    models: dict[int | str, type[BaseModel]] = {
        "": SpecFile,
        "inputs": InputEntry,
        "outputs": OutputEntry,
        "accuracy": AccuracyEntry,
        "performance": PerformanceEntry,
        "target": TargetEntry,
    }
    return list(models[head].model_fields)
