"""The checks of a soak: what must be true at its end, each as a list of problems."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from bench.soak.samples import early_and_late

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bench.soak.samples import Sample

MIN_MINUTES = 10  # a shorter run cannot tell growth from caches that fill
MAX_GROWTH = 0.05  # of memory, from the second tenth of the run to the last
MAX_MORE_FILES = 5
MAX_SHOWN = 5


def jobs(acknowledged: set[str], completed: set[str], ends: Sequence[str]) -> Iterator[str]:
    """Compare the caller, the store and the file that the handlers wrote."""
    yield from _several("was acknowledged but did not complete", acknowledged - completed)
    yield from _several(
        "is completed in the store, but its handler never ended", (acknowledged & completed) - set(ends)
    )
    twice = {job_id for job_id, number in Counter(ends).items() if number > 1}
    yield from _several("ended twice although no process died", twice)


def processes(samples: Mapping[str, Sequence[Sample]]) -> Iterator[str]:
    """Neither memory nor open files may grow."""
    for name, taken in samples.items():
        if taken[-1].second < MIN_MINUTES * 60 * 0.95:
            continue
        before, after = early_and_late([sample.megabytes for sample in taken])
        if after > before * (1 + MAX_GROWTH):
            yield f"{name}: memory grew from {before:.0f} to {after:.0f} MB"
        files, more = early_and_late([float(sample.files) for sample in taken])
        if more > files + MAX_MORE_FILES:
            yield f"{name}: open files grew from {files:.0f} to {more:.0f}"


def first_of(problems: Iterable[str]) -> list[str]:
    """Return the first problems, and how many there are beyond them."""
    found = list(problems)
    rest = len(found) - MAX_SHOWN
    return [*found[:MAX_SHOWN], *([f"… and {rest:,} more like this"] if rest > 0 else [])]


def _several(what: str, ids: set[str]) -> Iterator[str]:
    for job_id in sorted(ids):
        yield f"job {job_id} {what}"
