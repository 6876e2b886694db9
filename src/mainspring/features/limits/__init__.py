"""Limits how many jobs run at once and how many start in a period: of a task, a queue or a key, across all workers.

options      what a program declares, and which limits a job needs
storage      slots of a `Limit`, bucket of a `Rate`, turns of one key of a `Fair` task; each is a document
rules        which of the jobs that ask may start, and how many of those that wait are woken
coordinator  decides and writes, by compare-and-set, many requests at a time
fair_share   how many jobs of one fair key may be ready or running
token_cache  tokens of a rate that a process has taken in advance
feature      the check that claimed jobs pass
timer        wakes jobs that wait, and repairs what a process that died left behind
api          `app.limits`
"""

from mainspring.features.limits.api import Limits, LimitState
from mainspring.features.limits.options import Fair, Limit, Rate

__all__ = ["Fair", "Limit", "LimitState", "Limits", "Rate"]
