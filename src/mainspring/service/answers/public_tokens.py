"""What the routes that make public tokens answer."""

from __future__ import annotations

from pydantic import Field

from mainspring.service.views import Moment, TargetView, View


class PublicTokenView(View):
    text: str = Field(description="the token itself: `msp_…`", repr=False)
    expires_at: Moment
    jobs: list[str]
    target: TargetView | None
    result: bool


class RotatedView(View):
    key: str = Field(description="the id of the new key; public tokens begin with `msp_<id>_`")
