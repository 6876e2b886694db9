"""People and their occasions: a message at nine in the morning, wherever they are, once a year.

quiet       the hours in which someone is left alone
occasion    a birthday, an anniversary, a day of your own
person      who they are, where, and their occasions
times       which instant an occasion is in a year: pure
plan        what is to be sent next to one person for one occasion, and what a change does to it: pure
firing      what is to be written when a plan is due: pure
ledger      what became of each
timer       finds plans that are due and writes it
people      `app.people`: putting, changing, deleting; a person and all plans in one write
search      which people
mending     what somebody lacks who was parted from their lists and plans
rows        people out of CSV files
occasions   `app.occasions`, `@app.occasion(...)`: handlers, looking ahead and back
"""

from mainspring.occasions.occasion import Occasion
from mainspring.occasions.person import Person

__all__ = ["Occasion", "Person"]
