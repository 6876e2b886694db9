"""Runs jobs: claims them, executes them and writes their outcomes. Start reading at worker.py."""

from mainspring.worker.settings import Subscription, WorkerOptions, WorkerSettings
from mainspring.worker.worker import Worker

__all__ = ["Subscription", "Worker", "WorkerOptions", "WorkerSettings"]
