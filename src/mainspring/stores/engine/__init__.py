"""What a job becomes. Pure functions: every store asks them, and writes what they answer.

A store finds and locks the rows, hands them over as `JobState`, and writes the values that it gets back. It decides
nothing itself, so all stores agree. Where SQL states a rule again for speed, a comment names the function here, and the
conformance suite holds both to the same result.

    creation   which new jobs can be stored, and how a job begins
    claim      which jobs a claim takes
    ack        the end of a run: its outcome becomes a status, times, counters and an entry of the history
    ends       which jobs follow the end of a job; on_end has the option that names them
    change     cancel, retry, delete and edit by hand; a suspended job whose key is woken
    halts      which workers and jobs a halt stops
"""
