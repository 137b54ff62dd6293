"""One call of a candidate for a profiler: `python -m kernelgen.worker.once`, the request as JSON in the arguments."""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Warm up with one call, make another, and end; the profiler skips the launches of the first."""
    import torch

    from kernelgen import judge
    from kernelgen.worker import load

    request = json.loads(sys.argv[1])
    operator = load.quartet(request["folder"], request["name"], "accuracy").OPERATOR
    wrapper = load.candidate(request["path"], request["name"])
    inputs = judge.make_inputs(operator, judge.Case.from_json(request["case"]), seed=0)()
    for _ in range(2):
        wrapper(*inputs)
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
