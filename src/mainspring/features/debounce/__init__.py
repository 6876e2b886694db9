"""A newer enqueue replaces the job that waits (debounce, replace), or is dropped (throttle)."""
