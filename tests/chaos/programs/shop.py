"""The application as a module, for `mainspring worker tests.chaos.programs.shop:app`."""

from __future__ import annotations

import os

from mainspring.worker import program
from mainspring.worker import worker as worker_module
from tests.chaos.programs.tasks import Shop
from tests.chaos.waiting import DEADLINE

worker_module.STOP_TIMEOUT = worker_module.WRITE_TIMEOUT = DEADLINE  # as in work.py
program.LEFT_BEHIND_TIMEOUT, program.STOP_NOW_TIMEOUT = DEADLINE, 3 * DEADLINE
app = Shop(os.environ["CHAOS_FOLDER"], f"worker-{os.getpid()}").app
