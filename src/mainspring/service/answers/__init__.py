"""The models of answers, a module for each resource. They do without FastAPI, because the client reads them too."""
