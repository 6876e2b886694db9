from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import fields
from types import ModuleType

import pytest

from mainspring.job import Job
from mainspring.stores import columns
from mainspring.stores.postgres import insertion as postgres_insertion
from mainspring.stores.sqlite import insertion as sqlite_insertion
from tests.stores.sqlite.template import fresh_database


@pytest.mark.parametrize("insertion", [sqlite_insertion, postgres_insertion], ids=["sqlite", "postgres"])
def test_every_given_column_is_inserted(insertion: ModuleType) -> None:
    assert {*insertion.ROW, "created_at"} == columns.GIVEN.keys()


@pytest.mark.parametrize(
    ("table", "declared"), [("mainspring_jobs", columns.LIVE), ("mainspring_archive", columns.FINISHED)]
)
def test_the_tables_have_the_declared_columns(table: str, declared: dict[str, str]) -> None:
    with closing(sqlite3.connect(fresh_database())) as connection:
        found = {name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")}
    assert declared.keys() <= found


def test_a_reader_sees_every_column_but_those_for_retention() -> None:
    """`changed_at` is a part of `updated_at`."""
    shown = {field.name for field in fields(Job)} | {
        "target_type",
        "target_id",
        "note",
        "error_type",
        "error",
        "error_code",
        "cancel",
    }
    assert set(columns.JOB) - shown == {"keep", "keep_dead", "changed_at"}
