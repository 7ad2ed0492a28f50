"""What stands in a sandbox's /etc that is not the host's?

Made for each sandbox: it names the one user inside and nobody of the host, resolves no names but
its own, and carries a machine-id that no other sandbox has.
"""

from __future__ import annotations

from launcher.plan import File, Symlink

USER = "sandbox"
HOME = "/home/sandbox"
_NOBODY = 65534

_NSSWITCH = """\
passwd: files
group: files
shadow: files
hosts: files
networks: files
protocols: files
services: files
"""


def files(*, uid: int, gid: int, host_name: str, machine_id: str) -> tuple[File, ...]:
    """Return the synthetic files; ``machine_id`` is 32 hexadecimal digits (machine-id(5))."""
    content = {
        "passwd": _passwd(uid, gid),
        "group": _group(gid),
        "hosts": f"127.0.0.1 localhost {host_name}\n::1 localhost {host_name}\n",
        "hostname": f"{host_name}\n",
        "host.conf": "multi on\n",
        "resolv.conf": "# This sandbox resolves no names\n",
        "nsswitch.conf": _NSSWITCH,
        "machine-id": f"{machine_id}\n",
    }
    return tuple(File(target=f"/etc/{name}", content=text) for name, text in content.items())


def links() -> tuple[Symlink, ...]:
    """Return the links that programs expect below /etc."""
    return (
        Symlink(target="/etc/mtab", to="/proc/self/mounts"),
        Symlink(target="/etc/os-release", to="../usr/lib/os-release"),
    )


def _passwd(uid: int, gid: int) -> str:
    rows = ["root:x:0:0:root:/nonexistent:/usr/sbin/nologin"]
    rows.append(f"{USER}:x:{uid}:{gid}:{USER}:{HOME}:/bin/sh")
    if uid != _NOBODY:
        rows.append(f"nobody:x:{_NOBODY}:{_NOBODY}:nobody:/nonexistent:/usr/sbin/nologin")
    return "".join(f"{row}\n" for row in rows)


def _group(gid: int) -> str:
    rows = ["root:x:0:", f"{USER}:x:{gid}:"]
    if gid != _NOBODY:
        rows.append(f"nogroup:x:{_NOBODY}:")
    return "".join(f"{row}\n" for row in rows)
