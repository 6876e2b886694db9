"""Each body and each answer of the OpenAPI document has an example, which is what the service takes and answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from mainspring.service.problems import CONTENT_TYPE, KINDS
from tests.service.contract import document, resolved
from tests.service.recording import PLACE, record

JSON = "application/json"
Part = tuple[str, Any]


def operations() -> Iterator[tuple[str, Any]]:
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def with_examples() -> Iterator[Part]:
    """Yield all that must have an example: bodies, and answers that are a success."""
    for name, operation in operations():
        for media, content in operation.get("requestBody", {}).get("content", {}).items():
            yield f"{name} takes {media}", content
        for status, response in operation["responses"].items():
            for media, content in resolved(response).get("content", {}).items():
                if status.startswith("2"):
                    yield f"{name} answers {status} {media}", content


@pytest.mark.parametrize(("name", "content"), [pytest.param(*part, id=part[0]) for part in with_examples()])
def test_each_body_and_answer_has_a_valid_example(name: str, content: Any) -> None:
    assert "example" in content, f"add a request to tests/service/recording.py, and run `make examples`: {name}"
    check(content["schema"], content["example"])
    assert unknown(content["schema"], content["example"], name) == []


@pytest.mark.parametrize("code", KINDS)
def test_each_problem_has_a_valid_example(code: str) -> None:
    found = [
        content["examples"][code]["value"]
        for response in document()["components"]["responses"].values()
        if code in (content := response["content"][CONTENT_TYPE])["examples"]
    ]
    if not found:
        assert code in {"method_not_allowed", "too_many_logins"}, "no operation of the document answers this"
    for example in found:
        assert (example["code"], example["status"]) == (code, KINDS[code].status)
        check({"$ref": "#/components/schemas/ProblemView"}, example)
        assert unknown({"$ref": "#/components/schemas/ProblemView"}, example, code) == []


def check(schema: Any, example: Any) -> None:
    jsonschema_rs.validator_for({**schema, "components": document()["components"]}).validate(example)


def unknown(schema: Any, example: Any, place: str) -> list[str]:
    """Return the members of an example that its schema does not name."""
    schema = resolved(schema)
    for option in schema.get("anyOf", ()):
        if (resolved(option).get("type") == "object") == isinstance(example, dict):
            schema = resolved(option)
    if isinstance(example, list):
        return [name for each in example for name in unknown(schema.get("items", {}), each, place)]
    if not isinstance(example, dict) or "properties" not in schema:
        return []
    found = [f"{place}/{name}" for name in example if name not in schema["properties"]]
    for name, value in example.items():
        found += unknown(schema["properties"].get(name, {}), value, f"{place}/{name}")
    return found


async def test_examples_are_what_the_service_answers() -> None:
    assert await record() + "\n" == PLACE.read_text("utf-8"), "run `make examples`, and look at what has changed"


def test_no_schema_has_an_internal_name() -> None:
    assert [name for name in document()["components"]["schemas"] if "__" in name] == []


def test_each_operation_is_described() -> None:
    assert [name for name, operation in operations() if not operation.get("description")] == []


def test_every_header_that_an_answer_names_is_described() -> None:
    for _, operation in operations():
        for response in operation["responses"].values():
            for header in resolved(response)["headers"].values():
                assert resolved(header)["description"]
                assert resolved(header)["example"]
