"""Schedules at work: kept in the store, fired by any process, with a ledger of what became of each occurrence.

stored      a schedule as it is kept: what to run, when, and how far it has come
firing      what is to be written when one is due: pure
halted      what halts have to do with it
timer       finds those that are due and writes it
noted       what the audit log says of a change
schedules   `app.schedules`: putting, looking, pausing, previewing
simulation  a year of one on virtual time
declared    `@app.every(...)`, and how the store is brought in line with the code
"""
