"""Does a request become the plan that its profile and its bounds say, and nothing more?"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.plan import Identity, Plan, Rlimit, Symlink
from sandboxd import etcfiles, planner
from sandboxd.baseview import Shown
from sandboxd.planner import Planned, Setting
from sandboxd.prepared import Prepared
from sandboxd.profile_sections import (
    NetworkSection,
    RequireSection,
    SeccompSection,
    ViewSection,
)
from tests.engine.driver import bounds, prepare

SETTING = Setting(uid=1000, gid=1001, has_cgroup=True, life_ms_most=10**9, hard_limits={})
WORK = Identity(dev=1, ino=7, kind=0o040000)
USR = Shown(fd=10, identity=Identity(dev=1, ino=2, kind=0o040000), target="/usr")


@pytest.fixture
def opened() -> Iterator[list[Prepared]]:
    made: list[Prepared] = []
    yield made
    for each in made:
        each.close()


def plan_of(
    opened: list[Prepared],
    *more: Shown,
    setting: Setting = SETTING,
    links: tuple[Symlink, ...] = (),
    **request: Any,
) -> Planned:
    prepared = prepare(["/usr/bin/env", "x"], **request)
    opened.append(prepared)
    shown = [USR, *more]
    return planner.make_plan(
        prepared,
        setting,
        sandbox="run_1",
        machine_id="0" * 32,
        shown=shown,
        links=links,
        tmpfs=planner.tmpfs_of(prepared, shown),
    )


def test_binds_name_their_descriptors_in_order(opened: list[Prepared]) -> None:
    work = Shown(fd=42, identity=WORK, target="/home/u/w", writable=True, owned=True)
    planned = plan_of(opened, work)
    assert planned.fds == (10, 42)
    assert [bind.descriptor for bind in planned.plan.binds] == [1, 2]
    assert [bind.writable for bind in planned.plan.binds] == [False, True]
    assert [bind.owned for bind in planned.plan.binds] == [False, True]


def test_of_two_things_at_one_target_the_later_is_shown(opened: list[Prepared]) -> None:
    planned = plan_of(opened, Shown(fd=42, identity=WORK, target="/usr"))
    assert planned.fds == (42,)
    assert len(planned.plan.binds) == 1


def test_what_is_granted_takes_the_place_of_an_empty_tmpfs(opened: list[Prepared]) -> None:
    usual = {each.target for each in plan_of(opened).plan.tmpfs}
    assert usual == {"/tmp", "/dev/shm", etcfiles.HOME}
    planned = plan_of(opened, Shown(fd=42, identity=WORK, target="/tmp", writable=True))
    assert {each.target for each in planned.plan.tmpfs} == usual - {"/tmp"}


def test_every_writable_place_is_bounded_in_bytes_and_inodes(opened: list[Prepared]) -> None:
    planned = plan_of(opened, view=ViewSection.model_validate({"tmp_size": "1GiB"}))
    sizes = {each.target: each.size_bytes for each in planned.plan.tmpfs}
    assert sizes["/tmp"] == 1 << 30
    assert all(1024 <= each.inodes <= 1 << 18 for each in planned.plan.tmpfs)


def test_sections_become_the_fields_of_the_plan(opened: list[Prepared]) -> None:
    plan: Plan = plan_of(
        opened,
        network=NetworkSection(mode="loopback"),
        seccomp=SeccompSection(base="strict", relax=("numa",)),
        require=RequireSection(layers=("cgroup",)),
        limits=bounds(memory_bytes=123 << 20, pids=7, wall_ms=1000, grace_ms=500),
    ).plan
    assert (plan.network, plan.seccomp, plan.relax) == ("loopback", "strict", ("numa",))
    assert plan.cgroup_required
    assert (plan.limits.memory_bytes, plan.limits.pids) == (123 << 20, 7)
    assert plan.limits.life_ms > planner.SETUP_MS + 1000 + 500
    assert not plan_of(opened).plan.cgroup_required


def test_the_launchers_deadline_is_below_its_ceiling(opened: list[Prepared]) -> None:
    setting = dataclasses.replace(SETTING, life_ms_most=5000)
    assert plan_of(opened, setting=setting).plan.limits.life_ms == 5000


def test_the_command_runs_the_real_file_under_the_name_asked_for(
    opened: list[Prepared],
) -> None:
    command = plan_of(opened).command
    assert command.executable == "/usr/bin/env"
    assert command.argv == ("/usr/bin/env", "x")
    assert command.cwd == "/"
    assert command.script is None


def test_the_working_directory_is_the_workspace(opened: list[Prepared], tmp_path: object) -> None:
    assert plan_of(opened, workspace=str(tmp_path)).command.cwd == str(tmp_path)


def test_a_request_adds_to_the_environment_of_the_view() -> None:
    made = dict(each.split("=", 1) for each in planner.environment_of(["LANG=de", "A=b=c"]))
    assert made["LANG"] == "de"
    assert made["A"] == "b=c"
    assert (made["HOME"], made["TMPDIR"], made["USER"]) == (etcfiles.HOME, "/tmp", "sandbox")
    assert not {name for name in made if name.startswith(("LD_", "SSH_", "SUDO_"))}


def rlimits(setting: Setting = SETTING, **changes: Any) -> dict[str, tuple[int, int]]:
    made, _ = planner.rlimits_of(bounds(**changes), setting)
    return {each.resource: (each.soft, each.hard) for each in made}


RLIMITS = [
    ("NPROC", (34, 34), "init counts, and the cgroup's limit of 33 must be met first"),
    ("NOFILE", (256, 256), "the bound, both soft and hard (R18)"),
    ("FSIZE", (64 << 20, 64 << 20), "the bound"),
    ("CPU", (20, 21), "SIGXCPU first"),
    ("CORE", (1, 1), "0 would feed a piped core_pattern (P11)"),
    ("NICE", (0, 0), "no better priority than others"),
    ("RTPRIO", (0, 0), "no real-time priority (R14)"),
    ("STACK", (8 << 20, 8 << 20), "what the host's login has (R19)"),
]


@pytest.mark.parametrize(("resource", "pair", "why"), RLIMITS)
def test_bounds_become_rlimits(resource: str, pair: tuple[int, int], why: str) -> None:
    assert rlimits()[resource] == pair, why


def test_the_address_space_is_never_limited_and_data_only_without_a_cgroup() -> None:
    weak = dataclasses.replace(SETTING, has_cgroup=False)
    assert "AS" not in rlimits() | rlimits(weak)
    assert "DATA" not in rlimits()
    assert rlimits(weak)["NPROC"] == (33, 33)
    assert rlimits(weak, memory_bytes=1 << 20)["DATA"][0] == (1 << 20) + (1 << 30)
    assert rlimits(weak, memory_bytes=4 << 30)["DATA"][0] == 8 << 30


@pytest.mark.parametrize(("cpu_ms", "soft"), [(1, 1), (1000, 1), (1001, 2), (20_000, 20)])
def test_processor_time_is_rounded_up_to_seconds(cpu_ms: int, soft: int) -> None:
    assert rlimits(cpu_ms=cpu_ms)["CPU"] == (soft, soft + 1)


def test_what_the_daemon_itself_may_not_have_is_lowered_and_said() -> None:
    setting = dataclasses.replace(SETTING, hard_limits={"NOFILE": 100, "STACK": -1, "NICE": 0})
    made, lowered = planner.rlimits_of(bounds(), setting)
    assert Rlimit(resource="NOFILE", soft=100, hard=100) in made
    assert lowered == ("NOFILE",)


def test_etc_names_the_one_user_inside() -> None:
    made = etcfiles.files(uid=4242, gid=4343, host_name="box", machine_id="a" * 32)
    content = {each.target: each.content for each in made}
    passwd = [row.split(":") for row in content["/etc/passwd"].splitlines()]
    assert [row[0] for row in passwd] == ["root", "sandbox", "nobody"]
    assert passwd[1][2:] == ["4242", "4343", "sandbox", "/home/sandbox", "/bin/sh"]
    assert all(len(row) == 7 for row in passwd)
    assert "sandbox:x:4343:" in content["/etc/group"]
    assert content["/etc/machine-id"] == "a" * 32 + "\n"
    assert "box" in content["/etc/hosts"]


@pytest.mark.parametrize("name", ["passwd", "group"])
def test_no_id_stands_twice_if_the_user_is_nobody(name: str) -> None:
    made = etcfiles.files(uid=65534, gid=65534, host_name="box", machine_id="a" * 32)
    content = next(each.content for each in made if each.target == f"/etc/{name}")
    ids = [row.split(":")[2] for row in content.splitlines()]
    assert len(ids) == len(set(ids))
