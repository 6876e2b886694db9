"""A guest who does not come: remind twice, alert the staff at 11 PM, give the room away at midnight, hotel time.

One durable function per stay. Whoever knows something says so, at any time and from any process:

    await app.signal("stay:r1", "checked_in")        # or "cancelled", or "hold": the staff keeps the room

The times are those of ADR-005 of a hotel's butler: two and four hours after the expected arrival, 11 PM, midnight.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from pydantic import AwareDatetime, BaseModel

from mainspring import Context, JobHandle, Mainspring

app = Mainspring("sqlite:///butler.db")

STEPS = ["first outreach", "second outreach", "staff alert", "release room", "charge first night"]
ENDINGS = {"checked_in": "arrived", "cancelled": "cancelled", "hold": "held by staff"}
HOUR = timedelta(hours=1)


class Stay(BaseModel):
    reservation: str
    guest: str
    night: date  # the first one
    tz: str  # of the hotel
    eta: AwareDatetime

    def at(self, hour: time, *, next_day: bool = False) -> datetime:
        """A time of the first evening, on the hotel's clock."""
        day = self.night + timedelta(days=1) if next_day else self.night
        return datetime.combine(day, hour, ZoneInfo(self.tz))


async def expect(stay: Stay) -> JobHandle[str]:
    """When the day of arrival begins; once per reservation."""
    once = no_show.using(dedupe_key=f"no_show:{stay.reservation}", target=("reservation", stay.reservation))
    return await once.enqueue(stay)


@app.task(queue="stays", steps=STEPS)
async def no_show(ctx: Context, stay: Stay) -> str:
    """How it ended. A guest with a late arrival is given time: nothing comes before what precedes it."""
    first, second = stay.eta + 2 * HOUR, stay.eta + 4 * HOUR
    alert = max(stay.at(time(23)), second)
    midnight = max(stay.at(time(0), next_day=True), alert + HOUR)

    if ending := await news(ctx, stay, until=first):
        return ending
    await ctx.step("first outreach", write_to, stay.guest, "We are expecting you: when will you be here?")

    if ending := await news(ctx, stay, until=second):
        return ending
    await ctx.step("second outreach", write_to, stay.guest, "Shall we keep your room?")

    if ending := await news(ctx, stay, until=alert):
        return ending
    await ctx.step("staff alert", alert_staff, stay.reservation)

    if ending := await news(ctx, stay, until=midnight):
        return ending
    room = await ctx.step("release room", release_room, stay.reservation)
    await ctx.step("charge first night", charge_first_night, stay.reservation, ctx.idempotency_key)
    return f"no-show, {room} is free"


async def news(ctx: Context, stay: Stay, until: datetime) -> str | None:
    """Leaves the worker until somebody says something that ends the waiting, or the time has come."""
    while signal := await ctx.wait_for(f"stay:{stay.reservation}", timeout=until - app.now()):
        if signal.payload in ENDINGS:
            return ENDINGS[signal.payload]
    return None


# -- the hotel's own business, each done once ---------------------------------------------------------


async def write_to(guest: str, text: str) -> None:
    print(f"to {guest}: {text}")


async def alert_staff(reservation: str) -> None:
    print(f"nobody has come for {reservation}")


async def release_room(reservation: str) -> str:
    return f"the room of {reservation}"


async def charge_first_night(reservation: str, key: str) -> None:
    print(f"the first night of {reservation} is charged, once ({key})")
