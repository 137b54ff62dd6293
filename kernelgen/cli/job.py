"""`python -m kernelgen.cli.job PARENT COMMAND…`: one command for a worker, which ends when its parent does."""

from __future__ import annotations

import os
import sys
import traceback

from kernelgen.lifeline import die_with_parent, heed_interrupts

if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    heed_interrupts()
    from kernelgen.cli import main
    from kernelgen.fleet.work import CRASHED

    try:
        code = main(sys.argv[2:])
    except BaseException:
        traceback.print_exc()
        code = CRASHED
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
