"""Durable functions: handlers that resume after a crash, a sleep, or a wait for a signal or a child job.

Each run starts the function from its beginning. Steps, sleeps, waits and children that are done were recorded under
their names, so the new run gets their results from the records. See docs/durable.md.
"""
