"""When a job may start, and what becomes of it if it may not.

debounce      a newer enqueue takes the place of the one that waits; throttle: or is left out
expiry        a job that was not started in time is dropped
dependencies  a job that starts after others have finished
resumption    which jobs are under way already, or asked for by hand
"""

from mainspring.flow.debounce import Debounce, Throttle

__all__ = ["Debounce", "Throttle"]
