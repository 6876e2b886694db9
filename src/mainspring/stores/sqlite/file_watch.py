"""Notice writes to files without polling, by the kernel's inotify. Systems without it (such as macOS) must poll."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MODIFIED = 0x2
METADATA = 0x4  # among others: a link to the file was removed, for example because another file took its name
DELETED = 0x400
MOVED = 0x800
WRITTEN = MODIFIED | METADATA | DELETED | MOVED
REPLACED = METADATA | DELETED | MOVED
EVENTS_SIZE = 65536  # bytes; an event has 16, and equal ones that follow each other become one


class FileWatch:
    """Waits for writes to some files, on the event loop where it is made."""

    def __init__(self, events: Mapping[Path, int]) -> None:
        self._events = {os.fsencode(path): mask for path, mask in events.items()}
        self._loop = asyncio.get_running_loop()
        self._noticed = asyncio.Event()
        self._kernel = libc()
        self._file = self._kernel.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC) if self._kernel else -1

    def arm(self) -> bool:
        """Forget what was noticed so far, and watch the files as they are now; return whether all of them are watched.

        A file may have been replaced since the last time. Watching the same file twice does no harm.
        """
        self._noticed.clear()
        if self._file < 0:
            return False
        with contextlib.suppress(BlockingIOError):
            while os.read(self._file, EVENTS_SIZE):
                pass
        watched = [self._kernel.inotify_add_watch(self._file, path, mask) for path, mask in self._events.items()]
        self._loop.add_reader(self._file, self._notice)
        return all(number >= 0 for number in watched)

    async def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for a write after the last `arm()`; return whether there was one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._noticed.wait()
        return self._noticed.is_set()

    def close(self) -> None:
        if self._file >= 0:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _notice(self) -> None:
        """Stop listening until the watch is armed again: a busy database is written thousands of times a second."""
        self._loop.remove_reader(self._file)
        self._noticed.set()


def libc() -> Any:
    """Return the C library if it has inotify, otherwise None."""
    import ctypes  # noqa: PLC0415 - only processes that wait for writes need it

    try:
        library = ctypes.CDLL(None, use_errno=True)
        library.inotify_init1, library.inotify_add_watch  # noqa: B018
    except (OSError, TypeError, AttributeError):
        return None
    return library
