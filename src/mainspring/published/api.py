"""`app.published`: the tasks that workers have published in the store, and enqueuing them without their code.

A worker publishes its tasks once, right after it has started, and only those whose description differs from the one
in the store. So the worker that started last has its way, as for schedules: while programs are replaced, that is the
one with the newest code. A worker does not look again later, so two versions that run side by side do not overwrite
each other's descriptions for ever.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from mainspring.clock import Millis
from mainspring.errors import InvalidPayload, UnknownTask
from mainspring.log import get_log
from mainspring.names import check_name
from mainspring.published.description import Description, describe, hash_in, key_of
from mainspring.published.remote import RemoteTask
from mainspring.services import PUBLISHED_TASKS, whoami
from mainspring.stores.documents import ABSENT, Bundle, By, Note, Write
from mainspring.stores.paging import pages
from mainspring.stores.protocol import Store
from mainspring.task import Task, TaskServices

log = get_log("mainspring.published")

FRESH_FOR: Millis = 5_000  # how long a process trusts a description that it has read
PAGE_SIZE = 50  # descriptions that are read or written at once
MAX_TRIES = 3  # of a write that another worker's write has overtaken
UNCHECKED = "pass allow_unknown=True"  # the advice to enqueue without a check; the command line words it as its option
NEAR_NAMES = 3  # that the message about an unknown task suggests


class PublishedTasks:
    """Reads and writes the descriptions of tasks."""

    def __init__(self, shared: TaskServices) -> None:
        self._shared = shared
        self._services = shared.services
        self._known: tuple[Store | None, dict[str, tuple[Millis, RemoteTask]]] = None, {}

    # -- looking ------------------------------------------------------------------------------

    async def list(self) -> list[Description]:
        """Return all published tasks, in the order of their names."""
        found = pages(self._services.store, PUBLISHED_TASKS)
        return [Description.read(document) async for page in found for document in page]

    async def get(self, name: str) -> Description:
        """Return a published task; raise UnknownTask if no worker has published one of that name."""
        if (found := await self._read(name)) is None:
            raise await self._unknown(name)
        return found

    async def _read(self, name: str) -> Description | None:
        found = await self._services.store.documents([key_of(check_name(name, "the name of a task"))])
        return Description.read(found[0]) if found else None

    async def forget(self, name: str, *, reason: str = "", actor: str | None = None) -> None:
        """Remove a description, for example of a task that no program has any more. Its jobs stay.

        Raise UnknownTask if there is none. A worker that has the task publishes it again when it starts.
        """
        await self.get(name)
        note = Note(By(actor or whoami(), reason), "task.forget", {"task": name})
        await self._services.store.write([Bundle((Write(key_of(name), None, recorded=True),), note=note)])
        self._cache().pop(name, None)

    # -- enqueuing ----------------------------------------------------------------------------

    async def task(self, name: str, *, allow_unknown: bool = False) -> RemoteTask:
        """Return a task of another program, to enqueue or prepare its jobs: `(await app.published.task("x")).using(…)`.

        Raise UnknownTask if no worker has published it; with `allow_unknown`, return a task whose payloads are not
        checked and whose options are the defaults of this program.
        """
        cache, now = self._cache(), self._services.store.clock.now()
        read_at, known = cache.get(name, (0, None))
        if known is not None and 0 <= now - read_at < FRESH_FOR:
            return known
        return await self._newest(name, known, allow_unknown=allow_unknown)

    async def _newest(self, name: str, known: RemoteTask | None, *, allow_unknown: bool) -> RemoteTask:
        description = await self._read(name)
        if description is None and not allow_unknown:
            raise await self._unknown(name)
        if description is not None and description.schema is None and not allow_unknown:
            msg = (
                f"payloads of task {name!r} cannot be checked without its code: {description.problem}. Enqueue it in a"
                f" program that has the task, or {UNCHECKED} to enqueue without a check"
            )
            raise InvalidPayload(msg)
        if known is None or known.description != description:
            known = RemoteTask(self._shared, name, description)
        if description is not None and description.schema is not None:
            self._cache()[name] = self._services.store.clock.now(), known
        self._services.remote_windows[name] = known.window
        return known

    async def refreshed(self, task: RemoteTask) -> RemoteTask:
        """Return the task as it is published now, for a payload that does not fit what was read before."""
        return await self._newest(task.name, task, allow_unknown=True)

    def _cache(self) -> dict[str, tuple[Millis, RemoteTask]]:
        store, known = self._known
        if store is not self._services.store:  # a test has replaced the store
            self._known = self._services.store, known = self._services.store, {}
        return known

    async def _unknown(self, name: str) -> UnknownTask:
        names = sorted({*(task.name for task in await self.list()), *self._services.tasks})
        near = nearest(name, names)
        hint = f"do you mean {' or '.join(map(repr, near))}?" if near else known_names(names)
        msg = (
            f"no task is named {name!r}: this program has none, and no worker has published one in"
            f" {self._services.store.url}; {hint} Workers publish their tasks right after they have started; to"
            f" enqueue nevertheless, without a check, {UNCHECKED}"
        )
        return UnknownTask(msg, nearest=near, known=names)

    # -- publishing ---------------------------------------------------------------------------

    async def publish(self, tasks: Iterable[Task[..., Any, Any]], worker: str) -> int:
        """Write the descriptions that differ from those in the store; return how many were written."""
        described: list[Description] = []
        for task in tasks:
            described.append(describe(task))
            await asyncio.sleep(0)  # making a schema takes a while, and jobs may be waiting
        starts = range(0, len(described), PAGE_SIZE)
        return sum([await self._publish(described[start : start + PAGE_SIZE], worker) for start in starts])

    async def _publish(self, described: Sequence[Description], worker: str) -> int:
        written = 0
        for _ in range(MAX_TRIES):
            writes = await self._writes(described, worker)
            answers = await self._services.store.write([Bundle((write,)) for write in writes]) if writes else []
            written += sum(answer is not None for answer in answers)
            if all(answer is not None for answer in answers):
                break
        return written

    async def _writes(self, described: Sequence[Description], worker: str) -> Sequence[Write]:
        """Return the writes of descriptions that are not in the store, or differ."""
        store = self._services.store
        found = {document.key.id: document for document in await store.documents([key_of(d.name) for d in described])}
        hashes = {name: hash_in(document) for name, document in found.items()}
        return [
            Write(
                key_of(each.name),
                each.to_json(worker, store.clock.now()),
                expected=found[each.name].version if each.name in found else ABSENT,
                recorded=True,
            )
            for each in described
            if hashes.get(each.name) != each.hash()
        ]


def nearest(name: str, names: Sequence[str]) -> Sequence[str]:
    """Return the names that are similar to this one. With a thousand names, it takes 20 ms."""
    return difflib.get_close_matches(name, names, NEAR_NAMES)


def known_names(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:10])) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    return f"known are {shown}." if names else "none is published at all."
