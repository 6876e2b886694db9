"""`/v1/docs`: the OpenAPI document as one HTML page, made by the service itself.

It needs no JavaScript, and no request leaves the machine. Redoc, RapiDoc, Swagger UI and Scalar are 0.9 to 3.6 MB of
JavaScript, which would have to be vendored, and all of them write `innerHTML`, which our policy forbids.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mainspring.service.error_pages import LIST as ERRORS
from mainspring.service.html import Child, Html, document, html_answer, joined, prose, root_of, table, tag, with_code
from mainspring.service.problems import ABOUT, CONTENT_TYPE
from mainspring.service.requests import IS_PUBLIC, SCOPE_OF, Router

PATH = "/v1/docs"
DOCUMENT = "/v1/openapi.json"
LIMITS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "minLength": "at least {} characters",
    "maxLength": "up to {} characters",
    "minItems": "at least {}",
    "maxItems": "up to {}",
    "maxProperties": "up to {} members",
    "pattern": "pattern {}",
}
Data = Mapping[str, Any]


async def show_reference(request: Request) -> Response:
    """Return the page, which is made once for each place where the service is mounted."""
    state, root = request.app.state, root_of(request)
    if getattr(state, "reference", (None,))[0] != root:
        state.reference = root, document(request, "API", *content(request.app.openapi(), root))
    return html_answer(state.reference[1])


def content(api: Data, root: str) -> list[Html]:
    groups = by_tag(api)
    return [
        tag("h1", f"{api['info']['title']} API {api['info']['version']}"),
        prose(
            "Bodies and answers are JSON. Send a token as `Authorization: Bearer msk_…`, if the service needs tokens."
        ),
        tag(
            "p",
            "The same as an ",
            tag("a", "OpenAPI document", href=f"{root}{DOCUMENT}"),
            ". What can go wrong: ",
            tag("a", "errors", href=f"{root}{ERRORS}"),
            ".",
        ),
        overview(groups),
        *(
            tag("section", tag("h2", name, id=slug(name)), joined(one_operation(api, root, *each) for each in found))
            for name, found in groups.items()
        ),
        tag("section", tag("h2", "Shapes", id="shapes"), schemas(api["components"]["schemas"])),
    ]


Operation = tuple[str, str, Data]


def by_tag(api: Data) -> dict[str, list[Operation]]:
    """Return the operations by their first tag: method, path and description."""
    groups: dict[str, list[Operation]] = {}
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            name = (operation.get("tags") or ["other"])[0]
            groups.setdefault(name, []).append((method.upper(), path, operation))
    return groups


def overview(groups: Mapping[str, list[Operation]]) -> Html:
    rows = [
        [
            tag("a", tag("code", f"{method} {path}"), href=f"#{anchor(method, path)}"),
            operation.get("summary", ""),
            operation.get(SCOPE_OF, "–"),
        ]
        for operations in groups.values()
        for method, path, operation in operations
    ]
    links = [tag("li", tag("a", name, href=f"#{slug(name)}")) for name in (*groups, "shapes")]
    return joined([
        tag("nav", tag("ul", links), aria_label="Parts of the API", class_="parts"),
        tag("details", tag("summary", f"All {len(rows)} operations"), table(("route", "what it does", "scope"), rows)),
    ])  # fmt: skip


def one_operation(api: Data, root: str, method: str, path: str, operation: Data) -> Html:
    heading = tag("h3", tag("code", f"{method} {path}"), id=anchor(method, path))
    body = operation.get("requestBody", {}).get("content", {})
    return tag(
        "article",
        heading,
        tag("p", tag("strong", operation.get("summary", "")), ". ", scope_of(operation)),
        prose(operation.get("description", "")),
        parameters(operation.get("parameters", [])),
        joined([tag("p", "Body: ", bodies(body)), examples(body)]) if body else "",
        joined(one_answer(status, response) for status, response in successes(operation)),
        errors(api, root, operation),
    )


def scope_of(operation: Data) -> str:
    if operation.get(IS_PUBLIC):
        return "Needs a public token."
    scope = operation.get(SCOPE_OF)
    return "For everyone." if scope is None else joined(["Needs the scope ", tag("code", scope), "."])


def parameters(given: Iterable[Data]) -> Html:
    rows = [
        [tag("code", each["name"]), each["in"], kind_of(each["schema"]), notes(each["schema"], each)] for each in given
    ]
    return table(("parameter", "in", "type", ""), rows) if rows else Html()


def bodies(content: Data) -> Html:
    return joined([joined([kind_of(each.get("schema", {})), f" ({media}) "]) for media, each in content.items()])


def examples(content: Data) -> Html:
    """Return the examples of a body or an answer."""
    return joined(tag("pre", as_text(each["example"])) for each in content.values() if "example" in each)


def as_text(example: Any) -> str:
    return example if isinstance(example, str) else json.dumps(example, indent=2, ensure_ascii=False)


def successes(operation: Data) -> Iterable[tuple[str, Data]]:
    return ((status, found) for status, found in operation["responses"].items() if "$ref" not in found)


def one_answer(status: str, response: Data) -> Html:
    shown: list[Child] = [tag("strong", status), " ", bodies(response.get("content", {})) or response["description"]]
    if names := response.get("headers"):
        shown += [" Headers: ", joined(between([tag("code", name) for name in names], ", ")), "."]
    example = examples(response.get("content", {}))
    return joined([tag("p", shown), tag("details", tag("summary", f"Example of {status}"), example) if example else ""])


def errors(api: Data, root: str, operation: Data) -> Html:
    """Return the codes of errors by their status, each with a link to its page."""
    rows: list[list[Child]] = []
    for status, response in operation["responses"].items():
        about = api["components"]["responses"][response["$ref"].rpartition("/")[2]] if "$ref" in response else response
        for code, example in about.get("content", {}).get(CONTENT_TYPE, {}).get("examples", {}).items():
            link = tag("a", tag("code", code), href=f"{root}{ABOUT}{code}")
            rows.append([status, link, example["summary"]])
    return tag("details", tag("summary", f"{len(rows)} errors"), table(("status", "code", "meaning"), rows))


# -- shapes ---------------------------------------------------------------------------------------


def schemas(found: Data) -> Html:
    return joined(one_schema(name, schema) for name, schema in sorted(found.items()))


def one_schema(name: str, schema: Data) -> Html:
    needed = schema.get("required", ())
    rows = [
        [tag("code", field), kind_of(part), notes(part, {"required": field in needed})]
        for field, part in schema.get("properties", {}).items()
    ]
    fields = table(("field", "type", ""), rows) if rows else tag("p", kind_of(schema))
    return tag("article", tag("h3", name, id=name), prose(schema.get("description", "")), fields)


def kind_of(schema: Data) -> Child:
    """Return the type in words, with links to other shapes."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return tag("a", name, href=f"#{name}")
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return joined(between(map(kind_of, options), " or "))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return joined(between([tag("code", json.dumps(value)) for value in values], " · "))
    return simple_kind(schema)


def simple_kind(schema: Data) -> Child:
    match schema.get("type"):
        case "array":
            return joined(["list of ", kind_of(schema.get("items", {}))])
        case "object" if isinstance(schema.get("additionalProperties"), Mapping):
            return joined(["object of ", kind_of(schema["additionalProperties"])])
        case None:
            return "anything"
        case kind:
            form = schema.get("format")
            return f"{kind} ({form})" if form else str(kind)


def between(parts: Iterable[Child], separator: str) -> Iterable[Child]:
    for number, part in enumerate(parts):
        if number:
            yield separator
        yield part


def notes(schema: Data, more: Data) -> Html:
    """Return what else is known: whether it is needed, its limits, its default and its description."""
    parts = schema.get("anyOf", [schema])
    said: list[Child] = ["needed"] if more.get("required") else []
    said += [text.format(part[name]) for part in parts for name, text in LIMITS.items() if name in part]
    if schema.get("default") not in (None, [], {}, ""):
        said.append(f"default {json.dumps(schema['default'])}")
    if about := more.get("description") or schema.get("description"):
        said.append(with_code(about))
    return joined(between(said, "; "))


def slug(name: str) -> str:
    return f"part-{name.replace(' ', '-')}" if name != "shapes" else name


def anchor(method: str, path: str) -> str:
    return f"{method}{path}"


router = Router()
router.routes.append(Route(PATH, show_reference))
