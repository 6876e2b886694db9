"""Durable functions: handlers that resume after a crash, a sleep, or a wait for a signal or a child job.

Each run starts the function from its beginning. Steps, sleeps, waits and children that are done were recorded under
their names, so the new run gets their results from the records. See docs/durable.md.

run         one run of a function; each call is recorded before the function goes on
journal     the records of a job, matched by name with the calls of this run
plan        the steps that an enqueue asked for
deadline    timeouts of steps
saved       the states that a function saves of its steps
outputs     step outputs as JSON
failures    failures of steps that the function caught
sleep       sleeps
signals     events that jobs wait for
children    jobs that a function spawns and may wait for
suspension  how a function that sleeps or waits is unwound
states      the progress of a function, for display
detached    durable calls in a unit test that calls a handler directly
feature     ends children with their parent, and gives workers the timer
timer       wakes jobs for signals whose sender died
"""
