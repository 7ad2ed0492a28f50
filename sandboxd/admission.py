"""Is this request right in itself, and what exactly would run?

`prepare` takes the steps in order, the cheap and pure before those that open something: command →
arguments → argv → executable → workspace → path targets → environment → bounds → digest. Whatever
a client sent, it answers with denials and leaves nothing open.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

from launcher.paths import is_beneath
from sandboxd import argv, executables
from sandboxd.arguments import check_arguments
from sandboxd.argv import Value
from sandboxd.canonical import canonical_digest
from sandboxd.environment import merge
from sandboxd.prepared import OpenedExecutable, OpenedTarget, Prepared, Workspace
from sandboxd.profile import Profile
from sandboxd.profiles import ProfileSet
from sandboxd.protocol import Denial, ReasonCode, Request
from sandboxd.refusals import bare, refuse, shown
from sandboxd.targets import open_targets, without_workspace
from sandboxd.workspace import open_workspace

Denials = tuple[Denial, ...]
_INSTALL = "install it, then reload the profiles (`sandboxctl reload`)"
_MEND = "mend what the message names, then reload the profiles (`sandboxctl reload`)"
_RELOAD = "when the program is as it should be, reload the profiles (`sandboxctl reload`)"


class _Stop(Exception):
    """One step refused; internal to `prepare`."""

    def __init__(self, *denials: Denial) -> None:
        super().__init__()
        self.denials = denials


def prepare(
    profiles: ProfileSet,
    request: Request,
    *,
    workspace_fd: int | None,
    denied_workspaces: Sequence[str],
) -> Prepared | Denials:
    """Check ``request`` and open all it names; ``workspace_fd`` stays the caller's.

    No file of a ``denied_workspaces`` directory, and no directory above one, can be granted.
    """
    profile = profiles.get(request.command)
    if profile is None:
        return (_unknown(request.command),)
    with contextlib.ExitStack() as opened:

        def keep(fd: int) -> int:
            opened.callback(os.close, fd)
            return fd

        try:
            prepared = _prepare(profile, request, workspace_fd, denied_workspaces, keep)
        except _Stop as stop:
            return stop.denials
        opened.pop_all()
        return prepared


def _unknown(command: str) -> Denial:
    return refuse(
        "command",
        bare(command),
        "NOT_IN_ALLOWLIST",
        f"cannot run {shown(command)}; no profile has this name",
        rule="default deny",
        advice="ListCommands lists what can be run",
    )


def _prepare(
    profile: Profile,
    request: Request,
    workspace_fd: int | None,
    denied: Sequence[str],
    keep: Callable[[int], int],
) -> Prepared:
    values = check_arguments(profile, request.arguments)
    if isinstance(values, tuple):
        raise _Stop(*values)
    arguments = argv.build(profile.argv, profile.arguments, values, profile.name)
    if isinstance(arguments, Denial):
        raise _Stop(arguments)
    executable = _open_executable(profile, keep)
    workspace = open_workspace(profile, workspace_fd, denied, keep)
    if isinstance(workspace, Denial):
        raise _Stop(workspace)
    _check_out_of_reach(profile, executable, workspace)
    targets = _targets(profile, values, workspace, keep)
    environment, refused = merge(profile, request.environment)
    if refused:
        raise _Stop(*refused)
    full = (*_own_name(executable), *arguments)
    _check_size(profile, full, environment)
    _check_limits(profile, request)
    bounds = profile.bounds(request.limits)
    prepared = Prepared(
        profile=profile,
        request=request,
        argv=full,
        environment=environment,
        executable=executable,
        workspace=workspace,
        targets=targets,
        bounds=bounds,
        digest="",
    )
    return _sealed(prepared)


def _open_executable(profile: Profile, keep: Callable[[int], int]) -> OpenedExecutable:
    """Open the program as pinned at load; any difference is a refusal."""
    section, pinned = profile.executable, profile.pinned
    if pinned is None:
        why = str(profile.executable_problem)
        raise _Stop(_executable(profile, "EXECUTABLE_UNUSABLE", why, _INSTALL))
    try:
        found, fd = executables.open_pinned(section.path)
        keep(fd)
        problem = executables.content_problem(found.file, section.sha256)
    except executables.Missing as missing:
        raise _Stop(_executable(profile, "EXECUTABLE_UNUSABLE", str(missing), _INSTALL)) from None
    except executables.Unusable as unusable:
        raise _Stop(_executable(profile, "EXECUTABLE_UNUSABLE", str(unusable), _MEND)) from None
    if problem is not None:
        advice = (
            f"when it is as it should be, `sandboxctl profile pin {profile.name}`, then reload"
        )
        raise _Stop(_executable(profile, "EXECUTABLE_CHANGED", problem, advice))
    if found != pinned:
        changed = f"cannot run {section.path}; it has changed since the profiles were loaded"
        raise _Stop(_executable(profile, "EXECUTABLE_CHANGED", changed, _RELOAD))
    script = found.file if found.interpreter is not None else None
    program = found.interpreter or found.file
    return OpenedExecutable(
        fd=fd,
        path=program.path,
        real_path=program.real_path,
        identity=program.identity,
        sha256=section.sha256 or "",
        script_path=script.path if script else None,
        script_real_path=script.real_path if script else None,
        script_identity=script.identity if script else None,
        interpreter_argument=found.interpreter_argument,
    )


def _check_out_of_reach(
    profile: Profile, executable: OpenedExecutable, workspace: Workspace | None
) -> None:
    """Refuse a program that the run itself, or one beside it, could write to while it starts."""
    writable = list(profile.view.write)
    if workspace is not None and workspace.access == "write":
        writable.append(workspace.path)
    for path in filter(None, (executable.real_path, executable.script_real_path)):
        if any(is_beneath(path, tree) for tree in writable):
            why = f"cannot run {path}; it lies in a tree that is granted for writing"
            raise _Stop(
                _executable(profile, "EXECUTABLE_UNUSABLE", why, "grant another directory")
            )


def _executable(profile: Profile, reason: ReasonCode, message: str, advice: str) -> Denial:
    return refuse(
        "executable",
        profile.executable.path,
        reason,
        message,
        profile=profile.name,
        rule=f"{profile.name}: executable.path",
        advice=advice,
    )


def _own_name(executable: OpenedExecutable) -> tuple[str, ...]:
    """Return what argv begins with: of a script, what execve(2) would put before it."""
    if executable.script_path is None:
        return (executable.path,)
    argument = executable.interpreter_argument
    return (executable.path, *([] if argument is None else [argument]), executable.script_path)


def _targets(
    profile: Profile,
    values: Mapping[str, Value],
    workspace: Workspace | None,
    keep: Callable[[int], int],
) -> tuple[OpenedTarget, ...]:
    targets: tuple[OpenedTarget, ...] = ()
    if workspace is None:
        denials = without_workspace(profile, values)
    else:
        targets, denials = open_targets(profile, values, workspace.fd, keep)
    if denials:
        raise _Stop(*denials)
    return targets


def _check_size(
    profile: Profile, arguments: tuple[str, ...], environment: tuple[str, ...]
) -> None:
    problem = argv.size_problem(arguments, environment)
    if problem is not None:
        message = f"cannot pass the arguments; {problem}"
        raise _Stop(_argument(profile, "arguments", message, "pass the data in a file"))


def _check_limits(profile: Profile, request: Request) -> None:
    raise_for = [
        _argument(profile, f"limits.{name}", f"cannot narrow limits.{name}; {problem}")
        for name, problem in profile.excesses(request.limits).items()
    ]
    if raise_for:
        raise _Stop(*raise_for)


def _argument(profile: Profile, target: str, message: str, advice: str = "") -> Denial:
    return refuse(
        "argument",
        target,
        "ARGUMENT_INVALID",
        message,
        profile=profile.name,
        rule=f"{profile.name}: {target.partition('.')[0]}",
        advice=advice or "a request can only narrow what its profile says",
    )


def _sealed(prepared: Prepared) -> Prepared:
    """Add the request digest: over everything that decides what will run."""
    executable, workspace = prepared.executable, prepared.workspace
    facts = {
        "executable": {
            "path": executable.path,
            "real_path": executable.real_path,
            "identity": asdict(executable.identity),
            "sha256": executable.sha256,
            "script": executable.script_path,
            "script_real_path": executable.script_real_path,
            "script_identity": asdict(executable.script_identity)
            if executable.script_identity
            else None,
        },
        "argv": prepared.argv,
        "environment": prepared.environment,
        "workspace": {"identity": asdict(workspace.identity), "access": workspace.access}
        if workspace
        else None,
        "profile": prepared.profile.digest,
        "bounds": asdict(prepared.bounds),
    }
    return replace(prepared, digest=canonical_digest(facts))
