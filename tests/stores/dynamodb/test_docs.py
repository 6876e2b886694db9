"""What docs/dynamodb.md says of permissions is what is asked for."""

from __future__ import annotations

import json
import re
from pathlib import Path

from mainspring.stores import dynamodb

PAGE = (Path(__file__).parents[3] / "docs/dynamodb.md").read_text()
SOURCES = Path(str(dynamodb.__file__)).parent.glob("*.py")
RIGHTS = {"BatchExecuteStatement": {"PartiQLInsert", "PartiQLUpdate"}, "TransactWriteItems": set[str]()}
"""Rights have other names than calls. A transaction needs those of the writes in it."""


def test_the_policy_has_the_rights_that_are_needed_and_no_others() -> None:
    (policy,) = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
    granted = [action.removeprefix("dynamodb:") for statement in policy["Statement"] for action in statement["Action"]]
    (migrating,) = re.findall(r"`mainspring migrate` also needs (.*?)\. If", PAGE, re.DOTALL)
    besides = re.findall(r"`(\w+)`", migrating)
    calls = {name for source in SOURCES for name in re.findall(r'(?:call|send)\(\s*"([A-Z]\w+)"', source.read_text())}
    needed = set[str]().union(*(RIGHTS.get(name, {name}) for name in calls))
    assert len(calls) > 10
    assert sorted([*granted, *besides]) == sorted(needed)
