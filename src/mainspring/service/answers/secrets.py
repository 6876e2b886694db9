"""What routes about secrets answer."""

from __future__ import annotations

from pydantic import Field

from mainspring.service.views import Moment, View


class SecretView(View):
    """A secret without its text."""

    name: str
    created_at: Moment
    created_by: str


class SecretTextView(SecretView):
    texts: list[str] = Field(description="requests are signed with each of them; the newest is the first", repr=False)


class SecretList(View):
    secrets: list[SecretView]
    cursor: str | None = Field(description="pass it as `cursor` to get the next page; null: this was the last")
