"""How is a command run in a sandbox from Python?

`Client`, `AsyncClient` and what they return and raise; each is imported when it is first used, so
that ``import sandboxd`` costs nothing.

The modules, by side; each begins with the question it answers (tests/test_layout.py keeps it so):

both        protocol errors endpoints units
client      client aclient lines wire messages calls outgoing feed autostart doctor doctor_probe
            doctor_report cli
daemon      daemon startup settings service sockets server connection peer varlink describe agent
            admin log clock
requests    allowlist admission arguments argv targets workspace executables environment patterns
            refusals canonical prepared gate
profiles    profile profile_arguments profile_sections profile_checks profile_inheritance
            profile_source profile_text profile_trial profile_wording profiles host_grants
            interpreters
state       proposing proposals store database
runs        turnstile execution runs engine surroundings run sandbox launch link planner openings
            baseview etcfiles output telling watchdog outcome record
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
