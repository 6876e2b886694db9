"""A reader of the change feed, as a program of its own: `python -m bench.follow URL NUMBER`.

It prints "reading" once it has begun, and ends after NUMBER changes of jobs.
"""

from __future__ import annotations

import asyncio
import sys

from mainspring import ChangeFilter, ChangeKind, Mainspring


async def follow(url: str, number: int) -> None:
    app = Mainspring(url)
    changes = app.changes(where=ChangeFilter(kinds=tuple(ChangeKind)))  # starts are recorded on request only
    await changes.begin()
    print("reading", flush=True)
    async for change in changes:
        number -= change.job_id is not None
        if not number:
            break
    await app.close()


if __name__ == "__main__":
    asyncio.run(follow(sys.argv[1], int(sys.argv[2])))
