"""How are sandboxes made, watched and ended? The fork server.

Started by the daemon before anything else, with one channel and an empty environment. It is single
threaded (Y01), holds no profile and no secret, parses nothing that a client sent, checks each plan
against the ceiling it was given first, and outlives no daemon: at end of file it ends every
sandbox.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import NoReturn

from launcher import cgroup, channel, identity, init, programs, syscalls, trees
from launcher.birth import Birth
from launcher.ceiling import AboveCeiling, check_bind, check_plan
from launcher.host import Host, settle
from launcher.identity import Ids
from launcher.plan import (
    Bind,
    Ceiling,
    Created,
    Destroy,
    Failed,
    Gone,
    Launch,
    Plan,
    Refused,
)
from launcher.trees import Tree

NAMESPACES = (
    syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWCGROUP
)
_REMOVAL_TRIES_MS = (5, 20, 100, 500)


@dataclass(slots=True, kw_only=True)
class Sandbox:
    """A sandbox that exists."""

    name: str
    pid: int
    pidfd: int
    ids: Ids
    leaf: cgroup.Leaf
    deadline: float
    overdue: bool = False


def main(control_fd: int) -> NoReturn:
    """Serve the channel behind ``control_fd`` until it ends."""
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    status = 1
    try:
        received = channel.receive(control, Ceiling)
        if received is not None and not received[1]:
            host, hello = settle(received[0])
            channel.send(control, hello)
            Server(control, received[0], host).serve()
            status = 0
    except Exception as error:  # noqa: BLE001  # the other main loop: say what and end
        sys.stderr.write(f"launcher: cannot go on: {error!r}\n")
        sys.stderr.flush()
    finally:
        os._exit(status)


class Server:
    """The loop: requests from the daemon, ends of sandboxes, deadlines."""

    def __init__(self, control: socket.socket, ceiling: Ceiling, host: Host) -> None:
        self._control = control
        self._ceiling = ceiling
        self._host = host
        self._step = ""
        self._sandboxes: dict[str, Sandbox] = {}
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def serve(self) -> None:
        """Serve until the daemon is gone, then end all sandboxes."""
        try:
            while self._serve_once():
                pass
        finally:
            self._end_all()

    def _serve_once(self) -> bool:
        ready = {fd for fd, _ in self._poll.poll(self._next_deadline_ms())}
        for sandbox in list(self._sandboxes.values()):
            if sandbox.pidfd in ready:
                self._bury(sandbox)
        self._end_overdue()
        if self._control.fileno() not in ready:
            return True
        received = channel.receive(self._control, Launch, Destroy)
        if received is None:
            return False
        message, fds = received
        try:
            if isinstance(message, Launch):
                self._launch(message.plan, fds)
            elif message.sandbox in self._sandboxes:
                _kill(self._sandboxes[message.sandbox])
        finally:
            channel.close_all(fds)
        return True

    def _launch(self, plan: Plan, fds: list[int]) -> None:
        try:
            check_plan(plan, self._ceiling, existing=self._sandboxes.keys(), descriptors=len(fds))
            sandbox = self._create(plan, fds)
        except AboveCeiling as refusal:
            channel.send(self._control, Refused(sandbox=plan.sandbox, reason=str(refusal)))
        except OSError as error:
            text = error.strerror or str(error)
            failed = Failed(
                sandbox=plan.sandbox, step=self._step, errno=error.errno or 0, detail=text
            )
            channel.send(self._control, failed)
        else:
            self._sandboxes[plan.sandbox] = sandbox
            self._poll.register(sandbox.pidfd, select.POLLIN)
            created = Created(sandbox=plan.sandbox, pid=sandbox.pid, host_uid=sandbox.ids.host_uid)
            channel.send(self._control, created, [sandbox.pidfd])

    def _create(self, plan: Plan, fds: list[int]) -> Sandbox:
        host = self._host
        self._step = "create the cgroup"
        if plan.cgroup_required and host.base.kind == "none":
            raise OSError(95, f"no cgroup can be used here: {host.base.reason}")
        self._step = "choose the ids"
        ids = self._ids()
        self._step = "open what is granted"
        with ExitStack() as stack:
            granted: list[Tree] = []
            stack.callback(lambda: channel.close_all([tree.fd for tree in granted]))
            granted.extend(self._grant(bind, fds[bind.descriptor], ids) for bind in plan.binds)
            granted.extend(trees.device_trees(host.devices))
            self._step = "create the cgroup"
            leaf = cgroup.create_leaf(host.base, plan.sandbox, plan.limits)
            birth = Birth(
                plan=plan,
                ids=ids,
                leaf=leaf,
                trees=granted,
                channel=socket.socket(fileno=os.dup(fds[0])),
                filter_program=host.programs[
                    programs.key(plan.seccomp, network=plan.network != "none", relax=plan.relax)
                ],
                landlock_abi=host.landlock_abi,
                host_proc_fd=host.proc_fd,
                launcher_fd=host.launcher_fd,
                probe_fd=host.probe_fd,
            )
            stack.enter_context(birth.channel)
            self._step = "clone3"
            try:
                pid, pidfd = self._clone(birth)
            except OSError:
                leaf.close()
                leaf.remove()
                raise
        deadline = time.monotonic() + plan.limits.life_ms / 1000
        return Sandbox(
            name=plan.sandbox, pid=pid, pidfd=pidfd, ids=ids, leaf=leaf, deadline=deadline
        )

    def _ids(self) -> Ids:
        if not self._host.as_root:
            return identity.own_ids()
        in_use = (sandbox.ids.host_uid for sandbox in self._sandboxes.values())
        return identity.pool_ids(self._ceiling.pool_first, self._ceiling.pool_size, in_use)

    def _grant(self, bind: Bind, fd: int, ids: Ids) -> Tree:
        with trees.reopened(self._host.root_fd, fd, bind) as (own_fd, path):
            check_bind(bind, path, self._ceiling)
            userns_fd = None
            if self._host.as_root and bind.owned and not stat.S_ISCHR(bind.identity.kind):
                userns_fd = self._idmap(own_fd, ids)
            return trees.detach(own_fd, bind, userns_fd)

    def _idmap(self, own_fd: int, ids: Ids) -> int:
        """Find or make the user namespace that shows the owner of a tree as the sandbox's user."""
        status = os.fstat(own_fd)
        key = (status.st_uid, status.st_gid, ids.host_uid)
        if key not in self._host.idmaps:
            owner = (status.st_uid, status.st_gid)
            self._host.idmaps[key] = identity.idmap_user_namespace(self._host.proc_fd, owner, ids)
        return self._host.idmaps[key]

    def _clone(self, birth: Birth) -> tuple[int, int]:
        """clone3(2) with all seven namespaces; the child becomes init and never returns."""
        go_write_fd = -1
        if self._host.as_root:
            birth.go_fd, go_write_fd = os.pipe2(os.O_CLOEXEC)
        try:
            pid, pidfd = syscalls.clone3(
                flags=NAMESPACES, exit_signal=signal.SIGCHLD, cgroup_fd=birth.leaf.into_fd
            )
            if pid == 0:
                init.main(birth)
            if go_write_fd >= 0:
                identity.map_pool_ids(self._host.proc_fd, pid, birth.ids)
                with suppress(BrokenPipeError):  # init has failed already, and says so itself
                    os.write(go_write_fd, b"m")
        finally:
            channel.close_all([fd for fd in (birth.go_fd, go_write_fd) if fd >= 0])
        return pid, pidfd

    def _next_deadline_ms(self) -> int | None:
        deadlines = [s.deadline for s in self._sandboxes.values() if not s.overdue]
        if not deadlines:
            return None
        return max(0, int((min(deadlines) - time.monotonic()) * 1000) + 1)

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for sandbox in self._sandboxes.values():
            if not sandbox.overdue and now >= sandbox.deadline:
                sandbox.overdue = True
                _kill(sandbox)

    def _bury(self, sandbox: Sandbox) -> None:
        """Reap init, count, remove the cgroup, and tell the daemon."""
        returncode = _reap(sandbox)
        self._poll.unregister(sandbox.pidfd)
        del self._sandboxes[sandbox.name]
        usage = sandbox.leaf.usage()
        leftover = _release(sandbox)
        gone = Gone(
            sandbox=sandbox.name,
            returncode=returncode,
            overdue=sandbox.overdue,
            usage=usage,
            leftover=leftover,
        )
        with suppress(BrokenPipeError, ConnectionResetError):  # then end of file comes next
            channel.send(self._control, gone)

    def _end_all(self) -> None:
        for sandbox in self._sandboxes.values():
            _kill(sandbox)
        for sandbox in self._sandboxes.values():
            _reap(sandbox)
            _release(sandbox)
        self._host.base.remove()


def _kill(sandbox: Sandbox) -> None:
    """SIGKILL to init by pidfd: the kernel ends the whole pid namespace. I10, L02."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(sandbox.pidfd, signal.SIGKILL)


def _reap(sandbox: Sandbox) -> int:
    """Wait by pidfd, never for any child (L09); return the status, negative for a signal."""
    result = os.waitid(os.P_PIDFD, sandbox.pidfd, os.WEXITED)
    if result is None:
        raise ChildProcessError(10, "init is not a child any more")
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def _release(sandbox: Sandbox) -> str:
    os.close(sandbox.pidfd)
    sandbox.leaf.close()
    leftover = sandbox.leaf.remove()
    for wait_ms in _REMOVAL_TRIES_MS:  # the kernel empties a cgroup a moment after the last exit
        if not leftover:
            break
        time.sleep(wait_ms / 1000)
        leftover = sandbox.leaf.remove()
    return leftover
