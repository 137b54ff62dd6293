"""The blocks that a module is made of: what its file's own classes compute, equal ones as one operator each."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernelgen.importer import naming, source
from kernelgen.importer.imported import Imported
from kernelgen.importer.load import Loaded
from kernelgen.importer.rewrite import is_literal
from kernelgen.importer.same_calls import whole_state
from kernelgen.importer.traced import as_traced, with_state
from kernelgen.importer.write import reference_of, spec_of


@dataclass(frozen=True)
class Block:
    """A submodule of a class of the file's, as it was called."""

    path: str
    loaded: Loaded

    @property
    def kind(self) -> tuple[Any, ...]:
        """What equal blocks have in common: the class, the layers, the inputs."""
        module = self.loaded.module
        shapes = [tuple(e.shape) if hasattr(e, "shape") else e for e in self.loaded.examples]
        own = {k: v for k, v in vars(module).items() if is_literal(v) and not k.startswith("_")}
        return type(module), str(module), str(shapes), str(own)


def specs_of_blocks(loaded: Loaded) -> list[Imported]:
    """The spec of every block. SpecError where the module has none."""
    found = _chosen(loaded, _called(loaded))
    if not found:
        message = "no module of the file's own classes is called in it, so it has no blocks: import it whole"
        raise loaded.source.mistake(loaded.owner or loaded.function, message)
    kinds: dict[tuple[Any, ...], list[Block]] = {}
    for block in found:
        kinds.setdefault(block.kind, []).append(block)
    texts: dict[tuple[str, str], list[list[Block]]] = {}
    for equal in kinds.values():
        name = _name(loaded, equal[0])
        texts.setdefault((name, reference_of(equal[0].loaded, name)), []).append(equal)
    names: Counter[str] = Counter()
    made: list[Imported] = []
    for (name, _), groups in texts.items():
        while groups:  # those whose sizes are no case of the first's are operators of their own
            names[name] += 1
            own = name if names[name] == 1 else f"{name}_{names[name]}"
            first, *others = groups
            shown = spec_of(first[0].loaded, own, tuple(g[0].loaded for g in others))
            groups = [g for g in others if g[0].loaded in shown.left_out]
            paths = [b.path for g in (first, *others) if g not in groups for b in g]
            note = f"{own} stands for {len(paths)} of the module's: {', '.join(paths[:8])}{', ...' * (len(paths) > 8)}"
            made.append(replace(shown, notes=(note, *shown.notes)))
    return made


def _name(loaded: Loaded, block: Block) -> str:
    name = naming.operator_name(Path(type(block.loaded.module).__name__)) or "block"
    return f"{name}_block" if name in loaded.scope else name


def _called(loaded: Loaded) -> list[Block]:
    """Every call of a module of the file's own classes, in order, each module once."""
    import torch

    classes = {n.name: n for n in ast.walk(loaded.source.tree) if isinstance(n, ast.ClassDef) and source.forward_of(n)}
    found: dict[str, Block] = {}

    def noted(path: str, module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        forward = source.forward_of(classes[type(module).__name__])
        assert forward is not None
        bound = inspect.signature(module.forward).bind(*given, **named)
        examples = tuple(bound.arguments.values())
        found.setdefault(path, Block(path, replace(
            loaded, function=forward, module=module, owner=None, examples=examples, made_with=()
        )))  # fmt: skip

    handles = [
        module.register_forward_pre_hook(
            lambda m, given, named, path=path: noted(path, m, given, named), with_kwargs=True
        )
        for path, module in loaded.module.named_modules()
        if path and type(module).__name__ in classes and type(module).__module__ == type(loaded.module).__module__
    ]  # fmt: skip
    arguments = [torch.empty_like(e, device="meta") if hasattr(e, "shape") else e for e in loaded.examples]
    try:
        with torch.no_grad(), with_state(loaded.module, whole_state(loaded, {})), as_traced():
            loaded.call(*arguments)
    finally:
        for handle in handles:
            handle.remove()
    return list(found.values())


def _chosen(loaded: Loaded, called: list[Block]) -> list[Block]:
    """The outermost modules that do not hold several equal ones themselves and whose arguments an operator can take."""
    import torch

    chosen: list[Block] = []
    for block in called:
        if any(block.path.startswith(f"{outer.path}.") for outer in chosen):
            continue
        inner = Counter(b.kind for b in called if b.path.startswith(f"{block.path}."))
        taken = all(isinstance(e, torch.Tensor) or is_literal(e) for e in block.loaded.examples)
        if taken and not any(count > 1 for count in inner.values()):
            chosen.append(block)
    return chosen
