"""Documents, whatever store keeps them."""

from __future__ import annotations

import pytest

from mainspring.stores.documents import Bundle, Key, Write


def test_a_bundle_writes_a_document_once() -> None:
    """Which of two would hold? DynamoDB refuses such a transaction, with words that say less."""
    same = Key("things", "", "a")
    assert len(Bundle((Write(same, "1"), Write(Key("things", "g", "a"), "2"))).writes) == 2
    with pytest.raises(ValueError, match=r"each document only once: .*'things'"):
        Bundle((Write(same, "1"), Write(same, None)))
