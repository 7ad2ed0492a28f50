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
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from launcher import cgroup, channel, identity, trees
from launcher.ceiling import AboveCeiling, check_bind, check_plan
from launcher.host import Host, settle
from launcher.identity import Ids
from launcher.nursery import Child, Nursery
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

_MAX_IDMAPS = 256


@dataclass(slots=True, kw_only=True)
class Sandbox:
    """A sandbox that was told its plan."""

    name: str
    child: Child
    deadline: float
    overdue: bool = False


def main(control_fd: int) -> NoReturn:
    """Serve the channel behind ``control_fd`` until it ends."""
    # Python's own handler would let SIGINT through to pid 1 of a sandbox, from inside: the kernel
    # spares pid 1 only what it has no handler for (pid_namespaces(7)).
    signal.signal(signal.SIGINT, signal.SIG_DFL)
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
        self._nursery = Nursery(host, ceiling)
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
        wants_one = self._nursery.wants_one()
        ready = {fd for fd, _ in self._poll.poll(0 if wants_one else self._next_deadline_ms())}
        if wants_one and not ready:
            self._refill()
        for sandbox in list(self._sandboxes.values()):
            if sandbox.child.pidfd in ready:
                self._bury(sandbox)
        for child in [child for child in self._nursery.ready if child.pidfd in ready]:
            self._nursery.ready.remove(child)
            self._discard(child)
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
                self._sandboxes[message.sandbox].child.kill()
        finally:
            channel.close_all(fds)
        return True

    def _refill(self) -> None:
        child = self._nursery.refill(self._ids_in_use())
        if child is not None:
            self._poll.register(child.pidfd, select.POLLIN)

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
            child = sandbox.child
            self._poll.register(child.pidfd, select.POLLIN)
            created = Created(sandbox=plan.sandbox, pid=child.pid, host_uid=child.ids.host_uid)
            channel.send(self._control, created, [child.pidfd])

    def _create(self, plan: Plan, fds: list[int]) -> Sandbox:
        """Take a blank sandbox, open for it what is granted, bound it, and tell it its plan."""
        host = self._host
        self._step = "create the cgroup"
        if plan.cgroup_required and host.base.kind == "none":
            raise OSError(95, f"no cgroup can be used here: {host.base.reason}")
        self._step = "make a blank sandbox"
        child = self._nursery.take(self._ids_in_use())
        granted: list[int] = []
        try:
            self._step = "open what is granted"
            for bind in plan.binds:
                granted.append(self._grant(bind, fds[bind.descriptor], child.ids))  # noqa: PERF401  # closed below if one fails
            self._step = "limit the cgroup"
            cgroup.limit(child.leaf, plan.limits)
            self._step = "tell init its plan"
            child.tell(plan, [fds[0], *granted])
        except BaseException:
            self._discard(child)
            raise
        finally:
            channel.close_all(granted)
        deadline = time.monotonic() + plan.limits.life_ms / 1000
        return Sandbox(name=plan.sandbox, child=child, deadline=deadline)

    def _ids_in_use(self) -> list[int]:
        children = [sandbox.child for sandbox in self._sandboxes.values()]
        return [child.ids.host_uid for child in (*children, *self._nursery.ready)]

    def _discard(self, child: Child) -> None:
        """End a blank sandbox that was not told anything."""
        child.kill()
        child.reap()
        self._unregister(child)
        child.release()

    def _unregister(self, child: Child) -> None:
        with suppress(KeyError):  # one made on the spot is registered once it has its plan
            self._poll.unregister(child.pidfd)

    def _grant(self, bind: Bind, fd: int, ids: Ids) -> int:
        with trees.reopened(self._host.root_fd, fd, bind) as (own_fd, path):
            check_bind(bind, path, self._ceiling)
            userns_fd = None
            if self._host.as_root and bind.owned and not stat.S_ISCHR(bind.identity.kind):
                userns_fd = self._idmap(own_fd, ids)
            return trees.detach(own_fd, bind, userns_fd).fd

    def _idmap(self, own_fd: int, ids: Ids) -> int:
        """Find or make the user namespace that shows the owner of a tree as the sandbox's user."""
        status = os.fstat(own_fd)
        key = (status.st_uid, status.st_gid, ids.host_uid)
        if key not in self._host.idmaps:
            if len(self._host.idmaps) >= _MAX_IDMAPS:
                channel.close_all(list(self._host.idmaps.values()))
                self._host.idmaps.clear()
            owner = (status.st_uid, status.st_gid)
            self._host.idmaps[key] = identity.idmap_user_namespace(self._host.proc_fd, owner, ids)
        return self._host.idmaps[key]

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
                sandbox.child.kill()

    def _bury(self, sandbox: Sandbox) -> None:
        """Reap init, count, remove the cgroup, and tell the daemon."""
        child = sandbox.child
        returncode = child.reap()
        self._unregister(child)
        del self._sandboxes[sandbox.name]
        usage = child.leaf.usage()
        leftover = child.release()
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
        children = [sandbox.child for sandbox in self._sandboxes.values()]
        children += self._nursery.ready
        for child in children:
            child.kill()
        for child in children:
            child.reap()
            child.release()
        self._host.base.remove()
