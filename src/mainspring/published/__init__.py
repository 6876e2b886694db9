"""Descriptions of tasks, which workers publish in the store, so that programs without their code can enqueue them."""

from mainspring.published.api import PublishedTasks
from mainspring.published.description import Description
from mainspring.published.remote import RemoteTask

__all__ = ["Description", "PublishedTasks", "RemoteTask"]
