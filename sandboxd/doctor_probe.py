"""What does a command find when it tries to leave its sandbox?

This file's text is run *inside*, by the shipped profile ``python``: it tries each thing once and
prints one JSON object, name → errno name, "ok" or what it saw. It judges nothing.

    python3 -c TEXT, standard input: {"outside": PATH, "port": N, "abstract": NAME, …}
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import sys
from collections.abc import Callable


def attempt(trial: Callable[[], object]) -> str:
    """Try it; say "ok" or the errno's name."""
    try:
        trial()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return "ok"


def write(path: str) -> None:
    """Create a file and write to it."""
    with open(path, "x", encoding="ascii") as file:
        file.write("written")


def connect(family: int, address: tuple[str, int] | str) -> None:
    """Connect to a listener that exists on the host."""
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(5)
        sock.connect(address)


def pair() -> None:
    """Speak over a socket of one's own."""
    one, other = socket.socketpair()
    one.sendall(b"x")
    other.recv(1)
    one.close()
    other.close()


def trace() -> None:
    """ptrace(PTRACE_TRACEME), which an unfiltered process always may."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(0, 0, None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def main() -> None:
    """Try everything."""
    given = json.load(sys.stdin)
    with open("/proc/self/status", encoding="ascii") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    found = {name: status.get(name, "").strip() for name in given["status"]}
    found |= {
        "write inside": attempt(lambda: write("inside")),
        "write outside": attempt(lambda: write(given["outside"])),
        "write to the system": attempt(lambda: write("/usr/bin/sandboxd-doctor")),
        "own socket": attempt(pair),
        "host port": attempt(lambda: connect(socket.AF_INET, ("127.0.0.1", given["port"]))),
        "host socket": attempt(lambda: connect(socket.AF_UNIX, "\0" + given["abstract"])),
        "ptrace": attempt(trace),
        "kill the client": attempt(lambda: os.kill(given["pid"], 0)),
        "processes": str(sum(name.isdigit() for name in os.listdir("/proc"))),
        "host name": socket.gethostname(),
    }
    json.dump(found, sys.stdout)


main()
