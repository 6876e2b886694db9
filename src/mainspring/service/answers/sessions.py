"""What the routes of sessions answer."""

from __future__ import annotations

from pydantic import Field

from mainspring.service.views import Moment, View


class SessionView(View):
    id: str
    token: str = Field(description="the id of the token with which it began")
    name: str = Field(description="the name of that token")
    address: str = Field(description="from which the person logged in")
    created_at: Moment
    seen_at: Moment = Field(description="when it was used last, give or take five minutes")
    expires_at: Moment = Field(description="when it ends if it is not used again")
    current: bool = Field(description="this request belongs to it")


class SessionList(View):
    sessions: list[SessionView]
    cursor: str | None = Field(description="pass it as `cursor` to get the next page; null: this was the last")
