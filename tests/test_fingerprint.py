"""Fingerprints: the same cause gives the same one, another cause another one, on every machine."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import string
from collections.abc import Callable
from typing import Any

import pytest

from mainspring.fingerprint import LENGTH, LONGEST_TEMPLATE, fingerprint, leaf_of, place_of, template_of

SAME: list[tuple[str, str]] = [
    ("there is no order 7", "there is no order 12345"),
    ("took 1.5 s", "took 20 s"),
    ("50% done", "3.25% done"),
    ("balance is -12.50", "balance is 1,250.00"),
    ("value 1e-9", "value 2.5E+10"),
    ("user 0190c7a0-9f3b-7c0e-8f6d-0a1b2c3d4e5f is gone", "user 11111111-2222-4333-8444-555555555555 is gone"),
    ("object at 0x7f3a2c11d0", "object at 0xdeadbeef"),
    ("commit 3f2a9bc is missing", "commit 9fe4c1d8aa32 is missing"),
    ("due 2026-11-17T08:20:00Z", "due 2025-01-02T03:04:05.678+02:00"),
    ("due 2026-11-17 08:20:00", "due 2026-11-18 09:21:30"),
    ("on 2026-11-17", "on 1999-01-01"),
    ("at 08:20", "at 23:59:59"),
    ("mail to ana@example.com failed", "mail to bob.smith+x@mail.example.org failed"),
    ("cannot read /home/ana/app/data.csv", "cannot read /srv/releases/42/data/other.csv"),
    (r"cannot read C:\Users\ana\data.csv", r"cannot read D:\work\x\y.csv"),
    ("GET https://api.example.com/v1/users/7 failed", "GET https://api.example.com/v1/users/8?x=1 failed"),
    ("no key 'ana'", "no key 'bob'"),
    ('no key "ana"', 'no key "it\'s"'),
    ("no key `ana`", "no key `bob`"),
    ("no key “ana”", "no key “bob”"),
    ("got b'\\x00'", "got b'abc'"),
    ("connect to 10.0.0.7:5432 refused", "connect to 192.168.1.20:6543 refused"),
    ("customer cus_NffrFeUfNV2Hib failed", "customer cus_9s6XKzkNRiz8i3 failed"),
    ("ids 1, 2, 3 are missing", "ids 4, 5 are missing"),
    ("a  b\n c", "a b c"),
    ("port 5432", "port 80"),
    ("room1 is closed", "room13 is closed"),
    ("worker7 is silent", "worker12 is silent"),
    ("Zimmer1 fehlt", "Zimmer22 fehlt"),
    ("release v1.2.3 failed", "release v10.0 failed"),
    ("took 30s", "took 1.5s"),
    ("order A1B2C3 is gone", "order Z9Y8X7 is gone"),
    ("order 01HZX is gone", "order 7KQ2M is gone"),
    ("order AB12CD is gone", "order 3f2a9b is gone"),
    ("order_A1B2 is gone", "order_q7x2m is gone"),
    ("room1e5 and 1e5", "k2m4 and 2.5e-10"),
    ("no key 'a\nb' here", "no key 'c' here"),
    ('query "SELECT 1\n  FROM t" failed', 'query "DELETE\n\n  FROM u" failed'),
    ("query `a\nb` failed", "query `c` failed"),
    ("no key “a\nb”", "no key “c”"),
    ("got 'a\n' and 'b'", "got 'c' and 'd'"),
    ("it's not ' closed\nand 'ana' failed", "it's not ' closed\nand 'bob' failed"),
    ("no guest 'O'Brien' here", "no guest 'Ana' here"),
    ("no guest 'it's O'Brien's' and 'x'", "no guest 'Ana' and 'Bob'"),
    ("no guest ‘O’Brien’ here", "no guest ‘Ana’ here"),  # noqa: RUF001
    ("invoice INV-2026-000123 is gone", "invoice INV-2026-7 is gone"),
    ("got b'x' and b'y'", "got b'abc' and b'd'"),
]
DIFFERENT: list[tuple[str, str]] = [
    ("there is no order 7", "there is no guest 7"),
    ("connection refused", "connection reset"),
    ("cannot read 'a'", "cannot write 'a'"),
    ("timeout", ""),
    ("utf8 is wrong", "latin is wrong"),
    ("isn't there and won't come", "isn't there and can't come"),
    ("room1 is closed", "hall1 is closed"),
    ("S3Error", "Http2Error"),
    ("k8s is down", "i18n is down"),
    ("took 30s", "took 30ms"),
    ("took 30s", "took 30"),
    ("utf8 is wrong", "cp1252 is wrong"),
    ("order A1B2C3 is gone", "order A1B2C3 is late"),
    ("isn't\nthere", "isn't\nhere"),
    ("a ' b\nc 'x' d", "a ' e\nc 'x' d"),
    ("'x' is missing in 'y'", "'x' is too long in 'y'"),
    ("b'x' is missing in b'y'", "b'x' is too long in b'y'"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_variable_parts_of_a_message_do_not_count(one: str, other: str) -> None:
    assert template_of(one) == template_of(other)
    assert fingerprint("t", "E", "m:f", one) == fingerprint("t", "E", "m:f", other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_other_words_make_another_group(one: str, other: str) -> None:
    assert fingerprint("t", "E", "m:f", one) != fingerprint("t", "E", "m:f", other)


@pytest.mark.parametrize("message", sorted({message for pair in (*SAME, *DIFFERENT) for message in pair}))
def test_a_template_is_its_own_template_and_has_no_digits(message: str) -> None:
    made = template_of(message)
    assert template_of(made) == made
    assert not set(made) & set(string.digits)


@pytest.mark.parametrize(
    ("message", "template"),
    [
        ("room12", "room<number>"),
        ("utf16", "utf<number>"),
        ("HTTP404", "HTTP<number>"),
        ("30ms", "<number>ms"),
        ("0.5USD", "<number>USD"),
        ("S3Error", "S<number>Error"),
        ("A1B2C3", "<id>"),
        ("01HZX", "<id>"),
        ("room-12", "room-<number>"),
    ],
)
def test_names_keep_their_letters_and_ids_keep_nothing(message: str, template: str) -> None:
    assert template_of(message) == template


@pytest.mark.parametrize("part", range(4))
def test_each_part_counts(part: int) -> None:
    given = ["task", "ValueError", "module:function", "message"]
    changed = [*given[:part], "other", *given[part + 1 :]]
    assert fingerprint(*given) != fingerprint(*changed)


def test_parts_cannot_be_mistaken_for_each_other() -> None:
    assert fingerprint("ab", "c", "", "") != fingerprint("a", "bc", "", "")


def test_it_is_short_hex_and_never_changes() -> None:
    """Stored groups would fall apart if a new version made other fingerprints."""
    made = fingerprint("charge", "LookupError", "shop.orders:find", "there is no order 7")
    assert len(made) == LENGTH
    assert set(made) <= set(string.hexdigits.lower())
    assert made == "739a6c1c37f94624"


@pytest.mark.parametrize("message", ["\ud800", "x" * 10_000_000, "'" * 100_000, "/" * 100_000, "1," * 100_000, "\0"])
def test_hostile_messages_are_quick(message: str) -> None:
    assert len(fingerprint("t", "E", "", message)) == LENGTH


# -- the place --------------------------------------------------------------------------------------------


def raised_by(function: Callable[[], Any]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    msg = "it did not raise"
    raise AssertionError(msg)


def innermost() -> None:
    msg = "boom"
    raise ValueError(msg)


def outer() -> None:
    innermost()


HERE = __name__


def test_the_place_is_the_innermost_function_of_the_users_code() -> None:
    assert place_of(raised_by(outer)) == f"{HERE}:innermost"


def test_the_standard_library_is_passed_over() -> None:
    def parse() -> None:
        json.loads("{")

    assert place_of(raised_by(parse)).endswith("parse")
    assert place_of(raised_by(parse)).startswith(f"{HERE}:")


def test_methods_have_the_name_of_their_class() -> None:
    @dataclasses.dataclass
    class Mailer:
        def send(self) -> None:
            innermost_of(self)

    def innermost_of(_: Mailer) -> None:
        raise OSError

    assert place_of(raised_by(Mailer().send)).endswith("innermost_of")


def run_file(code: str, filename: str, module: str) -> Callable[[], Any]:
    names: dict[str, Any] = {"__name__": module}
    exec(compile(code, filename, "exec"), names)  # noqa: S102
    function: Callable[[], Any] = names["f"]
    return function


PACKAGES = "/venv/lib/python3.12/site-packages"


def test_installed_packages_are_passed_over() -> None:
    library = run_file("def f(): raise ValueError('x')", f"{PACKAGES}/requests/api.py", "requests.api")

    def handler() -> None:
        library()

    assert place_of(raised_by(handler)).endswith("handler")


def test_an_application_that_is_itself_installed_counts_as_the_users_code() -> None:
    """Images usually install the application into site-packages."""
    library = run_file("def f(): raise ValueError('x')", f"{PACKAGES}/requests/api.py", "requests.api")
    names: dict[str, Any] = {"__name__": "shop.mail", "library": library}
    code = "def send(): library()\ndef handler(): send()"
    exec(compile(code, f"{PACKAGES}/shop/mail.py", "exec"), names)  # noqa: S102
    error = raised_by(names["handler"])
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next  # the test's own frame is not there in a worker
    assert place_of(error) == "shop.mail:send"


def test_the_same_code_in_another_directory_has_the_same_place() -> None:
    places = set()
    for root in ("/srv/a", "/home/ana/b"):
        function = run_file("\n" * len(root) + "def f(): raise ValueError", f"{root}/shop/mail.py", "shop.mail")
        places.add(place_of(raised_by(function)))
    assert places == {"shop.mail:f"}


@pytest.mark.parametrize("name", ["__main__", "__mp_main__"])
def test_a_program_has_the_name_of_its_file_also_in_a_child_process(name: str) -> None:
    function = run_file("def f(): raise ValueError", "/srv/app/worker_main.py", name)
    assert place_of(raised_by(function)) == "worker_main:f"


def test_an_error_that_was_never_raised_has_no_place() -> None:
    assert not place_of(ValueError("x"))


def test_mainspring_itself_is_passed_over() -> None:
    function = run_file("def f(): raise ValueError", "/x/mainspring/worker/run.py", "mainspring.worker.run")
    error = raised_by(function)
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next
    assert not place_of(error)


def test_the_first_error_of_a_group_decides() -> None:
    async def child() -> None:
        msg = "boom"
        raise ValueError(msg)

    async def parent() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())

    assert place_of(raised_by(lambda: asyncio.run(parent()))).endswith("child")


def test_a_leaf_that_was_never_raised_has_the_place_of_the_innermost_group_that_was() -> None:
    def inner() -> None:
        msg = "several"
        raise ExceptionGroup(msg, [ExceptionGroup(msg, [ValueError("never raised")])])

    def collect() -> None:
        msg = "all"
        raise BaseExceptionGroup(msg, [raised_by(inner)])

    assert place_of(raised_by(collect)).endswith("inner")
    assert not place_of(ExceptionGroup("never raised", [ValueError()]))


def test_the_leaf_of_a_group_is_its_first_exception_that_is_not_a_group() -> None:
    leaf = ValueError("first")
    inner: ExceptionGroup[Exception] = ExceptionGroup("inner", [leaf, KeyError("second")])
    assert leaf_of(ExceptionGroup("outer", [inner, OSError("third")])) is leaf
    assert leaf_of(leaf) is leaf


def test_leaves_that_only_stop_the_code_are_passed_over() -> None:
    stop, leaf = asyncio.CancelledError(), ValueError("the cause")
    inner = BaseExceptionGroup("inner", [stop, leaf])
    assert leaf_of(BaseExceptionGroup("outer", [BaseExceptionGroup("stops", [stop]), inner])) is leaf
    assert leaf_of(BaseExceptionGroup("stops", [stop, KeyboardInterrupt()])) is stop
    assert leaf_of(stop) is stop


def test_groups_may_be_nested_deeper_than_python_recurses() -> None:
    error: Exception = ValueError("deep")
    for _ in range(2_000):
        error = ExceptionGroup("outer", [error])
    assert str(leaf_of(error)) == "deep"


LONG_WORDS = [*"a4é'(“«„ ", "f0", "Zz9+", "a.b-", "a/b", "/a", "a@", "0x", "1.", "1,", "12:", "a_1", "<a> "]
LONG_WORDS += ["A1", "1A", "1AAA", "1e", "1.1A", "\\'", "\\\\'", " '\\", "'\\\n", "'\n", "\n'a", "`\n", "“\n", "\"'`\n"]


@pytest.mark.parametrize("unit", LONG_WORDS)
def test_a_message_of_one_long_word_is_read_in_one_pass(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.fingerprint.LONGEST_READ", 100_000)  # a pass for each character would not end
    assert len(template_of(unit * (100_000 // len(unit)))) <= LONGEST_TEMPLATE
