"""A job run once more in this very process, for whoever wants to see why it failed: nothing of it is written."""
