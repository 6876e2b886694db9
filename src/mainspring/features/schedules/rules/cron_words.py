"""Describes a cron expression in words."""

from __future__ import annotations

from datetime import time

from mainspring.features.schedules.rules.cron import Fields, Values
from mainspring.features.schedules.rules.parse import FULL_WEEKDAYS, write_time
from mainspring.features.schedules.rules.words import FULL_MONTHS, ORDINALS, every, listing, ordinal, weekday_span

MAX_LISTED_TIMES = 8


def describe_cron(fields: Fields) -> str:
    when, named = _time(fields)
    days = _days(fields)
    if not days and named:
        days = "every day" if fields.month.every else "every day in " + _months(fields.month)
    elif not days and not fields.month.every:
        days = "in " + _months(fields.month)
    return f"{when} {days}".strip()


# -- the time of day ------------------------------------------------------------------------------


def _time(fields: Fields) -> tuple[str, bool]:
    """Return the words, and whether they name times of day, so that "every day" may follow."""
    seconds, minutes, hours = fields.second.numbers, fields.minute.numbers, fields.hour.numbers
    if len(seconds) * len(minutes) * len(hours) <= MAX_LISTED_TIMES:
        spelled = [time(h, m, s) for h in hours for m in minutes for s in seconds]
        return f"at {listing(write_time(at) for at in spelled)}", True
    if fields.hour.every:
        return _within_the_hour(fields), False
    if seconds == (0,) and minutes == (0,):
        return _hours(fields.hour)
    if seconds == (0,) and not _steps(fields.minute, "minute"):
        return _minutes(fields.minute, f"past {listing(f'{hour:02}:00' for hour in hours)}"), True
    return f"{_within_the_hour(fields)} {_hour_runs(fields)}", False


def _within_the_hour(fields: Fields) -> str:
    seconds, minutes = fields.second, fields.minute
    if seconds.numbers == (0,):
        return _minutes(minutes, "past every hour")
    if minutes.every:
        return _steps(seconds, "second") or f"at {_counted(seconds.numbers, 'second')} past every minute"
    in_minutes = _minutes(minutes, "past every hour")
    of_seconds = _steps(seconds, "second") or f"at {_counted(seconds.numbers, 'second')}"
    return f"{of_seconds} within the minute, {in_minutes}"


def _minutes(minutes: Values, tail: str) -> str:
    if minutes.numbers == (0,):
        return "every hour"
    counted = _counted(minutes.numbers, "minute")
    return _steps(minutes, "minute") or f"{'' if counted.startswith('every') else 'at '}{counted} {tail}"


def _steps(values: Values, unit: str) -> str | None:
    """Return `every 5 minutes` if the values are evenly spaced around the whole hour or minute, else None."""
    numbers = values.numbers
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 60
    regular = numbers == tuple(range(numbers[0], 60, step)) and len(numbers) * step == 60
    if len(numbers) < (2 if numbers[0] == 0 else 3) or not regular:
        return None
    start = "" if numbers[0] == 0 else f", starting {_counted(numbers[:1], unit)} past"
    return every(step, unit) + start


def _counted(numbers: tuple[int, ...], unit: str) -> str:
    if len(numbers) > 2 and numbers == tuple(range(numbers[0], numbers[-1] + 1)):
        return f"every {unit} from {numbers[0]} to {numbers[-1]}"
    return f"{listing(map(str, numbers))} {unit}{'' if numbers == (1,) else 's'}"


def _hours(hours: Values) -> tuple[str, bool]:
    numbers = hours.numbers
    step = numbers[1] - numbers[0]
    if numbers == tuple(range(numbers[0], 24, step)) and 24 % step == 0 and numbers[0] < step:
        start = "" if numbers[0] == 0 else f" from {numbers[0]:02}:00"
        return every(step, "hour") + start, False
    if numbers == tuple(range(numbers[0], numbers[-1] + 1, step)):
        return f"{every(step, 'hour')} from {numbers[0]:02}:00 to {numbers[-1]:02}:00", False
    return f"at {listing(f'{hour:02}:00' for hour in numbers)}", True


def _hour_runs(fields: Fields) -> str:
    """Return `from 00:00 to 04:55 and from 22:00 to 23:55`."""
    hours, minutes, seconds = fields.hour.numbers, fields.minute.numbers, fields.second.numbers
    starts = [hour for hour in hours if hour - 1 not in hours]
    ends = [hour for hour in hours if hour + 1 not in hours]
    return listing(
        f"from {write_time(time(start, minutes[0], seconds[0]))} to {write_time(time(end, minutes[-1], seconds[-1]))}"
        for start, end in zip(starts, ends, strict=True)
    )


# -- the day --------------------------------------------------------------------------------------


def _days(fields: Fields) -> str:
    dates = "" if fields.day.every else _dates(fields)
    weekdays = "" if fields.weekday.every else _weekdays(fields)
    if not dates or not weekdays:
        return dates or weekdays
    if fields.day.starred or fields.weekday.starred:
        return f"{dates}, if that is {_any_weekday(fields.weekday)}"
    return f"{dates} and {weekdays}"


def _dates(fields: Fields) -> str:
    day, month = fields.day, fields.month
    plain = not (day.last or day.last_workday or day.nearest)
    if plain and len(day.numbers) == 1 and not month.every and len(month.numbers) == 1:
        return f"on {day.numbers[0]} {FULL_MONTHS[month.numbers[0] - 1]}"
    if day.text.startswith("*/"):
        return f"on every {ordinal(int(day.text[2:]))} day from the 1st of {_of_months(month)}"
    return f"on {listing(_named_dates(day))} of {_of_months(month)}"


def _named_dates(day: Values) -> list[str]:
    names = []
    if len(day.numbers) > 3 and day.numbers == tuple(range(day.numbers[0], day.numbers[-1] + 1)):
        names.append(f"the {ordinal(day.numbers[0])} to the {ordinal(day.numbers[-1])}")
    elif day.numbers:
        names.append(f"the {listing(map(ordinal, day.numbers))}")
    names += [f"the weekday nearest to the {ordinal(number)}" for number in day.nearest]
    names += ["the last day" if before == 0 else _before_the_last(before) for before in day.last]
    return [*names, "the last weekday"] if day.last_workday else names


def _before_the_last(days: int) -> str:
    return f"the day {days} day{'' if days == 1 else 's'} before the last"


def _weekdays(fields: Fields) -> str:
    """Return `every Monday`, `Monday to Friday`, or `on the second Friday of every month`."""
    numbered = [(number + 6) % 7 for number in fields.weekday.numbers]
    months = "" if fields.month.every else f" in {_months(fields.month)}"
    names = [_nth(weekday, which) for weekday, which in fields.weekday.nth]
    nth = f"on {listing(names)} of {_of_months(fields.month)}" if names else ""
    if not numbered:
        return nth
    span = weekday_span(sorted(numbered))
    regular = span if " to " in span else f"every {span}"
    return f"{regular}{months}" + (f" and {nth}" if nth else "")


def _nth(weekday: int, which: int) -> str:
    name = FULL_WEEKDAYS[(weekday + 6) % 7]
    return f"the last {name}" if which < 0 else f"the {ORDINALS[which - 1]} {name}"


def _any_weekday(weekday: Values) -> str:
    numbered = sorted((number + 6) % 7 for number in weekday.numbers)
    names = [f"a {FULL_WEEKDAYS[day]}" for day in numbered] + [_nth(*nth) + " of the month" for nth in weekday.nth]
    return listing(names, "or")


def _months(month: Values) -> str:
    numbers = month.numbers
    if len(numbers) > 2 and numbers == tuple(range(numbers[0], numbers[-1] + 1)):
        return f"{FULL_MONTHS[numbers[0] - 1]} to {FULL_MONTHS[numbers[-1] - 1]}"
    return listing(FULL_MONTHS[number - 1] for number in numbers)


def _of_months(month: Values) -> str:
    if month.every:
        return "every month"
    step = _month_step(month.numbers)
    return f"every {ordinal(step)} month from {FULL_MONTHS[month.numbers[0] - 1]}" if step else _months(month)


def _month_step(numbers: tuple[int, ...]) -> int | None:
    if len(numbers) < 3:
        return None
    step = numbers[1] - numbers[0]
    whole_year = numbers == tuple(range(numbers[0], 13, step)) and 12 % step == 0 and numbers[0] <= step
    return step if whole_year and step > 1 else None
