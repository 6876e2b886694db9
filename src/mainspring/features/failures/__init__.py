"""Failure groups: failures with the same cause, counted together, with what people say about them.

group    a group as readers see it
rules    how a group changes: by failures, by recoveries and by hand. Without I/O
index    lists of groups by the time of their last failure
storage  the documents of groups, and how the notes of failed runs are added to them
timer    adds up notes in workers, and removes groups that are over
feature  gives workers the timers
api      `app.failures`
"""
