"""Does the doctor name who forbids, and fail when a protection is not there?"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

import sandboxd
from sandboxd import doctor, doctor_report
from sandboxd.client import AdminClient
from sandboxd.doctor import UsernsAttempt
from tests.client.living import Place
from tests.client.scripted import Scripted, one_each, reply


@dataclass(frozen=True)
class Host:
    """How a host answers: unshare(2), the filter around us, sysctls, and who asks."""

    errno: int = 0
    capabilities: int = 0
    filtered: bool = False
    sysctls: tuple[tuple[str, str], ...] = ()
    root: bool = False


APPARMOR = ("kernel/apparmor_restrict_unprivileged_userns", "1")
CLONE = ("kernel/unprivileged_userns_clone", "0")
CAUSES = [  # host, what is found, the remedy
    (Host(capabilities=1), "can be made", ""),
    (Host(), "AppArmor", "'userns,'"),
    (Host(errno.EPERM, sysctls=(APPARMOR,)), "AppArmor", "AppArmor profile"),
    (Host(errno.EPERM, sysctls=(CLONE,)), CLONE[0].replace("/", "."), "userns_clone=1"),
    (Host(errno.EPERM, sysctls=(CLONE,), root=True), "security module", "ask"),
    (Host(errno.ENOSPC, sysctls=(("user/max_user_namespaces", "0"),)), "is 0", "sysctl -w user"),
    (Host(errno.ENOSPC, sysctls=(("user/max_user_namespaces", "9"),)), "limit", "raise"),
    (Host(errno.EUSERS), "limit", "raise"),
    (Host(errno.EINVAL), "built without", "CONFIG_USER_NS"),
    (Host(errno.EPERM, filtered=True), "outer-seccomp", "seccomp profile"),
    (Host(errno.EPERM), "security module", "ask"),
]


@pytest.mark.parametrize(("host", "found", "fix"), CAUSES)
def test_it_names_who_forbids_user_namespaces(
    directory: str, host: Host, found: str, fix: str
) -> None:
    os.mkdir(os.path.join(directory, "self"))
    with open(os.path.join(directory, "self", "status"), "w", encoding="ascii") as file:
        file.write(f"Name:\tx\nSeccomp:\t{2 if host.filtered else 0}\n")
    for name, content in host.sysctls:
        path = os.path.join(directory, "sys", name)
        os.makedirs(os.path.dirname(path))
        with open(path, "w", encoding="ascii") as file:
            file.write(content + "\n")
    attempt = UsernsAttempt(errno=host.errno, capabilities=host.capabilities)
    row = doctor.user_namespaces(attempt, directory, root=host.root)
    assert row.verdict == ("ok" if host.capabilities else "fail")
    assert found in row.found
    assert fix in row.fix


@pytest.mark.parametrize(
    ("release", "verdict"),
    [("5.13.19-generic", "fail"), ("4.19.0", "fail"), ("5.14", "ok"), ("6.18.44-x", "ok")],
)
def test_the_kernel_has_a_floor(release: str, verdict: str) -> None:
    assert doctor.kernel(release).verdict == verdict


def test_a_kernel_without_filters_fails(directory: str) -> None:
    assert doctor.seccomp(directory).verdict == "fail"
    assert doctor.seccomp("/proc").verdict == "ok"


@pytest.mark.kernel
def test_a_user_namespace_is_really_tried() -> None:
    before = os.readlink("/proc/self/ns/user")
    assert doctor.attempt_userns().errno == 0
    assert os.readlink("/proc/self/ns/user") == before


@pytest.mark.kernel
def test_every_protection_is_proven_here(living: Place) -> None:
    done = living.ctl("doctor", "--json")
    report = json.loads(done.stdout)
    assert [row for row in report["rows"] if row["verdict"] == "fail"] == []
    assert report["ok"] is True
    assert done.returncode == 0
    names = {row["name"] for row in report["rows"]}
    assert {
        "kernel",
        "user namespaces",
        "Landlock",
        "daemon",
        "no ptrace",
        "CapEff is empty",
    } <= names
    assert found(report, "limit of processes") == ["fork refused"]
    text = living.ctl("doctor")
    assert text.returncode == 0
    degraded = "; degraded: ".join(["every protection is proven", *found(report, "degraded")])
    assert text.stdout.decode().endswith(f"\n{degraded}\n")


def found(report: Any, name: str) -> list[str]:
    return [row["found"] for row in report["rows"] if row["name"] == name]


OLDER = [  # version, started, whether it is noted
    (sandboxd.__version__, doctor.installed_at() + 60_000, False),
    ("0.0.0", doctor.installed_at() + 60_000, True),
    (sandboxd.__version__, doctor.installed_at() - 1, True),
]


@pytest.mark.parametrize(("version", "started_at", "noted"), OLDER)
def test_a_daemon_of_another_installation_is_noted(
    serve: Callable[..., Scripted], version: str, started_at: int, *, noted: bool
) -> None:
    status = STATUS | {"version": version, "started_at": started_at}
    server = serve(one_each(reply({"status": status})))
    with AdminClient(server.path) as admin:
        rows = doctor.daemon(admin.status())
    assert [row.found for row in rows if "sandboxctl stop" in row.fix] == [
        f"started before this installation: it is version {version}"
    ] * noted


@pytest.mark.kernel
def test_a_daemon_that_does_not_come_up_fails_the_doctor(place: Place) -> None:
    with open(os.path.join(place.profiles, "bad.toml"), "w", encoding="ascii") as file:
        file.write("nonsense")
    done = place.ctl("doctor", "--json")
    assert done.returncode == 1
    (failed,) = [row for row in json.loads(done.stdout)["rows"] if row["verdict"] == "fail"]
    assert failed["name"] == "daemon"
    assert "bad.toml" in failed["found"]


@pytest.mark.kernel
def test_a_profile_that_cannot_be_used_fails_the_doctor(place: Place) -> None:
    path = os.path.join(place.profiles, "python.toml")
    with open(path, "w", encoding="ascii") as file:
        file.write(
            'name = "python"\nrisk = "low"\nexecutable = { path = "/usr/bin/true" }\n'
            'argv = { template = [] }\napproval = { mode = "allow" }\n'
        )
    os.chmod(path, 0o644)
    done = place.ctl("doctor", "--json")
    assert done.returncode == 1
    failed = [row["name"] for row in json.loads(done.stdout)["rows"] if row["verdict"] == "fail"]
    assert failed == ["run", "limit of time", "limit of memory", "limit of processes"]


STATUS = {
    "pid": 1, "uid": 0, "mode": "user", "running": 0, "launcher_pid": 2, "launcher_restarts": 0,
    "cgroup": "v2", "cgroup_reason": "", "landlock_abi": 6, "groups_retained": [], "profiles": 1,
    "state_dir": "/s", "profile_dirs": [],
}  # fmt: skip
FOUND = {
    "write inside": "ok", "write outside": "ENOENT", "write to the system": "EROFS",
    "own socket": "ok", "host port": "ECONNREFUSED", "host socket": "ECONNREFUSED",
    "ptrace": "EPERM", "kill the client": "ESRCH", "processes": "1", "Seccomp": "2",
    "NoNewPrivs": "1", "CapEff": "0000", "CapPrm": "0000", "CapBnd": "0000", "CapAmb": "0000",
}  # fmt: skip
BREACHES = [
    ("write inside", "EACCES"), ("write to the system", "ok"), ("own socket", "EPERM"),
    ("host port", "ok"), ("host socket", "ok"), ("ptrace", "ok"), ("kill the client", "ok"),
    ("processes", "117"), ("Seccomp", "0"), ("NoNewPrivs", "0"), ("CapEff", "00a8"),
    ("CapPrm", "00a8"), ("CapBnd", "ffff"), ("CapAmb", "0001"),
]  # fmt: skip


def judged(found: dict[str, str], around: doctor_report.Surroundings) -> list[str]:
    rows = [claim.judge(found, around) for claim in doctor_report.CLAIMS]
    return [row.name for row in rows if row.verdict == "fail"]


@pytest.mark.parametrize(("key", "seen"), BREACHES)
def test_each_protection_that_is_gone_is_one_failing_row(key: str, seen: str) -> None:
    with doctor_report.surroundings() as around:
        with open(os.path.join(around.workspace, "inside"), "w", encoding="ascii") as file:
            file.write("written")
        assert judged(FOUND, around) == []
        (claim,) = [each for each in doctor_report.CLAIMS if each.key == key]
        assert judged(FOUND | {key: seen}, around) == [claim.name]
        without = {name: value for name, value in FOUND.items() if name != key}
        assert judged(without, around) == [claim.name]


def test_a_write_that_arrived_on_the_host_is_a_failing_row() -> None:
    with doctor_report.surroundings() as around:
        with open(os.path.join(around.workspace, "inside"), "w", encoding="ascii") as file:
            file.write("written")
        with open(around.outside, "x", encoding="ascii"):
            pass
        assert judged(FOUND, around) == ["no write beside it"]


def test_a_listener_that_does_not_answer_outside_proves_nothing() -> None:
    with doctor_report.surroundings() as around:
        with open(os.path.join(around.workspace, "inside"), "w", encoding="ascii") as file:
            file.write("written")
        gone = replace(around, abstract="sandboxd-doctor-nobody")
        assert judged(FOUND, gone) == ["no abstract socket of the host"]
