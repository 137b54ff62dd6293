"""`python -m kernelgen.cli.held COMMAND…`: a command whose run gets ready and begins when a line comes in."""

from __future__ import annotations

import sys
from pathlib import Path

from kernelgen.cli import main, progress


class Held(progress.Progress):
    """Waits before the first thing that a run does; what it starts beforehand goes on meanwhile."""

    def run_started(self, folder: Path, resumed: bool, rounds: int) -> None:
        if not sys.stdin.readline():
            sys.exit("nobody is there to say when")
        super().run_started(folder, resumed, rounds)


if __name__ == "__main__":
    progress.Progress = Held  # type: ignore[misc]
    sys.exit(main())
