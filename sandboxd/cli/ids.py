"""Which run or proposal does a person mean by the beginning of its id?

A whole id goes to the daemon as it is, so that an agent without the administrator's socket can use
it. Anything shorter is looked up among those that the daemon lists: the latest runs, and the
proposals that wait for approval.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

from sandboxd.client import AdminClient
from sandboxd.errors import Conflict, NotFound, UsageError

Kind = Literal["run", "proposal"]
_PREFIXES: dict[Kind, str] = {"run": "run_", "proposal": "prop_"}
_DIGITS = 32
_LISTED = 500  # as many as the daemon lists
_SHOWN = 5


def whole_run(text: str, *, active: bool = False) -> str:
    """Return the id of the run whose id begins with ``text``; only those running if ``active``.

    Raises:
        NotFound: there is none.
        UsageError: there are several.

    """
    if _is_whole(text, "run"):
        return text
    with AdminClient() as client:
        listed = client.runs(limit=_LISTED, active=active)
    return pick(text, "run", [run.id for run in listed])


def whole_proposal(text: str) -> str:
    """Return the id of the pending proposal whose id begins with ``text``.

    Raises:
        NotFound: there is none.
        UsageError: there are several.

    """
    if _is_whole(text, "proposal"):
        return text
    with AdminClient() as client:
        return pick(text, "proposal", [proposal.id for proposal in client.pending()])


def pick(text: str, kind: Kind, listed: list[str]) -> str:
    """Return the one id of those ``listed`` that begins with ``text``, its prefix left out or not.

    Raises:
        NotFound: there is none.
        UsageError: there are several.

    """
    prefix = _PREFIXES[kind]
    digits = text.removeprefix(prefix)
    found = [each for each in listed if digits and each.removeprefix(prefix).startswith(digits)]
    if not found:
        which = "pending proposal" if kind == "proposal" else "listed run"
        raise NotFound(
            f"cannot find {kind} {text!r}: no {which} begins so; write the whole id", field=kind
        )
    if len(found) > 1:
        more = ", ..." if len(found) > _SHOWN else ""
        shown = ", ".join(found[:_SHOWN])
        raise UsageError(f"cannot tell which {kind} {text!r} is: {shown}{more}", field=kind)
    return found[0]


@contextlib.contextmanager
def naming(kind: Kind, whole: str) -> Iterator[None]:
    """Have the daemon's faults about "this run" or "this proposal" name it."""
    try:
        yield
    except (NotFound, Conflict) as fault:
        message = fault.message.replace(f"this {kind}", f"{kind} {whole}", 1)
        raise type(fault)(message, field=fault.field) from None


def _is_whole(text: str, kind: Kind) -> bool:
    return text.startswith(_PREFIXES[kind]) and len(text) == len(_PREFIXES[kind]) + _DIGITS
