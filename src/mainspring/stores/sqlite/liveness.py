"""Find out which workers are alive, and wake them, by two small files per worker next to the database.

`<database>-workers/<id>.lock` describes the worker. The worker holds a lock on it (`flock`) as long as it lives; the
kernel releases the lock when the process dies. The file's modification time is the heartbeat: it shows workers that are
stopped but not dead, and a heartbeat never touches the database. `<id>.sock` is a datagram socket: a message to it
wakes the worker.

A remote worker has `<id>.lease` instead, which no process keeps locked: whichever process speaks for the worker sets
its modification time. Such a worker is dead when that time has not changed for a lease. Each process that is to be
woken for it has its own socket, `<id>~<process>.sock`.

The files are made before the worker's row in the table `mainspring_workers`. Dead workers lose their files before their
row: whichever process finds a row without files records the death (maintenance.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from mainspring.stores.protocol import Wake, WorkerInfo
from mainspring.stores.workers import from_data, to_data

LONGEST_SOCKET_PATH = 100  # bytes; the limit of operating systems is 104 to 108
READER = "~reader-"  # begins the file names of readers of the change feed; no worker is named like this
COARSE_CLOCK = 50_000_000  # nanoseconds; file systems take timestamps from a clock that ticks every few milliseconds


class Registry(Protocol):
    """The workers that have joined: which of them are alive, and how to wake them."""

    def leave(self, worker: str) -> None: ...
    def beat(self, worker: str, stuck: int = 0) -> bool: ...
    def forget(self, worker: str, heartbeat: object) -> None: ...
    def dead(self, worker: str) -> bool: ...
    def heartbeat_of(self, worker: str) -> int: ...
    def workers(self) -> Iterable[WorkerInfo]: ...
    def sweep(self) -> None: ...
    def wake(self, wake: Wake, queues: Iterable[str] = ()) -> None: ...
    def wake_readers(self) -> None: ...


class Liveness:
    """The directory with the files of one database's workers."""

    def __init__(self, database: Path, lease: float = 30.0) -> None:
        self.directory = Path(f"{database}-workers")
        self._lease = lease  # seconds
        self._own: dict[str, int] = {}  # worker of this process -> file descriptor that holds its lock
        self._stuck: dict[str, int] = {}  # worker -> stuck slots, as written in its file
        self._sender: socket.socket | None = None
        self._listed: tuple[int, tuple[str, ...]] = (-1, ())
        self._directory_fd = -1

    def join_reader(self, reader: str) -> socket.socket | None:
        """Register a reader of the change feed: it has files like a worker, but is not one."""
        return self.join(WorkerInfo(f"{READER}{reader}", host="", pid=os.getpid(), queues=()))

    def leave_reader(self, reader: str) -> None:
        self.leave(f"{READER}{reader}")

    def join(self, info: WorkerInfo, *, listen: bool = True) -> socket.socket | None:
        """Lock the worker's file and return its open socket; None if there is none, or it could not be opened."""
        self.directory.mkdir(exist_ok=True)
        if info.remote:
            return self._join_remote(info, listen=listen)
        if info.id in self._own:
            self._rewrite(info)
        else:
            self._own[info.id] = self._lock(info)
        return self._listen(info.id)

    def _rewrite(self, info: WorkerInfo) -> None:
        """Update the worker's file without releasing the lock, else another process could take over its jobs."""
        described = describe(info)
        os.pwrite(self._own[info.id], described, 0)
        os.ftruncate(self._own[info.id], len(described))
        self._stuck.pop(info.id, None)
        with contextlib.suppress(OSError):
            os.unlink(self._path(info.id, "sock"))

    def leave(self, worker: str) -> None:
        for kind in ("sock", "lock", "lease"):
            with contextlib.suppress(OSError):
                os.unlink(self._path(worker, kind))
        self._remove_sockets(worker)
        self._stuck.pop(worker, None)
        if (descriptor := self._own.pop(worker, None)) is not None:
            os.close(descriptor)

    def beat(self, worker: str, stuck: int = 0) -> bool:
        """Record a heartbeat; return False if there is no such worker."""
        if (descriptor := self._own.get(worker)) is None:
            return self._beat_remote(worker)
        if stuck != self._stuck.get(worker, 0):
            os.pwrite(descriptor, show_stuck(stuck), 0)
            self._stuck[worker] = stuck
        touch(descriptor)
        return True

    # -- remote workers -----------------------------------------------------------------------------

    def _join_remote(self, info: WorkerInfo, *, listen: bool) -> socket.socket | None:
        with self._locked_lease(info.id, os.O_CREAT) as descriptor:
            described = describe(info)
            os.pwrite(descriptor, described, 0)
            os.ftruncate(descriptor, len(described))
            touch(descriptor)
        name = f"{info.id}~{os.getpid()}"
        with contextlib.suppress(OSError):
            os.unlink(self._path(name, "sock"))
        return self._listen(name) if listen else None

    def _beat_remote(self, worker: str) -> bool:
        try:
            with self._locked_lease(worker) as descriptor:
                touch(descriptor)
        except FileNotFoundError:
            return False
        return True

    def forget(self, worker: str, heartbeat: object) -> None:
        """Remove a remote worker, unless it has sent another heartbeat than this one."""
        with contextlib.suppress(FileNotFoundError), self._locked_lease(worker) as descriptor:
            if os.fstat(descriptor).st_mtime_ns == heartbeat:
                os.unlink(self._path(worker, "lease"))
                self._remove_sockets(worker)

    @contextlib.contextmanager
    def _locked_lease(self, worker: str, flags: int = 0) -> Iterator[int]:
        """Open and lock a remote worker's file, so that no process removes it while this one writes a heartbeat."""
        path = self._path(worker, "lease")
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if is_file(path, descriptor):
                    yield descriptor
                    return
            finally:
                os.close(descriptor)

    def _remove_sockets(self, worker: str) -> None:
        """Remove the sockets by which processes were woken for a remote worker; some of them may be dead."""
        for path in self.directory.glob(f"{glob.escape(worker)}~*.sock"):
            path.unlink(missing_ok=True)

    # -- which workers are alive --------------------------------------------------------------------

    def dead(self, worker: str) -> bool:
        """Return whether the worker is certainly dead: its file is gone, or no process holds its lock.

        This is never certain of a remote worker that has a file.
        """
        if worker in self._own or self._path(worker, "lease").exists():
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
        """Return a number that changes with each heartbeat; 0 if there is no such worker."""
        for kind in ("lock", "lease"):
            with contextlib.suppress(FileNotFoundError):
                return os.stat(self._path(worker, kind)).st_mtime_ns
        return 0

    def workers(self) -> Iterator[WorkerInfo]:
        for path in sorted([*self.directory.glob("*.lock"), *self.directory.glob("*.lease")]):
            if is_reader(path.stem):
                continue
            with contextlib.suppress(OSError, ValueError, TypeError, LookupError):  # the file may come or go meanwhile
                seen_at = path.stat().st_mtime
                info = from_data(path.stem, json.loads(path.read_text("utf-8")), round(seen_at * 1000))
                is_dead = time.time() - seen_at >= self._lease if info.remote else self.dead(info.id)
                yield replace(info, alive=not is_dead)

    def sweep(self) -> None:
        """Remove the files of dead workers, also of those that died before they had written theirs."""
        for path in self.directory.glob("*.lock"):
            if path.stem not in self._own:
                self._remove_if_dead(path.stem)

    def _remove_if_dead(self, worker: str) -> None:
        """Remove its files under its lock: a worker that joins by this name meanwhile then makes them again."""
        try:
            descriptor = os.open(self._path(worker, "lock"), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # another process was quicker
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:  # otherwise another process has removed it since
                self.leave(worker)
        except BlockingIOError:  # it is alive
            return
        finally:
            os.close(descriptor)

    def wake(self, wake: Wake, queues: Iterable[str] = ()) -> None:
        """Send a wake-up to all workers; skip those that are gone or have too many unread messages.

        The change was committed before: so this must not raise, or callers would think that the write failed. A worker
        that misses the message notices the change at its next poll.
        """
        with contextlib.suppress(OSError):
            self._tell("\n".join((str(wake.value), *queues)).encode(), readers=False)

    def wake_readers(self) -> None:
        """Send a message to the readers of the change feed; like `wake`, this never raises."""
        with contextlib.suppress(OSError):
            self._tell(b"0", readers=True)

    def _tell(self, message: bytes, *, readers: bool) -> None:
        listeners = [name for name in self._listeners() if is_reader(name) == readers]
        if not listeners:
            return
        if self._sender is None:
            self._sender = datagram_socket()
        for name in listeners:
            with contextlib.suppress(OSError):
                self._sender.sendto(message, self._address(name))

    def forget_parent(self) -> None:
        """Close inherited files in a forked child: an inherited lock would make a dead worker look alive."""
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
        """Create and lock the worker's file. A sweep may remove it before it is locked; then create it again."""
        path = self._path(info.id, "lock")
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if is_file(path, descriptor):
                    os.write(descriptor, describe(info))
                    return descriptor
            except BaseException:  # for example a full disk; if this lock stayed, the next attempt would wait for ever
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _listen(self, name: str) -> socket.socket | None:
        listener = datagram_socket()
        try:
            listener.bind(self._address(f"{name}.sock"))
        except OSError:
            listener.close()
            return None
        return listener

    def _listeners(self) -> tuple[str, ...]:
        """Return the sockets in the directory; read it again only if it has changed."""
        try:
            changed = os.stat(self.directory).st_mtime_ns
        except FileNotFoundError:
            return ()
        if changed == self._listed[0]:
            return self._listed[1]
        names = tuple(name for name in os.listdir(self.directory) if name.endswith(".sock"))
        if time.time_ns() - changed > COARSE_CLOCK:  # otherwise the next change may get the same timestamp
            self._listed = changed, names
        return names

    def _address(self, name: str) -> str:
        path = str(self.directory / name)
        if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
            return path
        if self._directory_fd < 0:  # gives a shorter path, where the kernel has /proc
            self._directory_fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._directory_fd}/{name}"

    def _path(self, worker: str, kind: str) -> Path:
        return self.directory / f"{worker}.{kind}"


def is_reader(name: str) -> bool:
    return name.startswith(READER)


def describe(info: WorkerInfo) -> bytes:
    data = to_data(replace(info, started_at=info.started_at or datetime.now(UTC)))
    return show_stuck(info.stuck) + json.dumps(data)[1:].encode()


def show_stuck(number: int) -> bytes:
    """Return the beginning of a worker's file. Its length is fixed, so that a heartbeat can overwrite it in place.

    If heartbeats rewrote the whole file, a reader could see half of it and miss the worker.
    """
    return f'{{"stuck": {number:6}, '.encode()


def is_file(path: Path, descriptor: int) -> bool:
    """Return whether the open file is still the one at this path; another process may have removed it."""
    try:
        return os.stat(path).st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def touch(descriptor: int) -> None:
    """Set the modification time. The file system's own clock is coarse: quick heartbeats would look the same."""
    now = time.time_ns()
    os.utime(descriptor, ns=(now, now))


def datagram_socket() -> socket.socket:
    new = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    new.settimeout(0)
    return new
