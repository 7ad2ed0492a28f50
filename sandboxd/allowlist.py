"""Which commands are there now, and what does their policy say of a request?

Holds the one set of profiles in force. A reload exchanges it as a whole or not at all; whoever
prepared a request under the old set sees that `digest` is another one.
"""

from __future__ import annotations

import errno
import hashlib
from dataclasses import dataclass

from sandboxd import admission, profiles
from sandboxd.errors import ProfileError, Unavailable
from sandboxd.gate import Decision, decide
from sandboxd.log import log
from sandboxd.prepared import Prepared
from sandboxd.profile import Profile
from sandboxd.protocol import CommandInfo, Denial, Request
from sandboxd.refusals import refuse

_NO_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC})


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What policy says of a request: a decision, and either what is prepared or why not.

    ``prepared`` is None exactly if the decision is "deny"; its holder closes it.
    """

    decision: Decision
    prepared: Prepared | None
    denials: tuple[Denial, ...] = ()


class Allowlist:
    """The profiles in force, loaded from ``profile_dirs``."""

    def __init__(self, profile_dirs: tuple[str, ...], denied_workspaces: tuple[str, ...]) -> None:
        """Load the profiles; raises `ProfileError` if any cannot be used."""
        self.profile_dirs = profile_dirs
        self._denied_workspaces = denied_workspaces
        self._profiles = profiles.load(profile_dirs)
        self.digest = _digest_of(self._profiles)

    def __len__(self) -> int:
        return len(self._profiles.names())

    def reload(self) -> None:
        """Load all profiles anew.

        Raises:
            ProfileError: one cannot be used; the set in force stays as it is.

        """
        try:
            loaded = profiles.load(self.profile_dirs)
        except ProfileError as error:
            log("reload_refused", problem=error.message)
            raise
        self._profiles, self.digest = loaded, _digest_of(loaded)
        log("reloaded", profiles=len(self), digest=self.digest)

    def commands(self) -> tuple[CommandInfo, ...]:
        """Describe every command, in the order of their names."""
        return tuple(map(_describe, _in_order(self._profiles)))

    def judge(self, request: Request, workspace_fd: int | None) -> Judgement:
        """Prepare ``request`` and decide on it. ``workspace_fd`` stays the caller's.

        Raises:
            Unavailable: the daemon has no descriptors or memory left for it.

        """
        try:
            prepared = admission.prepare(
                self._profiles,
                request,
                workspace_fd=workspace_fd,
                denied_workspaces=self._denied_workspaces,
            )
        except OSError as error:
            if error.errno in _NO_RESOURCES:
                raise Unavailable(
                    "cannot open what the request names: out of resources"
                ) from error
            raise
        if isinstance(prepared, tuple):
            return Judgement(
                decision=Decision(decision="deny", rule=prepared[0].rule),
                prepared=None,
                denials=prepared,
            )
        return _gate(prepared)


def _in_order(loaded: profiles.ProfileSet) -> list[Profile]:
    found = [loaded.get(name) for name in sorted(loaded.names())]
    return [profile for profile in found if profile is not None]


def _digest_of(loaded: profiles.ProfileSet) -> str:
    facts = [f"{profile.name} {profile.digest}\n" for profile in _in_order(loaded)]
    return hashlib.sha256("".join(facts).encode()).hexdigest()


def _describe(profile: Profile) -> CommandInfo:
    problem = profile.executable_problem
    return CommandInfo(
        name=profile.name,
        summary=profile.summary,
        risk=profile.risk,
        parameters=profile.parameters(),
        workspace=profile.workspace.access,
        network=profile.network.mode,
        approval=profile.approval.mode,
        available=not problem,
        unavailable_because=problem or "",
    )


def _gate(prepared: Prepared) -> Judgement:
    profile = prepared.profile
    decision = decide(mode=profile.approval.mode, risk=profile.risk, network=profile.network.mode)
    if decision.decision != "deny":
        return Judgement(decision=decision, prepared=prepared)
    prepared.close()
    denial = refuse(
        "policy",
        profile.name,
        "DENIED_BY_PROFILE",
        f"cannot run {profile.name}: its profile denies every call",
        profile=profile.name,
        rule=decision.rule,
        advice="the profile's owner can change approval.mode",
    )
    return Judgement(decision=decision, prepared=None, denials=(denial,))
