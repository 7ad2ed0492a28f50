"""A client sets only what the profile passes, and never what makes something run or load."""

from __future__ import annotations

import pytest

from sandboxd.environment import merge
from sandboxd.errors import ProfileError
from tests.profiles.writing import Load, refused

LOADER = ["LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "LD_BIND_NOT", "GLIBC_TUNABLES"]
LOADER += ["GCONV_PATH", "LOCPATH", "MALLOC_TRACE", "BASH_FUNC_x%%", "NLSPATH", "TZDIR"]
INTERPRETER = ["PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PERL5OPT", "RUBYOPT", "NODE_OPTIONS"]
INTERPRETER += ["JAVA_TOOL_OPTIONS", "BASH_ENV", "ENV", "SHELLOPTS", "PS4", "IFS", "CDPATH"]
TOOL = ["GIT_CONFIG_COUNT", "GIT_SSH_COMMAND", "GIT_DIR", "GIT_EXTERNAL_DIFF", "PAGER", "EDITOR"]
TOOL += ["GIT_PAGER", "LESSOPEN", "TAR_OPTIONS", "MAKEFLAGS", "GREP_OPTIONS", "http_proxy", "CC"]
VIEW = ["PATH", "HOME", "TMPDIR", "USER", "LOGNAME", "SHELL", "PWD", "XDG_CONFIG_HOME"]
NO_NAME = ["*", "", "A*", "A=B", "A B", "1A", "Ä", "A\u200b", "a.b"]


@pytest.mark.parametrize("name", [*LOADER, *INTERPRETER, *TOOL, *VIEW, *NO_NAME])
def test_no_profile_passes_it(load: Load, name: str) -> None:
    with pytest.raises(ProfileError, match=r":8: environment\.pass: cannot pass "):
        load(f'[environment]\npass = ["OK", "{name}"]\n[argv]\ntemplate = []\n')


@pytest.mark.parametrize("name", [*LOADER, *VIEW, *NO_NAME])
def test_no_profile_sets_it(load: Load, name: str) -> None:
    with pytest.raises(ProfileError, match=r":9: environment\.set\..*: cannot set "):
        load(f'[environment.set]\nOK = "1"\n"{name}" = "1"\n[argv]\ntemplate = []\n')


@pytest.mark.parametrize("name", [*INTERPRETER, *TOOL])
def test_a_profile_may_set_what_a_client_may_not(load: Load, name: str) -> None:
    profile = load(f'[environment.set]\n{name} = "1"\n[argv]\ntemplate = []\n')
    assert merge(profile, {}) == ((f"{name}=1",), ())
    _, denials = merge(profile, {name: "2"})
    assert refused(denials) == [(f"environment.{name}", "ARGUMENT_INVALID")]


@pytest.mark.parametrize(
    "name", [*LOADER, *INTERPRETER, *TOOL, *VIEW, *NO_NAME, "OTHER", "\ud800"]
)
def test_a_client_sets_nothing_else(load: Load, name: str) -> None:
    profile = load('[environment]\npass = ["LC_ALL"]\n[argv]\ntemplate = []\n')
    _, denials = merge(profile, {name: "x", "LC_ALL": "C"})
    assert [reason for _, reason in refused(denials)] == ["ARGUMENT_INVALID"]


@pytest.mark.parametrize("value", ["a\0b", "a\nb", "\x1b[2J", "\x85", "\udc80", "x" * 32769])
def test_a_value_is_plain_text(load: Load, value: str) -> None:
    profile = load('[environment]\npass = ["WORD"]\n[argv]\ntemplate = []\n')
    assert refused(merge(profile, {"WORD": value})[1])


@pytest.mark.parametrize("value", [":/etc/shadow", "/etc/shadow", "../x", "a//b", "UTC\n", ""])
def test_a_time_zone_is_a_name_and_no_path(load: Load, value: str) -> None:
    profile = load('[environment]\npass = ["TZ"]\n[argv]\ntemplate = []\n')
    assert refused(merge(profile, {"TZ": value})[1])
    assert merge(profile, {"TZ": "Europe/Berlin"}) == (("TZ=Europe/Berlin",), ())
    assert merge(profile, {"TZ": "UTC"})[1] == ()


def test_a_passed_value_replaces_a_set_one_and_all_are_sorted(load: Load) -> None:
    profile = load("""
[environment]
set = { LANG = "C.UTF-8", A = "1" }
pass = ["LANG", "Z"]
[argv]
template = []
""")
    assert merge(profile, {"Z": "", "LANG": "C"})[0] == ("A=1", "LANG=C", "Z=")
