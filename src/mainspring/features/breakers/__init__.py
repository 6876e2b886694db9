"""Circuit breakers, shared by all processes."""
