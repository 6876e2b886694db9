"""Signatures of Standard Webhooks, with the test vectors of the specification's own libraries."""

from __future__ import annotations

import base64

import pytest

from mainspring.errors import ConfigurationError, InvalidSignature
from mainspring.webhooks import new_secret, signature, signed, verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MESSAGE, SENT_AT, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
EXPECTED = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
OTHER = "v1,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc="


def headers(**changes: str) -> dict[str, str]:
    given = signed(BODY, [SECRET], MESSAGE, SENT_AT) | {name.replace("_", "-"): text for name, text in changes.items()}
    return {name: value for name, value in given.items() if value}


@pytest.mark.parametrize("secret", [SECRET, SECRET.removeprefix("whsec_")])
def test_the_signature_is_that_of_the_specification(secret: str) -> None:
    assert signature(BODY, secret, MESSAGE, SENT_AT) == EXPECTED


def test_a_signed_request_is_accepted_and_its_id_returned() -> None:
    assert verify(BODY, headers(), [SECRET], now=SENT_AT) == MESSAGE


def test_names_of_headers_may_have_capitals() -> None:
    given = {name.title(): value for name, value in headers().items()}
    assert verify(BODY, given, [SECRET], now=SENT_AT) == MESSAGE


@pytest.mark.parametrize("name", ["webhook_id", "webhook_timestamp", "webhook_signature"])
def test_a_request_without_one_of_the_headers_is_refused(name: str) -> None:
    with pytest.raises(InvalidSignature, match=name.replace("_", "-")):
        verify(BODY, headers(**{name: ""}), [SECRET], now=SENT_AT)


@pytest.mark.parametrize(
    "wrong", [OTHER, "v1,", "v1", ",", EXPECTED.replace("v1,", "v2,"), EXPECTED[:-1], f"{EXPECTED}é", EXPECTED.upper()]
)
def test_a_wrong_signature_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidSignature, match="no signature"):
        verify(BODY, headers(webhook_signature=wrong), [SECRET], now=SENT_AT)


def test_one_right_signature_among_others_is_enough() -> None:
    several = " ".join([OTHER, OTHER.replace("v1,", "v2,"), EXPECTED, OTHER])
    assert verify(BODY, headers(webhook_signature=several), [SECRET], now=SENT_AT) == MESSAGE


def test_while_a_secret_is_changed_both_are_accepted() -> None:
    old, new = new_secret(), new_secret()
    both = signed(BODY, [new, old], MESSAGE, SENT_AT)
    assert both["webhook-signature"].count("v1,") == 2
    for known in ([old], [new], [new, old]):
        assert verify(BODY, both, known, now=SENT_AT) == MESSAGE
    with pytest.raises(InvalidSignature):
        verify(BODY, both, [SECRET], now=SENT_AT)


@pytest.mark.parametrize("age", [301, -301])
def test_an_old_request_and_one_from_the_future_are_refused(age: int) -> None:
    with pytest.raises(InvalidSignature, match="300 s"):
        verify(BODY, headers(), [SECRET], now=SENT_AT + age)
    assert verify(BODY, headers(), [SECRET], now=SENT_AT + age, tolerance=400) == MESSAGE


@pytest.mark.parametrize("moment", ["tomorrow", "-5", "1614265330.5", "9" * 13, "١٦١٤"])
def test_a_time_that_is_not_one_is_refused(moment: str) -> None:
    with pytest.raises(InvalidSignature):
        verify(BODY, headers(webhook_timestamp=moment), [SECRET], now=SENT_AT)


def test_another_body_time_or_id_is_refused() -> None:
    for body, changes in ((BODY + b" ", {}), (BODY, {"webhook_timestamp": "1614265331"}), (BODY, {"webhook_id": "m"})):
        with pytest.raises(InvalidSignature, match="no signature"):
            verify(body, headers(**changes), [SECRET], now=SENT_AT)


def test_an_id_cannot_move_the_full_stop() -> None:
    """`a.1` + `2` and `a` + `1.2` would be the same signed text."""
    with pytest.raises(ConfigurationError, match="full stop"):
        signed(BODY, [SECRET], "a.1", 2)
    with pytest.raises(InvalidSignature, match="form"):
        verify(BODY, headers(webhook_id="a.1"), [SECRET], now=SENT_AT)


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_%%%", "whsec_" + base64.b64encode(b"short").decode(), "é" * 40]
)
def test_what_is_not_a_secret_is_refused(secret: str) -> None:
    with pytest.raises(ConfigurationError, match="new_secret"):
        signed(BODY, [secret], MESSAGE, SENT_AT)


def test_new_secrets_differ() -> None:
    assert len({new_secret() for _ in range(10)}) == 10
