"""Starts jobs only within local hours."""
