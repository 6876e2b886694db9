"""The file: what is wrong with it is said plainly, and nothing is lost over it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from mainspring.errors import (
    ConfigurationError,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreReadOnly,
    StoreTooNew,
    StoreVanished,
)
from mainspring.job import Move
from mainspring.stores.protocol import Filter, Severity, Store, Wake
from mainspring.stores.sqlite import SqliteStore
from mainspring.stores.sqlite.connection import DatabaseFile, file_system
from mainspring.stores.sqlite.schema import TABLES, refuse_foreign, write_ahead
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import Bell, claim, end, found, join, new_job, put, put_many, running
from tests.stores.sqlite.processes import run_mounted, start
from tests.stores.sqlite.template import fresh_database

pytestmark = pytest.mark.slow


def ask(path: Path, statement: str) -> object:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchone()[0]


# -- what cannot be opened ------------------------------------------------------------------------


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreReadOnly, match="no such/place does not exist; create the directory"):
        DatabaseFile(tmp_path / "no such/place/jobs.db").prepare()


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreReadOnly, match="cannot be opened"):
        DatabaseFile(tmp_path).prepare()


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.write_text("Dear diary, today I was not a database. " * 100)
    with pytest.raises(StoreCorrupt, match="is not an SQLite database; is the path right"):
        DatabaseFile(path).prepare()
    assert path.read_text().startswith("Dear diary")


def test_a_newer_schema_is_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO mainspring_migrations (version, name) VALUES (99, 'from the future')")
        connection.commit()
    with pytest.raises(StoreTooNew, match="schema version 99, this program knows 1; upgrade"):
        DatabaseFile(path).prepare()


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_another_program_with_our_names_are_left_alone(tmp_path: Path, name: str) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE {name} (theirs)")
    with pytest.raises(ConfigurationError, match=rf"\({name}\); rename them, or use another file"):
        DatabaseFile(path).prepare()
    assert ask(path, "SELECT count(*) FROM sqlite_master") == 1
    assert ask(path, "PRAGMA journal_mode") == "delete"


def test_the_list_of_our_names_is_complete(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        ours = connection.execute(
            "SELECT name FROM sqlite_master WHERE type <> 'index' AND name NOT LIKE 'sqlite%'"
        ).fetchall()
    assert {name for (name,) in ours} == set(TABLES)


async def test_tables_of_the_application_may_stand_beside_ours(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE guests AS SELECT 'Zoë' AS name")
    store = SqliteStore(path)
    await put(store)
    await store.close()
    assert ask(path, "SELECT name FROM guests") == "Zoë"


@pytest.mark.parametrize("version", [0, 1, 99])
async def test_a_file_of_the_application_keeps_its_tables_and_its_version(tmp_path: Path, version: int) -> None:
    path = tmp_path / "theirs.db"
    names = [name.removeprefix("mainspring_") for name in TABLES]
    with closing(sqlite3.connect(path)) as connection:
        for name in names:
            connection.execute(f"CREATE TABLE {name} (theirs)")
            connection.execute(f"CREATE INDEX {name}_waiting ON {name} (theirs)")
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("PRAGMA application_id = 77")
    store = SqliteStore(path)
    job_id = await put(store)
    (held,) = await claim(store)
    assert held.id == job_id
    assert await end(store, held, Move.DONE)
    assert [finding.check for finding in await store.diagnose() if finding.severity is Severity.ERROR] == []
    await store.close()
    assert (ask(path, "PRAGMA user_version"), ask(path, "PRAGMA application_id")) == (version, 77)
    assert [ask(path, f"SELECT count(*) FROM {name}") for name in names] == [0] * len(names)


def test_every_name_of_ours_has_the_prefix(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
    assert [name for name in names if not name.startswith(("mainspring_", "sqlite_autoindex_mainspring_"))] == []


def test_an_sqlite_that_is_too_old_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.stores.sqlite.connection.OLDEST_SQLITE", (99, 0, 0))
    with pytest.raises(ConfigurationError, match=r"is too old; Mainspring needs 99\.0\.0"):
        DatabaseFile(path).prepare()


def test_an_error_raised_by_python_itself_is_explained(path: Path) -> None:
    error = DatabaseFile(path).explain(sqlite3.ProgrammingError("Cannot operate on a closed database."))
    assert type(error) is StoreError
    assert "closed database" in str(error)


# -- network file systems -------------------------------------------------------------------------

MOUNTINFO = r"""
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:40 / /srv/share rw,relatime - {kind} server:/share rw
31 22 0:41 / /srv/with\040space rw,relatime - {kind} server:/spaces rw
32 22 0:42 / /srv/zoë rw,relatime - {kind} server:/zoe rw
33 30 0:43 / /srv/share/local rw,relatime - xfs /dev/vdb rw
""".lstrip()


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTINFO.format(kind="nfs4"), encoding="utf-8")
    monkeypatch.setattr("mainspring.stores.sqlite.connection.MOUNTS", mounts)
    return mounts


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("/srv", "ext4"),
        ("/srv/shared", "ext4"),
        ("/srv/share", "nfs4"),
        ("/srv/share/deep/down", "nfs4"),
        ("/srv/with space", "nfs4"),
        ("/srv/zoë", "nfs4"),
        ("/srv/share/local/jobs", "xfs"),
    ],
)
def test_the_file_system_is_that_of_the_innermost_mount(mounts: Path, directory: str, kind: str) -> None:
    assert file_system(Path(directory)) == kind


def test_where_the_system_does_not_tell_the_file_system_is_unknown(mounts: Path) -> None:
    mounts.unlink()
    assert file_system(Path("/srv")) == ""


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"])
def test_a_network_file_system_is_refused(tmp_path: Path, mounts: Path, kind: str) -> None:
    mounts.write_text(f"22 1 254:1 / / rw shared:1 - {kind} server:/ rw\n")
    with pytest.raises(ConfigurationError, match=rf"network file system \({kind}\).*use a local disk"):
        DatabaseFile(tmp_path / "jobs.db").prepare()
    assert not (tmp_path / "jobs.db").exists()


# -- damage ---------------------------------------------------------------------------------------


@pytest.fixture
async def filled(path: Path) -> Path:
    """A database of many pages, all of them in the file."""
    store = SqliteStore(path)
    await put_many(store, 200, payload=f'"{"x" * 900}"')
    await store.close()
    return path


async def use(path: Path) -> None:
    store = SqliteStore(path)
    try:
        await found(store)
        await put(store)
    finally:
        await store.close()


async def test_a_truncated_database_is_damaged(filled: Path) -> None:
    os.truncate(filled, filled.stat().st_size // 2)
    with pytest.raises(StoreCorrupt, match="is damaged; keep a copy"):
        await use(filled)


async def test_garbage_in_a_database_is_damage(filled: Path) -> None:
    with filled.open("r+b") as opened:
        opened.seek(4096)
        opened.write(b"\xa5" * (filled.stat().st_size - 4096))
    with pytest.raises(StoreCorrupt, match="is damaged; keep a copy"):
        await use(filled)


# -- another program holds it ---------------------------------------------------------------------


async def test_a_database_that_another_program_locks_is_busy_and_then_goes_on(store: SqliteStore, path: Path) -> None:
    await put(store)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreBusy, match="locked by another program"):
            await put(store)
        assert await store.count(Filter()) == 1
        other.execute("ROLLBACK")
    await put(store)
    assert await store.count(Filter()) == 2


# -- the file is gone, or another -----------------------------------------------------------------


async def every_reader(store: Store) -> list[int]:
    return await asyncio.gather(*(store.count(Filter()) for _ in range(8)))


async def test_a_file_that_is_gone_is_missed_and_found_again(store: SqliteStore, path: Path) -> None:
    await put(store)
    away = path.rename(path.with_name("away.db"))
    for _ in range(2):
        with pytest.raises(StoreVanished, match="put it back"):
            await put(store)
        with pytest.raises(StoreVanished, match="put it back"):
            await store.count(Filter())
    assert not path.exists()  # an empty one in its place would hide the loss
    away.rename(path)
    await put(store)
    assert await every_reader(store) == [2] * 8


async def test_a_replaced_file_is_opened_by_every_connection(store: SqliteStore, path: Path) -> None:
    await put_many(store, 5)
    assert await every_reader(store) == [5] * 8
    replace_by_an_empty_one(path)
    assert await every_reader(store) == [0] * 8  # the readers find out first, and still ...
    job_id = await put(store)  # ... the writer does not write into the old one
    assert await every_reader(store) == [1] * 8
    assert ask(path, "SELECT id FROM mainspring_jobs") == job_id


async def test_foreign_writes_into_a_replaced_file_are_noticed(store: SqliteStore, path: Path) -> None:
    bell = Bell()
    await join(store, "w1", bell)
    assert await bell.hears(Wake.JOBS)
    replace_by_an_empty_one(path)
    assert await bell.hears(Wake.JOBS)
    with closing(sqlite3.connect(path)) as connection, connection:
        await store.insert([new_job()], connection)
    assert await bell.hears(Wake.JOBS)


def replace_by_an_empty_one(path: Path) -> None:
    for part in ("-wal", "-shm"):
        Path(f"{path}{part}").unlink(missing_ok=True)
    (path.parent / "other").mkdir()
    fresh_database(path.parent / "other").replace(path)


# -- the disk -------------------------------------------------------------------------------------


def test_a_read_only_disk_is_said_to_be_one(path: Path) -> None:
    mount = f"mount --bind {path.parent} {path.parent} && mount -o remount,bind,ro {path.parent}"
    answers = run_mounted(mount, "insert", path)
    assert len(answers) == 3  # even to read, SQLite needs to write into the file that readers and writers share
    assert all(answer.startswith(f"StoreReadOnly: {path} cannot be") for answer in answers)


def test_a_full_disk_loses_nothing_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    full, more_than_accepted, then = run_mounted(
        f"mount -t tmpfs -o size=1m tmpfs {tmp_path}", "fill", tmp_path / "jobs.db"
    )
    assert "no room left on the disk" in full
    assert (more_than_accepted, then) == ("0", "1")


# -- making and keeping it ------------------------------------------------------------------------


def test_processes_that_start_together_make_the_schema_once(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with ExitStack() as stack:
        programs = [stack.enter_context(start("migrate", path)) for _ in range(4)]
        for program in programs:
            assert program.stdout
            assert program.stdout.readline() == "ready\n"
        for program in programs:
            assert program.stdin
            program.stdin.write("go\n")
            program.stdin.flush()
    assert [program.returncode for program in programs] == [0] * 4
    assert ask(path, "SELECT max(version) FROM mainspring_migrations") == 1
    assert ask(path, "PRAGMA integrity_check") == "ok"


def test_a_process_waits_while_another_creates_the_file(tmp_path: Path) -> None:
    """SQLite would refuse at once to turn to the write-ahead log, however long it was told to wait."""
    path = tmp_path / "jobs.db"
    with closing(beginning_to_write(path)) as other, closing(sqlite3.connect(path, timeout=60)) as connection:
        done = threading.Timer(0.1, other.execute, ["ROLLBACK"])
        done.start()
        write_ahead(connection, patience=60)
        done.join()
    assert ask(path, "PRAGMA journal_mode") == "wal"


def test_a_process_does_not_wait_for_ever_while_another_creates_the_file(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with (
        closing(beginning_to_write(path)),
        closing(sqlite3.connect(path, timeout=60)) as connection,
        pytest.raises(sqlite3.OperationalError, match="database is locked"),
    ):
        write_ahead(connection, patience=0.02)
    assert ask(path, "PRAGMA journal_mode") == "delete"


def beginning_to_write(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN IMMEDIATE")
    return connection


def test_tables_that_appear_while_we_look_are_our_own(path: Path) -> None:
    """Another process made them between our two looks; it recorded the version in the same commit."""
    with closing(sqlite3.connect(path)) as connection:
        refuse_foreign(connection.cursor(), path)


def test_it_is_written_ahead_and_can_shrink(path: Path) -> None:
    assert ask(path, "PRAGMA journal_mode") == "wal"
    assert ask(path, "PRAGMA auto_vacuum") == 2  # incremental


async def test_pruning_shrinks_the_file(store: SqliteStore, clock: ManualClock, path: Path) -> None:
    await put_many(store, 300, payload=f'"{"x" * 5000}"', keep=1000)
    for held in await claim(store, 300):
        assert await end(store, held, Move.DONE)
    before = ask(path, "PRAGMA page_count")
    clock.advance(2)
    while await store.prune(50):
        pass
    after = ask(path, "PRAGMA page_count")
    assert isinstance(before, int)
    assert isinstance(after, int)
    assert after < before / 4


async def test_inserts_and_acks_are_synced_and_a_claim_alone_is_not(store: SqliteStore) -> None:
    full, normal = 2, 1
    store._idle = False  # else the first claim would not ask the writer
    held = await running(store)
    assert synchronous(store) == normal
    await put(store)
    assert synchronous(store) == full
    await claim(store)
    assert synchronous(store) == normal
    await end(store, held, Move.DONE)
    assert synchronous(store) == full


async def test_a_claim_beside_an_insert_is_synced_with_it(store: SqliteStore) -> None:
    await claim(store)
    await asyncio.gather(*(work for _ in range(20) for work in (put(store), claim(store))))
    assert synchronous(store) == 2


def synchronous(store: SqliteStore) -> int:
    assert store._threads
    connection = store._threads.writer._write_connection._connection
    assert connection
    mode: int = connection.execute("PRAGMA synchronous").fetchone()[0]
    return mode
