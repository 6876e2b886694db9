"""Features: each is a folder. They take part in enqueueing a job, decide whether it may start, or act on due documents.

limits        how many jobs run at once, and how many start in a period
debounce      a newer enqueue replaces the job that waits (debounce) or is dropped (throttle)
expiry        drops jobs that were not started in time
dependencies  jobs that start after others have finished
batches       jobs that belong together, and what follows them; chains
breakers      circuit breakers: stop calling services that fail
delivery      deliveries only within local hours
durable       durable functions: steps, sleeps, signals, children
schedules     jobs at the times of a rule
people        people and their occasions

Each feature has a feature.py, with a class that derives from `Feature` (mainspring/feature.py). Its other files
have these names, where it needs them. A larger feature has further files, which its `__init__` lists.

options  what a program declares, checked and typed
rules    pure decisions
storage  its documents
feature  how it takes part: at the enqueue, before the start, after the end, by time
timer    acts on due documents
api      what `app.<name>` offers
"""
