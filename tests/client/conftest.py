from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.serving import Loop, Proxy, Service, connected, served


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def service(loop: Loop) -> Iterator[Service]:
    """A service without a worker: jobs stay as they are."""
    with served(loop) as service:
        yield service


@pytest.fixture(scope="module")
def working(loop: Loop) -> Iterator[Service]:
    """A service with a worker."""
    with served(loop, worker=True) as service:
        yield service


@pytest.fixture
def proxy(loop: Loop, service: Service) -> Iterator[Proxy]:
    with loop.using(Proxy(service.url).running()) as proxy:
        yield proxy


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def client(kind: str, service: Service) -> Iterator[Any]:
    with connected(kind, service.url) as client:
        yield client
