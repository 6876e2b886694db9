"""What routes about orders to pull workers answer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mainspring.service.views import View

Order = Literal["quiet", "terminate"]


class OrderView(View):
    worker: str
    order: Order | None = Field(description="null: it may take jobs")
