"""Where are the sockets, the state and the profiles?

User mode follows the XDG base directories; a daemon started by root uses /run and /var/lib. The
environment variables ``SANDBOXD_RUNTIME_DIR``, ``SANDBOXD_STATE_DIR`` and ``SANDBOXD_PROFILES``
(colon-separated directories) override each. Standard library only: clients use this too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

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
    """Derive all paths from the environment and the effective uid."""
    env, uid = os.environ, os.geteuid()
    home = env.get("HOME") or "/"
    if uid == 0:
        runtime, state = "/run/sandboxd", "/var/lib/sandboxd"
        own: tuple[str, ...] = ("/etc/sandboxd/profiles",)
    else:
        state = os.path.join(env.get("XDG_STATE_HOME") or f"{home}/.local/state", "sandboxd")
        run_user = env.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"
        usable = os.path.isdir(run_user) and os.access(run_user, os.W_OK)
        runtime = os.path.join(run_user, "sandboxd") if usable else os.path.join(state, "run")
        config = env.get("XDG_CONFIG_HOME") or f"{home}/.config"
        own = ("/etc/sandboxd/profiles", os.path.join(config, "sandboxd", "profiles"))
    profiles = env.get("SANDBOXD_PROFILES")
    return Endpoints(
        runtime_dir=env.get("SANDBOXD_RUNTIME_DIR") or runtime,
        state_dir=env.get("SANDBOXD_STATE_DIR") or state,
        profile_dirs=tuple(profiles.split(":")) if profiles else (shipped_profiles(), *own),
    )
