"""Measures Mainspring beside its peers: `make bench`, or `python -m bench --help`.

- `field` names the kinds of stores that are compared: SQLite, PostgreSQL. Each has its own plan, goals, peers, results.
- `plan` says what is measured, `goal` what we want to reach, `roster` who takes part.
- `run` starts each measurement in a process of its own, with the peer's own interpreter; `ground` gives it a place for
  its data, `server` the PostgreSQL for that.
- `measure` is that process: it plays one of `measurements` on one of `peers`, and prints one JSON line.
- `result` collects the lines, `table`, `plot` and `page` show them.
- `against` measures earlier commits of Mainspring instead of peers: `python -m bench.against COMMIT`.

To add a peer: one file in `peers/<field>`, see `peer`.
"""
