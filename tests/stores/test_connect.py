"""From a URL to a store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mainspring.errors import ConfigurationError, UnsupportedStore
from mainspring.stores.connect import connect
from mainspring.stores.dynamodb import DynamoStore
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.protocol import Migrating, Store
from mainspring.stores.sqlite import MemoryStore, SqliteStore
from mainspring.testing.clock import ManualClock


def sqlite_at(url: str) -> SqliteStore:
    store = connect(url)
    assert isinstance(store, SqliteStore)
    return store


def memory_at(url: str) -> MemoryStore:
    store = connect(url)
    assert isinstance(store, MemoryStore)
    return store


# -- which store, and where -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:////var/lib/jobs.db", "/var/lib/jobs.db"),
        ("sqlite:////var/lib/with%20space.db", "/var/lib/with space.db"),
        ("sqlite:////var/lib/with space.db", "/var/lib/with space.db"),
        ("sqlite:////var/lib/zo%C3%AB.db", "/var/lib/zoë.db"),
        ("sqlite:////var/lib/100%25.db", "/var/lib/100%.db"),
        ("sqlite:////var/lib/what%3F.db?lease=5", "/var/lib/what?.db"),
        ("sqlite:////var/lib/n%231.db", "/var/lib/n#1.db"),
    ],
)
def test_four_slashes_are_an_absolute_path(url: str, path: str) -> None:
    assert sqlite_at(url).file.path == Path(path)


def test_three_slashes_are_relative_to_where_the_program_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = sqlite_at("sqlite:///data/jobs.db")
    monkeypatch.chdir("/")
    assert store.file.path == tmp_path / "data/jobs.db"


def test_a_tilde_is_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/zoe")
    assert sqlite_at("sqlite:///~/jobs.db").file.path == Path("/home/zoe/jobs.db")


def test_memory_needs_no_place() -> None:
    assert memory_at("memory://").url == "memory://"


@pytest.mark.parametrize("url", ["sqlite:////var/lib/jobs.db", "memory://"])
def test_every_url_gives_a_store(url: str) -> None:
    assert isinstance(connect(url), Store)


def test_a_stores_url_leads_to_it_again(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "100% of #1? jobs.db")
    assert sqlite_at(store.url).file.path == store.file.path


def test_nothing_is_opened_yet(tmp_path: Path) -> None:
    connect(f"sqlite:///{tmp_path}/jobs.db")
    assert os.listdir(tmp_path) == []  # noqa: PTH208


def test_the_clock_is_handed_on() -> None:
    clock = ManualClock()
    assert connect("memory://", clock).clock is clock
    assert connect("sqlite:////var/lib/jobs.db", clock).clock is clock


# -- settings -------------------------------------------------------------------------------------


def test_settings_follow_a_question_mark() -> None:
    store = sqlite_at("sqlite:////var/lib/jobs.db?lease=12.5&busy_timeout=0.5&stall_grace=1.5")
    assert (store.lease, store.file.busy_timeout, store.stall_grace) == (12.5, 0.5, 1500)


def test_a_url_without_settings_has_the_defaults() -> None:
    store = sqlite_at("sqlite:////var/lib/jobs.db")
    assert (store.lease, store.file.busy_timeout, store.stall_grace) == (30.0, 5.0, 30_000)


def test_memory_takes_the_same_settings() -> None:
    store = memory_at("memory://?lease=7&stall_grace=2&busy_timeout=1")
    assert (store.lease, store.stall_grace) == (7.0, 2000)


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite://jobs.db", "sqlite://host/jobs.db"])
def test_an_sqlite_url_without_a_file_shows_how_to_write_one(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"names no file; write sqlite:///relative\.db or"):
        connect(url)


def test_a_hash_in_a_path_is_not_silently_its_end() -> None:
    with pytest.raises(ConfigurationError, match="write it as %23"):
        connect("sqlite:////var/lib/n#1.db")


@pytest.mark.parametrize("url", ["", "jobs.db", "/var/lib/jobs.db", "redis://localhost", "sqlite3:///jobs.db"])
def test_an_unknown_kind_of_store_shows_which_there_are(url: str) -> None:
    with pytest.raises(UnsupportedStore, match=r"no store for .*; use one of sqlite:///jobs\.db"):
        connect(url)


def test_an_unknown_setting_shows_which_there_are() -> None:
    with pytest.raises(ConfigurationError, match="unknown setting 'leese'; known are lease, busy_timeout, stall_grace"):
        connect("sqlite:///jobs.db?leese=5")


@pytest.mark.parametrize("text", ["", "soon", "5s", "nan", "inf", "-1"])
@pytest.mark.parametrize("name", ["lease", "busy_timeout", "stall_grace"])
def test_a_setting_that_is_not_a_length_of_time_is_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} in .* must be a number of seconds"):
        connect(f"sqlite:///jobs.db?{name}={text}")


# -- PostgreSQL -----------------------------------------------------------------------------------


def postgres_at(url: str) -> PostgresStore:
    store = connect(url)
    assert isinstance(store, PostgresStore)
    return store


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann@db.example:6432/shop",
        "postgresql://ann@db1:5432,db2:5433/shop",
        "postgresql:///shop",
        "postgresql:///shop?host=/run/postgresql",
        "postgresql://ann@/shop?host=/run/postgresql&schema=jobs",
    ],
)
def test_a_postgres_url_leads_to_it_again(url: str) -> None:
    assert postgres_at(url).url == url
    assert isinstance(postgres_at(url), Migrating)


def test_only_what_is_ours_is_taken_out_of_a_postgres_url() -> None:
    store = postgres_at(
        "postgres://ann:secret@db/shop?lease=7&stall_grace=2&schema=jobs&migrate=off&prepare=off&options=-c%20geqo%3Doff"
    )
    assert (store.lease, store.stall_grace, store.schema) == (7.0, 2000, "jobs")
    assert store._pool.dsn == "postgres://ann:secret@db/shop?options=-c%20geqo%3Doff"
    assert store.url == "postgresql://ann@db/shop?schema=jobs"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://ann:secret@db/shop?leese=5", 'invalid URI query parameter: "leese"'),
        ("postgresql://ann:secret@[db/shop", "not the URL of a store"),
        ("postgresql://ann:secret@[::1]x/shop", "cannot be used: unexpected character"),
        ("postgresql://ann:secret@db/shop?lease=soon", "'postgresql://db/shop?lease=soon' must be a number of seconds"),
        ("postgresql://ann:secret@db/shop?migrate=no", "migrate must be on or off, not 'no'"),
        ("postgresql://ann:secret@db/shop?schema=Jobs", "'Jobs' cannot be the schema"),
        ("postgresql://ann:secret@db/shop?listen=direct", "cannot be used"),
    ],
)
def test_errors_about_a_postgres_url_do_not_contain_its_password(url: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        connect(url)
    assert told in str(caught.value)
    assert "secret" not in str(caught.value)


# -- DynamoDB ---------------------------------------------------------------------------------------


def dynamodb_at(url: str) -> DynamoStore:
    store = connect(url)
    assert isinstance(store, DynamoStore)
    return store


def test_a_dynamodb_url_can_share_a_table_and_poll_seldom() -> None:
    store = dynamodb_at("dynamodb://jobs?region=x&prefix=app%23&keys=pk,sk&poll=30")
    assert (store.poll, store.table.layout.prefix, store.table.layout.sort) == (30, "app#", "sk")
    assert store.url == "dynamodb://jobs?region=x&prefix=app%23&keys=pk,sk"


def test_a_dynamodb_url_names_a_table_and_where_it_is() -> None:
    store = dynamodb_at("dynamodb://My.Jobs?region=eu-central-1&endpoint=http://127.0.0.1:8000&shards=4&lease=7")
    assert (store.table.name, store.client.region, store.client.endpoint) == (
        "My.Jobs", "eu-central-1", "http://127.0.0.1:8000/",
    )  # fmt: skip
    assert (store.lease, store.url) == (7, "dynamodb://My.Jobs?region=eu-central-1&endpoint=http://127.0.0.1:8000")
    assert isinstance(store, Store)
    assert isinstance(store, Migrating)


def test_region_and_endpoint_are_found_as_the_sdks_find_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "cn-north-1")
    assert dynamodb_at("dynamodb://jobs").client.endpoint == "https://dynamodb.cn-north-1.amazonaws.com.cn/"
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", "http://localhost:8000")
    assert dynamodb_at("dynamodb://jobs?region=eu-west-1").client.endpoint == "http://localhost:8000/"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("dynamodb://", "dynamodb://table"),
        ("dynamodb:///jobs", "dynamodb://table"),
        ("dynamodb://key:secret@jobs?region=x", "found as AWS"),
        ("dynamodb://jobs?region=x&speed=1", "unknown setting 'speed'"),
        ("dynamodb://jobs?region=x&shards=many", "whole number"),
        ("dynamodb://jobs?region=x&shards=0", "from 1 to"),
        ("dynamodb://jobs?region=x&lease=soon", "number of seconds"),
        ("dynamodb://jobs?region=x&poll=5s", "number of seconds"),
        ("dynamodb://jobs?region=x&poll=0", "poll must be from 0.02 to 3600 seconds, not 0"),
        ("dynamodb://jobs?region=x&prefix=app", "one / or #"),
        ("dynamodb://jobs?region=x&prefix=app/&keys=pk", "keys=pk,sk"),
        ("dynamodb://jobs?region=x&endpoint=nowhere", "is not an endpoint"),
        ("dynamodb://jobs?region=x&prune=maybe", "on or off"),
        ("dynamodb://jobs", "no AWS region"),
    ],
)
def test_a_bad_dynamodb_url_is_refused_with_a_hint(url: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(ConfigurationError, match=words):
        connect(url)
