"""How does the loopback interface of a new network namespace come up?"""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFFLAGS = 0x8913  # <linux/sockios.h>
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1  # <linux/if.h>


def loopback_up() -> None:
    """Set IFF_UP on ``lo`` (netdevice(7)), then ask whether it is up; needs CAP_NET_ADMIN here."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", 0)
        flags = struct.unpack("16sh22x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))
        flags = struct.unpack("16sh22x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
        if not flags & _IFF_UP:
            raise PermissionError("lo is not up")
