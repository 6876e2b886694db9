"""Settings from a file, the environment and flags."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import mainspring
import mainspring.service
from mainspring import Mainspring
from mainspring.cli import build_parser, main
from mainspring.cli.serve import application_of, settings_of
from mainspring.errors import ConfigurationError
from mainspring.service.program import worker_settings
from mainspring.service.settings import ServiceSettings, load_settings, unknown_variables, warnings_of
from mainspring.service.tokens import Scope
from mainspring.service.views import TokenView

ALL = ["MAINSPRING_PORT", "PORT", "HOST", "LOG_LEVEL", "QUEUE_DB_PATH", "MAINSPRING_STORE", "MAINSPRING_APP"]

ROOT = Path(__file__).parent.parent.parent
ENDINGS = {"", ".py", ".md", ".sh", ".js"}  # of files that may name variables
MISSPELT = {"MAINSPRING_PROT", "MAINSPRING_QXZWV"}  # of the tests below


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ALL:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def test_flags_come_before_the_environment_and_that_before_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mainspring.toml").write_text('port = 1000\nhost = "localhost"\nlog_level = "debug"\n')
    assert (load_settings().port, load_settings().host) == (1000, "localhost")
    monkeypatch.setenv("MAINSPRING_PORT", "2000")
    assert load_settings().port == 2000
    assert (load_settings(port=3000).port, load_settings(port=None).port) == (3000, 2000)
    assert load_settings().log_level == "debug"


def test_the_names_of_other_systems_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PORT": "2000",
        "HOST": "::1",
        "LOG_LEVEL": "WARNING",
        "QUEUE_DB_PATH": "/data/queue.db",
    }.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert (settings.port, settings.host, settings.log_level) == (2000, "::1", "warning")
    assert settings.store == "sqlite:////data/queue.db"
    monkeypatch.setenv("MAINSPRING_PORT", "3000")
    assert load_settings().port == 3000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("port = 70000", "port: Input should be less than or equal to 65535"),
        ("prot = 1", "prot: Extra inputs are not permitted"),
        ('host = "10.0.0.1"\ntokens = "optional"', "tokens are required if the service listens on 10.0.0.1"),
        ("port = ", "not valid TOML"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "service.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        load_settings(file)


def test_a_list_of_the_environment_that_is_not_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_REDACT", "iban")
    with pytest.raises(
        ConfigurationError, match='MAINSPRING_REDACT is not valid JSON; give a list, such as \\["iban"]'
    ):
        load_settings()


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no settings file .*nope.toml"):
        load_settings(tmp_path / "nope.toml")
    with pytest.raises(ConfigurationError, match="is not a file; give a TOML file"):
        load_settings(tmp_path)


def test_a_file_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_bytes(b'host = "caf\xe9"')
    with pytest.raises(ConfigurationError, match="not valid TOML: it must be UTF-8, and byte 11 is not"):
        load_settings()


def test_a_store_on_the_command_line_overrides_all_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text('app = "shop:app"\nstore = "sqlite:///file.db"\n')
    assert (load_settings().app, load_settings().store) == ("shop:app", "sqlite:///file.db")
    monkeypatch.setenv("QUEUE_DB_PATH", "queue.db")
    assert load_settings().store == "sqlite:///queue.db"
    monkeypatch.setenv("MAINSPRING_STORE", "sqlite:///ours.db")
    assert load_settings().store == "sqlite:///ours.db"
    monkeypatch.setenv("MAINSPRING_APP", "nomodule:app")
    settings = load_settings(store="memory://")
    assert (settings.store, settings.app) == ("memory://", None)
    assert application_of(settings).store.url == "memory://"
    assert load_settings(store="memory://", app="other:app").app == "other:app"


def test_what_is_probably_not_meant_is_a_warning() -> None:
    assert warnings_of(ServiceSettings()) == []
    assert len(warnings_of(ServiceSettings(host="0.0.0.0"))) == 2
    assert warnings_of(ServiceSettings(host="10.0.0.1", allowed_hosts=("jobs.example",)))[0].startswith(
        "the service speaks"
    )


def test_config_check_reports_errors_and_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check"]) == 0
    assert capsys.readouterr().out == "the settings are fine\n"
    assert main(["config", "check", "--host", "0.0.0.0"]) == 0
    assert "warning: the service speaks plain HTTP" in capsys.readouterr().out
    assert main(["config", "check", "--port", "70000"]) == 1
    assert "error: port: Input should be less than" in capsys.readouterr().out


def test_config_check_warns_about_misspelt_variables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MAINSPRING_PROT", "1")
    monkeypatch.setenv("mainspring_log_level", "info")  # names have no case
    for options, code in ([], 0), (["--port", "70000"], 1):
        assert main(["config", "check", *options]) == code
        said = "warning: MAINSPRING_PROT is not the name of a setting, and is ignored; do you mean MAINSPRING_PORT"
        output = capsys.readouterr().out
        assert said in output
        assert output.count("warning:") == 1
    assert unknown_variables(["MAINSPRING_QXZWV", "PROT"]) == [
        "MAINSPRING_QXZWV is not the name of a setting, and is ignored"
    ]


def test_every_variable_of_the_project_is_known() -> None:
    """A name that other parts read must not be reported as misspelt."""
    parts = [path for part in ("src", "docs", "examples", "tests") for path in (ROOT / part).rglob("*")]
    texts = [
        path.read_text("utf-8") for path in (ROOT / "Makefile", *parts) if path.suffix in ENDINGS and path.is_file()
    ]
    used = {name for text in texts for name in re.findall(r"\bMAINSPRING_[A-Z_]*[A-Z]\b", text)}
    assert "MAINSPRING_METRICS_PORT" in used
    assert unknown_variables(used - MISSPELT) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--store", "nonsense://x"], "no store for 'nonsense'"),
        (["nomodule:app"], "there is no module 'nomodule'"),
        (["--config", "."], ". is not a file"),
    ],
)
def test_config_check_finds_what_would_keep_the_service_from_starting(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "check", *options]) == 1
    assert f"error: {said}" in capsys.readouterr().out


def test_tokens_use_the_store_of_the_settings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text('store = "sqlite:///service.db"')
    app = Mainspring("sqlite:///service.db")
    app.run(app.store.open())
    app.run(app.close())
    assert main(["tokens", "create", "ci", "--scope", "read"]) == 0
    assert main(["tokens", "list", "--store", "sqlite:///service.db"]) == 0
    assert "ci" in capsys.readouterr().out


def test_the_demo_names_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "abc")
    with pytest.raises(SystemExit, match=r"^port: Input should be a valid integer.*\nFor example: PORT=8341 make run$"):
        runpy.run_module("mainspring.demo", run_name="__main__")


def new_store(folder: Path) -> str:
    app = Mainspring(f"sqlite:///{folder}/jobs.db")
    app.run(app.store.open())
    app.run(app.close())
    return app.store.url


def test_tokens_are_created_listed_and_revoked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = ["--store", new_store(tmp_path)]
    assert main(["tokens", "create", "ci", "--scope", "read,enqueue", "--expires", "30d", *store]) == 0
    text = capsys.readouterr().out.strip()
    assert text.startswith("msk_")
    assert main(["tokens", "list", *store]) == 0
    listed = capsys.readouterr().out
    assert "enqueue,read" in listed
    assert text not in listed
    assert main(["tokens", "revoke", text, *store]) == 0
    assert main(["tokens", "revoke", text, *store]) == 3
    assert f"there is no token '{text.split('_')[1]}'" in capsys.readouterr().err
    assert main(["tokens", "create", "ci", "--scope", "everything", *store]) == 2
    assert "the scopes of a token are read, enqueue" in capsys.readouterr().err
    assert main(["tokens", "create", "ci", *store]) == 2
    assert "--scope" in capsys.readouterr().err


def test_listed_tokens_are_json_as_in_the_api(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = ["--store", new_store(tmp_path), "--json"]
    scopes = ",".join(reversed(list(Scope)))
    assert main(["tokens", "create", "ci", "--scope", scopes, *store]) == 0
    capsys.readouterr()
    assert main(["tokens", "list", *store]) == 0
    (token,) = json.loads(capsys.readouterr().out)["tokens"]
    assert token["scopes"] == sorted(Scope)
    assert token.keys() == TokenView.model_fields.keys()


OPTIONS: dict[str, tuple[str, Any]] = {
    "store": ("--store postgresql://db/jobs", "postgresql://db/jobs"),
    "app": ("shop.jobs:app", "shop.jobs:app"),
    "host": ("--host ::1", "::1"),
    "port": ("--port 80", 80),
    "allowed_hosts": ("--allowed-hosts a.example,b.example", ("a.example", "b.example")),
    "worker": ("--no-worker", False),
    "schedules": ("--no-schedules", False),
    "queues": ("--queues mail,p/acme/*", ("mail", "p/acme/*")),
    "concurrency": ("--concurrency 7", 7),
    "log_level": ("--log-level debug", "debug"),
    "log_format": ("--log-format json", "json"),
    "metrics": ("--no-metrics", False),
    "tokens": ("--tokens required", "required"),
    "proxy_header": ("--proxy-header X-Forwarded-User", "X-Forwarded-User"),
    "proxy_addresses": ("--proxy-addresses 10.0.0.5,192.168.0.0/16", ("10.0.0.5", "192.168.0.0/16")),
    "proxy_scopes": ("--proxy-scopes read,operate", ("read", "operate")),
    "outgoing_allow": ("--outgoing-allow 10.1.0.0/16", ("10.1.0.0/16",)),
    "max_body": ("--max-body 5000", 5000),
    "header_timeout": ("--header-timeout 5", 5.0),
    "body_timeout": ("--body-timeout 5", 5.0),
    "rate_limit": ("--rate-limit 0.5", 0.5),
    "rate_burst": ("--rate-burst 3", 3),
    "max_wait": ("--max-wait 60", 60.0),
    "otel": ("--otel", True),
    "sentry_dsn": ("--sentry-dsn https://key@sentry.example/1", "https://key@sentry.example/1"),
    "sentry_traces": ("--sentry-traces 0.25", 0.25),
    "redact": ("--redact iban,/card", ("iban", "/card")),
    "redact_tasks": ('--redact-tasks {"login":["/code"]}', {"login": ("/code",)}),
}


def test_every_setting_has_an_option() -> None:
    assert OPTIONS.keys() == ServiceSettings.model_fields.keys()


@pytest.mark.parametrize("command", ["serve", "config check"])
@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_sets_its_setting(command: str, name: str) -> None:
    option, value = OPTIONS[name]
    args = build_parser(only=command.partition(" ")[0]).parse_args([*command.split(), *option.split(" ")])
    assert settings_of(args).model_dump() == ServiceSettings.model_validate({name: value}).model_dump()


def test_the_worker_of_the_service_has_its_queues_and_concurrency() -> None:
    made = worker_settings(ServiceSettings(queues=("mail", "sms"), concurrency=7, schedules=False))
    assert [subscription.queue for subscription in made.queues] == ["mail", "sms"]
    assert (made.concurrency, made.schedules) == (7, False)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--redact-tasks", "[]"], "is not a JSON object"),
        (["--queues", "mail,mail"], "queues: a worker takes from each queue once; named twice: mail"),
        (["--queues", ","], "queues"),
        (["--concurrency", "0"], "concurrency: Input should be greater than or equal to 1"),
    ],
)
def test_a_wrong_option_is_named(option: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", *option]) != 0
    output = capsys.readouterr()
    assert said in output.out + output.err


@pytest.mark.parametrize("command", [["serve"], ["config", "check"], ["tokens", "list"]])
def test_a_missing_extra_is_named(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mainspring, "service", mainspring.service)  # the import below replaces it
    for name in [name for name in sys.modules if name.startswith("mainspring.service")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert main(command) == 2
    assert "pip install 'mainspring[service]'" in capsys.readouterr().err


# -- users whom a proxy names -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"proxy_addresses": ("0.0.0.0/0",)}, "everybody could name any user"),
        ({"proxy_addresses": ("::/1", "8000::/1")}, "everybody could name any user"),
        ({"proxy_addresses": ("proxy.example",)}, "not a network"),
        ({"proxy_addresses": ("10.0.0.5/8",)}, "not a network"),
        ({"proxy_header": "X-Forwarded-For"}, "only your proxy sets"),
        ({"proxy_header": "Authorization"}, "only your proxy sets"),
        ({"proxy_header": "X User"}, "only your proxy sets"),
        ({"proxy_scopes": ("write",)}, "there is no scope 'write'; give some of read, enqueue"),
        ({"proxy_scopes": ()}, "at least 1 item"),
        ({"proxy_header": "X-User", "tokens": "optional"}, "tokens are required with proxy_header"),
    ],
)
def test_a_proxy_that_cannot_be_trusted_is_an_error(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        load_settings(**given)


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        ({"proxy_header": "X-User"}, "proxy_addresses is empty, so the header X-User is ignored: list your proxies"),
        ({"proxy_addresses": ("10.0.0.5",)}, "proxy_addresses and proxy_scopes have no effect without proxy_header"),
        (
            {"proxy_header": "X-User", "proxy_addresses": ("127.0.0.1",)},
            "proxy_addresses has a loopback address: every program of this machine can name any user",
        ),
        (
            {"proxy_header": "X-User", "proxy_addresses": ("9.0.0.0/8",)},
            "proxy_addresses has public networks (9.0.0.0/8): every machine there can name any user",
        ),
        (
            {"proxy_header": "X-User", "proxy_addresses": ("10.0.0.5",), "proxy_scopes": ("admin",)},
            "proxy_scopes has admin: every user of the proxy can make tokens and reveal secrets",
        ),
    ],
)
def test_a_risky_proxy_is_a_warning(given: dict[str, Any], warning: str) -> None:
    assert warnings_of(load_settings(**given)) == [warning]


def test_a_service_behind_a_proxy_needs_tokens_on_loopback_too() -> None:
    assert not ServiceSettings().bound().needs_tokens
    assert ServiceSettings(proxy_header="X-User", proxy_addresses=("10.0.0.5",)).bound().needs_tokens
    assert warnings_of(ServiceSettings(proxy_header="X-User", proxy_addresses=("10.0.0.5",))) == []
