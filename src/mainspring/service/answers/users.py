"""What routes about users answer."""

from __future__ import annotations

from pydantic import Field

from mainspring.service.answers.people import CREATED, UPDATED
from mainspring.service.views import Moment, View

DAY = "1990-12-30, or 12-30 if the year is not known"


class UserView(View):
    """A user."""

    id: str
    firstName: str  # noqa: N815
    lastName: str  # noqa: N815
    birthday: str | None = Field(description=DAY)
    timezone: str
    email: str | None
    createdAt: Moment | None = Field(description=CREATED)  # noqa: N815
    updatedAt: Moment | None = Field(description=UPDATED)  # noqa: N815
