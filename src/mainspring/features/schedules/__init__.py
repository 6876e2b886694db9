"""Schedules in the store: any process fires them, and a ledger says what became of each occurrence.

rules       which times a schedule names, and which of them to fire, without I/O
storage     a schedule as it is stored: what to run, when, and which occurrences are decided
firing      decides what to write when a schedule is due, without I/O
ledger      what became of each occurrence: fired, coalesced, skipped or triggered
halt_log    records halts, so that the ledger can explain late and missed occurrences
timer       finds the schedules that are due and writes the decisions
audit       what the audit log records of a change
api         `app.schedules`: put, get, preview, pause, trigger; brings the store in line with `@app.every(…)`
simulation  runs a schedule on virtual time
"""
