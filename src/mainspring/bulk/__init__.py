"""Changes of many jobs that run in the background: `app.bulk`."""
