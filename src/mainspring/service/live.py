"""Live events: the streams of this process, the tokens that they belong to, and when they end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from pydantic_core import to_json

from mainspring.app import Mainspring
from mainspring.clock import to_datetime
from mainspring.errors import StoreError
from mainspring.json_data import plain
from mainspring.log import get_log
from mainspring.service.event_frames import Frame, Names, Parcel
from mainspring.service.follower import Follower, Lost
from mainspring.service.guard import Caller
from mainspring.service.hub import Hub, HubStopped
from mainspring.service.problems import Problem
from mainspring.service.tokens import Scope, Tokens
from mainspring.stores.feed import ChangeFilter, Cursor

log = get_log("mainspring.service")

MOST_STREAMS = 100  # of one token
GAPS = frozenset({"slow", "lost"})  # after such an end, the client must read what it needs again
ORDERLY = frozenset({"lifetime", "closing"})  # before such an end, the client gets what waits for it


@dataclass(frozen=True, slots=True)
class Pace:
    """Lengths of time, in seconds."""

    begin: float = 5.0  # how long a client waits for its first frame before it is told to come back
    keep_alive: float = 15.0  # after so much silence, the client gets a sign of life
    lifetime: float = 900.0  # how long a stream lasts; load balancers cut longer ones without notice
    check: float = 4.0  # the time between two checks of the tokens of open streams
    retry: float = 2.0  # how long a client should wait before it comes back, on average
    grace: float = 5.0  # how long a client has to take the last frames


@dataclass(frozen=True, slots=True)
class Wish:
    """What a client wants to follow."""

    where: ChangeFilter
    after: Cursor | None
    names: Names


class Wire(Protocol):
    """How frames get to a client."""

    async def hello(self, frame: Frame, retry: float) -> None: ...
    async def send(self, frame: Frame) -> None: ...
    async def send_parcels(self, parcels: Sequence[Parcel], names: Names) -> bool:
        """Send changes; return whether any of them has such a name."""
        ...

    async def keep_alive(self, place: str) -> None: ...


class Stream:
    """One client's stream, from its first frame to its last."""

    def __init__(
        self, follower: Follower, caller: Caller, wish: Wish, pace: Pace, expires_in: float = float("inf")
    ) -> None:
        self.caller = caller
        self._expires_in = expires_in  # seconds until the caller's public token is not valid any more
        self._follower = follower
        self._wish = wish
        self._pace = pace
        self._limit = asyncio.timeout(None)
        self._runs = False
        follower.subscription.on_end = self._hurry

    def end(self, why: str) -> None:
        self._follower.subscription.end(why)

    def _hurry(self) -> None:
        """Cut the client off if it does not take its last frames."""
        if self._runs and not self._limit.expired():
            self._expire(self._pace.grace)

    def _expire(self, seconds: float) -> None:
        self._limit.reschedule(asyncio.get_running_loop().time() + seconds)

    async def run(self, wire: Wire, now: str) -> bool:
        """Send frames until the stream ends; return whether the client took all of them."""
        try:
            async with self._limit:
                self._runs = True
                over = self._follower.subscription.over
                self._expire(self._pace.grace if over else self._pace.lifetime + self._pace.grace)
                await wire.hello(self._hello(now), self._pace.retry * random.uniform(0.5, 1.5))  # noqa: S311 - spreads
                await self._send_changes(wire)
                await self._say_goodbye(wire)
        except TimeoutError:
            if not self._limit.expired():
                raise
            return False
        finally:
            self._runs = False
        return True

    def _hello(self, now: str) -> Frame:
        data = {"at": now, "resumed": self._wish.after is not None}
        return Frame("hello", to_json(data), self._place())

    def _place(self) -> str:
        return str(self._follower.place)

    async def _send_changes(self, wire: Wire) -> None:
        now, subscription = asyncio.get_running_loop().time, self._follower.subscription
        end = now() + min(self._pace.lifetime, self._expires_in)
        silent_at = now() + self._pace.keep_alive
        while not subscription.over:
            was_sent = await self._send_next(wire, min(end, silent_at))
            if not was_sent and now() >= silent_at:
                await wire.keep_alive(self._place())
                was_sent = True
            if was_sent:
                silent_at = now() + self._pace.keep_alive
            if now() >= end:
                subscription.end("lifetime" if self._pace.lifetime <= self._expires_in else "expired")

    async def _send_next(self, wire: Wire, deadline: float) -> bool:
        """Send what comes next, if it comes before the deadline; return whether anything was sent."""
        try:
            async with asyncio.timeout_at(deadline):
                parcels = await self._follower.next()
        except TimeoutError:
            return False
        except HubStopped:
            self.end("failed")
            return False
        except Lost:
            await wire.send(Frame("reset", to_json({"reason": "lost"}), self._place()))
            return True
        return await wire.send_parcels(parcels, self._wish.names)

    async def _say_goodbye(self, wire: Wire) -> None:
        subscription = self._follower.subscription
        why, place = subscription.over, subscription.lost_at
        if why in GAPS:
            await wire.send(Frame("reset", to_json({"reason": why}), str(place)))
        elif why in ORDERLY:
            await wire.send_parcels(subscription.take(), self._wish.names)
        await wire.send(Frame("end", to_json({"reason": why}), None if why in GAPS else self._place()))


class Live:
    """All streams of this process."""

    def __init__(self, app: Mainspring, tokens: Tokens, pace: Pace | None = None) -> None:
        self.hub = Hub(app)
        self.closing = asyncio.Event()  # the service stops; also ends claims that wait for a job
        self._app = app
        self.tokens = tokens
        self._pace = pace or Pace()
        self._streams: set[Stream] = set()
        self._checking: asyncio.Task[None] | None = None

    @property
    def number(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    def now(self) -> str:
        return str(plain(to_datetime(self._app.store.clock.now())))

    @asynccontextmanager
    async def stream(self, caller: Caller, wish: Wish) -> AsyncIterator[Stream]:
        """Open a stream. Raises Problem if the caller may not have it, ConfigurationError if the cursor is wrong."""
        follower = Follower(self.hub, self._app.store, wish.where, wish.after)
        stream = Stream(follower, caller, wish, self._pace, self._expires_in(caller))
        self._add(stream)
        try:
            await self._begin(follower, caller)
            yield stream
        finally:
            self._streams.discard(stream)
            follower.end()
            self._stop_checking()

    def _expires_in(self, caller: Caller) -> float:
        if caller.grant is None:
            return float("inf")
        return (caller.grant.expires_at - self._app.store.clock.now()) / 1000

    async def _begin(self, follower: Follower, caller: Caller) -> None:
        """Let a client begin. If that cannot be soon, it is told to come back later."""
        try:
            async with asyncio.timeout(self._pace.begin):
                await self._check_now(caller)
                await follower.begin()
        except TimeoutError:
            msg = f"the change feed could not be read within {self._pace.begin:g} seconds; try again"
            raise Problem("store_unavailable", msg) from None
        except HubStopped:
            msg = "the service stops, or could not read the change feed; try again"
            raise Problem("store_unavailable", msg) from None

    def _add(self, stream: Stream) -> None:
        caller = stream.caller
        number = Counter(each.caller.id for each in self._streams)[caller.id] if caller.id else 0
        if number >= MOST_STREAMS:
            msg = f"the token {caller.id!r} has {number} streams already; close some, or follow several jobs by one"
            raise Problem("too_many_streams", msg)
        self._streams.add(stream)
        if self._checking is None:
            self._checking = asyncio.create_task(self._keep_checking(), name="mainspring-stream-tokens")

    async def close(self) -> None:
        """End all streams: the service stops. Clients come back to another process, at the place where they were.

        Also write what is known of the uses of tokens. So close it before the application.
        """
        self.closing.set()
        await self.hub.close("closing")
        await self.tokens.uses.flush()

    # -- tokens -----------------------------------------------------------------------------------

    async def _check_now(self, caller: Caller) -> None:
        """Check the token in the store: what the guard knows of it may be some seconds old."""
        if caller.token is None or caller.user:  # the proxy checks a user at each request; the lifetime ends a stream
            return
        token_id = caller.token.id
        token = (await self.tokens.current([token_id])).get(token_id)
        if token is None:
            raise Problem("unauthorized", "the token is wrong, revoked or expired")
        Caller(token).check(Scope.READ, projects=True)
        if caller.session and not await self.tokens.sessions.current([caller.session]):
            raise Problem("unauthorized", "the session has ended; log in again")

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(self._pace.check)
            try:
                await self._check_all()
            except StoreError as error:  # a store that is away has no changes to show either
                log.warning("stream_tokens_unchecked", error=str(error))
            except Exception as error:  # noqa: BLE001 - whatever it was, a token that cannot be checked may be revoked
                log.error("stream_tokens_unchecked", error=f"{type(error).__name__}: {error}")  # noqa: TRY400
                self._end_all_with_tokens()

    async def _check_all(self) -> None:
        tokens = [stream.caller.token for stream in self._streams if not stream.caller.user]
        ids = {token.id for token in tokens if token is not None}
        valid = await self.tokens.current(sorted(ids)) if ids else {}
        allowed = {token_id for token_id, token in valid.items() if token.allows(Scope.READ)}
        for stream in list(self._streams):
            if stream.caller.token is not None and stream.caller.token.id in ids - allowed:
                stream.end("revoked")
        await self._check_sessions()
        await self._check_signing_keys()

    async def _check_signing_keys(self) -> None:
        """End the streams of public tokens whose key was forgotten."""
        keys = {stream.caller.grant.key for stream in self._streams if stream.caller.grant is not None}
        forgotten = {key for key in keys if await self.tokens.signing_keys.find(key) is None}
        for stream in list(self._streams):
            if stream.caller.grant is not None and stream.caller.grant.key in forgotten:
                stream.end("revoked")

    async def _check_sessions(self) -> None:
        ids = {stream.caller.session for stream in self._streams if stream.caller.session}
        ended = ids - await self.tokens.sessions.current(sorted(ids)) if ids else set()
        for stream in list(self._streams):
            if stream.caller.session in ended:
                stream.end("revoked")

    def _end_all_with_tokens(self) -> None:
        for stream in list(self._streams):
            if stream.caller.token is not None or stream.caller.grant is not None:
                stream.end("failed")

    def _stop_checking(self) -> None:
        if not self._streams and self._checking is not None:
            self._checking.cancel()
            self._checking = None
