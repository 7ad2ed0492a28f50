"""Does what works outside fail inside? Each row has its control."""

from __future__ import annotations

import os

import pytest

from launcher import landlock, lockdown, syscalls
from launcher.plan import POOL_INSIDE_UID
from tests.launcher.conftest import outside
from tests.launcher.driver import Launcher, a_launcher

pytestmark = pytest.mark.kernel

FORBIDDEN = [  # attempt, what it says inside, why
    ("read:/etc/passwd", "ENOENT", "the plan shows /usr and nothing else of /etc"),
    ("list:/proc/sys", "ENOENT", "procfs shows processes only (P01)"),
    ("read:/proc/sys/kernel/ostype", "ENOENT", "procfs shows processes only (P01)"),
    ("list:/sys", "ENOENT", "no sysfs (P06)"),
    ("list:/var", "ENOENT", "the plan does not show it"),
    ("read:/proc/1/status", "ENOENT", "hidepid=invisible, and init is not dumpable (P04)"),
    ("kill-parent", "EPERM", "Landlock scopes signals; init is outside the domain"),
    ("unshare:0x10000000", "EPERM", "no nested user namespace (U08)"),
    ("syscall:keyctl", "ENOSYS", "keyrings(7) are not namespaced"),
    ("syscall:bpf", "ENOSYS", "kernel surface"),
    ("syscall:io_uring_setup", "ENOSYS", "operations that a filter does not see (S09)"),
    ("syscall:ptrace", "EPERM", "no process may look into another"),
]


@pytest.mark.parametrize(("attempt", "errno", "why"), FORBIDDEN)
def test_the_attempt_fails_inside_only(
    launcher: Launcher, attempt: str, errno: str, why: str
) -> None:
    (control,) = outside(attempt)
    assert control != errno, "outside it fails in the same way, so the row proves nothing"
    assert launcher.inside(attempt) == [errno], why


READ_ONLY = ["/usr/x", "/x", "/etc/x", "/proc/x", "/dev/x", "/home/x"]


def test_only_what_is_granted_can_be_written(launcher: Launcher, workspace: str) -> None:
    attempts = [f"create:{path}" for path in READ_ONLY]
    refused = launcher.inside(*attempts, workspace=workspace)
    assert set(refused) <= {"EROFS", "EACCES", "EPERM", "ENOENT"}
    granted = ["/tmp/x", "/dev/shm/x", "/home/sandbox/x", f"{workspace}/x"]
    assert launcher.inside(*(f"create:{path}" for path in granted), workspace=workspace) == [
        "ok"
    ] * len(granted)
    assert os.listdir(workspace) == ["x"]


def test_what_is_created_in_the_workspace_belongs_to_its_owner(
    launcher: Launcher, workspace: str
) -> None:
    launcher.inside(f"create:{workspace}/new", workspace=workspace)
    status = os.stat(f"{workspace}/new")
    assert (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())


def test_the_workspace_appears_as_the_sandbox_users_own(
    launcher: Launcher, workspace: str
) -> None:
    uid, (owner, _) = launcher.inside("uid", f"stat:{workspace}", workspace=workspace)
    assert uid[0] == owner == (POOL_INSIDE_UID if os.geteuid() == 0 else os.geteuid())


def test_started_by_root_no_sandbox_runs_as_host_uid_0(launcher: Launcher) -> None:
    result = launcher.run(["/usr/bin/true"])
    assert result.created is not None
    host_uid = getattr(result.created, "host_uid", None)
    assert host_uid is not None
    assert host_uid >= 2_000_000_000 if os.geteuid() == 0 else host_uid == os.geteuid()


def test_privileges_are_gone(launcher: Launcher) -> None:
    names = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"]
    said = launcher.inside(*(f"status:{name}" for name in names))
    assert said == ["0000000000000000"] * 5 + ["1", "2"]


def test_only_three_descriptors_are_open(launcher: Launcher) -> None:
    assert launcher.inside("fds") == [[0, 1, 2]]


def test_signals_that_the_starter_ignored_are_not_ignored_inside() -> None:
    def ignore_all() -> None:
        for number in range(1, 65):
            if number not in {9, 17, 19}:  # SIGKILL, SIGCHLD, SIGSTOP
                action = (1).to_bytes(8, "little") + bytes(24)
                syscalls.syscall("rt_sigaction", number, action, None, 8)
        lockdown.IGNORED_SIGNALS = tuple(n for n in range(1, 65) if n not in {9, 17, 19})

    with a_launcher(sabotage=ignore_all) as launcher:
        result = launcher.run(["/bin/sh", "-c", "grep '^SigIgn' /proc/self/status"])
    assert result.output.split()[1] == b"0" * 16


def test_signals_are_as_a_program_expects_them(launcher: Launcher) -> None:
    # Python itself, inside, ignores SIGPIPE (13) and SIGXFSZ (25); so ask something else.
    result = launcher.run(["/bin/sh", "-c", "grep -E '^Sig(Ign|Blk)' /proc/self/status"])
    assert [line.split()[1] for line in result.output.splitlines()] == [b"0" * 16] * 2


def test_the_command_is_in_a_session_of_its_own_below_init(launcher: Launcher) -> None:
    assert launcher.inside("session") == [[True, 1]]


def test_set_id_bits_and_devices_cannot_be_made(launcher: Launcher, workspace: str) -> None:
    made = launcher.inside(
        f"create:{workspace}/f",
        f"setuid:{workspace}/f",
        f"mknod:{workspace}/null",
        workspace=workspace,
    )
    assert made == ["ok", "EPERM", "EPERM"]
    assert os.stat(f"{workspace}/f").st_mode & 0o6000 == 0


def test_nothing_writable_can_be_executed(launcher: Launcher, workspace: str) -> None:
    script = os.path.join(workspace, "script")
    with open(script, "w", encoding="ascii") as file:
        file.write("#!/bin/sh\nexit 0\n")
    os.chmod(script, 0o755)
    assert outside(f"execute:{script}") == [0]
    assert launcher.inside(f"execute:{script}", workspace=workspace) == ["EACCES"]


def test_tmpfs_are_bounded_in_bytes(launcher: Launcher) -> None:
    errno, written = launcher.inside("fill:/tmp/big")[0]
    assert errno == "ENOSPC"
    assert written <= 16 << 20


def test_every_mount_is_restricted(launcher: Launcher, workspace: str) -> None:
    (rows,) = launcher.inside("mountinfo", workspace=workspace)
    for row in rows:
        point, flags = row.split()[4], set(row.split()[5].split(","))
        assert "nosuid" in flags, point
        assert "ro" in flags or "noexec" in flags, point
    assert {row.split()[4] for row in rows} >= {"/", "/usr", "/tmp", workspace, "/proc"}


def test_the_network_is_a_loopback_of_its_own(launcher: Launcher) -> None:
    (names,) = launcher.inside("interfaces", network="loopback") or [None]
    assert names in (["lo"], "EAFNOSUPPORT")  # listing needs netlink, which the filter refuses
    assert launcher.inside("loopback", network="loopback") == ["ok"]


def test_an_abstract_socket_of_the_host_is_not_there(launcher: Launcher) -> None:
    import secrets
    import socket

    name = "sandboxd-test-" + secrets.token_hex(8)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen(1)
        assert outside(f"abstract:{name}") == ["ok"]
        assert launcher.inside(f"abstract:{name}")[0] in {"ECONNREFUSED", "EPERM"}


def test_the_environment_is_the_plans(launcher: Launcher) -> None:
    (environ,) = launcher.inside("environ")
    environ.pop("LC_CTYPE", None)  # Python's own doing, PEP 538
    assert environ == {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/home/sandbox"}


def test_the_host_name_is_the_plans(launcher: Launcher) -> None:
    assert launcher.inside("hostname", host_name="box") == ["box"]


def test_two_sandboxes_share_nothing(launcher: Launcher) -> None:
    assert launcher.inside("create:/tmp/mine", "create:/dev/shm/mine") == ["ok", "ok"]
    assert launcher.inside("list:/tmp", "list:/dev/shm") == [[], []]


def test_processes_are_bounded(launcher: Launcher) -> None:
    from launcher.plan import Limits, Rlimit

    limits = Limits(memory_bytes=256 << 20, pids=8, life_ms=60_000)
    rlimits = (Rlimit(resource="NPROC", soft=9, hard=9),)
    ((errno, count),) = launcher.inside("fork:64", limits=limits, rlimits=rlimits)
    assert errno == "EAGAIN"
    assert count < 9


def test_pseudoterminals_and_inotify_of_the_host_are_not_used_up(launcher: Launcher) -> None:
    assert outside("ptys") == [["ok", 100]]
    assert launcher.inside("ptys") == [["ENOSPC", 64]]
    assert launcher.inside("inotify") == [8]


def test_init_cannot_be_interrupted_from_inside_where_landlock_has_no_scopes() -> None:
    def older_kernel() -> None:
        landlock.abi = lambda: 5

    with a_launcher(sabotage=older_kernel) as launcher:
        result = launcher.run(["/bin/sh", "-c", "kill -INT 1; kill -TERM 1; echo alive"])
    assert result.output == b"alive\n"
    assert result.exited is not None
    assert result.exited.returncode == 0


def test_hard_limits_hold(launcher: Launcher) -> None:
    assert launcher.inside("rlimit:RLIMIT_NOFILE", "rlimit:RLIMIT_CORE") == [[128, 128], [0, 0]]
