"""Jobs that start after others have finished."""
