"""Whose jobs are in a PostgreSQL database: one server for all, a database for each measurement."""
