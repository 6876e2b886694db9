"""Schedules in the store: any process fires them, and a ledger says what became of each occurrence.

People's occasions (features/people) use the same firing, ledger, halt log and timer.

rules       which times a schedule names, and which of them to fire, without I/O
storage     a schedule as it is stored: what to run, when, and which occurrences are decided
firing      what firing writes, and the decision about a schedule that is due, without I/O
ledger      what became of each occurrence: fired, coalesced, skipped or triggered; which halt was in the way
feature     gives workers the timer
timer       reads what is due, writes the firings, and leaves unreadable documents to newer workers
api         `app.schedules`: put, get, preview, pause, trigger; brings the store in line with `@app.every(…)`
simulation  runs a schedule on virtual time
"""
