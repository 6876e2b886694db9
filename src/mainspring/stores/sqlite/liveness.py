"""Which workers are alive, and how to wake them: two small files per worker beside the database.

`<database>-workers/<id>.lock` holds what the worker says of itself and is locked by it (`flock`) as long as it lives:
the kernel frees it at death. Its modification time is the heartbeat, so that a worker which is stopped but not dead is
noticed too, and a heartbeat never touches the database. `<id>.sock` is a datagram socket: a message wakes the worker.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from mainspring.stores.protocol import EVERY_QUEUE, Wake, WorkerInfo

LONGEST_SOCKET_PATH = 100  # the system's limit is 104 to 108 bytes
COARSE_CLOCK = 50_000_000  # nanoseconds; file systems stamp changes with a clock that ticks every few milliseconds


class Liveness:
    """The directory of the workers of one database."""

    def __init__(self, database: Path) -> None:
        self.directory = Path(f"{database}-workers")
        self._own: dict[str, int] = {}  # worker -> descriptor that holds its lock
        self._stuck: dict[str, int] = {}  # worker -> stuck slots, as its file says
        self._sender: socket.socket | None = None
        self._listed: tuple[int, tuple[str, ...]] = (-1, ())
        self._directory_fd = -1

    def join(self, info: WorkerInfo) -> socket.socket | None:
        """Lock the worker's file and open its socket (None where the system has no room for its path)."""
        self.directory.mkdir(exist_ok=True)
        if info.id in self._own:
            self._rewrite(info)
        else:
            self._own[info.id] = self._lock(info)
        return self._listen(info.id)

    def _rewrite(self, info: WorkerInfo) -> None:
        """Keep the lock: without it for a moment, another process would take the worker's jobs."""
        described = describe(info)
        os.pwrite(self._own[info.id], described, 0)
        os.ftruncate(self._own[info.id], len(described))
        self._stuck.pop(info.id, None)
        with contextlib.suppress(OSError):
            os.unlink(self._path(info.id, "sock"))

    def leave(self, worker: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path(worker, "sock"))
        with contextlib.suppress(OSError):
            os.unlink(self._path(worker, "lock"))
        self._stuck.pop(worker, None)
        if (descriptor := self._own.pop(worker, None)) is not None:
            os.close(descriptor)

    def beat(self, worker: str, stuck: int = 0) -> None:
        if (descriptor := self._own.get(worker)) is not None:
            if stuck != self._stuck.get(worker, 0):
                os.pwrite(descriptor, show_stuck(stuck), 0)
                self._stuck[worker] = stuck
            now = time.time_ns()  # left to itself, the file system would stamp beats within its coarse clock alike
            os.utime(descriptor, ns=(now, now))

    def dead(self, worker: str) -> bool:
        """Whether the kernel says so: its file is gone or nobody holds the lock."""
        if worker in self._own:
            return False
        try:
            descriptor = os.open(self._path(worker, "lock"), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            return True
        finally:
            os.close(descriptor)

    def heartbeat_of(self, worker: str) -> int:
        """A number that changes with each heartbeat; 0 if there is no such worker."""
        try:
            return os.stat(self._path(worker, "lock")).st_mtime_ns
        except FileNotFoundError:
            return 0

    def workers(self) -> Iterator[WorkerInfo]:
        for path in sorted(self.directory.glob("*.lock")):
            with contextlib.suppress(OSError, ValueError, TypeError, LookupError):  # it may come or go while we read
                seen = datetime.fromtimestamp(path.stat().st_mtime, UTC)
                fields = json.loads(path.read_text("utf-8"))
                fields["started_at"] = datetime.fromisoformat(fields["started_at"])
                info = WorkerInfo(**{**fields, "queues": tuple(fields["queues"]), "tasks": tuple(fields["tasks"])})
                yield replace(info, seen_at=seen, alive=not self.dead(info.id))

    def sweep(self) -> None:
        """Remove what dead workers left behind."""
        for info in self.workers():
            if not info.alive:
                self.leave(info.id)

    def wake(self, wake: Wake, queues: Iterable[str] = ()) -> None:
        """Tell every worker that cares; those that are gone or have enough unread messages are passed over.

        What is told has been committed: no error of the telling may be taken for one of the write. Who is not told will
        notice by its poll.
        """
        with contextlib.suppress(OSError):
            self._tell("\n".join((str(wake.value), *queues)).encode())

    def _tell(self, message: bytes) -> None:
        listeners = self._listeners()
        if not listeners:
            return
        if self._sender is None:
            self._sender = datagram_socket()
        for name in listeners:
            with contextlib.suppress(OSError):
                self._sender.sendto(message, self._address(name))

    def forget_parent(self) -> None:
        """In a forked child: an inherited lock would keep its worker alive beyond its death."""
        for descriptor in self._own.values():
            os.close(descriptor)
        self._own.clear()
        self._stuck.clear()
        self.close()

    def close(self) -> None:
        for worker in list(self._own):
            self.leave(worker)
        if self._sender is not None:
            self._sender.close()
            self._sender = None
        if self._directory_fd >= 0:
            os.close(self._directory_fd)
            self._directory_fd = -1

    def _lock(self, info: WorkerInfo) -> int:
        """A sweep may remove the file between its creation and our lock; then make it again."""
        path = self._path(info.id, "lock")
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                    os.write(descriptor, describe(info))
                    return descriptor
            except FileNotFoundError:
                pass
            except BaseException:  # no room, perhaps: the next try would wait for this one's lock for ever
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _listen(self, worker: str) -> socket.socket | None:
        listener = datagram_socket()
        try:
            listener.bind(self._address(f"{worker}.sock"))
        except OSError:
            listener.close()
            return None
        return listener

    def _listeners(self) -> tuple[str, ...]:
        """The sockets in the directory, read again only when something in it changed."""
        try:
            changed = os.stat(self.directory).st_mtime_ns
        except FileNotFoundError:
            return ()
        if changed == self._listed[0]:
            return self._listed[1]
        names = tuple(name for name in os.listdir(self.directory) if name.endswith(".sock"))
        if time.time_ns() - changed > COARSE_CLOCK:  # else the next change might bear the same time
            self._listed = changed, names
        return names

    def _address(self, name: str) -> str:
        path = str(self.directory / name)
        if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
            return path
        if self._directory_fd < 0:  # a short way in, where the kernel offers one
            self._directory_fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._directory_fd}/{name}"

    def _path(self, worker: str, kind: str) -> Path:
        return self.directory / f"{worker}.{kind}"


def describe(info: WorkerInfo) -> bytes:
    started = (info.started_at or datetime.now(UTC)).isoformat()
    fields = {**asdict(info), "started_at": started, "seen_at": None}
    del fields["stuck"]
    return show_stuck(info.stuck) + json.dumps(fields)[1:].encode()


def show_stuck(number: int) -> bytes:
    """The beginning of a worker's file. It always has the same length, so that a heartbeat can overwrite it in place.

    Rewriting the whole file would let a reader see half of it, and miss the worker.
    """
    return f'{{"stuck": {number:6}, '.encode()


def datagram_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.settimeout(0)
    return made


def read_wakes(listener: socket.socket, queues: Iterable[str]) -> Wake:
    """Empty the socket; what of it concerns a worker of these queues."""
    wanted, heard = set(queues), Wake(0)
    while True:
        try:
            value, *about = listener.recv(65536).decode().split("\n")
        except BlockingIOError:
            return heard
        wake = Wake(int(value))
        if EVERY_QUEUE not in wanted and about and not wanted.intersection(about):
            wake &= ~Wake.JOBS
        heard |= wake
