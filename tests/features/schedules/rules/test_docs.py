"""docs/schedules.md: its examples run, its table is what happens, and nothing is left out."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import mainspring
from mainspring.features.schedules import rules
from mainspring.features.schedules.rules import Misfire, Reason, RRule, Schedule
from mainspring.features.schedules.rules.cron import NICKNAMES
from mainspring.features.schedules.rules.forms import FORMS, KINDS
from mainspring.features.schedules.rules.policies import MISFIRES

PAGE = (Path(__file__).parents[4] / "docs" / "schedules.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    first, *_, last = EXAMPLES  # those between need an application
    names: dict[str, object] = {"__name__": "hotel", "timedelta": timedelta, "Path": Path}
    exec(first, names)  # noqa: S102 - our own page
    now = datetime(2026, 3, 27, tzinfo=UTC)
    schedule = Schedule("0 9 * * *", "Europe/Berlin")
    for tz in ("Europe/Berlin",):
        copied = tmp_path / tz
        copied.parent.mkdir(parents=True)
        copied.write_bytes((Path(str(rules.PACKAGED._root)) / tz).read_bytes())
    names |= {"schedule": schedule, "before": schedule, "after": schedule, "now": now, "later": now + timedelta(days=9)}
    exec(last.replace("/opt/tzdata-new", str(tmp_path)), names)  # noqa: S102 - our own page


def test_the_page_lists_all_forms_of_text() -> None:
    assert f"```\n{FORMS}\n```" in PAGE


def test_nothing_is_left_out() -> None:
    for rule in KINDS.values():
        assert f"`{rule.__name__}(" in PAGE
    for option in [field.name for field in fields(Schedule)]:
        assert re.search(rf"\b{option}\b", PAGE), option
    for mode in MISFIRES:
        assert f"`Misfire.{mode}(" in PAGE
        assert getattr(Misfire, mode)().mode == mode
    for reason in Reason:
        assert f"`{reason}`" in PAGE
    assert {"@annually", "@midnight"} == {name for name in NICKNAMES if f"`{name}`" not in PAGE}  # other names of two


TABLE = re.search(r"\| rule \| in spring \| in autumn \|\n\|---\|---\|---\|\n(.*?)\n\n", PAGE, re.DOTALL)


def test_the_documented_table_of_clock_changes_is_right() -> None:
    assert TABLE is not None
    options: dict[str, str] = {}
    rules: list[str] = []
    for line in TABLE[1].splitlines():
        rule, spring, autumn = (cell.strip() for cell in line.strip("|").split("|"))
        options = dict(re.findall(r'(gap|fold)="(\w+)"', rule))
        rules = rules if options else re.findall(r"`([^`]+)`", rule)
        for text in rules:
            if text == "*/5 * * * *":
                continue
            named = RRule(text, "2026-01-01T00:00") if text.startswith("FREQ=") else text
            schedule = Schedule(named, "Europe/Berlin", **options)  # type: ignore[arg-type]
            assert shown(schedule, datetime(2026, 3, 29, tzinfo=UTC), minutes=105) == told(spring), text
            assert shown(schedule, datetime(2026, 10, 25, tzinfo=UTC), minutes=150) == told(autumn), text


def shown(schedule: Schedule, begin: datetime, minutes: int) -> list[str]:
    return [f"{occurrence.local:%H:%M}" for occurrence in schedule.between(begin, begin + timedelta(minutes=minutes))]


def told(cell: str) -> list[str]:
    times = re.findall(r"\d\d:\d\d", cell.partition(": 02:00 is moved")[0])
    return times * 2 if "twice" in cell else times


@pytest.mark.slow
def test_optional_packages_are_imported_only_when_needed() -> None:
    look = "import sys, mainspring; print(sorted({'dateutil', 'holidays'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert mainspring.Cron is rules.Cron
