"""A set of profiles is loaded as a whole or not at all, and each problem has file and line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxd import profiles
from sandboxd.errors import ProfileError
from sandboxd.profiles import ProfileSet
from tests.profiles.writing import Load, Write

GOOD = """name = "good"
[executable]
path = "/usr/bin/true"
[argv]
template = []
"""


def problem(directory: Path | str) -> str:
    with pytest.raises(ProfileError) as caught:
        profiles.load([str(directory)])
    return caught.value.message


BROKEN = [  # text behind GOOD (from line 6), the line named, and words of the message
    ("[limts]\n", 6, "cannot use key 'limts'; there is none, 'limits' is"),
    ("[limits]\nwal = '1s'\n", 7, "'wal'; there is none, 'wall' is"),
    ("limits.wall = '1s'\n", 6, "argv.limits: cannot use key"),
    ("[limits]\nwall = 10\n", 7, 'limits.wall: cannot read duration 10; write it like "10s"'),
    ("[limits]\nwall = 5000\n", 7, 'cannot read duration 5000; write it like "5s"'),
    ("[limits]\ngrace = 500\n", 7, 'cannot read duration 500; write it like "500ms"'),
    ("[limits]\nwall = 1.5\n", 7, 'cannot read duration 1.5; write it like "30s"'),
    ("[limits]\nmemory = 512\n", 7, 'cannot read size 512; write it like "512MiB"'),
    ("[limits]\nmemory = 536870912\n", 7, 'cannot read size 536870912; write it like "512MiB"'),
    ("[limits]\noutput = '64'\n", 7, "cannot read size '64'; write it like \"64KiB\""),
    ("[limits]\nmemory = true\n", 7, 'cannot read size True; write it like "64MiB"'),
    ("[limits]\nmemory = '10MB'\n", 7, "cannot read size '10MB'; write it like"),
    ("[limits]\n\nwall = '30'\n", 8, "cannot read duration '30'"),
    ("[limits]\nwall = '0ms'\n", 7, "from 1ms to 24h may be"),
    ("[limits]\nwall = '25h'\n", 7, "cannot use 25h; from 1ms to 24h may be"),
    ("[limits]\nmemory = '2TiB'\n", 7, "from 16MiB to 1TiB may be"),
    ("[limits]\nmemory = '15MiB'\n", 7, "from 16MiB to 1TiB may be"),
    ("[limits]\npids = 0\n", 7, "greater than or equal to 1"),
    ("[limits]\npids = -1\n", 7, "greater than or equal to 1"),
    ("[limits]\npids = 1.5\n", 7, "limits.pids: cannot use this value"),
    ("[limits]\npids = true\n", 7, "limits.pids: cannot use this value"),
    ("[limits]\npids = '64'\n", 7, "limits.pids: cannot use this value"),
    ("[limits]\npids = inf\n", 7, "not finite"),
    ("[limits]\nfiles = 1979-05-27\n", 7, "a date or time"),
    ("[limits]\noutput_keep = 'all'\n", 7, "'head+tail', 'head' or 'tail'"),
    ("risk = 'low'\n", 6, "argv.risk: cannot use key 'risk'"),
    ("[network]\nmode = 'host'\n", 7, "'none' or 'loopback'"),
    ("[network]\nmode = 'allowlist'\n", 7, "not supported by this version"),
    ("[network]\nallow = []\n", 7, "not supported by this version"),
    ("[workspace]\naccess = 'overlay'\n", 7, "not supported by this version"),
    ("[workspace]\nprotect = ['@secrets']\n", 7, "not supported by this version"),
    ("[environment]\nsecrets = {}\n", 7, "not supported by this version"),
    ("[environment]\nset = { A = 1 }\n", 7, "environment.set.A: cannot use this value"),
    ("[seccomp]\nrelax = ['everything']\n", 7, "'debug' or 'numa'"),
    ("[seccomp]\nbase = 'none'\n", 7, "'default' or 'strict'"),
    ("[require]\nlayers = ['luck']\n", 7, "'landlock', 'seccomp' or 'cgroup'"),
    ("[approval]\nmode = 'always'\n", 7, "'deny', 'ask', 'allow_safe' or 'allow'"),
    ("[approval]\nuses = 2\n", 7, "approval.uses: cannot use another uses than 1; others are"),
    ("[approval]\nuses = true\n", 7, "not supported by this version"),
    ("[approval]\napprover = 'any'\n", 7, 'another approver than "human"; others are not'),
    ("[approval]\nscope = 'command'\n", 7, "others are not supported by this version"),
    ("[approval]\nrefusal_lasts = '0ms'\n", 7, 'refusal_lasts than "5m"; others are not supp'),
    ("[view]\nread = [\n'/usr/share/dict',\n'/',\n]\n", 9, "DANGEROUS_GRANT: cannot grant /"),
    (
        "[arguments]\nx = { type = 'text' }\n",
        7,
        "x.type: cannot use this argument; 'text' is no type;",
    ),
    ("[arguments.x]\ntype = 'pth'\n", 7, "types are string, integer, number, boolean, path, list"),
    ("[arguments.x]\ntype = 'list'\nitems.type = 'list'\n", 8, "string, integer, number, path"),
    ("[arguments]\nx = { default = 1 }\n", 7, "cannot use an argument without type; the types"),
    (
        "[arguments]\nx = { type = 'integer', minimum = 1 }\n",
        7,
        "'minimum'; there is none, 'min' is",
    ),
    ("[arguments]\nlimits = { type = 'integer', wal = 1 }\n", 7, "those of this table are desc"),
    ("[approval]\nwall = '1s'\n", 7, "those of this table are mode, approver"),
    ("[[example]]\nargs = {}\n", 7, "'args'; there is none, 'argv' is"),
    ("[arguments]\nx = { type = 'string', max = 1 }\n", 7, "cannot use key 'max'"),
    ("[arguments.x]\ntype = 'list'\n", 6, "cannot leave this key out"),
    ("[arguments.x]\ntype = 'string'\npattern = '('\n", 8, "cannot use pattern '('"),
    ("[arguments.x]\ntype = 'string'\npattern = 'a)|(b'\n", 8, "cannot use pattern"),
    ("[arguments.x]\ntype = 'string'\npattern = '(?=a)'\n", 8, "look-around"),
    ("[arguments.x]\ntype = 'integer'\ndefault = 'a'\n", 8, "cannot use this value"),
    ("[arguments.x]\ntype = 'integer'\ndefault = 1\nmax = 0\n", 8, "cannot use the default x"),
    ("[arguments.x]\ntype = 'integer'\nmin = 2\nmax = 0\n", 6, "min 2 above max 0"),
    ("[arguments.x]\ntype = 'path'\n", 6, "cannot take a path without [workspace]"),
    ("[arguments.X]\ntype = 'string'\n", 6, "use a-z, 0-9 and _"),
    ("[[example]]\n", 6, "needs one of argv and rejected"),
    ("[[example]]\nargv = []\n[[example]]\nargv = ['x']\n", 8, "example.1: cannot confirm"),
    ("[[example]]\nrejected = 'ARGUMENT_INVALID'\n", 6, "it is not rejected"),
    ("[[example]]\nrejected = 'NO_SUCH_REASON'\n", 7, "cannot use this value"),
    ("[[example]]\narguments = { a = 1 }\nargv = []\n", 6, "it is rejected: cannot take a"),
    ("[[example]]\narguments = { a = 1 }\nrejected = 'PATH_NOT_GRANTED'\n", 6, "ARGUMENT_INVALID"),
    ("x = [\n", 7, "cannot read it as TOML"),
    ("[argv]\n", 6, "cannot read it as TOML"),
    ("x = 1\nx = 2\n", 7, "cannot read it as TOML"),
]


@pytest.mark.parametrize(("text", "line", "words"), BROKEN)
def test_a_problem_names_file_line_and_what_would_be_right(
    write: Write, directory: Path, text: str, line: int, words: str
) -> None:
    path = write(GOOD + text)
    message = problem(directory).splitlines()[0]
    assert message.startswith(f"{path}:{line}: ")
    assert words in message
    assert "cannot" in message


HEADS = [  # whole texts
    ("", 1, 'name = "..." is needed'),
    ("# c\n[executable]\n", 1, 'name = "..." is needed'),
    ("#\nname = 1\n", 2, 'name = "..." is needed'),
    ("name = 'A'\n", 1, "name: cannot use this value"),
    ("name = '../x'\n", 1, "name: cannot use this value"),
    ("name = 'x\\n'\n", 1, "name: cannot use this value"),
    ("name = 'x'\n[executable]\n", 2, "executable.path: cannot leave this key out"),
    ("name = 'x'\n[executable]\npath = '/usr/bin/true'\n", 1, "without [argv]"),
    ("name = 'x'\n[executable]\npath = 'true'\n[argv]\ntemplate=[]\n", 3, "absolute path"),
    ("name = 'x'\n[executable]\npath = '/usr/bin'\n[argv]\ntemplate=[]\n", 3, "directory"),
    ("name = 'x'\n[executable]\npath = '/etc/passwd'\n[argv]\ntemplate=[]\n", 3, "execute it"),
    ("name = 'x'\n[executable]\npath = '/usr/bin/true'\n[argv]\n", 4, "one of template and"),
    ("name = 'x'\n[[example]]\nargv = []\n", 2, "without [executable]"),
]


@pytest.mark.parametrize(("text", "line", "words"), HEADS)
def test_a_file_without_its_beginning_is_refused(
    write: Write, directory: Path, text: str, line: int, words: str
) -> None:
    path = write(text)
    assert problem(directory).startswith(f"{path}:{line}: ")
    assert words in problem(directory)


def test_bytes_that_are_no_utf_8_have_a_line(write: Write, directory: Path) -> None:
    path = write("")
    path.write_bytes(b'name = "x"\n# \xff\n')
    assert problem(directory).startswith(f"{path}:2: cannot read it; UTF-8")


def test_one_broken_file_and_nothing_is_loaded_and_all_are_named(
    write: Write, directory: Path
) -> None:
    write(GOOD, "good")
    paths = [write(f"{GOOD.replace('good', name)}\n[x]\n", name) for name in ("a", "b")]
    lines = problem(directory).splitlines()
    assert [line.partition(":")[0] for line in lines] == [str(path) for path in paths]


def test_a_missing_directory_holds_no_profiles(directory: Path) -> None:
    loaded = profiles.load([str(directory / "missing"), str(directory)])
    assert loaded.names() == ()
    assert loaded.get("x") is None


def test_only_toml_files_are_profiles(write: Write, directory: Path) -> None:
    write(GOOD, "good")
    for name in ("good.toml.bak", "README.md", ".good.toml", "toml", ".toml", "x.TOML"):
        (directory / name).write_text("nonsense")
    os.symlink("nowhere", directory / ".#good.toml")
    assert profiles.load([str(directory)]).names() == ("good",)


def test_a_later_directory_replaces_by_name_and_one_directory_may_not(
    write: Write, directory: Path, tmp_path: Path
) -> None:
    write(GOOD, "a")
    later = tmp_path / "later"
    later.mkdir(mode=0o755)
    (later / "b.toml").write_text(f'{GOOD}[limits]\nwall = "1s"\n')
    (later / "b.toml").chmod(0o644)
    loaded = profiles.load([str(directory), str(later)])
    profile = loaded.get("good")
    assert profile is not None
    assert profile.source == f"{later}/b.toml"
    assert profile.limits.wall_ms == 1000
    write(GOOD, "c")
    assert "cannot use the name 'good'" in problem(directory)


@pytest.mark.parametrize(
    "name", ["Good", "good ", " good", "g\N{CYRILLIC SMALL LETTER O}od", "good\0", "./good", "goo"]
)
def test_a_name_is_exactly_itself(write: Write, directory: Path, name: str) -> None:
    write(GOOD)
    loaded = profiles.load([str(directory)])
    assert loaded.get("good") is not None
    assert loaded.get(name) is None


def _hard_link(path: Path) -> None:
    os.link(path, path.parent.parent / "other name")


def _symlink(path: Path) -> None:
    path.rename(path.parent.parent / "moved")
    path.symlink_to("../moved")


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o644)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DISTRUSTED: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: path.chmod(0o664), "writable by others (mode 0664); chmod go-w it"),
    (lambda path: path.chmod(0o646), "writable by others"),
    (lambda path: path.parent.chmod(0o775), "writable by others"),
    (lambda path: path.parent.chmod(0o1777), "writable by others"),
    (lambda path: path.parent.parent.chmod(0o777), "writable by others"),
    (_hard_link, "hard link"),
    (_symlink, "a symbolic link"),
    (_fifo, "no regular file"),
    (_directory, "no regular file"),
    (lambda path: path.write_text("#" * (300 << 10)), "larger than"),
]


@pytest.mark.parametrize(("change", "words"), DISTRUSTED)
def test_a_file_that_others_could_have_written_is_refused(
    write: Write, directory: Path, change: Callable[[Path], object], words: str
) -> None:
    path = write(GOOD)
    change(path)
    message = problem(directory)
    path.parent.parent.chmod(0o700)
    assert words in message
    assert str(directory) in message


def test_the_packages_own_profiles_are_trusted_as_its_code_is(
    write: Write, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(GOOD)
    for change in (_hard_link, lambda path: path.chmod(0o664), lambda _: directory.chmod(0o775)):
        change(path)
        assert problem(directory)
        with monkeypatch.context() as patch:
            patch.setattr(profiles, "shipped_profiles", lambda: str(directory))
            assert profiles.load([str(directory)]).names() == ("good",)
    _symlink(path)
    monkeypatch.setattr(profiles, "shipped_profiles", lambda: str(directory))
    assert "symbolic link" in problem(directory)


@pytest.mark.privileged
@pytest.mark.parametrize("which", ["file", "directory", "above"])
def test_what_another_user_owns_is_refused(write: Write, directory: Path, which: str) -> None:
    path = write(GOOD)
    os.chown({"file": path, "directory": directory, "above": directory.parent}[which], 4242, 4242)
    assert "belongs to uid 4242" in problem(directory)


def test_a_missing_program_is_told_and_breaks_nothing(load: Load) -> None:
    profile = load("[argv]\ntemplate = []\n", path="/usr/bin/no-such-program")
    assert profile.pinned is None
    assert profile.executable_problem == (
        "cannot run /usr/bin/no-such-program; there is no such file"
    )


def test_a_program_that_others_could_exchange_breaks_the_load(load: Load, tmp_path: Path) -> None:
    (tmp_path / "prog").write_text("#!/bin/sh\n")
    (tmp_path / "prog").chmod(0o755)
    with pytest.raises(ProfileError, match=r":4: executable\.path: cannot run .*writable by oth"):
        load("[argv]\ntemplate = []\n", path=str(tmp_path / "prog"))


Loaded = Callable[[], ProfileSet]


def test_the_digests_change_with_the_meaning_only(write: Write, loaded: Loaded) -> None:
    path = write(GOOD)
    first = loaded()
    os.utime(path, (0, 0))
    write(f"# comment\n{GOOD}[limits]\nwall = '30s'\n[[example]]\nargv = []\n")
    assert loaded().digest == first.digest
    write(f"{GOOD}[limits]\nwall = '31s'\n")
    second = loaded()
    assert second.digest != first.digest
    assert second.get("good") != first.get("good")
    write(GOOD)
    write(GOOD.replace("good", "more"), "more")
    assert loaded().digest not in {first.digest, second.digest}


DANGEROUS = ["/", "/proc", "/proc/sys", "/sys", "/dev", "/dev/mem", "/run", "/run/user/1000/bus"]
DANGEROUS += ["/var/run/docker.sock", "/var/run", "/var/lib/docker", "/srv/docker.sock"]
DANGEROUS += ["/run/containerd/containerd.sock", "/run/systemd/private"]
NOT_PLAIN = ["usr", "", "/usr/", "//usr", "/usr/../etc", "/usr/./x", "/usr//x", "/a\\u001b", "~"]


@pytest.mark.parametrize("key", ["read", "write"])
@pytest.mark.parametrize("path", [*DANGEROUS, *NOT_PLAIN])
def test_a_dangerous_grant_breaks_the_load(load: Load, key: str, path: str) -> None:
    expected = "DANGEROUS_GRANT: cannot grant" if path in DANGEROUS else "an absolute path"
    with pytest.raises(ProfileError, match=rf":8: view\.{key}\.0: .*{expected}"):
        load(f'[view]\n{key} = ["{path}"]\n[argv]\ntemplate = []\n')


@pytest.mark.parametrize(
    "path", ["/etc", "/usr/local", "/home", "/tmp", "/var", "/root", "/boot/x"]
)
def test_a_system_tree_is_not_granted_for_writing(load: Load, path: str) -> None:
    with pytest.raises(ProfileError, match="cannot grant writing"):
        load(f'[view]\nwrite = ["{path}"]\n[argv]\ntemplate = []\n')


@pytest.mark.parametrize(
    "name", ["mem", "kmem", "sda", "sda1", "nvme0n1", "loop0", "dm-0", "tty1"]
)
def test_a_device_that_is_the_host_is_not_granted(load: Load, name: str) -> None:
    for path in (f"/dev/{name}", "/etc/passwd", "/dev/../dev/fuse", "/dev"):
        with pytest.raises(ProfileError, match=r":8: view\.devices\.0: "):
            load(f'[view]\ndevices = ["{path}"]\n[argv]\ntemplate = []\n')
    assert load('[view]\ndevices = ["/dev/fuse"]\n[argv]\ntemplate = []\n').view.devices


def test_sockets_links_and_the_daemons_own_are_not_granted(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOXD_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "link").symlink_to("/etc")
    (tmp_path / "plain").mkdir()
    tables = '[view]\nread = ["{}"]\n[argv]\ntemplate = []\n'
    for name, words in (
        ("link", "symbolic link"),
        ("link/ssh", "symbolic link"),
        ("state", "daemon's own"),
        ("state/audit", "daemon's own"),
    ):
        with pytest.raises(ProfileError, match=words):
            load(tables.format(tmp_path / name))
    with pytest.raises(ProfileError, match="daemon's own"):
        load(tables.format(tmp_path))
    assert load(tables.format(tmp_path / "plain")).view.read
    assert load(tables.format(tmp_path / "missing")).view.read


LANGUAGES = ["/usr/bin/python3", "/bin/sh", "/usr/bin/bash", "/usr/bin/perl", "/usr/bin/awk"]
STARTERS = ["/usr/bin/find", "/usr/bin/git", "/usr/bin/tar", "/usr/bin/sed", "/usr/bin/env"]
STARTERS += ["/usr/bin/xargs", "/usr/bin/nice", "/usr/bin/timeout", "/usr/bin/sort"]
FREE = ['[argv]\npassthrough = { allow = [".*"] }\n']
FREE += ['[argv]\npassthrough = { allow = ["^[^-].*", "^--(json|glob=.*)$"] }\n']
FREE += ['[arguments]\nx = { type = "string" }\n[argv]\ntemplate = ["-c", "{x}"]\n']
FREE += ['[arguments]\nx = { type = "string", pattern = ".+" }\n[argv]\ntemplate = ["{x}"]\n']
FREE += ['[arguments.x]\ntype="list"\nitems={type="string"}\n[argv]\ntemplate = ["{x...}"]\n']
CLOSED = ['[argv]\npassthrough = { allow = ["status|log"] }\n']
CLOSED += ['[arguments]\nx = { type = "integer" }\n[argv]\ntemplate = ["-n", "{x}"]\n']
CLOSED += ['[arguments.x]\ntype="string"\nchoices=["a", "-b"]\n[argv]\ntemplate = ["{x}"]\n']


@pytest.mark.parametrize("path", [*LANGUAGES, *STARTERS])
@pytest.mark.parametrize("tables", FREE)
def test_an_open_ended_interpreter_must_be_called_one(load: Load, path: str, tables: str) -> None:
    with pytest.raises(ProfileError, match=r":4: executable\.path: OPEN_ENDED_INTERPRETER"):
        load(tables, path=path)
    assert load(tables, path=f'{path}"\ninterpreter = true\n#').executable.interpreter


@pytest.mark.parametrize("path", [*LANGUAGES, *STARTERS])
@pytest.mark.parametrize("tables", CLOSED)
def test_a_narrow_schema_is_no_open_end(load: Load, path: str, tables: str) -> None:
    assert not load(tables, path=path).executable.interpreter


@pytest.mark.parametrize("path", LANGUAGES)
def test_a_language_without_arguments_is_open_ended(load: Load, path: str) -> None:
    with pytest.raises(ProfileError, match="standard input"):
        load("[argv]\ntemplate = []\n", path=path)
    with pytest.raises(ProfileError, match="argument x can be a program"):
        load(
            '[arguments.x]\ntype = "path"\n[argv]\ntemplate = ["--", "{x}"]\n'
            '[workspace]\naccess = "read"\n',
            path=path,
        )
