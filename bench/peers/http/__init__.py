"""Web applications that enqueue a job for each request. The floor is a route that does nothing."""
