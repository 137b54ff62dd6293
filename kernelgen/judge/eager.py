"""What looks on while a reference runs eagerly."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class EagerMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode under which nothing is compiled.

    torch keeps its compiler out of every other mode's frames, for which the first operation imports it: two seconds in
    each of the processes that judge one case.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
