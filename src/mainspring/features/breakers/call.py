"""A call through a circuit breaker: what `ctx.breaker(...)` returns."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType

from mainspring.errors import Snooze
from mainspring.features.breakers.api import Breakers, reason_of
from mainspring.features.breakers.options import check_name
from mainspring.ids import new_id


class Passage:
    """`async with ctx.breaker("email-api"):`, or plain `with` in a thread. Raises Snooze while the breaker is open."""

    def __init__(self, breakers: Breakers, name: str, timed_out: Callable[[], bool]) -> None:
        self._breakers = breakers
        self._name = check_name(name)
        self._timed_out = timed_out
        self._call_id = ""
        self._began = 0.0

    async def __aenter__(self) -> None:
        self._call_id = new_id()
        admission = await self._breakers.admit(self._name, [self._call_id])
        if self._call_id not in admission.granted:
            raise Snooze(timedelta(milliseconds=admission.delay()), reason_of(self._name))
        self._began = time.monotonic()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        well = self._verdict(error)
        self._breakers.meter(self._name, time.monotonic() - self._began, well=well)
        await self._breakers.note(self._name, self._call_id, well=well)

    def __enter__(self) -> None:
        if self._breakers.admits_at_once(self._name):
            self._call_id, self._began = new_id(), time.monotonic()
        else:
            self._breakers.run(self.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        breakers, well = self._breakers, self._verdict(error)
        breakers.meter(self._name, time.monotonic() - self._began, well=well)
        if breakers.must_tell(self._name, self._call_id, well=well):
            self._breakers.run(breakers.tell(self._name, self._call_id, well=well))

    def _verdict(self, error: BaseException | None) -> bool | None:
        return self._breakers.verdict(self._name, error, timed_out=self._timed_out())


class DetachedPassage:
    """The same for a handler that is called directly, without a worker: it does nothing."""

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...
