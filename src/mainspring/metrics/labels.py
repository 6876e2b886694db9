"""Caps on the values of labels: a monitoring system keeps a series for each of them, for weeks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

OTHER = "other"
"""The value of a label for all names beyond the cap."""

MAX_TASKS = 200
MAX_QUEUES = 100
MAX_NAMES = 200  # of schedules, breakers, channels and the like
MAX_PLACES = 1000  # pairs of queue and task

N = TypeVar("N", bound=float)


class Names:
    """The names that a process shows: the first ones that it meets, up to a cap."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._shown: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        shown = self._shown.get(name)
        if shown is not None:
            return shown
        if len(self._shown) >= self._cap:
            return OTHER
        return self._shown.setdefault(name, name)


class Places:
    """The pairs of queue and task that a process shows."""

    def __init__(self) -> None:
        self._queues, self._tasks = Names(MAX_QUEUES), Names(MAX_TASKS)
        self._shown: dict[tuple[str, str], tuple[str, str]] = {}

    @property
    def queues(self) -> list[str]:
        """The values of the label for queues so far."""
        return list({queue: None for queue, _ in list(self._shown.values())})

    def queue(self, name: str) -> str:
        return self._queues[name]

    def __getitem__(self, place: tuple[str, str]) -> tuple[str, str]:
        shown = self._shown.get(place)
        if shown is not None:
            return shown
        if len(self._shown) >= MAX_PLACES:
            return OTHER, OTHER
        return self._shown.setdefault(place, (self._queues[place[0]], self._tasks[place[1]]))


def capped(numbers: Mapping[str, N], cap: int, merge: Callable[[Sequence[N]], float] = sum) -> dict[str, float]:
    """Return the numbers of the first names in alphabetical order, and `merge` those of the rest.

    Every process shows the same names, and a name does not come and go with its number.
    """
    names = sorted(numbers)
    found: dict[str, float] = {name: numbers[name] for name in names[:cap]}
    if len(names) > cap:
        found[OTHER] = merge([numbers[name] for name in names if name not in found or name == OTHER])
    return found


def capped_places(numbers: Mapping[tuple[str, str], int]) -> dict[tuple[str, ...], float]:
    """Return the numbers of pairs of queue and task, of which the first ones in alphabetical order are shown."""
    queues = set(sorted({queue for queue, _ in numbers})[:MAX_QUEUES])
    tasks = set(sorted({task for _, task in numbers})[:MAX_TASKS])
    shown: Counter[tuple[str, str]] = Counter()
    for (queue, task), number in numbers.items():
        shown[queue if queue in queues else OTHER, task if task in tasks else OTHER] += number
    found: dict[tuple[str, ...], float] = {place: shown[place] for place in sorted(shown)[:MAX_PLACES]}
    if rest := sum(number for place, number in shown.items() if place not in found):
        found[OTHER, OTHER] = found.get((OTHER, OTHER), 0) + rest
    return found
