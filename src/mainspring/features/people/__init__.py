"""People and their occasions: send a message once a year, at nine in the morning of the person's local time.

occasion    a birthday, an anniversary, or a kind of your own
person      a person: name, time zone, addresses, quiet hours, occasions
plan        what to send next to one person for one occasion, and how changes affect that, without I/O
firing      decides what to write when a plan is due, without I/O; the ledger says what became of an occasion
storage     the documents: people, the lists by e-mail address, the kinds of occasions; what a change writes
timer       finds the plans that are due and writes the decisions
feature     the handlers: calls your function with the current person and occasion
api         `app.people`: put, change, find and delete people
search      finds people by e-mail address, name, time zone, kind or attributes
repair      restores missing plans and e-mail list entries
rows        reads people from CSV files
occasions   `app.occasions`: what is coming, the ledger
"""

from mainspring.features.people.occasion import Occasion
from mainspring.features.people.person import Person

__all__ = ["Occasion", "Person"]
