"""Jobs that belong together, and what follows when all have finished; chains."""
