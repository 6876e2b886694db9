"""What routes about users answer."""

from __future__ import annotations

from pydantic import Field

from mainspring.service.views import View

DAY = "1990-12-30, or 12-30 if the year is not known"


class UserView(View):
    """A user."""

    id: str
    firstName: str  # noqa: N815
    lastName: str  # noqa: N815
    birthday: str | None = Field(description=DAY)
    timezone: str
    email: str | None
