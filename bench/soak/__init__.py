"""`python -m bench.soak`: a service, a worker and live clients under a steady load for an hour.

It finds what only time shows: memory or open files that grow, jobs that get lost or run twice, events that are missing
or out of order, and health that fails. `application.py` has the jobs, `load.py` the callers, `samples.py` what is seen
of the processes, `verdict.py` the checks, and `__main__.py` the run.
"""
