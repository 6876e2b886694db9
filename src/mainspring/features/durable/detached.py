"""Durable calls in a unit test that calls a handler directly: without a store, without waiting, nothing is recorded."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from mainspring.clock import to_datetime
from mainspring.errors import ConfigurationError
from mainspring.features.durable.children import Child
from mainspring.features.durable.journal import Journal
from mainspring.features.durable.outputs import Output
from mainspring.features.durable.plan import StepPlan
from mainspring.features.durable.saved import record_of, saved_in
from mainspring.features.durable.signals import Signal, check_key
from mainspring.features.durable.sleep import Until
from mainspring.ids import new_id
from mainspring.job import NewJob
from mainspring.portal import run_at_once

T = TypeVar("T")


class Detached:
    """Answers the calls of one handler with the signals and results that the test gives.

    `signals`: for each key a payload, or a list of payloads for several waits. `results`: for each task the result of
    its jobs, or a function that gets their arguments and returns the result; an exception is raised.
    """

    def __init__(self, signals: Mapping[str, Any], results: Mapping[str, Any], plan: StepPlan | None = None) -> None:
        self.plan = plan or StepPlan()
        self.states: dict[str, Any] = {}  # that the handler has saved, by step
        self.steps: list[str] = []  # their names, in the order of the calls
        self.spawned: list[NewJob] = []
        self._journal = Journal("of a unit test")
        self._signals = {key: list(value) if isinstance(value, list) else [value] for key, value in signals.items()}
        self._results = results

    def _ask(self, name: str, kind: str) -> None:
        self._journal.ask(name, kind, 0)
        self.steps.append(name)

    async def step(
        self, name: str, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], timeout: float | None = None
    ) -> Any:
        del timeout
        self._ask_step(name)
        value = function(*args, **kwargs)
        return self._through_json(name, function, await value if inspect.isawaitable(value) else value)

    def step_sync(
        self, name: str, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], timeout: float | None = None
    ) -> Any:
        del timeout
        self._ask_step(name)
        value = function(*args, **kwargs)
        return self._through_json(name, function, asyncio.run(value) if inspect.iscoroutine(value) else value)

    def _ask_step(self, name: str) -> None:
        self.plan.check(name)
        self._ask(self._journal.called(name), "step")

    async def save_state(self, step: str, state: Any) -> None:
        self.plan.check(step)
        self.states.update(saved_in([record_of(step, state, 0, 0)]))

    async def step_state(self, step: str) -> Any:
        self.plan.check(step)
        return self.states.get(step)

    def _through_json(self, name: str, function: Any, value: Any) -> Any:
        output = Output(name, function)
        return output.load(output.dump(value))

    async def sleep(self, until: Until, name: str | None) -> None:
        until(0)
        self._ask(self._journal.called(name) if name else self._journal.name_sleep(main=True), "sleep")

    async def wait_for(self, key: str, timeout: Any, name: str | None) -> Signal | None:
        del timeout
        check_key(key)
        self._ask(name or self._journal.derive(f"wait for {key}", main=True), "wait")
        waiting = self._signals.get(key)
        return Signal(key, waiting.pop(0), to_datetime(0), new_id()) if waiting else None

    async def spawn(self, job: NewJob, name: str | None, *, cancel: bool) -> Child[Any]:
        del cancel
        name = name or self._journal.derive(f"spawn {job.task}", main=True)
        self._ask(name, "spawn")
        self.spawned.append(job)
        return Child(job.id, job.task, name)

    async def gather(
        self, jobs: Sequence[Child[Any] | NewJob], name: str | None, *, return_exceptions: bool, cancel: bool
    ) -> list[Any]:
        del cancel
        self._ask(name or self._journal.derive("gather", main=True), "gather")
        self.spawned += [job for job in jobs if isinstance(job, NewJob)]
        results = [self._result(job.id) for job in jobs]
        for result in results:
            if isinstance(result, Exception) and not return_exceptions:
                raise result
        return results

    def _result(self, job_id: str) -> Any:
        job = next(job for job in self.spawned if job.id == job_id)
        if job.task not in self._results:
            msg = f"no result is given for jobs of {job.task!r}; use Context.detached(results={{{job.task!r}: …}})"
            raise ConfigurationError(msg)
        given = self._results[job.task]
        return given(**json.loads(job.payload)) if callable(given) else given

    def run_on_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return run_at_once(work())

    def refuse_within_step(self, what: str) -> None:
        """Allow it: a unit test may make any call."""

    def step_here(self) -> str | None:
        return None
