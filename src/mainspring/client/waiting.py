"""Wait until a job has ended, by its events."""

from __future__ import annotations

import math
from collections.abc import Callable

from mainspring.client.connection import Connection
from mainspring.client.errors import ServiceUnreachable
from mainspring.client.events import SILENCE, Follower
from mainspring.client.exchange import LATER
from mainspring.client.steps import Pause, Steps
from mainspring.job import FINISHED
from mainspring.service.views import JobView

ENDS = ("completed", "dead_lettered", "cancelled", "deleted")
LOOK = 1.0  # seconds between two looks at the job while no stream can be had
SLACK = 1.0  # seconds that a wait may last longer than its timeout


class Waiter:
    """Waits for one job. The stream is open before the job is looked at, so that no end is missed in between."""

    def __init__(
        self, connection: Connection, job_id: str, timeout: float | None, get: Callable[[float], Steps[JobView]]
    ) -> None:
        self._connection, self._job_id, self._timeout, self._get = connection, job_id, timeout, get
        self._end = math.inf
        self._follower = Follower(connection, {"job": job_id, "kind": ENDS}, None)
        self._has_failed = False

    def wait(self) -> Steps[JobView]:
        """Return the finished job; raise TimeoutError if it has not finished in time."""
        if self._timeout is not None:
            self._end = self._connection.clock() + self._timeout
        job = yield from self._look()
        while job.status not in FINISHED:
            if self._left() <= 0:
                msg = f"job {self._job_id} is {job.status} after {self._timeout:g} s; it goes on"
                raise TimeoutError(msg)
            job = yield from self._connect(job)
        return job

    def _connect(self, job: JobView) -> Steps[JobView]:
        """Follow the job over one connection; return how it is then."""
        timeout = min(SILENCE, self._left())
        try:
            answer = yield from self._follower.open(timeout)
            if answer.status == 200:
                return (yield from self._listen(job, timeout))
            if answer.status not in LATER:
                raise answer.error()
        except ServiceUnreachable:
            pass  # a look tells whether the service is there, and tries for as long as it should
        if self._has_failed:
            yield Pause(max(0.0, min(LOOK, self._left())))
        self._has_failed = True
        return (yield from self._look())

    def _listen(self, job: JobView, timeout: float) -> Steps[JobView]:
        while (frames := (yield from self._follower.frames())) is not None:
            for frame in frames:
                self._follower.note(frame)
            if any(frame.name for frame in frames):
                self._has_failed = False
                job = yield from self._look()
            is_over = job.status in FINISHED or any(frame.name == "end" for frame in frames)
            if is_over or self._left() < timeout - SLACK:  # then reads must be shorter from now on
                return job
        return job

    def _look(self) -> Steps[JobView]:
        return self._get(max(0.0, min(self._left(), self._connection.retry_for)))

    def _left(self) -> float:
        return self._end - self._connection.clock()
