"""What Companion remembers: users, conversations and summaries, in the same DynamoDB table as the jobs.

    a user               PK=users, SK=<user>
    a conversation       PK=conversations#<user>, SK=<UTC time>
    a summary            PK=summaries#<user>, SK=<date>

The jobs are in the same table, under keys that begin with the prefix in the store's URL. Neither side sees the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import botocore.session  # type: ignore[import-untyped]

Row = dict[str, str]
KEY_NAMES = {"PK": "HASH", "SK": "RANGE"}


@dataclass(frozen=True, slots=True)
class User:
    id: str
    slack_id: str
    channel: str
    name: str
    tz: str
    summary_at: str = "18:00"  # local time
    synced_at: str = ""

    @property
    def zone(self) -> ZoneInfo:
        """Return the user's time zone; UTC if Slack has named one that this machine does not know."""
        try:
            return ZoneInfo(self.tz)
        except (ValueError, ZoneInfoNotFoundError):
            return ZoneInfo("Etc/UTC")

    def summary_time(self, day: date) -> datetime:
        return datetime.combine(day, time.fromisoformat(self.summary_at), self.zone).astimezone(UTC)

    def next_day(self, now: datetime) -> date:
        """Return the day of the next summary: today, or tomorrow if today's time is over."""
        today = now.astimezone(self.zone).date()
        return today if self.summary_time(today) > now else today + timedelta(days=1)


class Memory:
    """The application's own items."""

    def __init__(self, table: str, region: str | None = None, endpoint: str | None = None) -> None:
        self._table = table
        session = botocore.session.get_session()
        self._client = session.create_client("dynamodb", region_name=region, endpoint_url=endpoint)

    def create_table(self) -> None:
        """Create the table, as an application without jobs would. `mainspring migrate` adds what jobs need."""
        self._client.create_table(
            TableName=self._table,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in KEY_NAMES],
            KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in KEY_NAMES.items()],
        )

    # -- users ------------------------------------------------------------------------------------

    def put_user(self, user: User) -> None:
        fields = {name: getattr(user, name) for name in User.__slots__ if name != "id"}
        self._put({"PK": "users", "SK": user.id, **fields})

    def user(self, user_id: str) -> User:
        row = self._get("users", user_id)
        if row is None:
            raise LookupError(f"there is no user {user_id!r}")
        return to_user(row)

    def users(self) -> list[User]:
        return [to_user(row) for row in self._query("PK = :pk", {":pk": "users"})]

    def synced(self, user_id: str, *, name: str, tz: str, at: datetime) -> None:
        """Write what Slack knows about a user. To write it twice changes nothing but the time."""
        self._update("users", user_id, {"name": name, "tz": tz, "synced_at": at.isoformat()})

    # -- conversations ----------------------------------------------------------------------------

    def add_conversation(self, user_id: str, at: datetime, text: str) -> None:
        self._put({"PK": f"conversations#{user_id}", "SK": at.astimezone(UTC).isoformat(), "text": text})

    def conversations(self, user_id: str, first: datetime, until: datetime) -> list[str]:
        """Return what was talked about from `first` on and before `until`. BETWEEN also returns what is at `until`."""
        start, end = (at.astimezone(UTC).isoformat() for at in (first, until))
        values = {":pk": f"conversations#{user_id}", ":start": start, ":end": end}
        rows = self._query("PK = :pk AND SK BETWEEN :start AND :end", values)
        return [row["text"] for row in rows if row["SK"] < end]

    # -- summaries --------------------------------------------------------------------------------

    def summary(self, user_id: str, day: date) -> Row | None:
        return self._get(f"summaries#{user_id}", day.isoformat())

    def summary_sent(
        self, user_id: str, day: date, *, text: str, until: datetime, slack_ts: str, job_id: str, at: datetime
    ) -> None:
        """Note that a summary was sent. The next one begins at `until`."""
        sent = {"text": text, "until": until.isoformat(), "summary_sent_at": at.isoformat()}
        changes = {**sent, "slack_ts": slack_ts, "job_id": job_id}
        self._update(f"summaries#{user_id}", day.isoformat(), changes)

    def partition_keys(self) -> list[str]:
        """Return the partition keys of all items, also of those that are not ours. It reads the whole table."""
        pages = self._client.get_paginator("scan").paginate(TableName=self._table, ConsistentRead=True)
        return [item["PK"]["S"] for page in pages for item in page["Items"]]

    # -- items ------------------------------------------------------------------------------------

    def _get(self, pk: str, sk: str) -> Row | None:
        key = pack({"PK": pk, "SK": sk})
        found = self._client.get_item(TableName=self._table, Key=key, ConsistentRead=True)
        return unpack(found["Item"]) if "Item" in found else None

    def _put(self, row: Row) -> None:
        self._client.put_item(TableName=self._table, Item=pack(row))

    def _update(self, pk: str, sk: str, changes: Row) -> None:
        self._client.update_item(
            TableName=self._table,
            Key=pack({"PK": pk, "SK": sk}),
            UpdateExpression="SET " + ", ".join(f"#{name} = :{name}" for name in changes),
            ExpressionAttributeNames={f"#{name}": name for name in changes},
            ExpressionAttributeValues=pack({f":{name}": value for name, value in changes.items()}),
        )

    def _query(self, condition: str, values: Row) -> list[Row]:
        pages = self._client.get_paginator("query").paginate(
            TableName=self._table,
            KeyConditionExpression=condition,
            ExpressionAttributeValues=pack(values),
            ConsistentRead=True,
        )
        return [unpack(item) for page in pages for item in page["Items"]]


def pack(row: Mapping[str, str]) -> dict[str, Any]:
    return {name: {"S": value} for name, value in row.items()}


def unpack(item: Mapping[str, Any]) -> Row:
    return {name: value["S"] for name, value in item.items()}


def to_user(row: Row) -> User:
    return User(id=row["SK"], **{name: value for name, value in row.items() if name not in KEY_NAMES})
