"""How does a proposal live: made, approved or refused, executed once, or ended by time?

``pending`` becomes ``ready`` by approval, ``ready`` becomes ``used`` by its execution; both end
as ``expired``, ``cancelled``, ``rejected`` or ``denied``. While a proposal is open, this module
holds what it was made of: the request as it came and a descriptor of its workspace. Of a proposal
that has ended only the record remains.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from dataclasses import dataclass, field
from typing import Literal

from sandboxd.allowlist import Allowlist, Judgement
from sandboxd.clock import Lifetime
from sandboxd.errors import Conflict, NotFound, Unavailable, UsageError
from sandboxd.log import log
from sandboxd.proposing import MAX_REASON_LENGTH, check_request, describe, grant_for
from sandboxd.protocol import Proposal, Request, Verdict
from sandboxd.store import Store

Ended = Literal["denied", "rejected", "expired", "cancelled"]


@dataclass(slots=True, eq=False)
class Open:
    """A proposal that has not ended. ``claimed`` while it is being executed."""

    proposal: Proposal
    request: Request
    workspace_fd: int | None
    lifetime: Lifetime
    timer: asyncio.TimerHandle | None = None
    claimed: bool = False
    approved: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Proposals:
    """All proposals, open ones in memory and everything in the store."""

    def __init__(
        self, store: Store, allowlist: Allowlist, *, pending_per_uid: int, open_per_uid: int
    ) -> None:
        self.allowlist = allowlist
        self._store = store
        self._pending_per_uid = pending_per_uid
        self._open_per_uid = open_per_uid
        self._open: dict[str, Open] = {}

    @property
    def open_count(self) -> int:
        """How many proposals have not ended."""
        return len(self._open)

    def check(self, request: Request, workspace_fd: int | None) -> Verdict:
        """Say what would become of ``request``. Nothing is kept."""
        judgement = self.allowlist.judge(request, workspace_fd)
        argv: tuple[str, ...] = ()
        if judgement.prepared is not None:
            argv = judgement.prepared.argv
            judgement.prepared.close()
        return Verdict(
            decision=judgement.decision.decision,
            rule=judgement.decision.rule,
            argv=argv,
            denials=judgement.denials,
        )

    def propose(self, uid: int, request: Request, workspace_fd: int | None) -> Proposal:
        """Judge ``request`` and keep it: denied, waiting for approval, or ready.

        ``workspace_fd`` stays the caller's; an open proposal holds a duplicate.
        """
        check_request(request)
        judgement = self.allowlist.judge(request, workspace_fd)
        if judgement.prepared is not None:
            judgement.prepared.close()
        return self.keep(uid, request, workspace_fd, judgement)

    def keep(
        self, uid: int, request: Request, workspace_fd: int | None, judgement: Judgement
    ) -> Proposal:
        """Record what was judged, and hold it unless it was denied."""
        proposal, lifetime = describe(uid, request, judgement)
        if proposal.state == "denied":
            self._store.add_proposal(proposal, None, None)
            log("proposed_denied", proposal=proposal.id, reason=proposal.denials[0].reason)
            return proposal
        earlier = self.earlier(uid, request, proposal)
        if earlier is not None:
            return earlier
        self._check_room(proposal)
        grant = None if proposal.state == "pending" else grant_for(proposal, lifetime, "policy")
        held = Open(proposal, request, _duplicate(workspace_fd), lifetime)
        try:
            self._store.add_proposal(proposal, grant, request.idempotency_key)
        except BaseException:
            self.let_go(held)
            raise
        self._hold(held)
        return proposal

    def claim(self, uid: int, proposal_id: str) -> Open | None:
        """Reserve a ready proposal for its execution; None if it is not ready.

        Whoever gets it calls `release`, `used` or `end` later.

        Raises:
            Conflict: it was used, or is being executed.

        """
        proposal = self.get(uid, proposal_id)
        held = self._open.get(proposal_id)
        if proposal.state == "used" or (held is not None and held.claimed):
            raise Conflict(f"cannot execute this proposal: it is {_state(proposal, held)}")
        if held is None or proposal.state != "ready":
            return None
        held.claimed = True
        return held

    def release(self, held: Open) -> None:
        """Undo `claim`: nothing was started."""
        held.claimed = False
        if held.lifetime.left_s <= 0:
            self._expire(held)

    def earlier(self, uid: int, request: Request, proposal: Proposal) -> Proposal | None:
        """Return the proposal that was made before with the same idempotency key.

        Raises:
            Conflict: that one was made of something else.

        """
        if request.idempotency_key is None:
            return None
        earlier = self._store.proposal_by_key(uid, request.idempotency_key)
        if earlier is not None and earlier.digest != proposal.digest:
            raise Conflict(
                "cannot use this idempotency key again: it stands for another request",
                field="idempotency_key",
            )
        return earlier

    def get(self, uid: int | None, proposal_id: str) -> Proposal:
        """Return a proposal of ``uid`` (None: of anybody); of others' there is only `NotFound`."""
        held = self._open.get(proposal_id)
        if held is not None and held.lifetime.left_s <= 0 and not held.claimed:
            self._expire(held)
        proposal = held.proposal if held is not None else self._store.proposal(proposal_id)
        if proposal is None or uid not in {None, proposal.uid}:
            raise NotFound("cannot find this proposal", field="proposal")
        return proposal

    async def wait(self, uid: int, proposal_id: str, timeout_s: float | None) -> Proposal:
        """Return the proposal once it is no longer pending, or at the timeout."""
        proposal = self.get(uid, proposal_id)
        held = self._open.get(proposal_id)
        if proposal.state == "pending" and held is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    await held.changed.wait()
            except TimeoutError:
                pass
        return self.get(uid, proposal_id)

    def pending(self) -> tuple[Proposal, ...]:
        """Return what waits for approval, oldest first."""
        everything = [held.proposal for held in self._open.values()]
        return tuple(proposal for proposal in everything if proposal.state == "pending")

    def approve(self, proposal_id: str) -> Proposal:
        """Make a pending proposal ready, with a grant for one use."""
        held = self._pending(proposal_id)
        lifetime = Lifetime.of(held.proposal.expires_at - held.proposal.created_at)
        ready = dataclasses.replace(held.proposal, state="ready", expires_at=lifetime.expires_at)
        self._store.set_state(ready, grant_for(ready, lifetime, "approver"))
        held.proposal, held.lifetime, held.approved = ready, lifetime, True
        self._set_timer(held)
        held.changed.set()
        log("approved", proposal=ready.id, command=ready.command, digest=ready.digest)
        return ready

    def reject(self, proposal_id: str, message: str) -> Proposal:
        """Refuse a pending proposal; ``message`` is for its maker."""
        if len(message) > MAX_REASON_LENGTH:
            raise UsageError("cannot keep so long a message", field="message")
        return self.end(self._pending(proposal_id), "rejected", message=message)

    def cancel(self, uid: int, proposal_id: str) -> Proposal:
        """Withdraw an open proposal."""
        proposal = self.get(uid, proposal_id)
        held = self._open.get(proposal_id)
        if held is None or held.claimed:
            raise Conflict(f"cannot cancel this proposal: it is {_state(proposal, held)}")
        return self.end(held, "cancelled")

    def end(self, held: Open, state: Ended, **members: object) -> Proposal:
        """End an open proposal; without a valid grant from now on."""
        ended = dataclasses.replace(held.proposal, state=state, **members)  # type: ignore[arg-type]  # mypy cannot see through **
        self._store.set_state(ended)
        held.proposal = ended
        self.let_go(held)
        log(state, proposal=ended.id, command=ended.command)
        return ended

    def let_go(self, held: Open) -> None:
        """Give back what an ended proposal was holding."""
        self._open.pop(held.proposal.id, None)
        if held.timer is not None:
            held.timer.cancel()
        if held.workspace_fd is not None:
            os.close(held.workspace_fd)
            held.workspace_fd = None
        held.changed.set()

    def close(self) -> None:
        """Let go of everything; what is open in the store expires at the next start."""
        for held in list(self._open.values()):
            self.let_go(held)

    def _pending(self, proposal_id: str) -> Open:
        proposal = self.get(None, proposal_id)
        held = self._open.get(proposal_id)
        if proposal.state != "pending" or held is None:
            raise Conflict(f"cannot decide on this proposal: it is {_state(proposal, held)}")
        return held

    def _hold(self, held: Open) -> None:
        self._open[held.proposal.id] = held
        self._set_timer(held)
        proposal = held.proposal
        log(f"proposed_{proposal.state}", proposal=proposal.id, command=proposal.command)

    def _set_timer(self, held: Open) -> None:
        if held.timer is not None:
            held.timer.cancel()
        left_s = max(held.lifetime.left_s, 0.0)
        held.timer = asyncio.get_running_loop().call_later(left_s, self._time_is_up, held)

    def _time_is_up(self, held: Open) -> None:
        if held.claimed:
            return  # its execution, or `release`, ends it
        if held.lifetime.left_s > 0:  # the loop's clock stands still while the machine sleeps
            self._set_timer(held)
            return
        self._expire(held)

    def _expire(self, held: Open) -> None:
        """End it even if the store cannot be written: its next start expires it there too."""
        try:
            self.end(held, "expired")
        except Unavailable as error:
            log("unrecorded", proposal=held.proposal.id, problem=error.message)
            held.proposal = dataclasses.replace(held.proposal, state="expired")
            self.let_go(held)

    def _check_room(self, proposal: Proposal) -> None:
        states = [h.proposal.state for h in self._open.values() if h.proposal.uid == proposal.uid]
        if proposal.state == "pending" and states.count("pending") >= self._pending_per_uid:
            raise Unavailable("cannot keep another proposal: too many are waiting for approval")
        if len(states) >= self._open_per_uid:
            raise Unavailable("cannot keep another proposal: execute or cancel some first")


def _duplicate(fd: int | None) -> int | None:
    try:
        return None if fd is None else os.dup(fd)
    except OSError as error:
        raise Unavailable(f"cannot hold the workspace open: {error.strerror}") from error


def _state(proposal: Proposal, held: Open | None) -> str:
    return "being executed" if held is not None and held.claimed else proposal.state
