"""The application as a module, for `mainspring worker tests.chaos.programs.shop:app`."""

from __future__ import annotations

import os

from tests.chaos.programs.tasks import Shop

app = Shop(os.environ["CHAOS_FOLDER"], f"worker-{os.getpid()}").app
