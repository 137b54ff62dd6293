"""The device functions that kernels of a generated file may call, as `templates/helpers.py.jinja` has them: a macro
each, in the order in which a file defines them. An operator may be called tanh itself, so each begins with an
underscore."""

from __future__ import annotations

import re
from collections.abc import Collection
from importlib import resources

_SOURCE = resources.files("kernelgen").joinpath("templates", "helpers.py.jinja").read_text("utf-8")
_TEXTS = dict(re.findall(r"^{% macro (\w+)\(\) -%}\n(.*?)^{% endmacro %}", _SOURCE, re.MULTILINE | re.DOTALL))
_DEFINED = {
    helper: frozenset(re.findall(r"^(?:def )?(_\w+)(?:\(| = )", text, re.MULTILINE)) for helper, text in _TEXTS.items()
}
_MENTIONED = {
    helper: frozenset(re.findall(r"\b_[A-Za-z]\w*", re.sub("#.*", "", text))) - _DEFINED[helper]
    for helper, text in _TEXTS.items()
}

HELPERS = tuple(_TEXTS)
"""The macros."""
DEVICE_FUNCTIONS = frozenset().union(*_DEFINED.values())
"""The names of all of them, which nothing else in a kernel may have."""


LIBRARY = "from triton.language.extra import libdevice"
"""What imports CUDA's own functions, which Triton has for NVIDIA alone."""
OF_LIBRARY = frozenset(helper for helper, text in _TEXTS.items() if "libdevice." in text)
"""The device functions that call these."""


def imports_of(helpers: Collection[str]) -> tuple[str, ...]:
    """What a file imports for some device functions."""
    return (LIBRARY,) if OF_LIBRARY & frozenset(helpers) else ()


def with_called(used: Collection[str]) -> tuple[str, ...]:
    """Some device functions and those that these call, in the order of their definitions."""
    mentioned = frozenset[str]().union(*(_MENTIONED[helper] for helper in used))
    found = {*used, *(helper for helper, names in _DEFINED.items() if names & mentioned)}
    return with_called(found) if found != set(used) else tuple(helper for helper in _TEXTS if helper in found)
