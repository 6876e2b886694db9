"""What routes about signals answer."""

from __future__ import annotations

from typing import Any

from mainspring.service.views import Moment, View


class SignalView(View):
    id: str
    key: str
    payload: Any
    sent_at: Moment
