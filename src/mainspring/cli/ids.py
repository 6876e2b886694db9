"""Ids of jobs as people type them: the beginning is enough if it is unique."""

from __future__ import annotations

import re

from mainspring.app import Mainspring
from mainspring.cli.exits import UsageError
from mainspring.stores.protocol import Filter

SHORTEST = 8  # characters; these of an id give the minute in which its job was enqueued
LAST = "ffffffff-ffff-7fff-bfff-ffffffffffff"  # sorts after all ids
BEGINNING = re.compile(rf"[0-9a-f-]{{{SHORTEST},{len(LAST) - 1}}}")


def full_id(app: Mainspring, text: str) -> str:
    """Return the id that begins with the text, or the text itself if there is none or it is a whole id."""
    given = text.lower()
    if not BEGINNING.fullmatch(given):
        return text
    page = app.run(app.jobs.find(Filter(), limit=2, cursor=given + LAST[len(given) :]))
    found = [job.id for job in page.jobs if job.id.startswith(given)]
    if len(found) > 1:
        msg = f"several jobs begin with {text}, such as {found[0]} and {found[1]}; write more of the id"
        raise UsageError(msg)
    return found[0] if found else text
