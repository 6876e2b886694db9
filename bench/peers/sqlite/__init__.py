"""Whose jobs are in a SQLite file."""
