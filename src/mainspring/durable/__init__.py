"""Durable functions: handlers that survive between their steps, sleep, and wait for what others do.

A function runs from its beginning each time. What it has behind it (its steps, sleeps, waits and children) is recorded
under names, and answered from the record. See docs/durable.md.
"""
