from __future__ import annotations

from collections.abc import Iterator

import pytest
import sentry_sdk

from mainspring import Mainspring
from mainspring.testing.fakes import FakeSentry


@pytest.fixture
def sentry() -> Iterator[FakeSentry]:
    """A Sentry that takes everything, and a client of it without what it would patch in this process."""
    with FakeSentry() as fake:
        sentry_sdk.init(
            dsn=fake.dsn,
            traces_sample_rate=1.0,
            default_integrations=False,
            auto_enabling_integrations=False,
            transport_queue_size=10_000,
            shutdown_timeout=0,
        )
        yield fake
        sentry_sdk.get_client().close(timeout=0)
        sentry_sdk.get_global_scope().set_client(None)


@pytest.fixture
def app() -> Mainspring:
    return Mainspring("memory://")
