"""docs/occasions.md: nothing is left out, its example is understood, and its table is what happens."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

from mainspring import Occasion, Person
from mainspring.features.people.api import People
from mainspring.features.people.occasions import Occasions
from mainspring.features.people.plan import Times
from mainspring.features.people.rows import DETAILS, KNOWN_KINDS, PLAIN

PAGE = (Path(__file__).parents[3] / "docs" / "occasions.md").read_text("utf-8")


def test_nothing_is_left_out() -> None:
    for name in (
        *Person.model_fields,
        *PLAIN,
        *KNOWN_KINDS,
        *(f"birthday.{detail}" for detail in DETAILS),
        "fired",
        "skipped",
    ):
        assert f"`{name}`" in PAGE, name
    for name in Occasion.model_fields:
        assert f"`{name}`" in PAGE or f"`occasion.{name}`" in PAGE, name
    for kind in (People, Occasions):
        for name in vars(kind):
            assert name.startswith("_") or name in {"apply", "handle", "kinds"} or f"`{name}`" in PAGE, name


def test_the_example_can_be_read() -> None:
    (example, *_) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    compile(f"async def page():\n{re.sub('^', '    ', example, flags=re.MULTILINE)}", "docs/occasions.md", "exec")


def test_the_table_of_times_is_what_happens() -> None:
    rows = re.findall(r"^\| `(\w+/\w+)` \| (\d+ \w+).*? \| (.*?) UTC \|$", PAGE, re.MULTILINE)
    assert len(rows) == 3
    for tz, day, utc in rows:
        date = f"{datetime.strptime(day + ' 2000', '%d %B %Y'):%m-%d}"  # noqa: DTZ007 - a date
        moment = Times(tz, date, "09:00", "feb28", "3d").in_year(2025)
        assert moment
        assert f"{moment.utc:%Y-%m-%d %H:%M}" == utc
