"""One time at which a schedule fires."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Literal

from mainspring.errors import InvalidSchedule
from mainspring.schedule.parse import instant, length, write_length


@dataclass(frozen=True, slots=True)
class Occurrence:
    nominal: datetime  # the wall time that the rule names: naive
    utc: datetime  # the instant: aware
    offset: timedelta  # of the zone at that instant
    key: str  # what this occurrence is known by, whatever becomes of the zone: see `Schedule.following`
    shifted: timedelta = timedelta()  # clocks skipped the nominal time, so it was moved by this
    fold: Literal["first", "second"] | None = None  # the nominal time comes twice, and this is which

    @property
    def local(self) -> datetime:
        """What the clocks on the wall show at that instant. The nominal time, unless that was skipped."""
        return self.utc.astimezone(timezone(self.offset))

    def to_data(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "nominal": self.nominal.isoformat(),
            "utc": self.utc.isoformat().replace("+00:00", "Z"),
            "offset": self.offset.total_seconds(),
            "key": self.key,
        }
        if self.shifted:
            data["shifted"] = write_length(self.shifted)
        return data if self.fold is None else {**data, "fold": self.fold}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Occurrence:
        try:
            return cls(
                nominal=datetime.fromisoformat(data["nominal"]).replace(fold=0),
                utc=instant(data["utc"], "utc").astimezone(UTC),
                offset=timedelta(seconds=data["offset"]),
                key=str(data["key"]),
                shifted=length(data.get("shifted", 0), "shifted"),
                fold=data.get("fold"),
            )
        except (KeyError, TypeError, ValueError) as error:
            msg = f"this is no occurrence: {data!r} ({error!r})"
            raise InvalidSchedule(msg) from None
