"""A child process by os.fork, as servers that load the application before they fork have them."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable


def in_child(work: Callable[[], bool]) -> int:
    """0 if the work, done in a child, gave True; a child that hangs is ended by SIGALRM."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # we have threads: that is the point
        pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        code = 2
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
