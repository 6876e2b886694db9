"""The service: an HTTP API over one store, with a worker in the same process. It needs `mainspring[service]`."""

from mainspring.service.application import make_service
from mainspring.service.push import add_http_task
from mainspring.service.settings import ServiceSettings
from mainspring.service.tokens import Scope, Token, Tokens

__all__ = ["Scope", "ServiceSettings", "Token", "Tokens", "add_http_task", "make_service"]
