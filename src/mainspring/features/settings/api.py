"""`app.settings`: change limits, rates, pauses, retry and timeout defaults at run time, for all processes."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mainspring.clock import Length
from mainspring.errors import ConfigurationError, EditConflict
from mainspring.features.limits.options import DeclaredLimits, Rate
from mainspring.features.settings.change import (
    Data,
    Owner,
    changed,
    check_fit,
    cleared,
    named_options,
    owner_of,
    values_of,
)
from mainspring.json_text import read_object
from mainspring.live_settings import COLLECTION, STAMP, Kind, LiveSettings
from mainspring.log import get_log
from mainspring.retry import Retry
from mainspring.services import PUBLISHED_TASKS, Services, whoami
from mainspring.stores.documents import ABSENT, Bundle, By, Document, Key, Note, Write
from mainspring.stores.paging import pages
from mainspring.stores.protocol import Halt

log = get_log("mainspring.settings")

UNKNOWN_TASK = (
    "this program has no task of that name, and no worker has published one; the settings are written and take effect"
    " once there is such a task. Check the name"
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting that was changed at run time."""

    kind: str  # task, queue or limit
    name: str
    option: str  # limit, rate, retry, timeout, max_attempts or paused
    value: Any  # an int, a Rate, a Retry, seconds, an int or True
    actor: str
    reason: str
    at: datetime


class OwnerSettings(dict[str, Setting]):
    """The changed settings of a task, queue or named limit, by their options.

    `revision` changes with each of these settings. Give it as `expect` to change only what you have read. The pause of
    a queue is shown here too, but it is not a setting, and does not change the revision.
    """

    def __init__(self, settings: Mapping[str, Setting], revision: str) -> None:
        super().__init__(settings)
        self.revision = revision


class Settings:
    """The settings that were changed at run time. Code provides the values of all others."""

    def __init__(self, services: Services, live: LiveSettings, declared: DeclaredLimits) -> None:
        self._services = services
        self._live = live
        self._declared = declared

    async def set(
        self,
        *,
        task: str | None = None,
        queue: str | None = None,
        name: str | None = None,
        limit: int | None = None,
        rate: Rate | None = None,
        retry: Retry | None = None,
        timeout: Length | None = None,
        max_attempts: int | None = None,
        paused: bool | None = None,
        actor: str | None = None,
        reason: str = "",
        expect: str | None = None,
    ) -> OwnerSettings:
        """Change settings of a task, a queue, or a limit with a name of its own; return all that it has now.

        A task that neither this program has nor a worker has published may come later: its settings are written, and
        a warning is logged.

        All processes use them within a second. Settings that are not given stay as they are. If two operators change
        the same setting, the later change counts, and the audit log has both. With the `revision` that you have read as
        `expect`, nothing is changed if others have changed the settings since, and EditConflict is raised.
        """
        owner = owner_of(task, queue, name)
        values = values_of(
            owner, limit=limit, rate=rate, retry=retry, timeout=timeout, max_attempts=max_attempts, paused=paused
        )
        self._check_name(owner)
        await self._warn_of_unknown_task(owner)
        by, now = By(actor or whoami(), reason), self._services.now()
        note = Note(by, "settings.set", {owner.kind: owner.name, **values})
        return await self._change(owner, lambda text: changed(text, values, by, now), note, expect)

    async def clear(
        self,
        *options: str,
        task: str | None = None,
        queue: str | None = None,
        name: str | None = None,
        actor: str | None = None,
        reason: str = "",
        expect: str | None = None,
    ) -> bool:
        """Go back to the code's values: `clear("limit", task="send")`, or `clear(task="send")` for all settings.

        Return False if there was nothing to clear. `expect` is as in `set`.
        """
        owner, names = owner_of(task, queue, name), named_options(options)
        if options:
            check_fit(owner, names)
        known = await self._stored(owner)
        refuse_other(owner, known.revision, expect)
        if not (gone := [option for option in names if option in known]):
            return False
        by, now = By(actor or whoami(), reason), self._services.now()
        note = Note(by, "settings.clear", {owner.kind: owner.name, "settings": gone})
        await self._change(owner, lambda text: cleared(text, gone, by, now), note, expect)
        return True

    async def get(self, *, task: str | None = None, queue: str | None = None, name: str | None = None) -> OwnerSettings:
        """Return the changed settings of a task, queue or named limit, by their options."""
        return await self._of(owner_of(task, queue, name))

    async def list(self) -> builtins.list[Setting]:
        """Return all changed settings, and the pauses of queues, by kind, name and option."""
        found = [paused_queue(halt) for halt in await self._services.store.halts() if halt.queue is not None]
        async for page in pages(self._services.store, COLLECTION, None):
            for document in page:
                found += settings_in(document).values()
        return sorted(found, key=lambda setting: (setting.kind, setting.name, setting.option))

    # -- for code without an event loop -----------------------------------------------------------------

    def set_sync(self, **given: Any) -> OwnerSettings:
        return self._services.run(self.set(**given))

    def clear_sync(self, *options: str, **given: Any) -> bool:
        return self._services.run(self.clear(*options, **given))

    def get_sync(self, *, task: str | None = None, queue: str | None = None, name: str | None = None) -> OwnerSettings:
        return self._services.run(self.get(task=task, queue=queue, name=name))

    def list_sync(self) -> builtins.list[Setting]:
        return self._services.run(self.list())

    # -- at the store -----------------------------------------------------------------------------------

    async def _of(self, owner: Owner) -> OwnerSettings:
        known = await self._stored(owner)
        halts = await self._services.store.halts() if owner.kind is Kind.QUEUE else []
        pause = next((halt for halt in halts if halt.queue == owner.name), None)
        return known if pause is None else OwnerSettings({**known, "paused": paused_queue(pause)}, known.revision)

    async def _stored(self, owner: Owner) -> OwnerSettings:
        document = await self._document(owner)
        return OwnerSettings({}, ABSENT) if document is None else OwnerSettings(settings_in(document), document.version)

    async def _document(self, owner: Owner) -> Document | None:
        return next(iter(await self._services.store.documents([owner.key])), None)

    async def _change(
        self, owner: Owner, change: Callable[[str | None], Data], note: Note, expect: str | None
    ) -> OwnerSettings:
        """Change the document of an owner; do it again if another process was quicker. Then use it here at once."""
        while True:
            found = await self._document(owner)
            refuse_other(owner, ABSENT if found is None else found.version, expect)
            data = change(None if found is None else found.data)
            write = Write(
                owner.key,
                json.dumps(data) if data else None,
                expected=ABSENT if found is None else found.version,
                recorded=True,
            )
            bundle = Bundle((write, Write(STAMP, "{}")), note=note, spread=True)
            if (await self._services.store.write([bundle]))[0] is not None:
                break
        await self._live.look()
        return await self._of(owner)

    def _check_name(self, owner: Owner) -> None:
        """Raise ConfigurationError for a limit that no task or queue of this program has: it would limit nothing."""
        if owner.kind is Kind.LIMIT and self._services.tasks and not self._declared.declares(owner.name):
            msg = (
                f"no limit or rate is named {owner.name!r} here; for one without a name of its own, give its task=…"
                " or queue=…"
            )
            raise ConfigurationError(msg)

    async def _warn_of_unknown_task(self, owner: Owner) -> None:
        if owner.kind is not Kind.TASK or owner.name in self._services.tasks:
            return
        if not await self._services.store.documents([Key(PUBLISHED_TASKS, "", owner.name)]):
            log.warning("settings_of_unknown_task", task=owner.name, message=UNKNOWN_TASK)


def refuse_other(owner: Owner, revision: str, expect: str | None) -> None:
    """Raise EditConflict if the settings are not those that the caller has read."""
    if expect is not None and expect != revision:
        msg = f"the settings of {owner} were changed since they were read; read them again"
        raise EditConflict(msg)


def settings_in(document: Document) -> dict[str, Setting]:
    """Return the settings in a document, without those that this version cannot read, and ended pauses."""
    made: dict[str, Setting] = {}
    for option, entry in read_object(document.data).items():
        try:
            value = READERS[option](entry["value"])
            who = entry["actor"], entry["reason"], datetime.fromisoformat(entry["at"])
        except (KeyError, TypeError, ValueError, ConfigurationError):
            continue
        if value is not False:
            made[option] = Setting(document.key.group, document.key.id, option, value, *who)
    return made


READERS: dict[str, Callable[[Any], Any]] = {
    "limit": int,
    "rate": lambda data: Rate(data["count"], per=data["per"] / 1000, burst=data["burst"]),
    "retry": Retry.from_data,
    "timeout": lambda millis: millis / 1000,
    "max_attempts": int,
    "paused": bool,
}


def paused_queue(halt: Halt) -> Setting:
    return Setting(Kind.QUEUE, halt.queue or "", "paused", True, halt.actor, halt.reason, halt.since)  # noqa: FBT003 - its value
