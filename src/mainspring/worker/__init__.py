"""Runs jobs: claims them, executes them and writes their outcomes. Start reading at `Worker.serve`.

A job passes these parts, in this order; each calls the next, and `Parts` connects them:

- `Intake` (intake.py) decides how many jobs to claim and when, and claims them.
- `Admission` (admission.py) asks the features about jobs that concern some, and puts those that may run into
  `Runs.ready`, or into chunks (chunks.py) first.
- `SlotPool` (slots.py) takes them out, as many at once as the worker has slots, and runs each (`SlotPool.run`):
- `Gate` (gate.py) checks once more that it may start, and knows what is halted,
- `Executor` (executor.py) calls its handler on the event loop, in a thread or in a child process, and returns its
  `Outcome` (run.py),
- `Runs` (slots.py) takes it out of what the worker holds, and passes its outcome on.
- `Acker` (acker.py) writes outcomes to the store, many at a time.
- `AfterAck` (acker.py) emits events, tells the features, re-checks suspended jobs and cancels children.

Beside them: `Membership`, `Heartbeat`, `Maintenance`, `Progress` and `UnknownTasks` talk to the store, `Outage` keeps
loops running while the store is away, and `Program` is the worker's process.
"""

from mainspring.worker.settings import Subscription, WorkerOptions, WorkerSettings
from mainspring.worker.worker import Worker

__all__ = ["Subscription", "Worker", "WorkerOptions", "WorkerSettings"]
