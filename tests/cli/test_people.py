from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from mainspring import Occasion, Person
from mainspring.features.people.person import Times
from mainspring.features.people.plan import OccasionPlan
from mainspring.stores.documents import Bundle, Key, Listing, Write
from tests.cli.conftest import Run, Shop

pytestmark = pytest.mark.slow


@pytest.fixture
def people(run: Run, shop: Shop) -> Run:
    return lambda *argv: run(*argv, "--store", shop.url)


@pytest.fixture
def ana(shop: Shop) -> Person:
    day = shop.app.now() + timedelta(days=3)
    ana = Person(
        id="ana",
        tz="Pacific/Kiritimati",
        first_name="Ana",
        email="ana@example.com",
        addresses={"sms": "+64"},
        attributes={"team": "blue"},
        occasions=[Occasion(kind="birthday", date=f"{day:%m-%d}")],
    )
    return shop.app.run(shop.app.people.put(ana))


def test_list_shows_people_page_by_page(people: Run, ana: Person, shop: Shop) -> None:
    shop.app.run(shop.app.people.put(Person(id="bob", tz="UTC")))
    header, *rows = people("people", "list").out.splitlines()
    assert header.split() == ["ID", "NAME", "TIME", "ZONE", "OCCASIONS", "EMAIL"]
    assert [row.split()[0] for row in rows] == ["ana", "bob"]
    assert [person["id"] for person in people("people", "list", "--cursor", "ana", "--json").data["people"]] == ["bob"]
    page = people("people", "list", "--limit", "1")
    assert page.err == f"more: mainspring people list --limit 1 --store {shop.url} --cursor ana\n"
    assert people("people", "list", "-n", "1", "--json").data["cursor"] == "ana"
    assert people("people", "list", "--cursor", "bob").err == "no more people\n"


@pytest.mark.slow
def test_list_finds_people_by_each_filter(people: Run, ana: Person, shop: Shop) -> None:
    shop.app.run(shop.app.people.put(Person(id="bob", tz="UTC", last_name="Anders", attributes={"score": 3})))

    def found(*argv: str) -> list[str]:
        return [person["id"] for person in people("people", "list", *argv, "--json").data["people"]]

    assert found("--email", "ANA@example.com") == ["ana"]
    assert found("--name", "an") == ["ana", "bob"]
    assert found("--name", "an", "--tz", "UTC") == ["bob"]
    assert found("--kind", "birthday") == ["ana"]
    assert found("--attribute", "score=3") == ["bob"]
    assert found("--attribute", "score=3", "--attribute", "team=blue") == []
    assert people("people", "list", "--name", "zoe").err == "no people\n"
    assert people("people", "list", "--attribute", "score").code == 2
    assert "--cursor ana" in people("people", "list", "--name", "an", "--limit", "1").err
    assert found("--name", "an", "--cursor", "ana") == ["bob"]
    assert people("people", "list", "--tz", "Mars/Olympus").code == 2


def test_show_prints_a_person_and_their_occasions(people: Run, ana: Person, shop: Shop) -> None:
    out = people("people", "show", "ana").out
    assert "ana@example.com" in out
    assert "team=blue" in out
    assert "birthday" in out
    data = people("people", "show", "ana", "--json").data
    assert data["person"]["tz"] == ana.tz
    assert datetime.fromisoformat(data["person"]["created_at"]) == ana.created_at
    assert re.search(r"^Created +\d{4}-", out, re.MULTILINE)
    assert re.search(r"^Updated +\d{4}-", out, re.MULTILINE)
    assert [(occasion["kind"], occasion["local"][10:]) for occasion in data["next"]] == [
        ("birthday", "T09:00:00+14:00")
    ]
    assert data["ledger"] == []
    missing = people("people", "show", "nobody")
    assert (missing.code, "there is no person 'nobody'" in missing.err) == (3, True)


def test_show_tells_what_was_sent(people: Run, shop: Shop) -> None:
    shop.app.occasion("birthday")(greet)
    now = shop.app.now()
    today = Occasion(kind="birthday", date=f"{now:%m-%d}", at="00:00")
    shop.app.run(shop.app.people.put(Person(id="bob", tz="UTC", occasions=[today])))
    shop.work()
    (entry,) = people("people", "show", "bob", "--json").data["ledger"]
    assert (entry["became"], entry["on"]) == ("fired", f"{now:%Y-%m-%d}")
    assert "fired" in people("people", "show", "bob").out


async def greet(person: Person) -> None: ...


def test_delete_removes_one_person_and_asks_before_more(people: Run, ana: Person, shop: Shop) -> None:
    assert people("people", "delete", "ana").out == "ana deleted\n"
    assert people("people", "delete", "ana").code == 3
    assert people("people", "delete", "a", "b").code == 2  # nobody can be asked


def test_upcoming_lists_occasions_of_the_next_days(people: Run, ana: Person) -> None:
    header, row = people("occasions", "upcoming").out.splitlines()
    assert header.split() == ["LOCAL", "PERSON", "KIND", "TIME", "ZONE", "UTC", "FOR"]
    date, time, person, kind, tz, _, utc, on = row.split()
    assert (date, time, person, kind, tz, utc, on) == (on, "09:00", "ana", "birthday", ana.tz, "19:00", on)
    assert people("occasions", "upcoming", "--days", "1", "--json").data == {"upcoming": []}
    assert people("occasions", "upcoming", "--days", "1").err == "nothing is coming up\n"
    assert people("occasions", "upcoming", "--kind", "other", "--json").data == {"upcoming": []}


FILE = "id,timezone,E-Mail,birthday\np1,UTC,a@b,1990-01-02\np2,Nowhere,,\n"


def test_import_reports_bad_rows_and_updates_the_others(people: Run, shop: Shop, tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text(FILE)
    command = ("people", "import", str(path), "--map", "E-Mail=email")
    dry = people(*command, "--dry-run")
    assert dry.code == 1
    assert dry.out.startswith("1 would be created, 0 would be updated, 0 unchanged; bad rows, left out: 1\n")
    assert people("people", "list", "--json").data == {"people": [], "unreadable": {}, "cursor": None}
    done = people(*command)
    assert done.out.startswith("1 created, 0 updated, 0 unchanged; bad rows, left out: 1\n")
    assert "3  timezone" in done.out
    data = people(*command, "--json").data
    assert (data["unchanged"], data["bad_rows"], data["problems"][0]["column"]) == (1, 1, "timezone")
    path.write_text(FILE.replace("Nowhere", "Asia/Tokyo"))
    again = people(*command)
    assert (again.code, again.out) == (0, "1 created, 0 updated, 1 unchanged\n")


def test_whom_only_a_newer_version_can_read_is_named(people: Run, ana: Person, shop: Shop) -> None:
    key = Key("people", "", "ana")
    data = ana.to_json({}, Times(None, shop.app.now())).replace('"feb29":', '"days_before": 3, "feb29":')
    shop.app.run(shop.app.store.write([Bundle((Write(key, data),))]))
    assert "person 'ana' cannot be read by this version" in people("people", "list").err
    assert people("people", "list", "--json").data["unreadable"].keys() == {"ana"}
    shown = people("people", "show", "ana")
    assert (shown.code, "a newer one may have written it" in shown.err) == (1, True)


def test_import_of_what_is_not_there(people: Run, shop: Shop, tmp_path: Path) -> None:
    assert "there is no file" in people("people", "import", "nothing.csv").err
    path = tmp_path / "people.csv"
    path.write_text(FILE)
    unknown = people("people", "import", str(path))
    assert (unknown.code, "did you mean email" in unknown.err) == (2, True)
    assert people("people", "import", str(path), "--map", "x").code == 2


def test_doctor_finds_what_people_lack_and_mends_it(people: Run, ana: Person, shop: Shop) -> None:
    assert "1 person checked: all are listed and planned for" in people("doctor").out
    (listed,) = shop.app.run(shop.app.store.browse(Listing("people.email")))
    plan = Key("occasions.birthday", "", "ana")
    shop.app.run(shop.app.store.write([Bundle((Write(listed.key, None), Write(plan, None)))]))
    found = people("doctor")
    assert found.code == 1
    told = "1 cannot be found by e-mail address, 1 occasion without a plan"
    assert f"✗ people        of 1 person checked, {told}" in found.out
    assert "→ run `mainspring doctor --repair`, which checks everybody" in found.out
    mended = people("doctor", "--repair")
    assert (mended.code, f"of 1 person {told}: repaired" in mended.out) == (0, True)
    assert people("people", "list", "--email", ana.email or "", "--json").data["people"][0]["id"] == "ana"
    assert shop.app.run(shop.app.store.documents([plan]))


def test_doctor_reports_occasions_that_no_worker_sends(people: Run, ana: Person, shop: Shop) -> None:
    assert "not sent" not in people("doctor").out
    today = Occasion(kind="name-day", date=f"{shop.app.now():%m-%d}", at="00:00")
    overdue = Person(id="bob", tz="UTC", occasions=[today])
    shop.app.run(shop.app.people.put(overdue))
    (document,) = shop.app.run(shop.app.store.documents([Key("occasions.name-day", "", "bob")]))
    plan = OccasionPlan.from_document(document)
    assert plan.next
    an_hour_ago = replace(plan, next=plan.next._replace(due=shop.app.now() - timedelta(hours=1)))
    shop.app.run(shop.app.store.write([Bundle((an_hour_ago.write(shop.app.now()),))]))
    out = people("doctor").out
    assert "name-day" in out
    assert '@app.occasion("name-day")' in out
