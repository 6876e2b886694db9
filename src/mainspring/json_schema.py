"""Check JSON against the JSON Schema that Pydantic generates, without the Python types that it was generated from.

It knows all keywords of JSON Schema 2020-12 that judge a value, except `unevaluatedItems`, `unevaluatedProperties` and
dynamic references, which Pydantic does not generate: such a schema is refused, since a part of it would be ignored.
Formats and patterns are judged by Pydantic itself, as the worker does: a `date-time` is what Pydantic reads as one.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mainspring.errors import ConfigurationError

Schema = Mapping[str, Any] | bool
MAX_PROBLEMS = 10  # that are collected; a long list of wrong items would only repeat itself
MAX_SHOWN_CHARS = 80  # of a value in a message
MAX_CHOICES = 12  # that a message lists
OF_SCHEMAS = frozenset({"$defs", "definitions", "properties", "patternProperties", "dependentSchemas"})
SCHEMAS = frozenset({
    "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "items", "prefixItems", "contains", "additionalProperties",
    "propertyNames",
})  # fmt: skip
UNSUPPORTED = frozenset({"$dynamicRef", "$recursiveRef", "unevaluatedItems", "unevaluatedProperties"})


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "string": ("a string", lambda value: isinstance(value, str)),
    "integer": ("a whole number", lambda value: is_number(value) and (isinstance(value, int) or value.is_integer())),
    "number": ("a number", is_number),
    "boolean": ("true or false", lambda value: isinstance(value, bool)),
    "null": ("null", lambda value: value is None),
    "array": ("a list", lambda value: isinstance(value, list)),
    "object": ("an object", lambda value: isinstance(value, dict)),
}


class SchemaCheck:
    """Checks values against one schema."""

    def __init__(self, schema: Schema) -> None:
        """Raise ConfigurationError for a schema that cannot be judged completely."""
        self._root = schema
        refuse_unsupported(schema)

    def problems(self, value: Any) -> list[str]:
        """Return what is wrong with a value: each with its path, such as `guests.0.name: must be a string, not 5`."""
        found: list[str] = []
        try:
            Visit(self._root, found).check(self._root, value, ())
        except RecursionError:
            return ["payload: is nested too deep to be checked; give fewer levels of lists and objects"]
        return found


class Visit:
    """One check of one value: it collects problems."""

    __slots__ = ("_found", "_root")

    def __init__(self, root: Schema, found: list[str]) -> None:
        self._root = root
        self._found = found

    def check(self, schema: Schema, value: Any, path: tuple[Any, ...]) -> None:
        if len(self._found) >= MAX_PROBLEMS:
            return
        if isinstance(schema, Mapping) and len(schema) == 1 and "$ref" in schema:
            schema = resolved(self._root, schema["$ref"])  # not by a rule, to save levels of Python's stack
        if isinstance(schema, bool):
            if not schema:
                self.report(path, "is not allowed here")
            return
        before = len(self._found)
        if (kinds := schema.get("type")) is not None:
            check_type(self, kinds, value, path, schema)
        if len(self._found) > before:
            return  # the other keywords would only say that again
        for keyword, argument in schema.items():
            if (rule := RULES.get(keyword)) is not None:
                rule(self, argument, value, path, schema)

    def fits(self, schema: Schema, value: Any) -> bool:
        inside = self.apart()
        inside.check(schema, value, ())
        return not inside.found

    def apart(self) -> Visit:
        """Return a visit for a part of the schema, which collects its own problems."""
        return Visit(self._root, [])

    @property
    def found(self) -> list[str]:
        return self._found

    def report(self, path: tuple[Any, ...], problem: str) -> None:
        self.add(f"{place(path)}: {problem}")

    def add(self, problem: str) -> None:
        if len(self._found) < MAX_PROBLEMS:
            self._found.append(problem)

    def resolve(self, reference: str) -> Schema:
        return resolved(self._root, reference)


def resolved(root: Schema, reference: str) -> Schema:
    """Return the part of the schema that a reference such as `#/$defs/Guest` names."""
    if not reference.startswith("#"):
        msg = f"the schema refers to {reference!r}, which is not a part of it"
        raise ConfigurationError(msg)
    found: Any = root
    for part in filter(None, reference[1:].split("/")):
        name = part.replace("~1", "/").replace("~0", "~")
        found = found[int(name)] if isinstance(found, list) else found.get(name) if isinstance(found, Mapping) else None
        if found is None:
            msg = f"the schema refers to {reference!r}, which it does not have"
            raise ConfigurationError(msg)
    part_of_schema: Schema = found
    return part_of_schema


def refuse_unsupported(schema: Any) -> None:
    """Raise ConfigurationError if the schema has a keyword that this module does not judge, or a broken reference."""
    waiting: list[Any] = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, Mapping):
            if found := UNSUPPORTED & part.keys():
                msg = f"the schema has {min(found)}, which is not supported"
                raise ConfigurationError(msg)
            if "$ref" in part:
                resolved(schema, part["$ref"])
            for pattern in [*filter(None, [part.get("pattern")]), *part.get("patternProperties", ())]:
                matcher(pattern)
            waiting += [value for name in OF_SCHEMAS & part.keys() for value in part[name].values()]
            waiting += [part[name] for name in SCHEMAS & part.keys()]


# -- any value ------------------------------------------------------------------------------------------------


def check_type(visit: Visit, kinds: Any, value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    wanted = [kinds] if isinstance(kinds, str) else kinds
    if not any(TYPES[kind][1](value) for kind in wanted):
        visit.report(path, f"must be {' or '.join(TYPES[kind][0] for kind in wanted)}, not {shown(value)}")


def check_ref(visit: Visit, reference: str, value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    visit.check(visit.resolve(reference), value, path)


def check_enum(visit: Visit, choices: Sequence[Any], value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    if not any(same(choice, value) for choice in choices):
        visit.report(path, f"must be {listed(choices)}, not {shown(value)}")


def check_const(visit: Visit, constant: Any, value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    if not same(constant, value):
        visit.report(path, f"must be {shown(constant)}, not {shown(value)}")


def same(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON: 1 is 1.0, but not true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    return bool(one == other)


def check_all_of(visit: Visit, parts: Sequence[Schema], value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    for part in parts:
        visit.check(part, value, path)


def check_any_of(visit: Visit, parts: Sequence[Schema], value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    each: list[list[str]] = []
    for part in parts:
        inside = visit.apart()
        inside.check(part, value, path)
        if not inside.found:
            return
        each.append(inside.found)
    report_no_choice(visit, each, value, path)


def check_one_of(
    visit: Visit, parts: Sequence[Schema], value: Any, path: tuple[Any, ...], schema: Mapping[str, Any]
) -> None:
    if isinstance(tagged := schema.get("discriminator"), Mapping) and "mapping" in tagged:
        check_tagged(visit, tagged, value, path)
        return
    each: list[list[str]] = []
    for part in parts:
        inside = visit.apart()
        inside.check(part, value, path)
        each.append(inside.found)
    if all(each):
        report_no_choice(visit, each, value, path)
    elif len(each) - sum(map(bool, each)) > 1:
        visit.report(path, f"fits more than one of the allowed forms, but must fit exactly one: {shown(value)}")


def check_tagged(visit: Visit, tagged: Mapping[str, Any], value: Any, path: tuple[Any, ...]) -> None:
    """Check the one form that the value's own tag names, so that problems are about that form only."""
    name, forms = tagged["propertyName"], tagged["mapping"]
    if not isinstance(value, dict):
        visit.report(path, f"must be an object, not {shown(value)}")
    elif name not in value:
        visit.report((*path, name), f"is missing; give {listed(list(forms))}")
    elif (tag := tag_of(value[name])) not in forms:
        visit.report((*path, name), f"must be {listed(list(forms))}, not {shown(value[name])}")
    else:
        visit.check(visit.resolve(forms[tag]), value, path)


def tag_of(value: Any) -> str | None:
    return value if isinstance(value, str) else json.dumps(value) if isinstance(value, (int, float)) else None


def report_no_choice(visit: Visit, each: Sequence[list[str]], value: Any, path: tuple[Any, ...]) -> None:
    """Report why a value fits none of several forms: only about the form that was meant, if that is clear.

    A form was not meant if the value itself is of another type than the form.
    """
    here = f"{place(path)}: "
    others = [problems for problems in each if not all(problem.startswith(f"{here}must be ") for problem in problems)]
    if len(others) == 1:
        for problem in others[0]:
            visit.add(problem)
        return
    reasons = list(dict.fromkeys(problems[0].removeprefix(here) for problems in each))
    visit.report(path, f"fits none of the forms that are allowed, {shown(value)}: {'; or '.join(reasons)}")


def check_not(visit: Visit, part: Schema, value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    if visit.fits(part, value):
        visit.report(path, f"is not allowed: {shown(value)}")


def check_if(visit: Visit, condition: Schema, value: Any, path: tuple[Any, ...], schema: Mapping[str, Any]) -> None:
    visit.check(schema.get("then" if visit.fits(condition, value) else "else", True), value, path)


# -- numbers --------------------------------------------------------------------------------------------------


def check_minimum(visit: Visit, bound: float, value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    if is_number(value) and value < bound:
        visit.report(path, f"must be at least {bound}, not {value}")


def check_maximum(visit: Visit, bound: float, value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    if is_number(value) and value > bound:
        visit.report(path, f"must be at most {bound}, not {value}")


def check_above(visit: Visit, bound: float, value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    if is_number(value) and value <= bound:
        visit.report(path, f"must be more than {bound}, not {value}")


def check_below(visit: Visit, bound: float, value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    if is_number(value) and value >= bound:
        visit.report(path, f"must be less than {bound}, not {value}")


def check_multiple(visit: Visit, factor: float, value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    if is_number(value) and not is_multiple(value, factor):
        visit.report(path, f"must be a multiple of {factor}, not {value}")


def is_multiple(value: float, factor: float) -> bool:
    if isinstance(value, int) and isinstance(factor, int):
        return value % factor == 0
    rest = abs(math.remainder(value, factor))  # 0.3 is a multiple of 0.1, but not exactly
    return rest <= 1e-9 * max(1.0, abs(value))


# -- strings --------------------------------------------------------------------------------------------------


def check_min_length(visit: Visit, least: int, value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    if isinstance(value, str) and len(value) < least:
        visit.report(path, f"must have at least {characters(least)}, not {len(value)}")


def check_max_length(visit: Visit, most: int, value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    if isinstance(value, str) and len(value) > most:
        visit.report(path, f"must have at most {characters(most)}, not {len(value)}")


def characters(number: int) -> str:
    return "1 character" if number == 1 else f"{number} characters"


def check_pattern(visit: Visit, pattern: str, value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    if isinstance(value, str) and not matcher(pattern)(value):
        visit.report(path, f"must match {pattern!r}, not {shown(value)}")


@functools.lru_cache(maxsize=1000)
def matcher(pattern: str) -> Callable[[str], bool]:
    """Return what tells whether a text matches: in the syntax of Rust, as in Pydantic, or else that of Python."""
    from pydantic_core import SchemaError, SchemaValidator, core_schema  # noqa: PLC0415 - takes a while to import

    try:
        validator = SchemaValidator(core_schema.str_schema(pattern=pattern))
    except SchemaError:  # look-around, which only Python's `re` knows
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            msg = f"the schema has the pattern {pattern!r}, which is not a regular expression: {error}"
            raise ConfigurationError(msg) from None
        return lambda text: compiled.search(text) is not None
    return validator.isinstance_python


def check_format(visit: Visit, name: str, value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    if isinstance(value, str) and (accepts := formats().get(name)) is not None and not accepts(value):
        visit.report(path, f"must be a string of the format {name}, not {shown(value)}")


@functools.cache
def formats() -> Mapping[str, Callable[[str], bool]]:
    """Return what tells whether a text has a format. JSON Schema asks to ignore other formats."""
    from datetime import date, datetime, time, timedelta  # noqa: PLC0415 - beside the import of Pydantic
    from ipaddress import (  # noqa: PLC0415
        IPv4Address,
        IPv4Interface,
        IPv4Network,
        IPv6Address,
        IPv6Interface,
        IPv6Network,
    )
    from uuid import UUID  # noqa: PLC0415

    from pydantic import AnyUrl, Json, TypeAdapter  # noqa: PLC0415 - takes a while to import

    kinds: dict[str, Any] = {
        "date-time": datetime, "date": date, "time": time, "duration": timedelta, "uuid": UUID, "uri": AnyUrl,
        "json-string": Json, "ipv4": IPv4Address, "ipv6": IPv6Address, "ipv4network": IPv4Network,
        "ipv6network": IPv6Network, "ipv4interface": IPv4Interface, "ipv6interface": IPv6Interface,
    }  # fmt: skip
    own: dict[str, Callable[[str], bool]] = {"email": is_email_like, "name-email": is_email_like}
    return {name: TypeAdapter(kind).validator.isinstance_python for name, kind in kinds.items()} | own


def is_email_like(text: str) -> bool:
    """Return whether there is something on both sides of an @. The worker's own check has the last word."""
    return all(part.strip() for part in text.rpartition("@"))


# -- lists ----------------------------------------------------------------------------------------------------


def check_items(visit: Visit, part: Schema, value: Any, path: tuple[Any, ...], schema: Mapping[str, Any]) -> None:
    """Check the items after those of `prefixItems`."""
    if isinstance(value, list):
        start = len(schema.get("prefixItems", ()))
        for number, item in enumerate(value[start:], start):
            visit.check(part, item, (*path, number))


def check_prefix_items(visit: Visit, parts: Sequence[Schema], value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    if isinstance(value, list):
        for number, (part, item) in enumerate(zip(parts, value, strict=False)):
            visit.check(part, item, (*path, number))


def check_contains(visit: Visit, part: Schema, value: Any, path: tuple[Any, ...], schema: Mapping[str, Any]) -> None:
    if not isinstance(value, list):
        return
    number = sum(visit.fits(part, item) for item in value)
    least, most = schema.get("minContains", 1), schema.get("maxContains", number)
    if not least <= number <= most:
        visit.report(path, f"has {number} items of the form that at least {least} and at most {most} must have")


def check_min_items(visit: Visit, least: int, value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    if isinstance(value, list) and len(value) < least:
        visit.report(path, f"must have at least {items(least)}, not {len(value)}")


def check_max_items(visit: Visit, most: int, value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    if isinstance(value, list) and len(value) > most:
        visit.report(path, f"must have at most {items(most)}, not {len(value)}")


def items(number: int) -> str:
    return "1 item" if number == 1 else f"{number} items"


def check_unique(visit: Visit, wanted: bool, value: Any, path: tuple[Any, ...], _schema: Any) -> None:  # noqa: FBT001 - as all rules
    if not wanted or not isinstance(value, list):
        return
    seen: set[str] = set()
    for number, item in enumerate(value):
        text = canonical(item)
        if text in seen:
            visit.report((*path, number), f"must not repeat another item: {shown(item)}")
        seen.add(text)


def canonical(value: Any) -> str:
    """Return a text that is the same for the same JSON: numbers without a fraction are written as integers."""
    return json.dumps(without_fraction(value), sort_keys=True)


def without_fraction(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [without_fraction(item) for item in value]
    if isinstance(value, dict):
        return {name: without_fraction(item) for name, item in value.items()}
    return value


# -- objects --------------------------------------------------------------------------------------------------


def check_required(visit: Visit, names: Sequence[str], value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    if isinstance(value, dict):
        for name in names:
            if name not in value:
                visit.report((*path, name), "is missing")


def check_properties(
    visit: Visit, parts: Mapping[str, Schema], value: Any, path: tuple[Any, ...], _schema: Any
) -> None:
    if isinstance(value, dict):
        for name, part in parts.items():
            if name in value:
                visit.check(part, value[name], (*path, name))


def check_pattern_properties(
    visit: Visit, parts: Mapping[str, Schema], value: Any, path: tuple[Any, ...], _schema: Any
) -> None:
    if isinstance(value, dict):
        for pattern, part in parts.items():
            for name in filter(matcher(pattern), value):
                visit.check(part, value[name], (*path, name))


def check_additional(visit: Visit, part: Schema, value: Any, path: tuple[Any, ...], schema: Mapping[str, Any]) -> None:
    """Check the properties that the schema does not name."""
    if not isinstance(value, dict):
        return
    named, patterns = schema.get("properties", {}), [matcher(each) for each in schema.get("patternProperties", ())]
    for name, item in value.items():
        if name in named or any(matches(name) for matches in patterns):
            continue
        if part is False:
            visit.report((*path, name), f"is not allowed; {allowed_names(named)}")
        else:
            visit.check(part, item, (*path, name))


def allowed_names(named: Mapping[str, Any]) -> str:
    return f"there are {listed(list(named), ' and ')}" if named else "give no such property"


def check_property_names(visit: Visit, part: Schema, value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    if isinstance(value, dict):
        for name in value:
            if not visit.fits(part, name):
                visit.report((*path, name), f"has a name that is not allowed: {shown(name)}")


def check_dependent_required(
    visit: Visit, needs: Mapping[str, Sequence[str]], value: Any, path: tuple[Any, ...], schema: Any
) -> None:
    if isinstance(value, dict):
        for name, others in needs.items():
            if name in value:
                check_required(visit, others, value, path, schema)


def check_dependent_schemas(
    visit: Visit, needs: Mapping[str, Schema], value: Any, path: tuple[Any, ...], _schema: Any
) -> None:
    if isinstance(value, dict):
        for name, part in needs.items():
            if name in value:
                visit.check(part, value, path)


def check_min_properties(visit: Visit, least: int, value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    if isinstance(value, dict) and len(value) < least:
        visit.report(path, f"must have at least {items(least)}, not {len(value)}")


def check_max_properties(visit: Visit, most: int, value: Any, path: tuple[Any, ...], _schema: Any) -> None:
    if isinstance(value, dict) and len(value) > most:
        visit.report(path, f"must have at most {items(most)}, not {len(value)}")


RULES: dict[str, Callable[[Visit, Any, Any, tuple[Any, ...], Mapping[str, Any]], None]] = {
    "$ref": check_ref,
    "enum": check_enum,
    "const": check_const,
    "allOf": check_all_of,
    "anyOf": check_any_of,
    "oneOf": check_one_of,
    "not": check_not,
    "if": check_if,
    "minimum": check_minimum,
    "maximum": check_maximum,
    "exclusiveMinimum": check_above,
    "exclusiveMaximum": check_below,
    "multipleOf": check_multiple,
    "minLength": check_min_length,
    "maxLength": check_max_length,
    "pattern": check_pattern,
    "format": check_format,
    "items": check_items,
    "prefixItems": check_prefix_items,
    "contains": check_contains,
    "minItems": check_min_items,
    "maxItems": check_max_items,
    "uniqueItems": check_unique,
    "required": check_required,
    "properties": check_properties,
    "patternProperties": check_pattern_properties,
    "additionalProperties": check_additional,
    "propertyNames": check_property_names,
    "dependentRequired": check_dependent_required,
    "dependentSchemas": check_dependent_schemas,
    "minProperties": check_min_properties,
    "maxProperties": check_max_properties,
}
"""What each keyword asks for. `type` is checked before these; `then`, `else`, `minContains` belong to others."""


# -- values in messages ---------------------------------------------------------------------------------------


def place(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path)) or "payload"


def shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"


def listed(choices: Sequence[Any], last: str = " or ") -> str:
    some = [shown(choice) for choice in choices[:MAX_CHOICES]]
    if len(choices) > MAX_CHOICES:
        return f"one of {', '.join(some)} and {len(choices) - MAX_CHOICES} more"
    return some[0] if len(some) == 1 else f"{', '.join(some[:-1])}{last}{some[-1]}"
