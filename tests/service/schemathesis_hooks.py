"""What schemathesis must be told before it can try our API. It imports this module by the name in its environment."""

from __future__ import annotations

import schemathesis

schemathesis.serializer.alias("application/x-ndjson", "text/plain")
