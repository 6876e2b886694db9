"""A halt that another system decides: a function of yours is asked whether jobs may start.

Workers ask it regularly, and again before a start if its last answer is too old. A question that raises an error, or
that is not answered in time, counts as a halt, unless the check is not strict.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mainspring.clock import Length, duration, shown, since_boot
from mainspring.errors import ConfigurationError, SystemHalted
from mainspring.stores.protocol import Halt

Asked = Callable[[], Any]
ACTOR = "another system"  # the actor of such a halt
TRUSTED_FOR = 2.0  # seconds for which a worker may start jobs after it last read the halts
NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class HaltCheck:
    """How to follow another system's halt: `Mainspring(store, halted=HaltCheck(is_halted, every=0.2))`.

    `ask` takes no arguments, and may be a coroutine function; a plain function runs in a thread. It returns a false
    value while jobs may run, and True or a reason while they may not. An object may have the attributes `halted` and
    `reason`.
    """

    ask: Asked
    every: Length = 0.5  # how long an answer is used
    timeout: Length = 0.5  # how long an answer may take
    strict: bool = True  # an error, or no answer in time, counts as a halt
    reject_new: bool = False  # reject new jobs with SystemHalted while halted, instead of storing them for later

    def __post_init__(self) -> None:
        if not callable(self.ask):
            msg = f"halted must be a function, or HaltCheck(function, …), not {shown(self.ask)}"
            raise ConfigurationError(msg)
        for name, length in (("every", self.every), ("timeout", self.timeout)):
            if duration(length) <= 0:
                msg = f"HaltCheck({name}={shown(length)}): give at least a millisecond"
                raise ConfigurationError(msg)
        if self.trusted_for > TRUSTED_FOR:
            msg = (
                f"HaltCheck: every and timeout are {self.trusted_for:g} s together; give at most {TRUSTED_FOR:g} s, so"
                " that workers obey this halt as soon as any other"
            )
            raise ConfigurationError(msg)

    @property
    def trusted_for(self) -> float:
        """Return the age in seconds up to which an answer is used: no job starts on an older one."""
        return (duration(self.every) + duration(self.timeout)) / 1000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the other system said."""

    halted: bool = False
    reason: str = ""
    error: str = ""  # why there is no answer

    @property
    def is_clear(self) -> bool:
        return not self.halted and not self.error


class OutsideHalt:
    """Asks the function of a `HaltCheck`, one question at a time per event loop, and remembers the answer."""

    def __init__(self, given: HaltCheck | Asked) -> None:
        self.check = given if isinstance(given, HaltCheck) else HaltCheck(given)
        self._verdict = Verdict()
        self.asked_at = NEVER  # when the question was asked whose answer is used, on the clock `since_boot`
        self._since: datetime | None = None
        self._locks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()
        self._late: asyncio.Future[Any] | None = None  # a question that was not answered in time

    async def verdict(self) -> Verdict:
        """Return what the other system says, as of at most `every` ago."""
        lock = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with lock:
            if since_boot() > self.asked_at + duration(self.check.every) / 1000:
                began = since_boot()
                self._verdict = await self._ask()
                self.asked_at = began
            return self._verdict

    async def halt(self, now: datetime) -> Halt | None:
        """Return the halt in force, in the form of Mainspring's own halts; None if jobs may start."""
        reason = self._reason(await self.verdict())
        if reason is None:
            self._since = None
            return None
        self._since = self._since or now
        return Halt(ACTOR, reason, self._since, accept=not self.check.reject_new)

    async def refuse(self) -> None:
        """Raise SystemHalted if new jobs are to be rejected now."""
        if self.check.reject_new and (reason := self._reason(await self.verdict())) is not None:
            msg = f"another system has halted this one ({reason or 'no reason given'}), and new jobs are rejected"
            raise SystemHalted(msg)

    def _reason(self, verdict: Verdict) -> str | None:
        """Return why no job may start, perhaps empty; None if jobs may start."""
        if verdict.halted:
            return verdict.reason
        return f"the halt check failed: {verdict.error}" if verdict.error and self.check.strict else None

    async def _ask(self) -> Verdict:
        seconds = duration(self.check.timeout) / 1000
        try:
            async with asyncio.timeout(seconds):
                await self._wait_for_late()
                return verdict_of(await self._call())
        except TimeoutError:
            return Verdict(error=f"it has not answered within {seconds:g} s")
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            return Verdict(error=repr(error))
        except Exception as error:  # noqa: BLE001 - foreign code; `strict` says what an error means
            return Verdict(error=f"{type(error).__name__}: {error}")

    async def _wait_for_late(self) -> None:
        """Wait for a thread that still runs the last question. A second one beside it would pile up threads."""
        late = self._late
        if late is not None and not late.done() and late.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([late])
        self._late = None

    async def _call(self) -> Any:
        if inspect.iscoroutinefunction(self.check.ask):
            return await self.check.ask()
        self._late = answer = in_daemon_thread(self.check.ask)
        value = await asyncio.shield(answer)
        return await value if inspect.isawaitable(value) else value


def is_being_cancelled() -> bool:
    """Return whether this task is to end; otherwise the check itself raised CancelledError."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def in_daemon_thread(call: Callable[[], Any]) -> asyncio.Future[Any]:
    """Call a function in a thread that cannot keep the process alive if it hangs."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    future.add_done_callback(lambda done: done.cancelled() or done.exception())  # an unread error is not reported

    def work() -> None:
        value, error = None, None
        try:
            value = call()
        except BaseException as raised:  # noqa: BLE001 - the caller that awaits the future gets it
            error = settable(raised)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, future, value, error)

    threading.Thread(target=work, name="mainspring-halt-check", daemon=True).start()
    return future


def settable(raised: BaseException) -> Exception:
    """Return an error that a future takes. It refuses StopIteration, and would never be done."""
    if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
        return raised
    return RuntimeError(repr(raised))


def settle(future: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


def verdict_of(answer: Any) -> Verdict:
    """Return what an answer means: a truth value, a reason, or an object with `halted` and `reason`."""
    halted = getattr(answer, "halted", None)
    if isinstance(halted, bool):
        return Verdict(halted, str(getattr(answer, "reason", "") or "")) if halted else Verdict()
    if not answer:
        return Verdict()
    return Verdict(halted=True, reason=answer if isinstance(answer, str) else "")


HaltedOption = HaltCheck | Callable[[], Awaitable[Any]] | Callable[[], Any]
