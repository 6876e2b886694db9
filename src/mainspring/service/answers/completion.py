"""What routes about ends of pushed jobs answer."""

from __future__ import annotations

from pydantic import Field

from mainspring.service.views import View


class EndedView(View):
    id: str
    accepted: bool = Field(description="a worker ends the job at once; the job shows when it has")
