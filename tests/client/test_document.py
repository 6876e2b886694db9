"""The client has a method for each operation of the OpenAPI document, with all its fields, and with its answer.

A new route, parameter or field fails here, with a message that names it and says what to add.
"""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from typing_extensions import Unpack, is_typeddict

from mainspring import Mainspring
from mainspring.client import AsyncClient, Client, inputs
from mainspring.client.operation import Listing, Method, Operation, Resource
from mainspring.client.resources import leases
from tests.service.serving import api_of

RENAMED = {"last_event_id": "after"}
MADE_BY_THE_CLIENT = {"idempotency_key"}  # for each POST; a method may also take it
LEFT_OUT = {
    ("GET", "/v1/events"): {"names"},  # events have one form here
    ("GET", "/v1/jobs"): {"fields"},  # a job has all its fields here, so that their types are known
    ("GET", "/v1/dead"): {"fields"},
}
FOR_OTHERS = ("/metrics", "/v1/public/")  # Prometheus reads the first, web pages with public tokens the second
NESTED = {
    inputs.NewJob: "NewJobBody",
    inputs.ScheduledJob: "ScheduledJobBody",
    inputs.RetryPolicy: "RetryPolicy",
    inputs.TargetOf: "Target",
    inputs.JobFilter: "JobFilter",
    inputs.Misfire: "MisfireBody",
    inputs.Occasion: "OccasionBody",
    inputs.Rate: "RateBody",
    inputs.Callback: "Callback",
}
"""What methods take inside of their arguments, and its schema."""


@dataclass(frozen=True)
class Declared:
    """A method of the client that is one request."""

    name: str  # such as `client.jobs.get`
    method: Operation[..., Any] | Listing[..., Any]

    @property
    def route(self) -> tuple[str, str]:
        return self.method.method, self.method.path

    @property
    def arguments(self) -> dict[str, bool]:
        """Its arguments: whether each of them must be given."""
        found: dict[str, bool] = {}
        hints = get_type_hints(self.method.function, include_extras=True)
        for parameter in list(self.method.signature.parameters.values())[1:]:
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                found |= dict.fromkeys(keys_of(hints[parameter.name]), False)
            else:
                found[parameter.name] = parameter.default is inspect.Parameter.empty
        return found


def keys_of(hint: Any) -> set[str]:
    assert get_origin(hint) is Unpack
    (fields,) = get_args(hint)
    assert is_typeddict(fields)
    return set(get_type_hints(fields))


def declared() -> list[Declared]:
    """All methods of the client that are one request."""
    with Client("http://127.0.0.1:1") as client:
        resources = {"client": client} | {
            f"client.{name}": value for name, value in vars(client).items() if isinstance(value, Resource)
        }
    found = []
    for place, resource in resources.items():
        for name in dir(type(resource)):
            method = inspect.getattr_static(type(resource), name)
            if isinstance(method, Operation) or (isinstance(method, Listing) and method.path):
                found.append(Declared(f"{place}.{name}", method))
    return found


METHODS = declared()
IDS = [each.name for each in METHODS]


@cache
def document() -> Any:
    return api_of(Mainspring("memory://")).openapi()


def operations() -> dict[tuple[str, str], Any]:
    paths = document()["paths"].items()
    return {(method.upper(), path): about for path, methods in paths for method, about in methods.items()}


def schema(name: str) -> Any:
    return document()["components"]["schemas"][name]


def body_of(about: Any) -> Any:
    content = about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    options = [content, *content.get("anyOf", ()), *content.get("allOf", ())]
    names = [each["$ref"].rpartition("/")[2] for each in options if "$ref" in each]
    return schema(names[0]) if names else {}


def fields_of(about: Any) -> dict[str, bool]:
    """All that an operation takes: whether each of it must be given."""
    parameters = {
        each["name"].lower() if each["in"] == "header" else each["name"]: each.get("required", False)
        for each in about.get("parameters", ())
    }
    body = body_of(about)
    inside = {name: name in body.get("required", ()) for name in body.get("properties", ())}
    found = {name.replace("-", "_"): needed for name, needed in {**parameters, **inside}.items()}
    return {RENAMED.get(name, name): needed for name, needed in found.items() if name not in MADE_BY_THE_CLIENT}


def test_each_operation_of_the_document_has_one_method() -> None:
    have = Counter(each.route for each in METHODS)
    wanted = [route for route in operations() if not route[1].startswith(FOR_OTHERS)]
    missing = [" ".join(route) for route in wanted if route not in have]
    assert not missing, f"add a method for each of these to a class in mainspring/client/resources: {missing}"
    assert [" ".join(route) for route, count in have.items() if count > 1] == []
    assert [" ".join(route) for route in have if route not in operations()] == [], "these are not in the document"


@pytest.mark.parametrize("each", METHODS, ids=IDS)
def test_a_method_takes_all_fields_of_its_operation(each: Declared) -> None:
    wanted = fields_of(operations()[each.route])
    have = {name: needed for name, needed in each.arguments.items() if name not in MADE_BY_THE_CLIENT}
    missing = wanted.keys() - have.keys() - LEFT_OUT.get(each.route, set())
    assert not missing, f"{each.name} lacks arguments for these fields of {' '.join(each.route)}: {sorted(missing)}"
    assert have.keys() - wanted.keys() == set(), f"{' '.join(each.route)} does not take these"
    assert {name for name, needed in wanted.items() if needed} == {name for name, needed in have.items() if needed}


@pytest.mark.parametrize("each", METHODS, ids=IDS)
def test_a_method_returns_the_answer_of_its_operation(each: Declared) -> None:
    if isinstance(each.method, Listing):
        return
    responses = operations()[each.route]["responses"]
    answers = {status: answer for status, answer in responses.items() if status[0] == "2"}
    contents = [answer.get("content", {}).get("application/json", {}).get("schema", {}) for answer in answers.values()]
    shapes = [content.get("anyOf", [content])[0] for content in contents]  # the others are answers to what is LEFT_OUT
    names = {shape["$ref"].rpartition("/")[2] for shape in shapes if "$ref" in shape}
    if names:
        assert names <= {kind.__name__ for kind in each.method.answer.__mro__}
    else:
        assert set(answers) == ({"204"} if each.method.answer is type(None) else {"200"})
    own = {status for status, answer in responses.items() if "application/json" in answer.get("content", {})}
    assert {str(status) for status in each.method.also} == own - answers.keys()


def test_every_post_takes_the_key_that_the_client_makes() -> None:
    for (method, path), about in operations().items():
        names = [given["name"].lower() for given in about.get("parameters", ())]
        assert method != "POST" or "idempotency-key" in names, path


@pytest.mark.parametrize(("fields", "name"), NESTED.items(), ids=NESTED.values())
def test_what_arguments_have_inside_is_what_the_document_says(fields: Any, name: str) -> None:
    assert set(get_type_hints(fields)) == set(schema(name)["properties"])


def test_a_schedule_shows_its_retries_as_requests_give_them() -> None:
    assert set(schema("RetryView")["properties"]) == set(schema("RetryPolicy")["properties"])


def test_each_report_of_a_worker_has_a_function() -> None:
    reports = set(schema("ReportItem")["properties"]) - {"id", "token"}
    assert [name for name in sorted(reports) if not callable(getattr(leases, name, None))] == []


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_") and name != "runner"}

    assert methods(Client) == methods(AsyncClient)


def test_each_method_has_a_docstring_and_a_signature() -> None:
    with Client("http://127.0.0.1:1") as client:
        assert client.jobs.delete.__doc__ == "Delete a job that does not run."
        assert str(inspect.signature(client.bulk.cancel)) == "(bulk_id: 'str', *, reason: 'str' = '')"
    for each in METHODS:
        assert isinstance(each.method, Method)
        assert each.method.__doc__ or "._" in each.name, each.name
