"""One time at which a schedule fires."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Literal

from mainspring.errors import InvalidSchedule
from mainspring.features.schedules.rules.parse import instant, length, write_length


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A wall time that a rule names, and its instant."""

    nominal: datetime  # the wall time that the rule names, naive
    utc: datetime  # the instant, aware
    offset: timedelta  # of the time zone at that instant
    key: str  # identifies it, even if the time zone's rules change: see `Schedule.following`
    shifted: timedelta = timedelta()  # how far it was moved, because clocks skip the nominal time
    fold: Literal["first", "second"] | None = None  # which one, if the nominal time comes twice

    @property
    def local(self) -> datetime:
        """Return the local time at that instant. It is the nominal time, unless clocks skip that."""
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
            msg = f"this is not an occurrence: {data!r} ({error!r})"
            raise InvalidSchedule(msg) from None
