from __future__ import annotations

import pytest

from mainspring.errors import ConfigurationError
from mainspring.job import Status
from mainspring.stores.engine.wakeup import refuse_negative, woken


def test_a_woken_job_is_due_now_and_waits_for_nothing() -> None:
    assert woken(5) == {"status": Status.PENDING, "run_at": 5, "waits_for": None}


def test_a_negative_number_of_jobs_cannot_be_woken() -> None:
    refuse_negative({"one": 0, "two": 3})
    with pytest.raises(ConfigurationError, match="cannot wake -1 jobs for 'two'; give 0 or more"):
        refuse_negative({"one": 0, "two": -1})
