"""Decides when a job may start, and what becomes of it if it may not.

debounce      a newer enqueue replaces the job that waits (debounce) or is dropped (throttle)
expiry        drops jobs that were not started in time
breakers      stop calling services that fail; circuit: when they open and close, passage: use them around calls
delivery      deliveries only within local hours
dependencies  jobs that start after others have finished
batch         jobs that belong together, and what follows them; chains; batch_progress: how far a batch is
limits        how many jobs run at once, and how many start in a period
resumption    which jobs have begun already, or were retried or edited by an operator
"""

from mainspring.flow.circuit import Breaker
from mainspring.flow.debounce import Debounce, Throttle
from mainspring.flow.delivery import Window

__all__ = ["Breaker", "Debounce", "Throttle", "Window"]
