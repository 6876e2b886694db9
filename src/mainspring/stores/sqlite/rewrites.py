"""Replaces stored texts of jobs by others that mean the same, such as those that are sealed with a new key."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.stores.protocol import Rewrite
from mainspring.stores.sqlite.transaction import Transaction

OF_JOBS = {
    "payload": (
        "UPDATE mainspring_jobs SET payload = :new WHERE id = :id AND payload = :old",
        "UPDATE mainspring_archive SET payload = :new WHERE id = :id AND payload = :old",
        "UPDATE mainspring_payloads SET body = :new WHERE job_id = :id AND body = :old",
    ),
    "options": (
        "UPDATE mainspring_jobs SET options = :new WHERE id = :id AND options = :old",
        "UPDATE mainspring_archive SET options = :new WHERE id = :id AND options = :old",
    ),
    "result": ("UPDATE mainspring_archive SET result = :new WHERE id = :id AND result = :old",),
}
OF_STEPS = "UPDATE mainspring_steps SET output = :new WHERE job_id = :id AND name = :name AND output = :old"


def rewrite(transaction: Transaction, requests: list[Sequence[Rewrite]]) -> list[int]:
    return [sum(replaced(transaction, text) for text in texts) for texts in requests]


def replaced(transaction: Transaction, text: Rewrite) -> int:
    values = {"id": text.job_id, "name": text.step, "old": text.old, "new": text.new}
    if text.step is not None:
        return transaction.execute(OF_STEPS, values).rowcount
    del values["name"]
    return max(transaction.execute(statement, values).rowcount for statement in OF_JOBS[text.column])
