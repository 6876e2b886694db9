from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring.errors import SystemHalted
from mainspring.stores.engine.halts import combined, refuse_while_halted
from mainspring.stores.protocol import COPIER, Halt

SINCE = datetime(2026, 11, 16, tzinfo=UTC)


def halt(actor: str = "ada", reason: str = "why", **given: Any) -> Halt:
    return Halt(actor, reason, SINCE, **given)


@pytest.mark.parametrize(
    ("standing", "said"),
    [
        (halt(accept=False), r"the system is halted by ada \(why\) and rejects new jobs; resume it"),
        (halt(accept=False, queue="mail", reason=""), r"queue 'mail' is paused by ada \(no reason given\)"),
    ],
)
def test_a_halt_may_refuse_new_jobs(standing: Halt, said: str) -> None:
    with pytest.raises(SystemHalted, match=said):
        refuse_while_halted([standing], {"mail"})


@pytest.mark.parametrize("standing", [halt(), halt(accept=False, queue="other")])
def test_other_halts_refuse_nothing(standing: Halt) -> None:
    refuse_while_halted([standing], {"mail"})


def test_a_second_halt_keeps_what_is_stricter() -> None:
    later = SINCE + timedelta(hours=1)
    first, second = halt("ada", "a", until=SINCE, accept=False), halt("bob", "b", until=later)
    assert combined(first, second) == halt("ada, bob", "a; b", until=later, accept=False)
    assert combined(halt("ada", "a"), second).until is None


def test_the_halts_of_a_copy_replace_others() -> None:
    assert combined(halt(), halt(COPIER, "copied")) == halt(COPIER, "copied")
