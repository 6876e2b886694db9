"""Redaction: what nobody but a handler should see is replaced by `[redacted]` wherever data leaves the store.

A `Redaction` has rules. A rule is the name of a key (`password`, `*_token`) or the pattern of a JSON pointer
(`/card/number`, `/items/*/pin`, `/**/iban`). Values of places that a rule matches are replaced. In free text, such as
the message of an error, these are replaced: values of the same job that a rule matches, `key=value` if a rule matches
the key, and what looks like a secret by its form alone (see `FORMS`).

The functions return new values, and never change what they are given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cached_property
from typing import Any
from urllib.parse import quote

from mainspring.errors import ConfigurationError, InvalidPayload

MARK = "[redacted]"
MAX_LEVELS = 200  # of nesting; what is deeper is replaced as a whole
MAX_CACHED_KEYS = 10_000
MAX_VALUES = 1_000  # of one job that are searched for in its texts; the longest ones
SHORT = 6  # characters; a shorter value is replaced in a text only where it is a whole word
SHORTEST = 3  # characters; a shorter value would be found everywhere

DEFAULT_KEYS = (
    "*password*", "*passwd*", "pwd", "*passphrase", "*secret*", "*token", "authorization", "proxy_authorization",
    "*api_key", "*access_key", "*private_key", "*signing_key", "*encryption_key", "*credential*", "cookie",
    "set_cookie", "*session_id", "sid", "jwt", "bearer", "otp", "pin", "*card_number", "credit_card", "cvv",
    "cvc", "ssn",
)  # fmt: skip
"""Keys that are redacted by default. Case, `_`, `-` and spaces do not matter: `API-Key` and `apiKey` are the same."""

NAMES_OF_SECRETS: Mapping[str, Sequence[str]] = {"http": ("secret",)}
"""Keys of payloads, by task, whose value is the name of a secret, not the secret itself."""

Hide = Callable[[str], str]
"""Replaces what must not be seen in a text."""


@dataclass(frozen=True)
class Redaction:
    """The rules of an application: `Mainspring(redact=Redaction(rules=("/card",), tasks={"login": ("/code",)}))`.

    `rules` hold for all jobs, and `tasks` has those of single tasks. Both add to the default list of keys, unless
    `defaults` is False. A pointer is that of a place in a payload, in a result, or in the output of a step.
    """

    rules: Sequence[str] = ()
    tasks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    defaults: bool = True
    all_values: bool = False  # in texts that are stored about a job, hide every value of its payload

    def __post_init__(self) -> None:
        for rules in (self.rules, *self.tasks.values()):
            if isinstance(rules, str):
                msg = f"the rules of a Redaction must be a list, not a string; write ({rules!r},)"
                raise ConfigurationError(msg)
            for rule in rules:
                check_rule(rule)

    def with_more(self, rules: Sequence[str], tasks: Mapping[str, Sequence[str]]) -> Redaction:
        """Return these rules and further ones."""
        names = dict.fromkeys((*self.tasks, *tasks))
        both = {name: (*self.tasks.get(name, ()), *tasks.get(name, ())) for name in names}
        return replace(self, rules=(*self.rules, *rules), tasks=both)

    def __call__(self, value: Any) -> Any:
        """Return the value without secrets: for Sentry, and for logs of your own."""
        return self.value(value)

    def value(self, value: Any, task: str | None = None) -> Any:
        """Return JSON data without what the rules match."""
        return self.of(task).value(value)

    def text(self, text: str) -> str:
        """Return a text without what its form, or the key before it, shows to be a secret."""
        return self.of(None).text(text)

    def texts(self, value: Any, hide: Hide | None = None) -> Any:
        """Return data with `hide`, or `text`, applied to its texts, whatever their keys are."""
        return in_texts(value, hide or self.of(None).text, 0)

    def job(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return a job as it may be shown, given as JSON data with the names of `Job`'s fields."""
        rules = self.of(data["task"])
        hide = rules.hide((data["payload"], data.get("headers") or {}))
        shown = {name: in_texts(data[name], hide, 0) for name in TEXTS_OF_JOBS if data.get(name) is not None}
        values = {name: rules.value(data[name]) for name in VALUES_OF_JOBS if data.get(name) is not None}
        values["payload"] = self._told(values.get("payload"))
        return {**data, **shown, **{name: in_texts(value, hide, 0) for name, value in values.items()}}

    def _told(self, payload: Any) -> Any:
        """Return the payload of a callback, with the result that it tells redacted by the rules of the job's task."""
        body = payload.get("body") if isinstance(payload, dict) else None
        job = body.get("job") if isinstance(body, dict) else None
        if body is None or not isinstance(job, dict) or "result" not in body:
            return payload
        return {**payload, "body": {**body, "result": self.of(str(job.get("task"))).value(body["result"])}}

    def hide(self, payload: Any, headers: Any = None, task: str | None = None) -> Hide:
        """Return a function for the texts of one job. It also replaces values of its payload and its headers."""
        return self.of(task).hide((payload, headers or {}))

    def hide_stored(self, jobs: Iterable[tuple[Any, Any]], task: str | None = None) -> Hide:
        """Return a function for texts that are stored about jobs of a task, given by their payloads and headers."""
        parts = [part for payload, headers in jobs for part in (payload, headers or {})]
        return self.of(task).hide(parts, all_values=self.all_values)

    def of(self, task: str | None) -> Rules:
        """Return the rules for jobs of a task."""
        return self._of_tasks.get(task or "") or self._general

    @cached_property
    def strictest(self) -> Rules:
        """The rules of all tasks together, for data whose task is not known."""
        return Rules((*self._common, *(rule for rules in self.tasks.values() for rule in rules)))

    @cached_property
    def anywhere(self) -> Rules:
        """The rules of all tasks together, for data that may have payloads somewhere in it."""
        rules = (*self._common, *(rule for rules in self.tasks.values() for rule in rules))
        return Rules([f"/**{rule}" if rule.startswith("/") else rule for rule in rules])

    @cached_property
    def _general(self) -> Rules:
        return Rules(self._common)

    @cached_property
    def _of_tasks(self) -> Mapping[str, Rules]:
        tasks: dict[str, Sequence[str]] = {**dict.fromkeys(NAMES_OF_SECRETS, ()), **self.tasks}
        return {task: Rules((*self._common, *rules), NAMES_OF_SECRETS.get(task, ())) for task, rules in tasks.items()}

    @property
    def _common(self) -> tuple[str, ...]:
        return (*(DEFAULT_KEYS if self.defaults else ()), *self.rules)


VALUES_OF_JOBS = ("payload", "result", "headers")
TEXTS_OF_JOBS = ("progress", "failure", "reason", "dedupe_key", "target", "tags")
REDACTED_OF_JOBS = frozenset((*VALUES_OF_JOBS, *TEXTS_OF_JOBS))  # all other fields of a job are shown as they are


def in_texts(value: Any, hide: Hide, level: int) -> Any:
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, dict):
        return MARK if level > MAX_LEVELS else {key: in_texts(item, hide, level + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return MARK if level > MAX_LEVELS else [in_texts(item, hide, level + 1) for item in value]
    return value


def check_rule(rule: object) -> None:
    """Raise ConfigurationError if this is not a rule."""
    if not isinstance(rule, str) or not rule.strip() or rule in {"/", "*", "**"}:
        msg = f"{rule!r} is not a rule; give the name of a key, such as password, or a pointer, such as /card/number"
        raise ConfigurationError(msg)


def plain_key(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").replace(" ", "")


class Rules:
    """Compiled rules. They remember keys that they have judged, so that lists of similar jobs are fast."""

    def __init__(self, rules: Sequence[str], shown: Sequence[str] = ()) -> None:
        """`shown`: keys of the data itself, not of what is in it, that are shown whatever the rules say."""
        self._shown = frozenset(shown)
        keys = [plain_key(rule) for rule in rules if not rule.startswith("/")]
        self._matches = re.compile("|".join(map(translate, keys)) or r"(?!)").match
        self._judged: dict[str, bool] = {}
        self._pointers = tuple(parts_of(rule) for rule in rules if rule.startswith("/"))
        self._words = tuple(sorted({max(key.split("*"), key=len) for key in keys}))

    def hides(self, key: str, *, top: bool = False) -> bool:
        """Return whether values under this key are secret. `top`: it is a key of the data itself."""
        if top and key in self._shown:
            return False
        known = self._judged.get(key)
        if known is None:
            name = plain_key(key)
            known = (self._matches(name) or self._matches(name.rpartition(".")[2])) is not None
            if len(self._judged) < MAX_CACHED_KEYS:
                self._judged[key] = known
        return known

    def hides_path(self, path: str) -> bool:
        """Return whether values at a path such as `guest.card.number`, or some of them, are secret."""
        pointers = self._pointers
        for key in path.split("."):
            pointers = step(pointers, key)
            if self.hides(key) or () in pointers:
                return True
        return bool(pointers)

    def marked(self, payload: Any) -> str | None:
        """Return the first secret place of a payload whose value is the mark; None if there is none."""
        return self._marked(payload, self._pointers, "")

    def _marked(self, value: Any, pointers: Pointers, at: str) -> str | None:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, item in items:
            below, place = step(pointers, str(key)), f"{at}/{key}"
            if item == MARK and (() in below or (isinstance(key, str) and self.hides(key, top=not at))):
                return place
            if (found := self._marked(item, below, place)) is not None:
                return found
        return None

    # -- data ---------------------------------------------------------------------------------------

    def value(self, value: Any) -> Any:
        return self._clean(value, self._pointers, 0)

    def _clean(self, value: Any, pointers: Pointers, level: int) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, (dict, Mapping)):  # dict is checked first because it is faster
            return MARK if level > MAX_LEVELS else self._clean_object(value, pointers, level + 1)
        if isinstance(value, (list, tuple)):
            return MARK if level > MAX_LEVELS else self._clean_list(value, pointers, level + 1)
        return value

    def _clean_object(self, value: Mapping[Any, Any], pointers: Pointers, level: int) -> dict[Any, Any]:
        cleaned: dict[Any, Any] = {}
        for key, item in value.items():
            name = str(key)
            below = step(pointers, name) if pointers else pointers
            is_secret = self.hides(name, top=level == 1) or () in below
            cleaned[key] = hidden(item) if is_secret else self._clean(item, below, level)
        return cleaned

    def _clean_list(self, value: Sequence[Any], pointers: Pointers, level: int) -> list[Any]:
        if not pointers:
            return [self._clean(item, pointers, level) for item in value]
        cleaned: list[Any] = []
        for index, item in enumerate(value):
            below = step(pointers, str(index))
            cleaned.append(hidden(item) if () in below else self._clean(item, below, level))
        return cleaned

    # -- texts --------------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        if "=" in text or ":" in text:
            plain = plain_key(text)
            if any(word in plain for word in self._words):
                text = self._hide_pairs(text)
        for sign, pattern, replacement in FORMS:
            if sign in text:
                text = pattern.sub(replacement, text)
        return CARD.sub(hide_card, text)

    def _hide_pairs(self, text: str) -> str:
        """Replace the values of secret keys: `password=…`, `"password": "…"`."""
        parts: list[str] = []
        done = place = 0
        while (key := KEY.search(text, place)) is not None:
            place = key.end()
            value = VALUE.match(text, place) if self.hides(key["key"]) else None
            if value is not None and value[0].lower() not in HARMLESS:
                parts += text[done:place], hidden_in_text(value[0], key["quote"])
                done = place = value.end()
        return "".join((*parts, text[done:]))

    def hide(self, data: Any, *, all_values: bool = False) -> Hide:
        values = self.secrets(data, all_values=all_values)
        if not values:
            return self.text
        return lambda text: self.text(without(text, values))

    def secrets(self, data: Any, *, all_values: bool = False) -> list[str]:
        """Return the values that the rules match, or all, in each form in which a text may have them; longest first."""
        found: set[str] = set()
        for part in data:  # pointers begin at the payload
            if all_values:
                found.update(leaves_of(part, 0))
            self._collect(part, self._pointers, 0, found)
        values = sorted(found, key=len, reverse=True)[:MAX_VALUES]
        return sorted({form for value in values for form in forms_of(value)}, key=len, reverse=True)

    def _collect(self, value: Any, pointers: Pointers, level: int, found: set[str]) -> None:
        if level > MAX_LEVELS:
            return
        if isinstance(value, Mapping):
            items: Iterable[tuple[Any, Any]] = value.items()
        elif isinstance(value, (list, tuple)):
            items = enumerate(value)
        else:
            return
        for key, item in items:
            below = step(pointers, str(key)) if pointers else pointers
            if () in below or (isinstance(key, str) and self.hides(key, top=level == 0)):
                found.update(leaves_of(item, level))
            else:
                self._collect(item, below, level + 1, found)


# -- pointers -----------------------------------------------------------------------------------------

Pointers = tuple[tuple[str, ...], ...]
"""What is left of the pointers at a place. An empty one names the place itself."""


def parts_of(pointer: str) -> tuple[str, ...]:
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])


def step(pointers: Pointers, key: str) -> Pointers:
    """Return what is left of the pointers below a key."""
    left: list[tuple[str, ...]] = []
    for pointer in pointers:
        left += after(pointer, key)
    return tuple(left)


def after(pointer: tuple[str, ...], key: str) -> list[tuple[str, ...]]:
    if not pointer:
        return []
    if pointer[0] == "**":  # any number of levels, also none
        return [pointer, *after(pointer[1:], key)]
    return [pointer[1:]] if pointer[0] in {"*", key} else []


def hidden(value: Any) -> Any:
    """Return what is shown instead of a secret. That there is none, or a yes or no, may be seen."""
    return value if value is None or isinstance(value, bool) else MARK


def leaves_of(value: Any, level: int) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, (Mapping, list, tuple)) and level <= MAX_LEVELS:
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from leaves_of(item, level + 1)


def forms_of(value: str) -> set[str]:
    """Return a value as texts may have it: as it is, within quotes of Python or JSON, in a URL, cut into lines."""
    lines = [line.strip() for line in value.splitlines()] if "\n" in value else []
    forms = {value, repr(value)[1:-1], json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    forms |= {quote(value, safe="", errors="replace"), *lines}
    return {form for form in forms if len(form) >= SHORTEST}


def without(text: str, values: Sequence[str]) -> str:
    """Return a text without these values. Each is searched by itself: one pattern of thousands would take seconds."""
    for value in values:
        if value in text:
            text = text.replace(value, MARK) if len(value) >= SHORT else word(value).sub(MARK, text)
    return text


def word(value: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(value)}(?!\w)")


# -- what secrets look like ---------------------------------------------------------------------------

FORMS: tuple[tuple[str, re.Pattern[str], str], ...] = (
    (
        "PRIVATE KEY",
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
        MARK,
    ),
    ("msk_", re.compile(r"\bmsk_[0-9A-Za-z]{2,}(?:_[0-9A-Za-z]*)?"), f"msk_{MARK}"),  # our own tokens
    ("msp_", re.compile(r"\bmsp_[\w.=-]{8,}"), f"msp_{MARK}"),  # those of web pages
    ("msd_", re.compile(r"\bmsd_\w{8,}"), f"msd_{MARK}"),  # those of receivers of requests
    ("whsec_", re.compile(r"\bwhsec_[\w+/=-]{8,}"), f"whsec_{MARK}"),  # what signs requests
    ("earer ", re.compile(r"\b(bearer) +[\w.~+/=-]{6,}", re.IGNORECASE), rf"\1 {MARK}"),
    ("asic ", re.compile(r"\b([Bb]asic) +(?=[\w+/]*[A-Z0-9+/])[\w+/]{8,}=*"), rf"\1 {MARK}"),
    ("eyJ", re.compile(r"\beyJ[\w-]{6,}\.[\w-]{6,}\.[\w-]*"), MARK),  # JSON Web Tokens
    ("://", re.compile(r"(://[^\s/:@\"']*):[^\s/@\"']+@"), rf"\1:{MARK}@"),  # the password of a URL
)
"""Forms of secrets: a sign without which the pattern cannot match, the pattern, and what is shown instead."""

CARD = re.compile(r"(?<![\w.-])(?:\d[ -]?){12,18}\d(?![\w-]|\.\d)")
BRANDS = re.compile(
    r"4\d{12}(?:\d{3}){0,2}|5[1-5]\d{14}|2[2-7]\d{14}|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}"
    r"|6(?:011|5\d\d)\d{12}|35\d{14}"
)
HARMLESS = frozenset({"none", "null", "true", "false"})
KEY = re.compile(r"""(?<![\w-])(?P<quote>\\{0,15}["']?)(?P<key>[A-Za-z][\w.-]{1,80}+)(?P=quote) {0,3}[:=] {0,3}""")
VALUE = re.compile(
    r"""(?P<escaped>\\{1,15}["'])(?:(?!(?<!\\)(?P=escaped)).)*(?P=escaped)  # a text within a text: JSON in a log line
    | "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*'
    | \{[^{}]*\} | \[[^\[\]]*\] | \([^()]*\)
    | (?:(?:bearer|basic|digest)\ +)?[^\s,;&"'{}\[\]()\\]+""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)

QUOTE = re.compile(r"""\\{0,15}["']""")


def hidden_in_text(value: str, quote: str) -> str:
    """Return what is shown instead of a value: within its quotes, or those of its key, so that JSON stays JSON."""
    found = QUOTE.match(value)
    quotes = found[0] if found else quote
    return f"{quotes}{MARK}{quotes}"


def hide_card(match: re.Match[str]) -> str:
    digits = re.sub(r"[ -]", "", match[0])
    return MARK if BRANDS.fullmatch(digits) and has_check_digit(digits) else match[0]


def has_check_digit(digits: str) -> bool:
    """Return whether the last digit is that of a card number (Luhn)."""
    doubled = (2 * int(digit) - 9 * (digit > "4") for digit in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0


# -- writing back what was shown ------------------------------------------------------------------------


def restored(new: Any, old: Any, rules: Rules) -> Any:
    """Return what an editor has sent back, with the values that it was not shown.

    Raise InvalidPayload if it is not clear which value a mark stands for: it would replace a secret by `[redacted]`.
    """
    return _restored(new, rules.value(old), old, "")


def _restored(new: Any, shown: Any, old: Any, at: str) -> Any:
    if not has_mark(new):
        return new
    if json.dumps(new, sort_keys=True) == json.dumps(shown, sort_keys=True):
        return old
    if isinstance(new, dict) and isinstance(shown, dict) and isinstance(old, dict):
        return {key: _restored(item, shown.get(key), old.get(key), f"{at}/{key}") for key, item in new.items()}
    if isinstance(new, list) and isinstance(shown, list) and len(new) == len(shown):  # other items may have moved
        pairs = zip(new, shown, old, strict=True)
        return [_restored_item(*each, f"{at}/{index}") for index, each in enumerate(pairs)]
    raise InvalidPayload(unclear(at))


def _restored_item(new: Any, shown: Any, old: Any, at: str) -> Any:
    is_container = isinstance(new, (dict, list))
    return _restored(new, None if is_container and new != shown else shown, old, at)


def unclear(at: str) -> str:
    return (
        f"the payload has {MARK} at {at or '/'}, which stands for a value that was not shown, and it is not clear for"
        " which one; give the value itself, or leave the payload out"
    )


def has_mark(value: Any) -> bool:
    """Return whether a value has the mark in it."""
    if isinstance(value, str):
        return MARK in value
    if isinstance(value, dict):
        return any(map(has_mark, value.values()))
    return isinstance(value, list) and any(map(has_mark, value))


DEFAULT = Redaction()
"""The rules of an application that has none of its own."""

redact = DEFAULT
"""`redact(value)` returns JSON data, or a text, without what the default rules match."""
