"""Tasks, queues, workers, tokens, secrets and health."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from mainspring.client.inputs import given
from mainspring.client.models import (
    HaltedView,
    HealthView,
    NewTokenView,
    OrderView,
    PublicTokenView,
    QueueDetail,
    QueueList,
    QueueStats,
    ResumedView,
    RotatedView,
    SchedulerHealth,
    SecretList,
    SecretTextView,
    SecretView,
    SessionList,
    SessionView,
    TaskDetail,
    TaskList,
    TokenList,
    TokenView,
    WorkerList,
)
from mainspring.client.operation import Given, Resource, S, listing, operation
from mainspring.client.resources.paging import PAGE_SIZE, all_pages
from mainspring.client.steps import Items

UNHEALTHY = frozenset({503})


class Tasks(Resource[S]):
    """Tasks that workers have published."""

    @operation("GET", "/v1/tasks", TaskList)
    def list(self) -> Given:
        """Return the tasks, with the JSON Schemas of their payloads."""
        return Given()

    @operation("GET", "/v1/tasks/{name}", TaskDetail)
    def get(self, name: str) -> Given:
        """Return a task, and which settings count for its jobs."""
        return Given({"name": name})


class Queues(Resource[S]):
    """Queues."""

    @operation("GET", "/v1/queues", QueueList)
    def list(self) -> Given:
        """Return each queue with the number of its jobs per status."""
        return Given()

    @operation("GET", "/v1/queues/{queue}", QueueDetail)
    def get(self, queue: str) -> Given:
        """Return the jobs of a queue per status, and which settings count for them."""
        return Given({"queue": queue})

    @operation("POST", "/v1/queues/{queue}:pause", HaltedView)
    def pause(self, queue: str, *, until: datetime | None = None, wait: float = 3.0, reason: str = "") -> Given:
        """Stop starting jobs of one queue, and wait up to `wait` seconds until workers have confirmed it."""
        return Given({"queue": queue}, body=given({"until": until, "wait": wait, "reason": reason}), wait=wait)

    @operation("POST", "/v1/queues/{queue}:resume", ResumedView)
    def resume(self, queue: str, *, reason: str = "") -> Given:
        """Start jobs of the queue again."""
        return Given({"queue": queue}, body={"reason": reason})

    @operation("GET", "/queue/stats", QueueStats)
    def stats(self, *, limit: int = 50) -> Given:
        """Return the jobs of each queue by status, and the newest dead letters, in camel case."""
        return Given(query={"limit": limit})


class Workers(Resource[S]):
    """Workers, and orders to pull workers."""

    @operation("GET", "/v1/workers", WorkerList)
    def list(self) -> Given:
        """Return the workers."""
        return Given()

    @operation("POST", "/v1/workers/{worker}:quiet", OrderView)
    def quiet(self, worker: str, *, reason: str = "") -> Given:
        """Let a pull worker finish what it has, and take no more."""
        return Given({"worker": worker}, body={"reason": reason})

    @operation("POST", "/v1/workers/{worker}:terminate", OrderView)
    def terminate(self, worker: str, *, reason: str = "") -> Given:
        """Let a pull worker finish what it has, and end."""
        return Given({"worker": worker}, body={"reason": reason})

    @operation("POST", "/v1/workers/{worker}:continue", OrderView)
    def go_on(self, worker: str, *, reason: str = "") -> Given:
        """Take the order back."""
        return Given({"worker": worker}, body={"reason": reason})


class Tokens(Resource[S]):
    """Access tokens."""

    @operation("GET", "/v1/tokens", TokenList)
    def page(self, *, limit: int = PAGE_SIZE, cursor: str | None = None) -> Given:
        """Return one page of tokens, by id."""
        return Given(query={"limit": limit, "cursor": cursor})

    @listing
    def list(self, *, page_size: int = PAGE_SIZE) -> Items[TokenView]:
        """Iterate over all tokens, without their texts. Pages are read as you go."""
        return all_pages(Tokens.page, self, lambda page: page.tokens, {"limit": page_size})

    @operation("POST", "/v1/tokens", NewTokenView)
    def create(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        expires_at: datetime | None = None,
        project: str | None = None,
        queues: Sequence[str] = (),
    ) -> Given:
        """Create a token, for a project or some queues if you name them. Its text is in this answer only."""
        limits = {"expires_at": expires_at, "project": project, "queues": list(queues)}
        return Given(body=given({"name": name, "scopes": scopes, **limits}))

    @operation("POST", "/v1/tokens:public", PublicTokenView)
    def create_public(
        self,
        *,
        jobs: Sequence[str] = (),
        target: tuple[str, str] | None = None,
        ttl: float = 900.0,
        result: bool = False,
    ) -> Given:
        """Create a token with which a web page reads these jobs, or those about a target, for `ttl` seconds."""
        about = None if target is None else {"type": target[0], "id": target[1]}
        return Given(body=given({"jobs": list(jobs), "target": about, "ttl": ttl, "result": result}))

    @operation("POST", "/v1/tokens:rotate", RotatedView)
    def rotate_signing_key(self, *, forget: bool = False, reason: str = "") -> Given:
        """Sign public tokens with a new key. With `forget`, end those that are signed with older ones."""
        return Given(body={"forget": forget, "reason": reason})

    @operation("DELETE", "/v1/tokens/{token_id}", type(None))
    def revoke(self, token_id: str) -> Given:
        """Revoke a token. It works for up to five more seconds."""
        return Given({"token_id": token_id})


class Sessions(Resource[S]):
    """Sessions of browsers."""

    @operation("GET", "/v1/sessions", SessionList)
    def page(self, *, limit: int = PAGE_SIZE, cursor: str | None = None) -> Given:
        """Return one page of sessions, by id."""
        return Given(query={"limit": limit, "cursor": cursor})

    @listing
    def list(self, *, page_size: int = PAGE_SIZE) -> Items[SessionView]:
        """Iterate over the sessions that have not ended. Pages are read as you go."""
        return all_pages(Sessions.page, self, lambda page: page.sessions, {"limit": page_size})

    @operation("DELETE", "/v1/sessions/{session_id}", type(None))
    def end(self, session_id: str, *, reason: str = "") -> Given:
        """Log a browser out."""
        return Given({"session_id": session_id}, query=given({"reason": reason or None}))


class Secrets(Resource[S]):
    """Secrets that sign requests to others."""

    @operation("GET", "/v1/secrets", SecretList)
    def page(self, *, limit: int = PAGE_SIZE, cursor: str | None = None) -> Given:
        """Return one page of secrets, by name."""
        return Given(query={"limit": limit, "cursor": cursor})

    @listing
    def list(self, *, page_size: int = PAGE_SIZE) -> Items[SecretView]:
        """Iterate over all secrets, without their texts. Pages are read as you go."""
        return all_pages(Secrets.page, self, lambda page: page.secrets, {"limit": page_size})

    @operation("GET", "/v1/secrets/{name}", SecretTextView)
    def get(self, name: str) -> Given:
        """Return a secret with its texts: receivers need them to verify signatures."""
        return Given({"name": name})

    @operation("POST", "/v1/secrets", SecretTextView)
    def create(self, name: str, *, secret: str | None = None) -> Given:
        """Create a secret, with a text of your own or a new one."""
        return Given(body=given({"name": name, "secret": secret}))

    @operation("POST", "/v1/secrets/{name}:rotate", SecretTextView)
    def rotate(self, name: str, *, secret: str | None = None) -> Given:
        """Replace a secret. For 24 hours, requests are signed with the new and the old one."""
        return Given({"name": name}, body=given({"secret": secret}))

    @operation("DELETE", "/v1/secrets/{name}", type(None))
    def delete(self, name: str) -> Given:
        """Delete a secret."""
        return Given({"name": name})


class Health(Resource[S]):
    """Probes."""

    @operation("GET", "/health/live", HealthView)
    def live(self) -> Given:
        """Return whether the process is alive."""
        return Given()

    @operation("GET", "/health/ready", HealthView, also=UNHEALTHY)
    def ready(self) -> Given:
        """Return whether the store answers: `ok` or `unavailable`."""
        return Given()

    @operation("GET", "/health/scheduler", SchedulerHealth, also=UNHEALTHY)
    def scheduler(self) -> Given:
        """Return whether jobs run on time."""
        return Given()
