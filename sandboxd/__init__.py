"""How is a command run in a sandbox from Python?

`Client`, `AsyncClient` and what they return and raise; each is imported when it is first used, so
that ``import sandboxd`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandboxd import errors
    from sandboxd.aclient import AsyncClient
    from sandboxd.client import AdminClient, Client
    from sandboxd.protocol import Run

__version__ = "0.1.0"
__all__ = ["AdminClient", "AsyncClient", "Client", "Run", "errors"]

_HOMES = {
    "AdminClient": "sandboxd.client",
    "AsyncClient": "sandboxd.aclient",
    "Client": "sandboxd.client",
    "Run": "sandboxd.protocol",
}


def __getattr__(name: str) -> object:
    """Import what is asked for (PEP 562)."""
    if name == "errors":
        return importlib.import_module("sandboxd.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'sandboxd' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
