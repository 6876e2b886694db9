"""What DynamoDB says, asked by another client than Mainspring's: the checks do not lean on the code that they check."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import botocore.session  # type: ignore[import-untyped]

from examples.dynamodb_server import REGION
from mainspring.stores.connect import connect
from mainspring.stores.dynamodb.journal import HINT_PARTITIONS
from tests.chaos.database import Database
from tests.dynamodb import endpoint, fresh_name

STATUSES = ("pending", "retrying", "suspended", "in_progress", "completed", "dead_letter", "cancelled")
ENDED = STATUSES[4:]
NEW = -1  # what a job was before it was inserted, or ended: in SQL, that inserts it into the archive


class DynamoDatabase(Database):
    """A table of its own. It is only for tests that ask nothing in SQL."""

    kind = "dynamodb"

    def __init__(self) -> None:
        self.name = fresh_name()
        self.url = f"dynamodb://{self.name}?region={REGION}&endpoint={endpoint()}&poll=1"
        self._service = self._client("dynamodb")
        asyncio.run(self._create())

    async def _create(self) -> None:
        store = connect(f"{self.url}&shards=2&prune=on&migrate=on")
        await store.open()
        await store.close()

    def _client(self, service: str) -> Any:
        return botocore.session.get_session().create_client(service, region_name=REGION, endpoint_url=endpoint())

    def __exit__(self, *_: object) -> None:
        self._service.delete_table(TableName=self.name)

    def documents(self, collection: str) -> list[str]:
        return [item["data"]["S"] for item in self._items(f"doc#{collection}")]

    def hints(self) -> list[str]:
        """Return the hints at changes that are not in the log of the feed yet; some of them, if there are very many."""
        return [item["SK"]["S"] for number in range(HINT_PARTITIONS) for item in self._items(f"hints#{number}")]

    def _items(self, partition: str) -> list[dict[str, Any]]:
        wanted = {"KeyConditionExpression": "PK = :k", "ExpressionAttributeValues": {":k": {"S": partition}}}
        found = self._service.query(TableName=self.name, ConsistentRead=True, **wanted)
        items: list[dict[str, Any]] = found["Items"]
        return items

    # -- the stream of the table ------------------------------------------------------------------

    def keep_a_stream(self) -> None:
        """Have the service note each item as it was before and after each write, in the order of the writes."""
        wanted = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
        self._service.update_table(TableName=self.name, StreamSpecification=wanted)

    def status_changes(self) -> Iterator[tuple[str, int, int]]:
        """Yield each job whose status changed, with the numbers of the old and new status, as in the SQL stores."""
        for record in self._records():
            before, after = (record.get(image, {}) for image in ("OldImage", "NewImage"))
            if record["Keys"]["PK"]["S"].startswith("job#") and before.get("status") != after.get("status"):
                became = after["status"]["S"]
                was = NEW if not before or became in ENDED else STATUSES.index(before["status"]["S"])
                yield after["SK"]["S"], was, STATUSES.index(became)

    def _records(self) -> Iterator[dict[str, Any]]:
        streams = self._client("dynamodbstreams")
        arn = self._service.describe_table(TableName=self.name)["Table"]["LatestStreamArn"]
        (shard,) = streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
        beginning = {"ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
        place = streams.get_shard_iterator(StreamArn=arn, **beginning)["ShardIterator"]
        while found := (page := streams.get_records(ShardIterator=place))["Records"]:
            place = page["NextShardIterator"]
            yield from (record["dynamodb"] for record in found)

    # -- what only SQL can answer -----------------------------------------------------------------

    def ask(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        raise NotImplementedError(f"DynamoDB has no SQL: {statement} {parameters}")

    def plant(self, statement: str) -> None:
        raise NotImplementedError(f"DynamoDB has no SQL: {statement}")

    def beats(self) -> dict[str, int]:
        raise NotImplementedError("no chaos test needs the heartbeats on DynamoDB")
