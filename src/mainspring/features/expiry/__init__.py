"""Drops jobs that were not started in time."""
