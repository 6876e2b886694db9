"""Recovery: dead letters of a task run again by themselves, for example when a service that was down is back.

options  what a task declares: `@app.task(recover=Recover(…))`
timer    finds the dead letters and retries them, in one process at a time
feature  gives workers the timer
"""
