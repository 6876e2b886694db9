"""Store jobs in Amazon DynamoDB. `store.py` maps the store's methods to modules; `items.py` lists the keys."""

from mainspring.stores.dynamodb.schema import TableSettings
from mainspring.stores.dynamodb.store import DynamoStore

__all__ = ["DynamoStore", "TableSettings"]
