"""A profile that extends another is narrower everywhere, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxd import profiles
from sandboxd.errors import ProfileError
from sandboxd.profiles import ProfileSet
from tests.profiles.writing import Write

PARENT = """name = "parent"
risk = "medium"
[workspace]
access = "read"
[view]
read = ["/usr/share/dict"]
write = ["/srv/data"]
devices = ["/dev/fuse"]
tmp_size = "64MiB"
[environment]
set = { LANG = "C", A = "1" }
pass = ["LC_ALL", "TZ"]
[network]
mode = "loopback"
[limits]
wall = "10s"
output_total = "1MiB"
pids = 10
[approval]
mode = "allow_safe"
approver = "human"
scope = "exact"
expires = "10m"
uses = 1
refusal_lasts = "5m"
[seccomp]
relax = ["debug"]
[require]
layers = ["landlock", "cgroup"]
"""
CHILD = """name = "child"
extends = "parent"
{top}
[executable]
path = "/usr/bin/true"
[argv]
template = []
{tables}
"""

Loaded = Callable[[], ProfileSet]


@pytest.fixture
def extend(write: Write, directory: Path) -> Callable[..., ProfileSet]:
    def extend(tables: str, top: str = "") -> ProfileSet:
        write(PARENT, "parent")
        write(CHILD.format(top=top, tables=tables), "child")
        return profiles.load([str(directory)])

    return extend


def test_what_is_not_written_is_inherited(extend: Callable[..., ProfileSet]) -> None:
    loaded = extend('[environment]\nset = { A = "2", B = "3" }\n[limits]\nwall = "5s"\n')
    assert loaded.names() == ("child",), "the parent has no program"
    child = loaded.get("child")
    assert child is not None
    assert child.environment.set == {"LANG": "C", "A": "2", "B": "3"}
    assert child.environment.pass_ == ("LC_ALL", "TZ")
    assert (child.limits.wall_ms, child.limits.pids) == (5000, 10)
    assert child.limits.output_total_bytes == 1 << 20
    assert child.workspace.access == "read"
    assert child.network.mode == "loopback"
    assert child.require.layers == ("landlock", "cgroup")
    assert child.risk == "medium"


NARROWER = [
    '[workspace]\naccess = "none"',
    '[view]\nread = []\nwrite = []\ndevices = []\ntmp_size = "1MiB"',
    '[view]\nread = ["/usr/share/dict/words", "/srv/data/x"]\nwrite = ["/srv/data/y"]',
    '[environment]\npass = ["TZ"]',
    '[network]\nmode = "none"',
    '[limits]\nwall = "9s"\noutput_total = "1KiB"\npids = 1',
    '[approval]\nmode = "ask"\nexpires = "1m"',
    '[approval]\nmode = "deny"',
    '[seccomp]\nbase = "strict"\nrelax = []',
    '[require]\nlayers = ["landlock", "cgroup", "seccomp"]',
]


@pytest.mark.parametrize("tables", NARROWER)
def test_narrower_is_taken(extend: Callable[..., ProfileSet], tables: str) -> None:
    assert extend(tables).get("child") is not None


WIDER = [  # what the child says, the line of the key, the key
    ('[workspace]\naccess = "write"', 9, "workspace.access"),
    ('[view]\nread = ["/usr/share"]', 9, "view.read"),
    ('[view]\nwrite = ["/srv/other"]', 9, "view.write"),
    ('[view]\nwrite = ["/srv/dat"]', 9, "view.write"),
    ('[view]\ndevices = ["/dev/fuse", "/dev/kvm"]', 9, "view.devices"),
    ('[view]\ntmp_size = "65MiB"', 9, "view.tmp_size"),
    ('[environment]\npass = ["TERM"]', 9, "environment.pass"),
    ('[limits]\nwall = "11s"', 9, "limits.wall"),
    ("[limits]\npids = 11", 9, "limits.pids"),
    ('[limits]\nmemory = "513MiB"', 9, "limits.memory"),
    ("[limits]\nconcurrency = 9", 9, "limits.concurrency"),
    ('[limits]\noutput_total = "2MiB"', 9, "limits.output_total"),
    ('[limits]\ngrace = "3s"', 9, "limits.grace"),
    ('[approval]\nmode = "allow"', 9, "approval.mode"),
    ('[approval]\nexpires = "11m"', 9, "approval.expires"),
    ('[seccomp]\nrelax = ["debug", "numa"]', 9, "seccomp.relax"),
    ('[require]\nlayers = ["seccomp"]', 9, "require.layers"),
    ("[require]\nlayers = []", 9, "require.layers"),
]


@pytest.mark.parametrize(("tables", "line", "key"), WIDER)
def test_wider_is_refused(
    extend: Callable[..., ProfileSet], directory: Path, tables: str, line: int, key: str
) -> None:
    with pytest.raises(ProfileError) as caught:
        extend(tables)
    assert caught.value.message.startswith(f"{directory}/child.toml:{line}: {key}: cannot ")


def test_what_the_extended_profile_needs_no_workspace_for(write: Write, directory: Path) -> None:
    write('name = "parent"\n[workspace]\naccess = "write"\nrequired = false\n', "parent")
    write(CHILD.format(top="", tables='[workspace]\naccess = "read"'), "child")
    child = profiles.load([str(directory)]).get("child")
    assert child is not None
    assert (child.workspace.access, child.workspace.required) == ("read", False)


def test_a_lower_risk_is_wider(extend: Callable[..., ProfileSet]) -> None:
    with pytest.raises(ProfileError, match=r'child\.toml:3: risk: cannot widen to "low"'):
        extend("", top='risk = "low"')
    assert extend("", top='risk = "high"').get("child") is not None


def test_the_defaults_of_the_extended_profile_are_bounds(write: Write, directory: Path) -> None:
    write('name = "parent"\n', "parent")
    write(CHILD.format(top="", tables='[approval]\nmode = "allow"'), "child")
    with pytest.raises(ProfileError, match=r"approval\.mode: cannot widen"):
        profiles.load([str(directory)])


TOOL = '[executable]\npath = "/usr/bin/true"\n[argv]\ntemplate = ["x"]\n'


def test_program_arguments_and_argv_come_whole(write: Write, directory: Path) -> None:
    tool = TOOL.replace('"x"', '"{a}"')
    write(
        f'name = "parent"\n{tool}[arguments]\n'
        'a = { type = "integer", default = 1 }\n[[example]]\nargv = ["1"]\n',
        "parent",
    )
    write('name = "child"\nextends = "parent"\n[limits]\npids = 1\n', "child")
    loaded = profiles.load([str(directory)])
    parent, child = loaded.get("parent"), loaded.get("child")
    assert parent is not None
    assert child is not None
    assert (child.argv, child.arguments) == (parent.argv, parent.arguments)
    assert child.example == ()
    assert child.digest != parent.digest
    write('name = "child"\nextends = "parent"\n[argv]\ntemplate = []\n', "child")
    with pytest.raises(ProfileError, match="no template uses it"):
        profiles.load([str(directory)])


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ({"a": "a"}, "it is a cycle"),
        ({"a": "b", "b": "a"}, "it is a cycle"),
        ({"a": "b", "b": "c", "c": None}, "one level may be"),
        ({"a": "b", "b": "c", "c": "a"}, "one level may be"),
        ({"a": "z"}, "cannot extend z; there is none"),
    ],
)
def test_there_is_one_level_and_no_cycle(
    write: Write, directory: Path, links: dict[str, str | None], words: str
) -> None:
    for name, other in links.items():
        extends = f'extends = "{other}"\n' if other else ""
        write(f'name = "{name}"\n{extends}{TOOL}', name)
    with pytest.raises(ProfileError) as caught:
        profiles.load([str(directory)])
    assert f"{directory}/a.toml:2: extends: " in caught.value.message
    assert words in caught.value.message


def test_a_broken_parent_is_told_once_in_its_own_file(write: Write, directory: Path) -> None:
    write("name = 'parent'\n[limits]\npids = 0\n", "parent")
    write(CHILD.format(top="", tables=""), "child")
    with pytest.raises(ProfileError) as caught:
        profiles.load([str(directory)])
    assert [line.split(":")[:2] for line in caught.value.message.splitlines()] == [
        [f"{directory}/parent.toml", "3"]
    ]
