"""One file per peer. Nothing here but in `bench.peers.<name>` may import the peer's package."""
