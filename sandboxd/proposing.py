"""What is recorded of a request when it has been judged?"""

from __future__ import annotations

import dataclasses
import secrets

from sandboxd.allowlist import Judgement
from sandboxd.clock import Lifetime, now_ms
from sandboxd.errors import UsageError
from sandboxd.protocol import Executable, Proposal, Request
from sandboxd.store import Grant

MAX_COMMAND_LENGTH = 128
MAX_REASON_LENGTH = 4096
MAX_KEY_LENGTH = 128


def check_request(request: Request) -> None:
    """Refuse texts beside the call itself that are longer than anybody reads.

    Raises:
        UsageError: one is.

    """
    if len(request.command) > MAX_COMMAND_LENGTH:
        raise UsageError("cannot look up so long a name", field="command")
    if len(request.reason) > MAX_REASON_LENGTH:
        raise UsageError(
            f"cannot take a reason of more than {MAX_REASON_LENGTH} characters", field="reason"
        )
    key = request.idempotency_key
    if key is not None and not 0 < len(key) <= MAX_KEY_LENGTH:
        raise UsageError(
            f"cannot take an idempotency key that has not 1 to {MAX_KEY_LENGTH} characters",
            field="idempotency_key",
        )


def describe(uid: int, request: Request, judgement: Judgement) -> tuple[Proposal, Lifetime]:
    """Make the record of a proposal, and how long it lives."""
    prepared = judgement.prepared
    proposal = Proposal(
        id=f"prop_{secrets.token_hex(16)}",
        command=request.command,
        state="denied",
        rule=judgement.decision.rule,
        reason=request.reason,
        created_at=now_ms(),
        uid=uid,
        denials=judgement.denials,
    )
    if prepared is None:
        return proposal, Lifetime.of(0)
    lifetime = Lifetime.of(prepared.profile.approval.expires_ms)
    executable, workspace = prepared.executable, prepared.workspace
    allowed = judgement.decision.decision == "allow"
    return dataclasses.replace(
        proposal,
        state="ready" if allowed else "pending",
        digest=prepared.digest,
        argv=prepared.argv,
        workspace=workspace.path if workspace is not None else "",
        expires_at=lifetime.expires_at,
        executable=Executable(
            path=executable.path,
            dev=executable.identity.dev,
            ino=executable.identity.ino,
            sha256=executable.sha256,
        ),
    ), lifetime


def grant_for(proposal: Proposal, lifetime: Lifetime, source: str) -> Grant:
    """Make the right to execute ``proposal`` once; ``source`` tells who gave it."""
    return Grant(
        id=f"grant_{secrets.token_hex(16)}",
        proposal=proposal.id,
        digest=proposal.digest,
        source=source,
        created_at=now_ms(),
        expires_at=lifetime.expires_at,
    )
