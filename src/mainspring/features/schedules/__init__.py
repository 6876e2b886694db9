"""Schedules in the store: any process fires them, and a ledger says what became of each occurrence.

People's occasions (features/people) use the same firing, ledger, halt log and timer.

rules       which times a schedule names, and which of them to fire, without I/O
storage     a schedule as it is stored: what to run, when, and which occurrences are decided
firing      decides what to write when a schedule is due, without I/O; the ledger says what became of each occurrence
feature     gives workers the timer
timer       reads what is due, writes the firings, and notes the halts that were in the way
api         `app.schedules`: put, get, preview, pause, trigger; brings the store in line with `@app.every(…)`
simulation  runs a schedule on virtual time
"""
