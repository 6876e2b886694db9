"""What is hidden, and what is not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from mainspring import Cancel, Chunk, Discard, Mainspring, Redaction, Retry, Snooze
from mainspring.errors import ConfigurationError, InvalidPayload
from mainspring.redaction import DEFAULT_KEYS, MARK, redact, restored
from mainspring.stores.engine.ack import LONGEST_MESSAGE

HIDDEN_KEYS = [
    "password", "db_password", "passwordHash", "Authorization", "API-Key", "apiKey", "x-api-key", "token",
    "accessToken",
    "csrf_token", "client_secret", "SECRET_KEY", "Cookie", "Set-Cookie", "privateKey", "aws_access_key", "credentials",
    "card_number", "cardNumber", "cvv", "pin", "otp", "session_id", "jwt",
]  # fmt: skip
SHOWN_KEYS = ["max_tokens", "tokenizer", "tokens", "key", "pinned", "author", "spin", "id", "user", "email", "card"]


@pytest.mark.parametrize("key", HIDDEN_KEYS)
def test_a_secret_key_is_hidden_by_default(key: str) -> None:
    assert redact({"a": [{key: "hunter2"}]}) == {"a": [{key: MARK}]}


@pytest.mark.parametrize("key", SHOWN_KEYS)
def test_an_ordinary_key_is_shown(key: str) -> None:
    assert redact({key: "hunter2"}) == {key: "hunter2"}


def test_a_default_rule_has_an_example() -> None:
    for rule in DEFAULT_KEYS:
        assert redact({rule.replace("*", "x"): "hunter2"}) == {rule.replace("*", "x"): MARK}


def test_nothing_and_yes_or_no_are_shown() -> None:
    data = {"token": None, "secret": True, "password": 5, "credentials": {"user": "x"}, "cookie": ["a"]}
    assert redact(data) == {"token": None, "secret": True, "password": MARK, "credentials": MARK, "cookie": MARK}


def test_a_value_is_never_changed() -> None:
    data = {"password": "x", "list": [{"token": "y"}, "https://u:p@h"]}
    before = copy.deepcopy(data)
    redact(data)
    assert data == before


POINTERS: list[tuple[str, Any, Any]] = [
    ("/card/number", {"card": {"number": 1, "name": "x"}}, {"card": {"number": MARK, "name": "x"}}),
    ("/items/*/pan", {"items": [{"pan": 1}, {"pan": 2}], "pan": 3}, {"items": [{"pan": MARK}] * 2, "pan": 3}),
    ("/**/iban", {"iban": 1, "a": [{"b": {"iban": 2}}]}, {"iban": MARK, "a": [{"b": {"iban": MARK}}]}),
    ("/people/0", {"people": ["Ada", "Bob"]}, {"people": [MARK, "Bob"]}),
    ("/a~1b/m~0n", {"a/b": {"m~n": 1}}, {"a/b": {"m~n": MARK}}),
    ("/whole", {"whole": {"a": 1}}, {"whole": MARK}),
    ("/number", {"card": {"number": 1}}, {"card": {"number": 1}}),
]


@pytest.mark.parametrize(("pointer", "data", "shown"), POINTERS)
def test_a_pointer_hides_its_place(pointer: str, data: Any, shown: Any) -> None:
    assert Redaction((pointer,)).value(data) == shown


def test_a_task_has_rules_of_its_own() -> None:
    rules = Redaction(tasks={"login": ("/code", "nickname")})
    data = {"code": 1, "nickname": "x", "password": "y"}
    assert rules.value(data, "login") == {"code": MARK, "nickname": MARK, "password": MARK}
    assert rules.value(data, "other") == {"code": 1, "nickname": "x", "password": MARK}


def test_the_defaults_can_be_left_out() -> None:
    rules = Redaction(("iban",), defaults=False)
    assert rules({"password": "x", "iban": "y"}) == {"password": "x", "iban": MARK}


@pytest.mark.parametrize("rule", ["", "/", "*", 5])
def test_a_rule_that_is_none_is_refused(rule: Any) -> None:
    with pytest.raises(ConfigurationError, match="is not a rule"):
        Redaction((rule,))


def test_a_string_instead_of_rules_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be a list"):
        Redaction("password")


def test_deep_data_does_not_end_in_an_error() -> None:
    data: Any = "x"
    for _ in range(5_000):
        data = [data]
    assert MARK in json.dumps(redact(data))


TEXTS = [
    ("login failed: password=hunter2, user=x", "login failed: password=[redacted], user=x"),
    ("{'password': 'hun\\'ter', 'a': 1}", "{'password': '[redacted]', 'a': 1}"),
    ('{"token": "a b", "n": 1}', '{"token": "[redacted]", "n": 1}'),
    ('{"pin": 1234}', '{"pin": "[redacted]"}'),
    ('{"a":"{\\"secret\\": \\"abc\\"}"}', '{"a":"{\\"secret\\": \\"[redacted]\\"}"}'),
    ("Authorization: Bearer abc.def", "Authorization: [redacted]"),
    ("sent Bearer abcdef123", "sent Bearer [redacted]"),
    ("connect to postgres://ada:pw@db/x failed", "connect to postgres://ada:[redacted]@db/x failed"),
    ("card 4111 1111 1111 1111 was refused", "card [redacted] was refused"),
    ("msk_7owZxPgY_" + "A" * 49, "msk_[redacted]"),
    ("eyJhbGciOi.eyJzdWIiOi.abc", "[redacted]"),
    ("token=None, secret: null", "token=None, secret: null"),
    ("job 1731866400000 of 4111111111111112", "job 1731866400000 of 4111111111111112"),
    ("basic authentication is not supported", "basic authentication is not supported"),
    ("ValueError: invalid literal for int()", "ValueError: invalid literal for int()"),
]


@pytest.mark.parametrize(("text", "shown"), TEXTS)
def test_secrets_in_a_text_are_found_by_their_form(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(shown) == shown


@pytest.mark.parametrize("quote", [repr, json.dumps])
def test_secrets_are_found_however_often_a_text_is_quoted(quote: Callable[[Any], str]) -> None:
    text = quote({"password": "hunter2 \"quoted\" 'twice'", "guest": "Ada"})
    for _ in range(3):
        assert "hunter2" not in redact(text)
        assert "twice" not in redact(text)
        assert "Ada" in redact(text)
        text = quote({"traceback": f"RuntimeError: cannot send {text}", "guest": "Ada"})


def test_a_text_of_backslashes_is_searched_fast() -> None:
    text = "\\" * 200_000 + "password"
    assert redact(text) == text


def test_secret_values_of_a_job_are_found_in_its_texts() -> None:
    secret = 'qu"ote\nline'
    hide = redact.hide({"password": "hunter2x", "pin": 1234, "token": secret}, {"authorization": "abc-def"})
    for text in ("hunter2x", "xhunter2xx", "1234", repr(secret), json.dumps(secret), secret, "abc-def"):
        shown = hide(f"error: {text}!")
        assert MARK in shown
        assert not any(part in shown for part in ("hunter2x", "1234", "ote", "abc-def")), shown
    assert hide("12345 of x1234x") == "12345 of x1234x"


def test_tiny_values_are_not_searched_for() -> None:
    assert redact.hide({"pin": 7})("line 7 of 77") == "line 7 of 77"


# -- writing back what was shown ------------------------------------------------------------------------

OLD = {"user": "ada", "password": "hunter2", "hosts": [{"name": "a", "token": "t1"}, {"name": "b", "token": "t2"}]}


def test_what_was_shown_and_sent_back_keeps_its_secrets() -> None:
    rules = redact.of(None)
    assert restored(rules.value(OLD), OLD, rules) == OLD
    assert restored({**rules.value(OLD), "user": "bob"}, OLD, rules) == {**OLD, "user": "bob"}
    assert restored({"user": "bob"}, OLD, rules) == {"user": "bob"}
    assert restored({"password": "new", "flag": True}, {"password": "x", "flag": 1}, rules) == {
        "password": "new",
        "flag": True,
    }


@pytest.mark.parametrize(
    "new",
    [
        {"pass_word": MARK},
        {"user": MARK},
        {"hosts": [{"name": "b", "token": MARK}, {"name": "a", "token": MARK}]},
        {"hosts": [{"name": "b", "token": MARK}]},
        [MARK],
        MARK,
    ],
)
def test_a_mark_that_stands_for_no_certain_value_is_refused(new: Any) -> None:
    with pytest.raises(InvalidPayload, match="give the value itself"):
        restored(new, OLD, redact.of(None))


# -- texts about runs -----------------------------------------------------------------------------------

SECRETS = ("hunter2-one", "hunter2-two")


async def test_an_error_of_a_chunk_names_no_secret_of_any_of_its_jobs() -> None:
    app = Mainspring("memory://")

    @app.task(chunk=Chunk(2), retry=Retry(max_attempts=1))
    def login(users: list[dict[str, str]]) -> None:
        raise ValueError(", ".join(user["password"] for user in users))

    async with app:
        ids = [(await login.enqueue({"password": secret})).id for secret in SECRETS]
        await app.worker().drain()
        stored = [str((await app.jobs.get(job_id)).failure) for job_id in ids]
    assert all(MARK in text and not any(secret in text for secret in SECRETS) for text in stored)


@pytest.mark.parametrize("end", [lambda why: Snooze(60, why), Cancel, Discard], ids=["snooze", "cancel", "discard"])
async def test_reasons_of_handlers_are_redacted(end: Callable[[str], Exception]) -> None:
    app = Mainspring("memory://")

    @app.task
    async def login(password: str) -> None:
        raise end(f"not {password}")

    async with app:
        job_id = (await login.enqueue(password=SECRETS[0])).id
        async with app.worker().draining() as run_due:
            await run_due()
        job = await app.jobs.get(job_id)
    assert job.reason == f"not {MARK}"
    assert SECRETS[0] not in str(job.failure)


async def test_a_secret_where_a_long_text_is_cut_leaves_no_part() -> None:
    app = Mainspring("memory://")

    @app.task(retry=Retry(max_attempts=1))
    async def login(password: str) -> None:
        raise ValueError("x" * (LONGEST_MESSAGE // 2 - 5) + password + "y" * LONGEST_MESSAGE)

    async with app:
        job_id = (await login.enqueue(password=SECRETS[0])).id
        await app.worker().drain()
        failure = (await app.jobs.get(job_id)).failure
    assert failure is not None
    assert "hunt" not in failure.message + failure.traceback
