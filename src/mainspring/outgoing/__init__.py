"""HTTP requests to the outside: to no private network unless it is allowed, and with bounds on time and size.

addresses  which addresses may be reached
client     sends a request and reads the answer; needs aiohttp
"""
