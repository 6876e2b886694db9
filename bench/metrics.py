"""What metrics cost a worker: `python -m bench.metrics [JOBS] [ROUNDS]` drains jobs with and without them, in turns.

Each drain is a new process with a new SQLite file. The rounds alternate, so that what else the machine does concerns
both. Prints one line of JSON: jobs per second (the median of all rounds) and processor time per job, without and with
metrics.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from statistics import median

from mainspring import Mainspring

MODES = ("off", "on")


async def drain(url: str, jobs: int, *, counted: bool) -> dict[str, float]:
    """Drain jobs that do nothing; return how long that took."""
    app = Mainspring(url)

    @app.task
    async def nothing(n: int) -> None: ...

    if counted:
        from mainspring.metrics import Metrics

        Metrics.of(app)
    async with app:
        for start in range(0, jobs, 5_000):
            await nothing.enqueue_many({"n": n} for n in range(start, min(start + 5_000, jobs)))
        began, used = time.perf_counter(), time.process_time()
        await app.worker().drain()
        return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - used}


def measured(mode: str, jobs: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "bench.metrics", "--one", mode, str(jobs), f"sqlite:///{place}/jobs.db"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found: dict[str, float] = json.loads(done.stdout)
        return found


def main(jobs: int, rounds: int) -> None:
    runs: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for _ in range(rounds):
        for mode in MODES:
            runs[mode].append(measured(mode, jobs))
    rates = {mode: round(jobs / median(run["seconds"] for run in found)) for mode, found in runs.items()}
    costs = {mode: round(median(run["cpu"] for run in found) / jobs * 1e6, 1) for mode, found in runs.items()}
    print(json.dumps({"jobs": jobs, "rounds": rounds, "jobs_per_second": rates, "cpu_microseconds_per_job": costs}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        mode, jobs, url = sys.argv[2:]
        print(json.dumps(asyncio.run(drain(url, int(jobs), counted=mode == "on"))))
    else:
        given = [int(text) for text in sys.argv[1:]]
        main(*(given + [50_000, 5][len(given) :]))
