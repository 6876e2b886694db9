"""The methods of the client, a module for each kind of thing."""
