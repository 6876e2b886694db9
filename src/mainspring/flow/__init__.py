"""When a job may start, and what becomes of it if it may not.

debounce      a newer enqueue takes the place of the one that waits; throttle: or is left out
expiry        a job that was not started in time is dropped
breakers      services that fail are not called for a while; circuit: when, passage: around calls
quiet         deliveries within local hours
dependencies  a job that starts after others have finished
batch         jobs that belong together, and what follows; chains; tally: how far they are
limits        how many run at once, how many start in a time
resumption    which jobs are under way already, or asked for by hand
"""

from mainspring.flow.circuit import Breaker
from mainspring.flow.debounce import Debounce, Throttle
from mainspring.flow.delivery import Window

__all__ = ["Breaker", "Debounce", "Throttle", "Window"]
