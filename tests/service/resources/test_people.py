"""People and their occasions over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.testing.clock import ManualClock
from tests.service.resources.client import Answer, Client

ANA: dict[str, Any] = {
    "tz": "Pacific/Auckland",
    "first_name": "Ana",
    "last_name": "Kaha",
    "email": "ana@example.org",
    "quiet": "22:00-08:00",
    "attributes": {"team": "blue"},
    "occasions": [{"kind": "birthday", "date": "1990-01-03"}],
}
PATH = "/v1/people/ana"


@pytest.fixture
async def ana(app: Mainspring, client: Client) -> Answer:
    @app.occasion("birthday")
    def congratulate() -> None: ...

    answer = await client.send("PUT", PATH, ANA)
    assert answer.status == 201, answer.text
    return answer


async def test_a_person_is_created_shown_and_found(client: Client, ana: Answer) -> None:
    shown = await client.get(PATH)
    assert shown == ana.data
    assert (shown["id"], shown["occasions"][0]["at"]) == ("ana", "09:00")
    for query in ("", "?email=ANA@example.org", "?name=ka", "?tz=Pacific/Auckland", "?attribute=team=blue"):
        assert (await client.get(f"/v1/people{query}"))["people"] == [shown]
    for query in ("?email=x@example.org", "?name=z", "?tz=UTC", "?attribute=team=red", "?kind=wedding"):
        assert (await client.get(f"/v1/people{query}"))["people"] == []


async def test_people_come_in_pages(client: Client) -> None:
    for name in ("a", "b", "c"):
        await client.send("PUT", f"/v1/people/{name}", {"tz": "UTC"})
    first = await client.get("/v1/people?limit=2")
    second = await client.get(f"/v1/people?limit=2&cursor={first['cursor']}")
    assert [person["id"] for page in (first, second) for person in page["people"]] == ["a", "b", "c"]


async def test_a_person_is_replaced_or_changed_in_part(client: Client, ana: Answer) -> None:
    patched = await client.send("PATCH", PATH, {"tz": "Europe/London", "email": None})
    assert (patched.data["tz"], patched.data["email"], patched.data["first_name"]) == ("Europe/London", None, "Ana")
    replaced = await client.send("PUT", PATH, {"tz": "UTC"})
    assert (replaced.status, replaced.data["first_name"], replaced.data["occasions"]) == (200, "", [])


async def test_an_answer_has_the_times_of_creation_and_last_change(
    client: Client, ana: Answer, clock: ManualClock
) -> None:
    created = ana.data["created_at"]
    assert ana.data["updated_at"] == created == "2026-01-01T00:00:00.000Z"
    clock.advance(5)
    again = await client.send("PUT", PATH, ANA)
    assert (again.data["updated_at"], again.headers["ETag"]) == (created, ana.headers["ETag"])
    patched = await client.send("PATCH", PATH, {"locale": "en-NZ"})
    assert (patched.data["created_at"], patched.data["updated_at"]) == (created, "2026-01-01T00:00:05.000Z")
    shown = await client.send("GET", PATH)
    assert (shown.data, shown.headers["ETag"]) == (patched.data, patched.headers["ETag"])
    assert await client.problem("PATCH", PATH, {"created_at": created}) == (422, "invalid_request")


async def test_a_change_of_what_others_have_changed_is_refused(client: Client, ana: Answer) -> None:
    tag = ana.headers["ETag"]
    changed = await client.send("PATCH", PATH, {"first_name": "Anna"}, If_Match=tag)
    assert changed.status == 200
    for method, body in (("PATCH", {"first_name": "Anne"}), ("PUT", ANA)):
        assert await client.problem(method, PATH, body, If_Match=tag) == (412, "precondition_failed")
    for method, path in (("DELETE", PATH), ("PUT", f"{PATH}/occasions/x"), ("DELETE", f"{PATH}/occasions/birthday")):
        assert await client.problem(method, path, {"date": "06-21"}, If_Match=tag) == (412, "precondition_failed")
    assert await client.get(PATH) == changed.data
    assert await client.problem("PUT", PATH, ANA, If_None_Match="*") == (412, "precondition_failed")
    assert (await client.send("PUT", PATH, ANA, If_Match=changed.headers["ETag"])).status == 200
    assert (await client.send("PUT", "/v1/people/ben", {"tz": "UTC"}, If_None_Match="*")).status == 201


async def test_coming_occasions_follow_the_time_zone(client: Client, ana: Answer) -> None:
    (coming,) = (await client.get("/v1/occasions"))["upcoming"]
    assert (coming["person"], coming["kind"], coming["on"]) == ("ana", "birthday", "2026-01-03")
    assert (coming["due"], coming["local"]) == ("2026-01-02T20:00:00.000Z", "2026-01-03T09:00:00+13:00")
    await client.send("PATCH", PATH, {"tz": "Europe/London"})
    (moved,) = (await client.get("/v1/occasions?kind=birthday"))["upcoming"]
    assert moved["due"] == "2026-01-03T09:00:00.000Z"
    assert (await client.get("/v1/occasions?ahead=3600"))["upcoming"] == []


async def test_the_ledger_of_a_person_has_what_was_sent(
    app: Mainspring, client: Client, ana: Answer, clock: ManualClock
) -> None:
    clock.advance(3 * 86_400)
    await app.runtime.timers.run_due()
    shown = await client.get(f"{PATH}/occasions")
    assert [(entry["kind"], entry["on"], entry["became"]) for entry in shown["ledger"]] == [
        ("birthday", "2026-01-03", "fired")
    ]
    assert shown["upcoming"][0]["on"] == "2027-01-03"


async def test_one_occasion_is_put_and_removed(client: Client, ana: Answer) -> None:
    wedding = f"{PATH}/occasions/wedding"
    put = await client.send("PUT", wedding, {"date": "2015-06-20", "at": "12:00"})
    assert [occasion["kind"] for occasion in put.data["occasions"]] == ["birthday", "wedding"]
    put = await client.send("PUT", wedding, {"date": "06-21"})
    assert put.data["occasions"][1]["date"] == "06-21"
    removed = await client.send("DELETE", wedding, If_Match=put.headers["ETag"])
    assert removed.data == ana.data


async def test_a_person_is_deleted(client: Client, ana: Answer) -> None:
    assert (await client.send("DELETE", f"{PATH}?reason=asked", If_Match=ana.headers["ETag"])).status == 204
    for method, path, body in (
        ("GET", PATH, None),
        ("DELETE", PATH, None),
        ("PATCH", PATH, {"tz": "UTC"}),
        ("GET", f"{PATH}/occasions", None),
        ("PUT", f"{PATH}/occasions/wedding", {"date": "06-21"}),
        ("DELETE", f"{PATH}/occasions/wedding", None),
    ):
        assert await client.problem(method, path, body) == (404, "not_found")
    assert (await client.get("/v1/occasions"))["upcoming"] == []


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"tz": "Mars/Base"}, "/tz"),
        ({"email": "nowhere"}, "/email"),
        ({"quiet": "always"}, "/quiet"),
        ({"occasions": [{"kind": "birthday", "date": "02-31"}]}, "/occasions/0/date"),
        ({"occasions": [{"kind": "a b", "date": "02-01"}]}, "/occasions/0/kind"),
        ({"colour": "red"}, "/colour"),
    ],
)
async def test_a_wrong_person_is_refused_field_by_field(client: Client, change: dict[str, Any], pointer: str) -> None:
    answer = await client.send("PUT", PATH, {**ANA, **change})
    assert (answer.status, answer.data["code"]) == (422, "invalid_request")
    assert [error["pointer"] for error in answer.data["errors"]] == [pointer]


async def test_nul_characters_are_no_internal_errors(client: Client) -> None:
    assert (await client.send("PUT", PATH, {"tz": "UTC", "first_name": "a\0b"})).status < 500
    for query in ("email=%00", "name=%00", "tz=%00", "kind=%00", "cursor=%00"):
        assert (await client.send("GET", f"/v1/people?{query}")).status < 500
    assert (await client.send("GET", "/v1/occasions?kind=%00")).status < 500
