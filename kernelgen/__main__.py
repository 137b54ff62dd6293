"""`python -m kernelgen`: the same as the command `kernelgen`."""

import sys

from kernelgen.cli import main

if __name__ == "__main__":
    sys.exit(main())
