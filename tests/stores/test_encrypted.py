"""An encrypted store, held to the suite that every store is held to."""

from __future__ import annotations

import pytest

from mainspring.encryption import Keys
from mainspring.stores.encrypted import EncryptedStore
from mainspring.stores.sqlite import MemoryStore
from mainspring.testing.clock import ManualClock
from tests.conformance.suite import StoreConformance

pytest.importorskip("cryptography")

DIFFERENT = (
    "payload ",  # filters by payload are refused; test_encryption.py tests that
    "test_a_payload_that_cannot_be_read_hides_nothing",
    "test_a_time_that_cannot_be_shown_hides_nothing",
    "test_any_filter_can_be_written_down",
    "test_values_are_completed_from_the_jobs",
    "test_completions_are_values_of_these_queues",
    "test_expired_pauses_keys_and_documents_are_not_dumped",  # the note of the key is
    "test_an_edit_tells_only_fields_that_have_another_value",  # a payload that is sealed again has another text
    "test_a_result_just_short_enough_is_told",  # a sealed one is longer
    "test_the_longest_times_are_kept",
    "test_a_job_that_cannot_be_kept_is_refused_wherever_it_comes_from",
    "test_a_loaded_job_is_found_by_what_it_carries",
    "test_a_job_has_all_fields",  # records have what is stored, which is sealed
    "test_a_job_reads_the_same_in_another_store",
    "test_a_text_is_rewritten",
    "test_a_long_text_is_rewritten",
)


@pytest.mark.slow
class TestEncryptedStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _skip(self, request: pytest.FixtureRequest) -> None:
        if any(name in request.node.name for name in DIFFERENT):
            pytest.skip("works on what is stored, which is sealed")

    @pytest.fixture
    async def store(self, clock: ManualClock) -> EncryptedStore:
        return EncryptedStore(MemoryStore(clock=clock), Keys({"k1": bytes(32)}))
