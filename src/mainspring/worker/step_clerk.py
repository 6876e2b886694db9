"""The parent's side of the steps of a child process: it answers the child's questions and records its steps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mainspring.errors import ClaimLost, StepTimeout
from mainspring.features.durable.failures import dump_failure
from mainspring.features.durable.journal import Asked
from mainspring.features.durable.run import DurableRun

GRACE = 2.0  # seconds that a coroutine has to end by itself after its time is over, before its process is ended


@dataclass(slots=True)
class Begun:
    """A step that the child is executing."""

    asked: Asked
    branch: int | None
    timer: asyncio.TimerHandle | None = None


class StepClerk:
    """Serves the child of one run; belongs to one event loop."""

    def __init__(
        self,
        durable: Callable[[], DurableRun],
        send: Callable[[dict[str, Any]], None],
        end_child: Callable[[], object],
    ) -> None:
        self._durable = durable  # makes it at the first question: most jobs have no steps
        self._send = send
        self._begun: dict[str, Begun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.overdue: StepTimeout | None = None  # of the step for which the child was ended
        self._end_child = end_child

    def serve(self, question: dict[str, Any]) -> None:
        """Answer a question of the child. Failures are noted at once, so that they precede the next question."""
        if question["durable"] == "failed":
            self._failed(question)
            return
        task = asyncio.get_running_loop().create_task(self._answer(question))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop: the child has ended or is being ended. Its unfinished steps have failed."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for begun in self._begun.values():
            stop_timer(begun)

    async def _answer(self, question: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"answer": question["number"]}
        try:
            answer |= await getattr(self, f"_{question['durable']}")(question)
        except ClaimLost:
            answer["lost"] = True
        except Exception as error:  # noqa: BLE001 - the handler gets it, as if it had run here
            answer["error"] = dump_failure(error)
        self._send(answer)

    # -- questions ------------------------------------------------------------------------------------

    async def _begin(self, question: dict[str, Any]) -> dict[str, Any]:
        run, name = self._durable(), question["name"]
        asked = await run.ask_step(name, question["branch"])
        if (record := asked.record) is not None:
            return {"record": [record.name, record.number, record.kind, record.output]}
        begun = self._begun[name] = Begun(asked, question["branch"])
        if (seconds := question["timeout"]) is not None:
            wait = seconds + (GRACE if question["is_async"] else 0)
            begun.timer = asyncio.get_running_loop().call_later(wait, self._expire, begun, seconds)
        return {"record": None}

    async def _done(self, question: dict[str, Any]) -> dict[str, Any]:
        begun = self._begun.pop(question["name"])
        stop_timer(begun)
        await self._durable().done(begun.asked, question["output"])
        return {}

    def _failed(self, question: dict[str, Any]) -> None:
        begun = self._begun.pop(question["name"], None)
        if begun is None:  # its output could not be recorded, which the child knows
            return
        stop_timer(begun)
        self._durable().note_failure(begun.asked, begun.branch, question["failure"])

    async def _save(self, question: dict[str, Any]) -> dict[str, Any]:
        await self._durable().save_state(question["name"], json.loads(question["state"]))
        return {}

    async def _state(self, question: dict[str, Any]) -> dict[str, Any]:
        return {"state": await self._durable().step_state(question["name"])}

    def _expire(self, begun: Begun, seconds: float) -> None:
        """End the child, because its step has taken too long. Only a process can really be stopped."""
        self.overdue = StepTimeout.of(begun.asked.name, seconds)
        self._durable().note_failure(begun.asked, begun.branch, dump_failure(self.overdue))
        self._end_child()


def stop_timer(begun: Begun) -> None:
    if begun.timer is not None:
        begun.timer.cancel()
