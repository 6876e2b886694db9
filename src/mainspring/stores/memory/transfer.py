"""Jobs and all else as records, for a move to another store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from mainspring.clock import to_datetime, to_millis
from mainspring.job import (
    FINISHED,
    Attempt,
    Failure,
    Move,
    NewJob,
    Progress,
    Status,
    Step,
)
from mainspring.stores.documents import Document
from mainspring.stores.memory.halts import end_of_halt
from mainspring.stores.memory.row import Row
from mainspring.stores.protocol import (
    AuditEntry,
    Halt,
)
from mainspring.stores.records import Record, job_record


def record_of(row: Row) -> Record:
    spec, live = row.spec, row.status not in FINISHED
    target_type, target_id = spec.target or (None, None)
    success = row.history[-1] if row.status is Status.COMPLETED else None
    values = (
        row.id, spec.task, spec.queue, row.status.value, int(spec.priority), row.run_at, row.created_at, row.attempts,
        spec.max_attempts, row.crashes, row.token, row.worker,
        to_millis(success.started_at) if success else row.claimed_at or None, row.finished_at, row.expires_at,
        spec.timeout, spec.keep, spec.keep_dead, row.cancel_requested and live, spec.dedupe_key, target_type, target_id,
        list(spec.tags), spec.options, row.reason, row.progress and float(row.progress.fraction),
        row.progress and row.progress.note, row.failure and row.failure.type, row.failure and row.failure.message,
        spec.payload, None if live else row.result, row.waits_for,
    )  # fmt: skip
    runs = [run_record(run) for run in row.history if run is not success]
    steps = [list(astuple(step)) for step in sorted(row.steps.values(), key=lambda step: step.number)]
    return job_record(values, runs, steps, [list(operation) for operation in dict.fromkeys(row.by_hand)])


def run_record(run: Attempt) -> list[Any]:
    failure = run.failure or Failure("", "")
    began, ended = to_millis(run.started_at), to_millis(run.finished_at)
    why = (failure.type or None, failure.message or None, failure.traceback or None)
    return [run.number, run.worker, began, ended, run.move.value, *why]


def row_of(record: Record) -> Row:
    target = None if record["target_type"] is None else (record["target_type"], record["target_id"])
    same = ("id", "task", "payload", "queue", "priority", "max_attempts", "timeout", "dedupe_key", "keep", "keep_dead")
    spec = NewJob(
        **{name: record[name] for name in same}, target=target, tags=tuple(record["tags"]), options=record["options"]
    )
    row = Row(
        spec,
        status=Status(record["status"]),
        claimed_at=record["started_at"] or 0,
        progress=None if record["progress"] is None else Progress(record["progress"], record["note"] or ""),
        cancel_requested=record["cancel"],
        history=[run_of(run) for run in record["runs"]],
        steps={step.name: step for step in (Step(*values) for values in record["steps"])},
        by_hand=[(operation, action) for operation, action in record["by_hand"]],
        **{name: record[name] for name in ("run_at", "created_at", "token", "attempts", "crashes", "worker")},
        **{name: record[name] for name in ("finished_at", "expires_at", "result", "reason", "waits_for")},
    )
    if record["error_type"] is not None:
        tracebacks = [run.failure.traceback for run in row.history if run.failure]
        row.failure = Failure(record["error_type"], record["error"] or "", tracebacks[-1] if tracebacks else "")
    if row.status is Status.COMPLETED:
        began, ended = to_datetime(row.claimed_at), to_datetime(row.finished_at or 0)
        row.history.append(Attempt(len(row.history) + 1, row.worker or "", began, ended, Move.DONE))
    return row


def run_of(run: Sequence[Any]) -> Attempt:
    number, worker, began, ended, move, error_type, error, traceback = run
    failure = None if error_type is None else Failure(error_type, error or "", traceback or "")
    return Attempt(number, worker, to_datetime(began), to_datetime(ended), Move(move), failure)


def audit_record(operation: str, entry: AuditEntry) -> Record:
    same = {"action": entry.action, "actor": entry.actor, "reason": entry.reason, "n": entry.count}
    return {"operation": operation, "at": to_millis(entry.at), "detail": dict(entry.detail), **same}


def document_record(document: Document) -> Record:
    collection, group, name = document.key
    same = {"version": document.version, "due_at": document.due_at, "expires_at": document.expires_at}
    return {"collection": collection, "grp": group, "id": name, **same, "data": document.data}


def pause_record(halt: Halt) -> Record:
    same = {"queue": halt.queue, "actor": halt.actor, "reason": halt.reason, "accept": halt.accept}
    return {"since": to_millis(halt.since), "until": end_of_halt(halt), **same}
