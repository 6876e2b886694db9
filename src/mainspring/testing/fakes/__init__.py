"""Fake servers that stand for the systems outside of your application, for tests and examples.

with FakeWebhook() as inbox:                    or `async with`
    app_under_test(alert_url=inbox.url)
    inbox.wait_for(1)                           await inbox.arrived(1) in coroutines
    inbox.fail(503, times=2)                    then answer two requests with an error
    assert inbox.received[0].json() == {…}

Each server is a small HTTP server on the loopback interface, on a thread of its own, so it works for synchronous and
asynchronous code, and for programs in other processes. To write another one, derive from `FakeServer`.
"""

from mainspring.testing.fakes.endpoint import FakeEndpoint
from mainspring.testing.fakes.halt import FakeHaltServer
from mainspring.testing.fakes.http_server import Answer, FakeServer, Request
from mainspring.testing.fakes.sentry import FakeSentry
from mainspring.testing.fakes.slack import FakeSlack, Message
from mainspring.testing.fakes.webhook import FakeWebhook

__all__ = [
    "Answer",
    "FakeEndpoint",
    "FakeHaltServer",
    "FakeSentry",
    "FakeServer",
    "FakeSlack",
    "FakeWebhook",
    "Message",
    "Request",
]
