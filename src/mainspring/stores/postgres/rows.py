"""Between our objects and the rows of the migrations."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mainspring.stores.tables import NEVER

SHARED_COLUMNS = """
id::text, task, queue, status, priority, run_at, created_at, attempts, max_attempts, crashes, token, worker, timeout,
dedupe_key, target_type, target_id, tags, progress, note, error_type, error, reason, payload
"""
LIVE_COLUMNS = f"""
{SHARED_COLUMNS}, nullif(claimed_at, 0) AS started_at, NULL::bigint AS finished_at, NULL::bigint AS expires_at,
NULL AS result, cancel, waits_for, options
"""
FINISHED_COLUMNS = f"""
{SHARED_COLUMNS}, nullif(started_at, 0) AS started_at, finished_at, nullif(expires_at, {NEVER}) AS expires_at, result,
false AS cancel, NULL AS waits_for, options
"""


ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_id(text: str) -> bool:
    return ID.fullmatch(text) is not None


def storable(text: str) -> str:
    """PostgreSQL's texts have no NUL. What handlers raise may have one, and must not be refused for it."""
    return text.replace("\0", "�")


def only_ids(texts: Iterable[str]) -> list[str]:
    """Without what cannot be one of ours: the server would refuse the whole statement."""
    return [text for text in texts if is_id(text)]
