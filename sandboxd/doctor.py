"""Can this host carry sandboxes, and if not, who forbids it and what is the smallest remedy?

Readings of the kernel and one attempt at the very call that a launcher makes, and what a daemon
says of itself; none is asked here.
A remedy widens as little as possible: a rule for one program comes before a switch for all.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
from dataclasses import dataclass
from typing import Literal

import sandboxd
from launcher import syscalls
from sandboxd.protocol import DaemonStatus

KERNEL_FLOOR = (5, 14)
_LANDLOCK_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION, <linux/landlock.h>
_MODULES = ("pydantic", "asyncvarlink", "psutil", "pyseccomp", "prctl")
_HARDENED = (  # sysctl, least value, what it keeps from whom
    ("dev/tty/legacy_tiocsti", "0", "no program can type into its terminal (TIOCSTI)"),
    ("kernel/dmesg_restrict", "1", "the kernel's log is root's"),
    ("kernel/kptr_restrict", "1", "kernel addresses are hidden"),
    ("fs/protected_hardlinks", "1", "no hard links to others' files"),
    ("fs/protected_symlinks", "1", "no links of others are followed in /tmp"),
)
_FORBIDDING = {  # who forbids user namespaces, and the smallest remedy
    "apparmor": (
        "AppArmor takes their capabilities (kernel.apparmor_restrict_unprivileged_userns)",
        "give {interpreter} an AppArmor profile with the rule 'userns,'; do not lift it for all",
    ),
    "none allowed": (
        "sysctl user.max_user_namespaces is 0",
        "sysctl -w user.max_user_namespaces=4096",
    ),
    "clone switch": (
        "sysctl kernel.unprivileged_userns_clone is 0",
        "sysctl -w kernel.unprivileged_userns_clone=1",
    ),
    "limit": (
        "the limit of user namespaces is reached, or they are nested too deeply ({name})",
        "raise sysctl user.max_user_namespaces, or end what holds them",
    ),
    "not built": (
        "the kernel is built without them ({name})",
        "run a kernel with CONFIG_USER_NS=y",
    ),
    "filter": (
        "outer-seccomp: a filter around this process refuses ({name})",
        "let the container's seccomp profile allow clone3, unshare and the mount calls",
    ),
    "module": (
        "a security module or container policy refuses ({name})",
        "ask whoever set this container or host up to allow user namespaces",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One finding. "note": it works, but less than it could. ``fix`` is the smallest remedy."""

    name: str
    verdict: Literal["ok", "fail", "note"]
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsernsAttempt:
    """What unshare(2) of a user namespace came to: ``errno`` 0 and the capabilities gained."""

    errno: int
    capabilities: int


def examine_host(proc: str = "/proc") -> list[Row]:
    """Return what can be told without a daemon. ``proc`` is where proc(5) is."""
    return [
        kernel(os.uname().release),
        user_namespaces(attempt_userns(), proc, root=os.geteuid() == 0),
        landlock(),
        seccomp(proc),
        modules(),
        *sysctls(proc),
    ]


def kernel(release: str) -> Row:
    """Compare uname(2)'s release with the floor."""
    numbers = tuple(map(int, re.findall(r"\d+", release)[:2]))
    floor = ".".join(map(str, KERNEL_FLOOR))
    if numbers >= KERNEL_FLOOR:
        return Row(name="kernel", verdict="ok", found=f"Linux {release}")
    fix = f"run a kernel from {floor} on"
    return Row(name="kernel", verdict="fail", found=f"Linux {release}", fix=fix)


def attempt_userns() -> UsernsAttempt:
    """Make a user namespace in a child, which ends at once."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        _report_userns(write_fd)
    os.close(write_fd)
    with open(read_fd, "rb") as pipe:
        answer = pipe.read().split()
    os.waitpid(pid, 0)
    if len(answer) != 2:
        return UsernsAttempt(errno=errno.EPERM, capabilities=0)
    return UsernsAttempt(errno=int(answer[0]), capabilities=int(answer[1], 16))


def _report_userns(write_fd: int) -> None:
    """Run in the child: whatever happens, it ends here."""
    try:
        number = 0
        try:
            syscalls.unshare(syscalls.CLONE_NEWUSER)
        except OSError as error:
            number = error.errno or errno.EPERM
        os.write(write_fd, f"{number} {_status('/proc').get('CapEff', '0')}".encode())
    finally:
        os._exit(0)


def user_namespaces(attempt: UsernsAttempt, proc: str, *, root: bool) -> Row:
    """Say whether user namespaces can be made, and if not, which of five authorities forbids."""
    if attempt.errno == 0 and attempt.capabilities:
        return Row(name="user namespaces", verdict="ok", found="can be made")
    found, fix = _who_forbids(attempt, proc, root=root)
    return Row(name="user namespaces", verdict="fail", found=found, fix=fix)


def _who_forbids(attempt: UsernsAttempt, proc: str, *, root: bool) -> tuple[str, str]:
    """Return the authority and the remedy; the first switch that explains it is the one."""
    number, sysctl = attempt.errno, f"{proc}/sys"
    restricted = _read(f"{sysctl}/kernel/apparmor_restrict_unprivileged_userns") == "1"
    off = not root and _read(f"{sysctl}/kernel/unprivileged_userns_clone") == "0"
    causes = (
        (number == 0 or (number in {errno.EPERM, errno.EACCES} and restricted), "apparmor"),
        (_read(f"{sysctl}/user/max_user_namespaces") == "0", "none allowed"),
        (off, "clone switch"),
        (number in {errno.ENOSPC, errno.EUSERS}, "limit"),
        (number in {errno.EINVAL, errno.ENOSYS}, "not built"),
        (_status(proc).get("Seccomp") == "2", "filter"),
        (True, "module"),
    )
    found, fix = _FORBIDDING[next(cause for holds, cause in causes if holds)]
    return found.format(name=_name(number)), fix.format(interpreter=_interpreter())


def landlock() -> Row:
    """Ask the kernel for its Landlock ABI."""
    try:
        abi = syscalls.syscall("landlock_create_ruleset", None, 0, _LANDLOCK_VERSION)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            fix = "boot with lsm=landlock,… (it is built in, but off)"
        else:
            fix = "run a kernel with CONFIG_SECURITY_LANDLOCK=y, or allow its calls outside"
        found = f"none ({_name(error.errno)})"
        return Row(name="Landlock", verdict="fail", found=found, fix=fix)
    if abi < 6:
        fix = "from Linux 6.12 on it separates signals and abstract sockets as well"
        return Row(name="Landlock", verdict="note", found=f"ABI {abi}", fix=fix)
    return Row(name="Landlock", verdict="ok", found=f"ABI {abi}")


def seccomp(proc: str) -> Row:
    """See that the kernel has filters with the actions the policy uses."""
    actions = (_read(f"{proc}/sys/kernel/seccomp/actions_avail") or "").split()
    missing = {"errno", "kill_process", "allow"} - set(actions)
    if missing:
        found = f"missing: {', '.join(sorted(missing))}"
        fix = "run a kernel with CONFIG_SECCOMP_FILTER=y"
        return Row(name="seccomp", verdict="fail", found=found, fix=fix)
    return Row(name="seccomp", verdict="ok", found="filters can be loaded")


def modules() -> Row:
    """Import what the daemon needs, in this interpreter, which a daemon is started with."""
    missing = [name for name in _MODULES if not _importable(name)]
    if missing:
        found = f"cannot import {', '.join(missing)}"
        fix = f"{_interpreter()} -m pip install 'sandboxd[daemon]'"
        return Row(name="modules", verdict="fail", found=found, fix=fix)
    return Row(name="modules", verdict="ok", found=", ".join(_MODULES))


def sysctls(proc: str) -> list[Row]:
    """Note switches of the host that are laxer than they could be; none is needed."""
    rows = []
    for path, least, meaning in _HARDENED:
        value = _read(f"{proc}/sys/{path}")
        name = path.replace("/", ".")
        lax = value is not None and ((value > least) if least == "0" else (value < least))
        if lax:
            fix = f"sysctl -w {name}={least}: {meaning}"
            rows.append(Row(name=name, verdict="note", found=f"is {value}", fix=fix))
    return rows


def daemon(status: DaemonStatus) -> list[Row]:
    """Return what the daemon says of itself."""
    rows = [
        Row(name="daemon", verdict="ok", found=f"pid {status.pid}, {status.profiles} profiles")
    ]
    if status.version != sandboxd.__version__ or status.started_at < installed_at():
        found = f"started before this installation: it is version {status.version}"
        fix = "sandboxctl stop; the next client starts the one that is installed"
        rows.append(Row(name="daemon's code", verdict="note", found=found, fix=fix))
    if status.cgroup == "none":
        fix = "delegate a cgroup (systemd: Delegate=yes); until then rlimits and a watchdog hold"
        rows.append(Row(name="cgroup", verdict="note", found=status.cgroup_reason, fix=fix))
    else:
        rows.append(Row(name="cgroup", verdict="ok", found=status.cgroup))
    if status.groups_retained:
        groups = ", ".join(map(str, status.groups_retained))
        fix = "commands keep the access these groups give; leave them, or serve as root"
        rows.append(Row(name="groups", verdict="note", found=f"retained: {groups}", fix=fix))
    return rows


def installed_at() -> int:
    """Return when a file of the code was last put in place, in milliseconds since 1970."""
    times = [
        entry.stat().st_mtime_ns
        for package in (os.path.dirname(__file__), os.path.dirname(syscalls.__file__))
        for entry in os.scandir(package)
        if entry.name.endswith(".py")
    ]
    return max(times) // 1_000_000


def _importable(name: str) -> bool:
    try:
        importlib.import_module(name)
    except (ImportError, OSError, RuntimeError):  # a library below it is missing
        return False
    return True


def _interpreter() -> str:
    return os.readlink("/proc/self/exe")


def _name(number: int | None) -> str:
    return errno.errorcode.get(number or 0, str(number))


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None  # this kernel has no such switch


def _status(proc: str) -> dict[str, str]:
    lines = (_read(f"{proc}/self/status") or "").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
