"""A server that does not let us in: what may pass is worth another try, what will not is told at once, with advice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from mainspring import Mainspring
from mainspring.errors import StoreError, StoreReadOnly, StoreRefused, StoreUnavailable
from mainspring.stores.postgres import PostgresStore, schema
from mainspring.stores.postgres.errors import explain
from mainspring.worker import Worker
from tests.postgres import dsn, fresh_schema, server, servers

pytestmark = pytest.mark.slow  # a real server

ours = pytest.mark.skipif(
    "MAINSPRING_TEST_PG" in os.environ, reason="the tests may not change the logins of that server"
)
RULES = """\
local all {guest}_rejected reject
local all {guest} scram-sha-256
"""


def place(**changes: str) -> str:
    return make_conninfo("", **{**conninfo_to_dict(dsn()), **changes})


def ask(statements: str, database: str = "postgres") -> None:
    with psycopg.connect(place(dbname=database), autocommit=True) as connection:
        connection.execute(statements.encode())


@contextmanager
def logging_in(file: Path, rules: str) -> Iterator[None]:
    """The server's own rules are put back."""
    before = file.read_text()
    file.write_text(rules + before)
    ask("SELECT pg_reload_conf()")
    yield
    file.write_text(before)
    ask("SELECT pg_reload_conf()")


@pytest.fixture
def guest() -> Iterator[str]:
    """A user with a password, beside others that may not log in for one reason or another."""
    name = fresh_schema()
    ask(f"CREATE ROLE {name} LOGIN PASSWORD 'right'; CREATE ROLE {name}_crowded LOGIN CONNECTION LIMIT 0")
    ask(f"CREATE ROLE {name}_group NOLOGIN; CREATE ROLE {name}_rejected LOGIN")
    yield name
    ask(f"DROP ROLE {name}, {name}_crowded, {name}_group, {name}_rejected")


async def refusal_of(url: str) -> StoreError:
    store = PostgresStore(url)
    with pytest.raises(StoreError) as refused:
        await store.open()
    await store.close()
    assert "wr0ng" not in f"{refused.value}{refused.value.__cause__}"
    return refused.value


# -- for good -------------------------------------------------------------------------------------


@ours
async def test_login_errors_say_what_to_correct(guest: str) -> None:
    file = server(next(iter(servers().values()))).data / "pg_hba.conf"
    with logging_in(file, RULES.format(guest=guest)):
        for user, password, told in [
            (guest, "wr0ng", "correct the user or the password"),
            (guest, "", "give one: in the URL, as PGPASSWORD"),
            (f"{guest}_rejected", "", "pg_hba.conf on the server must allow this connection"),
            (f"{guest}_group", "", "create the user, or correct its name"),
            (f"{guest}_nobody", "", "create the user, or correct its name"),
        ]:
            refused = await refusal_of(place(user=user, password=password))
            assert type(refused) is StoreRefused
            assert told in str(refused)
        assert "may not create or change" in str(await refusal_of(place(user=guest, password="right")))


async def test_a_missing_or_forbidden_database_is_refused(guest: str) -> None:
    missing = await refusal_of(place(dbname="no_such_database"))
    assert type(missing) is StoreRefused
    assert '"no_such_database" does not exist; create it, or correct' in str(missing)
    ask(f"CREATE DATABASE {guest}")
    ask(f"REVOKE CONNECT ON DATABASE {guest} FROM PUBLIC")
    try:
        closed = await refusal_of(place(dbname=guest, user=guest))
    finally:
        ask(f"DROP DATABASE {guest}")
    assert type(closed) is StoreRefused
    assert "GRANT CONNECT ON DATABASE" in str(closed)


async def test_a_user_without_the_right_to_create_tables_gets_advice(guest: str) -> None:
    refused = await refusal_of(place(user=guest))
    assert type(refused) is StoreReadOnly
    assert "permission denied for database" in str(refused)
    assert "run `mainspring migrate` as the owner of the tables and write migrate=off" in str(refused)


async def test_a_server_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "OLDEST_SERVER", 99)
    refused = await refusal_of(dsn())
    assert type(refused) is StoreRefused
    assert "and Mainspring needs 99 or newer; upgrade the server" in str(refused)
    store = PostgresStore(dsn())
    with pytest.raises(StoreRefused):
        await store.migrate()
    await store.close()


async def test_a_worker_does_not_wait_for_what_will_not_come() -> None:
    worker = Worker(Mainspring(PostgresStore(place(dbname="no_such_database"))))
    with pytest.raises(StoreRefused):
        await worker.serve()


# -- for now --------------------------------------------------------------------------------------


async def test_a_server_without_free_connections_counts_as_unavailable(guest: str) -> None:
    refused = await refusal_of(place(user=f"{guest}_crowded"))
    assert type(refused) is StoreUnavailable
    assert "raise max_connections" in str(refused)


async def test_an_unknown_host_counts_as_unavailable() -> None:
    """As one container is to another that starts before it."""
    refused = await refusal_of("postgresql://no-such-host.invalid/shop")
    assert type(refused) is StoreUnavailable
    assert "is the host's name right?" in str(refused)


@ours
async def test_the_store_is_unavailable_if_one_of_two_hosts_may_come_back(tmp_path: Path) -> None:
    here = conninfo_to_dict(dsn()).get("host")
    both = await refusal_of(place(dbname="no_such_database", host=f"{tmp_path},{here}", port="5432"))
    assert type(both) is StoreUnavailable
    twice = await refusal_of(place(dbname="no_such_database", host=f"{here},{here}", port="5432"))
    assert type(twice) is StoreRefused


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.7", user "ana", database "shop", no encryption', StoreRefused),
        ("server does not support SSL, but SSL was required", StoreRefused),
        ("SSL error: certificate verify failed", StoreRefused),
        ('invalid sslmode value: "very"', StoreRefused),
        ("FATAL:  unsupported startup parameter: options", StoreRefused),
        ('FATAL:  Peer authentication failed for user "ana"', StoreRefused),
        ("FATAL:  sorry, too many clients already", StoreUnavailable),
        ("FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute", StoreUnavailable),
        ("FATAL:  the database system is starting up", StoreUnavailable),
        ("FATAL:  the database system is in recovery mode", StoreUnavailable),
        ("session is read-only", StoreUnavailable),
        ("FATAL:  Datenbank »shop« existiert nicht", StoreUnavailable),  # we do not know: better to wait
    ],
)
def test_other_errors_are_recognised_by_their_words(words: str, kind: type[StoreError]) -> None:
    assert type(explain(psycopg.OperationalError(f"connection failed: {words}"))) is kind
