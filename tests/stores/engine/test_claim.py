from __future__ import annotations

from mainspring.stores.engine.claim import ends
from tests.stores.engine.test_halts import SINCE, halt


def test_a_claim_may_find_jobs_when_a_pause_of_its_queues_ends() -> None:
    halts = [halt(queue="mail", until=SINCE), halt(queue="other", until=SINCE), halt(queue="mail")]
    assert len(ends(halts, {"mail"})) == 1
    assert len(ends(halts, {"*"})) == 2
