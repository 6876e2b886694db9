"""A folder per field, and in it one file per peer. Only a peer's own file may import its package."""
