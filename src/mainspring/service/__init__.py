"""The service: an HTTP API over one store, with a worker in the same process. It needs `mainspring[service]`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainspring.service.application import make_service
    from mainspring.service.public_tokens import PublicTokens
    from mainspring.service.push import add_http_task
    from mainspring.service.settings import ServiceSettings
    from mainspring.service.tokens import Scope, Token, Tokens

__all__ = ["PublicTokens", "Scope", "ServiceSettings", "Token", "Tokens", "add_http_task", "make_service"]

PLACES = {
    "PublicTokens": "public_tokens",
    "ServiceSettings": "settings",
    "add_http_task": "push",
    "make_service": "application",
}  # the others are in tokens


def __getattr__(name: str) -> Any:
    """Import a name at its first use: the client shares models with the service, and does without FastAPI."""
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(f"{__name__}.{PLACES.get(name, 'tokens')}"), name)
