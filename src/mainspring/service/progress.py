"""Progress is conflated: of the reports of one job, clients get at most four per second, and always the newest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from mainspring.redaction import DEFAULT, Redaction
from mainspring.service.event_frames import Event
from mainspring.stores.feed import Change, ChangeKind

PAUSE = 0.25  # seconds between two reports of one job
MOST_REMEMBERED = 1_000  # jobs; beyond that, those that have not reported for a pause are forgotten


def latest_only(changes: Iterable[Change], redaction: Redaction = DEFAULT) -> list[Event]:
    """Return the changes without progress that a later report among them replaces. The order is kept."""
    kept: list[Event | None] = []
    newest: dict[str, int] = {}  # job -> place of its report
    for change in changes:
        job_id = change.job_id
        if change.kind is ChangeKind.PROGRESSED and job_id is not None:
            if (place := newest.get(job_id)) is not None:
                kept[place] = None
            newest[job_id] = len(kept)
        elif job_id in newest:
            del newest[job_id]
        kept.append(Event(change, redaction))
    return [event for event in kept if event is not None]


class Conflation:
    """Holds progress back that comes too soon after the last report of its job."""

    def __init__(self, flush: Callable[[Sequence[Event]], None]) -> None:
        self._flush = flush
        self._reported: dict[str, float] = {}  # job -> when its last report was passed on
        self._held: dict[str, Event] = {}  # job -> its newest report
        self._timer: asyncio.TimerHandle | None = None

    def pass_on(self, changes: Iterable[Change], redaction: Redaction = DEFAULT) -> list[Event]:
        """Return what clients get now. What is held back comes later, or before the job's next change."""
        events: list[Event] = []
        now = asyncio.get_running_loop().time()
        for event in latest_only(changes, redaction):
            job_id = event.change.job_id
            if event.change.kind is ChangeKind.PROGRESSED and job_id is not None:
                if self._is_early(job_id, now):
                    self._hold(job_id, Event(event.change, redaction, has_place=False))
                    continue
                self._reported[job_id] = now
            elif job_id in self._reported:
                if (held := self._held.pop(job_id, None)) is not None:
                    events.append(held)
                del self._reported[job_id]
            events.append(event)
        self._tidy(now)
        return events

    def _is_early(self, job_id: str, now: float) -> bool:
        return now - self._reported.get(job_id, -PAUSE) < PAUSE

    def _hold(self, job_id: str, event: Event) -> None:
        """Keep a report. Its place will be in the past when it is passed on, so it has none."""
        self._held[job_id] = event
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PAUSE / 2, self._release)

    def _release(self) -> None:
        """Pass on what has been held for long enough."""
        loop = asyncio.get_running_loop()
        now, self._timer = loop.time(), None
        ready = [job_id for job_id in self._held if not self._is_early(job_id, now)]
        events = [self._held.pop(job_id) for job_id in ready]
        self._reported.update(dict.fromkeys(ready, now))
        if self._held:
            self._timer = loop.call_later(PAUSE / 2, self._release)
        if events:
            self._flush(events)

    def _tidy(self, now: float) -> None:
        if len(self._reported) > MOST_REMEMBERED:
            self._reported = {job_id: at for job_id, at in self._reported.items() if now - at < PAUSE}

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
