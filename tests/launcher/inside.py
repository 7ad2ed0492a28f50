"""Tries one thing per argument, inside a sandbox or outside, and prints one JSON line for each.

Knows nothing of the tests that run it. An argument is ``NAME`` or ``NAME:VALUE``. The line is the
name of the errno, or "ok", or whatever the attempt is asked to report.
"""

import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import sys
from collections.abc import Callable

Attempt = Callable[[str], object]
libc = ctypes.CDLL(None, use_errno=True)
NUMBERS = {"unshare": (272, 97), "mount": (165, 40), "keyctl": (250, 219), "bpf": (321, 280)}
NUMBERS |= {"ptrace": (101, 117), "setns": (308, 268), "clone": (56, 220), "chroot": (161, 51)}
NUMBERS |= {"open_tree": (428, 428), "io_uring_setup": (425, 425), "clone3": (435, 435)}


def call(name: str, *words: int) -> object:
    number = NUMBERS[name][os.uname().machine != "x86_64"]
    if libc.syscall(number, *(ctypes.c_long(word) for word in words)) < 0:
        raise OSError(ctypes.get_errno(), name)
    return "ok"


def status(field: str) -> object:
    with open("/proc/self/status", encoding="utf-8") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)[field]


def open_for(flags: int) -> Attempt:
    def attempt(path: str) -> object:
        os.close(os.open(path, flags, 0o644))
        return "ok"

    return attempt


def descriptors(_: str) -> object:
    # What is open before the listing opens its own.
    return sorted(fd for fd in range(256) if is_open(fd))


def is_open(fd: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_GETFD)
    except OSError:
        return False
    return True


def fork_many(count: str) -> object:
    children: list[int] = []
    try:
        for _ in range(int(count)):
            pid = os.fork()
            if pid == 0:
                signal.pause()
            children.append(pid)
    except OSError as error:
        return errno.errorcode[error.errno or 0], len(children)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
    return "ok", len(children)


def fill(path: str) -> object:
    written = 0
    with open(path, "wb", buffering=0) as file:
        try:
            while written < 1 << 28:
                written += file.write(bytes(1 << 20))
        except OSError as error:
            return errno.errorcode[error.errno or 0], written
    return "ok", written


def execute(path: str) -> object:
    pid = os.fork()
    if pid == 0:
        try:
            os.execv(path, [path])  # noqa: S606  # the very thing tried
        except OSError as error:
            os._exit(error.errno or 0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return errno.errorcode.get(code, code)


def abstract_connect(name: str) -> object:
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect("\0" + name)
    return "ok"


def loopback(_: str) -> object:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
    return "ok"


def signals(_: str) -> object:
    return [status(name) for name in ("SigIgn", "SigBlk")]


def done(function: Callable[..., None], *words: object) -> object:
    function(*words)
    return "ok"


def lines_of(path: str) -> object:
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()


def ptys(_: str) -> object:
    masters: list[int] = []
    try:
        while len(masters) < 100:
            masters.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
    except OSError as error:
        return errno.errorcode[error.errno or 0], len(masters)
    return "ok", len(masters)


def inotify(_: str) -> object:
    count = 0
    while count < 100 and libc.inotify_init1(0) >= 0:
        count += 1
    return count


ATTEMPTS: dict[str, Attempt] = {
    "read": open_for(os.O_RDONLY),
    "write": open_for(os.O_WRONLY),
    "create": open_for(os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    "list": lambda path: sorted(os.listdir(path)),
    "kill-parent": lambda _: done(os.kill, os.getppid(), 0),
    "status": status,
    "signals": signals,
    "ptys": ptys,
    "inotify": inotify,
    "fds": descriptors,
    "uid": lambda _: [os.getuid(), os.getgid(), os.getgroups()],
    "session": lambda _: [os.getsid(0) == os.getpid() or os.getsid(0), os.getppid()],
    "cwd": lambda _: os.getcwd(),
    "umask": lambda _: os.umask(0o22),
    "hostname": lambda _: os.uname().nodename,
    "fork": fork_many,
    "fill": fill,
    "execute": execute,
    "abstract": abstract_connect,
    "loopback": loopback,
    "interfaces": lambda _: [name for _, name in socket.if_nameindex()],
    "mknod": lambda path: done(os.mknod, path, 0o20666, os.makedev(1, 3)),
    "setuid": lambda path: done(os.chmod, path, 0o4755),
    "rlimit": lambda name: __import__("resource").getrlimit(getattr(__import__("resource"), name)),
    "mountinfo": lambda _: lines_of("/proc/self/mountinfo"),
    "environ": lambda _: dict(os.environ),
    "argv": lambda _: sys.orig_argv,
    "stat": lambda path: [os.stat(path).st_uid, os.stat(path).st_gid],
    "unshare": lambda flags: call("unshare", int(flags, 0)),
    "syscall": lambda name: call(name, 0, 0, 0, 0, 0),
}

for argument in sys.argv[1:]:
    name, _, value = argument.partition(":")
    try:
        answer = ATTEMPTS[name](value)
    except OSError as error:
        answer = errno.errorcode[error.errno or 0]
    print(json.dumps(answer), flush=True)
