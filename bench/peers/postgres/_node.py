"""A peer that is written for Node: its calls go to a process of Node, and so do the loops that are timed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.peer import Peer

if TYPE_CHECKING:
    from collections.abc import Sequence

SCRIPTS = Path(__file__).parent / "node"
JOBS_PER_CALL = 10_000
LONGEST_LINE = 1 << 20


class NodePeer(Peer):
    script: str

    async def open(self) -> None:
        pipe = asyncio.subprocess.PIPE
        self.node = await asyncio.create_subprocess_exec(
            "node", str(SCRIPTS / self.script), "serve", stdin=pipe, stdout=pipe, limit=LONGEST_LINE
        )
        self._turn = asyncio.Lock()
        await self._call("open")

    async def close(self) -> None:
        await self._call("close")
        await self.node.wait()

    async def _call(self, call: str, *values: Any) -> Any:
        if self.node.stdin is None or self.node.stdout is None:
            raise RuntimeError("Node has no pipes")
        async with self._turn:
            self.node.stdin.write(json.dumps({"call": call, "values": values}).encode() + b"\n")
            await self.node.stdin.drain()
            line = await self.node.stdout.readline()
        if not line:
            raise RuntimeError(f"Node ended in {call}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]

    async def enqueue(self, number: int) -> None:
        await self._call("enqueue", number)

    async def enqueue_now(self) -> None:
        await self._call("enqueueNow")

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self._call("enqueueMany", numbers[0], numbers[-1] + 1)

    async def enqueue_at(self, number: int, when: float) -> None:
        await self._call("enqueueAt", number, when)

    async def enqueue_for(self, seconds: float, tasks: int) -> float:
        return float(await self._call("enqueueFor", seconds, tasks))

    async def enqueue_many_for(self, seconds: float, batch: int) -> float:
        return float(await self._call("enqueueManyFor", seconds, batch))

    async def fill(self, jobs: int) -> None:
        for start in range(0, jobs, JOBS_PER_CALL):
            await self._call("enqueueMany", start, min(start + JOBS_PER_CALL, jobs))

    async def settled(self) -> bool:
        return bool(await self._call("settled"))

    def worker(self) -> list[str]:
        return ["node", str(SCRIPTS / self.script), "work"]
