"""ETags: a caller that changes what it has read says so by `If-Match`, and does not overwrite what others did since."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Header

from mainspring.service.problems import Problem
from mainspring.stores.documents import ABSENT

TAG = re.compile(r'(?:W/)?"([^"]*)"')

IfMatch = Annotated[str | None, Header(max_length=2_000, description="ETags of what you have read, or `*`; else 412")]
IfNoneMatch = Annotated[str | None, Header(max_length=2_000, description="`*`: it must not exist yet; else 412")]


def etag(revision: str) -> dict[str, str]:
    return {"etag": f'"{revision}"'}


def expected(current: str | None, if_match: str | None, if_none_match: str | None = None) -> str | None:
    """Return the revision on which a change may be made; None for any.

    `current` is the revision now; None: there is none. The change itself must check again that it is still that one.
    """
    if if_none_match is not None:
        if if_none_match.strip() != "*":
            raise Problem("invalid_request", "If-None-Match of a change can only be *: it must not exist yet")
        return ABSENT
    if if_match is None:
        return None
    if current is not None and (if_match.strip() == "*" or current in TAG.findall(if_match)):
        return current
    what = "there is none" if current is None else "it was changed since you have read it"
    raise Problem("precondition_failed", f"{what}; read it again, and send its ETag as If-Match")
