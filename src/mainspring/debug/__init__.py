"""Run a job again in this process, to see why it failed. Nothing is written to the store."""
