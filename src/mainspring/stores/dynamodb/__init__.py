"""Jobs in Amazon DynamoDB: `store.py` says what is asked of whom, `items.py` what is kept under which key."""

from mainspring.stores.dynamodb.schema import Plan
from mainspring.stores.dynamodb.store import DynamoStore

__all__ = ["DynamoStore", "Plan"]
