"""Who is at the other end of a socket, as the kernel says, and may they use it?

unix(7), "SO_PEERCRED": the credentials are those at connect(2) and cannot be changed afterwards.
Only the uid decides; the pid is for people, and the pidfd keeps it from being used again for
another process while the connection is open.
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass

_UCRED = struct.Struct("iII")  # struct ucred, <linux/socket.h>
_SO_PEERPIDFD = 77  # <asm-generic/socket.h>, Linux 6.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The process that connected. ``pidfd`` is -1 where the kernel does not give one."""

    uid: int
    gid: int
    pid: int
    pidfd: int = -1

    def close(self) -> None:
        """Give the pidfd back."""
        if self.pidfd >= 0:
            os.close(self.pidfd)


def peer_of(sock: socket.socket) -> Peer:
    """Ask the kernel who connected ``sock``."""
    pid, uid, gid = _UCRED.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    )
    try:
        pidfd = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:  # ENOPROTOOPT before Linux 6.5; ESRCH when the peer has been reaped
        pidfd = -1
    return Peer(uid=uid, gid=gid, pid=pid, pidfd=pidfd)


def may_connect(peer: Peer, own_uid: int) -> bool:
    """Tell whether ``peer`` may use the sockets of a daemon that runs as ``own_uid``.

    Only that uid: not even root is an exception, so what root does here it does as that user.
    """
    return peer.uid == own_uid
