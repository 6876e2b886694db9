"""What routes about settings that are changed at run time answer."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from mainspring.live_settings import Kind
from mainspring.service.views import Moment, View


class SettingView(View):
    """A setting that was changed at run time."""

    kind: Kind
    name: str
    option: str = Field(description="limit, rate, retry, timeout, max_attempts or paused")
    value: Any = Field(description="a number; an object for a rate or a retry policy; true for a pause")
    actor: str
    reason: str
    at: Moment


class SettingList(View):
    settings: list[SettingView]


class ClearedView(View):
    cleared: bool = Field(description="false: there was nothing to clear")
