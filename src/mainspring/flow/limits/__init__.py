"""How many jobs run at once, and how many start in a time: of a task, a queue, or a key, across all workers.

limit      what a program declares
slots      the state of a limit: who holds its places; bucket: of a rate; turns: of a key of a fair task
admission  who may start of those who ask, and who is called of those who wait
crew       how many jobs of one key are out of the line
kept       states as documents
desk       decides and writes: by compare-and-set, many at a time
standby    refused jobs that wait in their worker for a moment
guard      what claimed jobs pass; timer: turns of those that wait, and what got lost with a process
limits     `app.limits`
"""

from mainspring.flow.limits.limit import Fair, Limit, Rate
from mainspring.flow.limits.limits import Limits, LimitState

__all__ = ["Fair", "Limit", "LimitState", "Limits", "Rate"]
