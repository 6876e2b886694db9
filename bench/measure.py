"""One measurement of one peer in this process: `python -m bench.measure sqlite.huey drain '{"jobs": 1000, …}'`.

Runs with the peer's interpreter, and so needs the standard library only. Prints one line of JSON: the figures, or why
there are none.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from typing import Any

from bench.measurements import MEASUREMENTS
from bench.peer import Peer, Unsupported, here


async def measure(name: str, measurement: str, arguments: dict[str, Any]) -> dict[str, Any]:
    kind: type[Peer] = import_module(f"bench.peers.{name}").peer
    peer = kind(*here())
    await peer.open()
    try:
        return await MEASUREMENTS[measurement](peer, **arguments)
    except Unsupported as reason:
        return {"unsupported": str(reason)}
    finally:
        await peer.close()


def main() -> None:
    name, measurement, arguments = sys.argv[1:]
    print(json.dumps(asyncio.run(measure(name, measurement, json.loads(arguments)))))


if __name__ == "__main__":
    main()
