"""Imported by the process that starts forks, and by no other: it ends when the thread that started it does, however
that ends, and leaves interrupts to it."""

from __future__ import annotations

import os
import signal

from kernelgen.lifeline import die_with_parent

# each fork holds the pipe at whose end it would otherwise notice that nobody needs it any more
die_with_parent(os.getppid())
signal.signal(signal.SIGINT, signal.SIG_IGN)
