"""What a worker loads: `mainspring worker examples.companion.service:app --concurrency 25 --prefetch 0`."""

import os

from examples.companion.application import make
from examples.companion.settings import Settings

companion = make(Settings.from_environment(os.environ))
app = companion.app
