"""What does one run see of the host besides the base view?

Its workspace, what its profile grants, and its program where none of these shows it. Everything is
opened here, without following a link, and closed by the run.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

from launcher import paths
from launcher.plan import Tmpfs
from sandboxd.baseview import BaseView, Shown
from sandboxd.errors import SetupFailed
from sandboxd.planner import Planned, Setting, make_plan, tmpfs_of
from sandboxd.prepared import OpenedExecutable, Prepared


def open_all(
    prepared: Prepared, setting: Setting, base: BaseView, sandbox: str, opened: ExitStack
) -> Planned:
    """Open what a run may see and make its plan. ``opened`` closes everything opened here.

    Raises:
        SetupFailed: something is not there, or not what it is granted as; or a layer is missing.

    """
    if "cgroup" in prepared.profile.require.layers and not setting.has_cgroup:
        raise SetupFailed(
            "cannot bound it by a cgroup: none can be used here",
            layer="cgroup",
            step="create the cgroup",
            errno=95,
        )

    def keep(fd: int) -> int:
        opened.callback(os.close, fd)
        return fd

    shown = [*base.shown(), *open_grants(prepared, base.root_fd, keep)]
    tmpfs = tmpfs_of(prepared, shown)
    shown += open_programs(prepared.executable, shown, tmpfs, base.root_fd, keep)
    return make_plan(
        prepared,
        setting,
        sandbox=sandbox,
        machine_id=secrets.token_hex(16),
        shown=shown,
        links=base.links,
        tmpfs=tmpfs,
    )


def open_grants(prepared: Prepared, root_fd: int, keep: Callable[[int], int]) -> list[Shown]:
    """Open the workspace and the profile's grants; ``keep`` is told each descriptor at once.

    Raises:
        SetupFailed: a grant is missing, a link, or not what it is granted as.

    """
    view = prepared.profile.view
    shown = [_open(root_fd, path, keep, writable=False) for path in view.read]
    shown += [_open(root_fd, path, keep, writable=True) for path in view.write]
    for path in view.devices:
        device = _open(root_fd, path, keep, writable=False)
        if not stat.S_ISCHR(device.identity.kind):
            raise _failed(path, "no character device", 1)
        shown.append(device)
    if prepared.workspace is not None:
        shown.append(
            Shown(
                fd=prepared.workspace.fd,
                identity=prepared.workspace.identity,
                target=prepared.workspace.path,
                writable=prepared.workspace.access == "write",
                owned=True,
            )
        )
    return shown


def open_programs(
    executable: OpenedExecutable,
    shown: Sequence[Shown],
    tmpfs: Iterable[Tmpfs],
    root_fd: int,
    keep: Callable[[int], int],
) -> list[Shown]:
    """Open those of program and script that could not be executed where ``shown`` has them.

    Raises:
        SetupFailed: the script is no longer the file that was approved.

    """
    programs = [(executable.fd, executable.real_path, executable.identity)]
    if executable.script_real_path is not None and executable.script_identity is not None:
        script = _open(root_fd, executable.script_real_path, keep, writable=False)
        if script.identity != executable.script_identity:
            raise _failed(script.target, "another file than the one approved", 116)
        programs.append((script.fd, script.target, script.identity))
    empty = [each.target for each in tmpfs]
    return [
        Shown(fd=fd, identity=identity, target=path)
        for fd, path, identity in programs
        if not _executable_there(path, shown, empty)
    ]


def open_stdin(fd: int | None) -> int:
    """Return the read end of the client's pipe as an open file description of its own, or null.

    A command could set flags of a shared one under the client's feet (F05). The caller closes it.

    Raises:
        SetupFailed: the pipe cannot be opened again.

    """
    if fd is None:
        return os.open(os.devnull, os.O_RDONLY)
    try:
        own_fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)  # fifo(7): no waiting
    except OSError as error:
        raise SetupFailed(
            f"cannot open standard input: {error.strerror}",
            layer="stdio",
            step="open standard input",
            errno=error.errno or 0,
        ) from None
    os.set_blocking(own_fd, True)
    return own_fd


def _executable_there(path: str, shown: Sequence[Shown], empty: Sequence[str]) -> bool:
    """Tell whether the deepest mount over ``path`` shows it, and not as noexec.

    SAFETY: what is shown stands under its own name, so no two names of one file differ here.
    """
    over = [(each.target, not each.writable) for each in shown]
    over += [(target, False) for target in empty]
    return max(
        ((len(target), shows) for target, shows in over if paths.is_beneath(path, target)),
        default=(0, False),
    )[1]


def _open(root_fd: int, path: str, keep: Callable[[int], int], *, writable: bool) -> Shown:
    try:
        fd = keep(paths.open_path(root_fd, path))
    except OSError as error:
        raise _failed(path, os.strerror(error.errno or 0), error.errno or 0) from None
    identity = paths.identity(fd)
    if identity.kind not in {stat.S_IFDIR, stat.S_IFREG, stat.S_IFCHR}:
        raise _failed(path, "neither a directory nor a file", 1)
    return Shown(
        fd=fd,
        identity=identity,
        target=path,
        writable=writable,
        owned=identity.kind != stat.S_IFCHR,
    )


def _failed(path: str, problem: str, errno: int) -> SetupFailed:
    return SetupFailed(
        f"cannot show {path}: {problem}", layer="view", step="open what is granted", errno=errno
    )
