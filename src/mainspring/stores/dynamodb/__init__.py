"""Store jobs in Amazon DynamoDB. `store.py` maps the store's methods to modules; `items.py` lists the keys."""

from mainspring.stores.dynamodb.schema import Plan
from mainspring.stores.dynamodb.store import DynamoStore

__all__ = ["DynamoStore", "Plan"]
