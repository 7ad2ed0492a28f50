"""Where are the sockets, the state and the profiles?

User mode follows the XDG base directories; a daemon started by root uses /run and /var/lib. The
environment variables ``SANDBOXD_RUNTIME_DIR``, ``SANDBOXD_STATE_DIR`` and ``SANDBOXD_PROFILES``
(colon-separated directories) override each. Standard library only: clients use this too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from sandboxd.errors import UsageError

_PACKAGE = os.path.dirname(os.path.abspath(__file__))


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """The absolute paths of one daemon's sockets, lock, state and profiles."""

    runtime_dir: str
    state_dir: str
    profile_dirs: tuple[str, ...]

    @property
    def agent_socket(self) -> str:
        """Where agents connect."""
        return os.path.join(self.runtime_dir, "agent.sock")

    @property
    def admin_socket(self) -> str:
        """Where approvers and administrators connect."""
        return os.path.join(self.runtime_dir, "admin.sock")

    @property
    def lock_path(self) -> str:
        """Held with flock(2) by the one running daemon."""
        return os.path.join(self.runtime_dir, "daemon.lock")


def shipped_profiles() -> str:
    """Return the directory of the profiles that come with the package."""
    installed = os.path.join(_PACKAGE, "shipped_profiles")
    return (
        installed
        if os.path.isdir(installed)
        else os.path.join(os.path.dirname(_PACKAGE), "profiles")
    )


def default_endpoints() -> Endpoints:
    """Derive all paths from the environment and the effective uid.

    Raises:
        UsageError: one lies in the user's home, and HOME does not tell where that is.

    """
    env, uid = os.environ, os.geteuid()
    runtime, state = env.get("SANDBOXD_RUNTIME_DIR", ""), env.get("SANDBOXD_STATE_DIR", "")
    profiles = env.get("SANDBOXD_PROFILES")
    if uid == 0:
        runtime, state = runtime or "/run/sandboxd", state or "/var/lib/sandboxd"
        own: tuple[str, ...] = ("/etc/sandboxd/profiles",)
    else:
        runtime, state = runtime or _runtime_of_user(uid), state or _state_of_user()
        config = "" if profiles else _of_user("XDG_CONFIG_HOME", ".config")
        own = ("/etc/sandboxd/profiles", os.path.join(config, "profiles"))
    return Endpoints(
        runtime_dir=runtime,
        state_dir=state,
        profile_dirs=tuple(profiles.split(":")) if profiles else (shipped_profiles(), *own),
    )


def _runtime_of_user(uid: int) -> str:
    run_user = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"
    if os.path.isdir(run_user) and os.access(run_user, os.W_OK):
        return os.path.join(run_user, "sandboxd")
    return os.path.join(_state_of_user(), "run")


def _state_of_user() -> str:
    return _of_user("XDG_STATE_HOME", ".local/state")


def _of_user(variable: str, below_home: str) -> str:
    """Return our directory in the one that ``variable`` names, else in its place in the home."""
    directory, home = os.environ.get(variable), os.environ.get("HOME", "")
    if not directory and not os.path.isabs(home):
        problem = f"is {home!r}, no absolute path" if home else "is not set"
        raise UsageError(
            f"cannot tell where sockets, state and profiles are: HOME {problem}, "
            f"and {variable} is not set"
        )
    return os.path.join(directory or os.path.join(home, below_home), "sandboxd")
