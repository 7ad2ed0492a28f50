"""Arguments become argv by the template alone, and none of them becomes an option."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd import argv
from sandboxd.arguments import check_arguments
from sandboxd.argv import Slot, parse_element
from sandboxd.errors import ProfileError
from sandboxd.profile import Profile
from sandboxd.protocol import Denial
from tests.profiles.writing import Load

ARGUMENTS = """
[arguments]
word = { type = "string", default = "w" }
count = { type = "integer", default = 1 }
choice = { type = "string", choices = ["a", "-b"], default = "a" }
flag = { type = "boolean", default = false }
maybe = { type = "string", required = false }
files = { type = "list", items = { type = "path" }, default = [] }
[workspace]
access = "read"
[argv]
"""
USE_ALL = """{ when = "flag", then = ["F"] }, { when = "maybe", then = ["--", "{maybe}"] },
"x{word}", "x{count}", "x{choice}", "--", "{files...}"]"""


def build(profile: Profile, **given: object) -> tuple[str, ...] | Denial:
    values = check_arguments(profile, given)
    assert isinstance(values, dict), values
    return argv.build(profile.argv, profile.arguments, values, profile.name)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ("",)),
        ("--x", ("--x",)),
        ("{a}", (Slot("a", spread=False),)),
        ("{a...}", (Slot("a", spread=True),)),
        ("-{a}{b}", ("-", Slot("a", spread=False), Slot("b", spread=False))),
        ("{{a}}", ("{a}",)),
        ("{{{a}}}", ("{", Slot("a", spread=False), "}")),
        ("$0{{print $1}}", ("$0{print $1}",)),
    ],
)
def test_an_element_is_literal_text_and_slots(text: str, parts: tuple[object, ...]) -> None:
    assert parse_element(text) == parts


@pytest.mark.parametrize(
    "text", ["{", "}", "{}", "{A}", "{a", "a}", "{a..}", "{ a }", "{a.b}", "{1}"]
)
def test_a_brace_alone_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cannot read"):
        parse_element(text)


@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_doubled_braces_say_any_text(text: str) -> None:
    escaped = text.replace("{", "{{").replace("}", "}}")
    assert parse_element(escaped) == (text,)


GUARDED = [  # where a value may begin with "-", and what comes out
    ('["--", "{word}", ', {"word": "-x"}, ("--", "-x")),
    ('["-e", "{word}", ', {"word": "-x"}, ("-e", "-x")),
    ('["--expression", "{word}", ', {"word": "--x"}, ("--expression", "--x")),
    ('["--glob={word}", ', {"word": "-x"}, ("--glob=-x",)),
    ('["a{word}", ', {"word": "-x"}, ("a-x",)),
    ('["-n", "{count}", ', {"count": -1}, ("-n", "-1")),
    ('["{choice}", ', {"choice": "-b"}, ("-b",)),
    ('[{ when = "maybe", then = ["-m", "{maybe}"] }, ', {"maybe": "-x"}, ("-m", "-x")),
    ('[{ when = "maybe", then = ["--", "{maybe}"] }, ', {"maybe": "-x"}, ("--", "-x")),
    ('["--f={files...}", ', {"files": ["-a", "b"]}, ("--f=-a", "--f=b")),
]


@pytest.mark.parametrize(("template", "given", "expected"), GUARDED)
def test_a_dash_is_harmless_where_the_template_guards(
    load: Load, template: str, given: dict[str, object], expected: tuple[str, ...]
) -> None:
    built = build(load(f"{ARGUMENTS}template = {template}{USE_ALL}"), **given)
    assert isinstance(built, tuple)
    assert built[: len(expected)] == expected


BARE = [  # where it may not: the target that the denial names
    ('["{word}", ', {"word": "-x"}, "word"),
    ('["{word}", ', {"word": "--"}, "word"),
    ('["{word}", ', {"word": "-"}, "word"),
    ('["{word}{count}", ', {"word": "", "count": -1}, "word"),
    ('["{count}", ', {"count": -1}, "count"),
    ('["lit", "{word}", ', {"word": "-x"}, "word"),
    ('["-", "{word}", ', {"word": "-x"}, "word"),
    ('["-e={word}", "{word}", ', {"word": "-x"}, "word"),
    ('["{files...}", ', {"files": ["a", "-rf"]}, "files[1]"),
    ('["-f", "{files...}", ', {"files": ["-a"]}, "files[0]"),
    ('[{ when = "flag", then = ["--"] }, "{word}", ', {"word": "-x", "flag": True}, "word"),
    ('[{ when = "flag", then = ["-e"] }, "{word}", ', {"word": "-x", "flag": True}, "word"),
    ('["-e", { when = "maybe", then = ["{maybe}"] }, ', {"maybe": "-x"}, "maybe"),
]


@pytest.mark.parametrize(("template", "given", "target"), BARE)
def test_a_dash_is_refused_where_it_would_be_an_option(
    load: Load, template: str, given: dict[str, object], target: str
) -> None:
    denial = build(load(f"{ARGUMENTS}template = {template}{USE_ALL}"), **given)
    assert isinstance(denial, Denial)
    assert (denial.target, denial.reason) == (target, "ARGUMENT_INVALID")
    assert "option" in denial.message


def test_a_condition_decides_over_its_elements(load: Load) -> None:
    choice = '{ when = "choice", is = ["-b"], then = ["B"] }'
    files = '{ when = "files", then = ["some"] }'
    profile = load(f"{ARGUMENTS}template = [{choice}, {files}, {USE_ALL}")
    assert build(profile) == ("xw", "x1", "xa", "--")
    assert build(profile, choice="-b")[0] == "B"  # type: ignore[index]  # no denial here
    assert build(profile, files=["f"]) == ("some", "xw", "x1", "xa", "--", "f")
    assert build(profile, flag=True, maybe="") == ("F", "--", "", "xw", "x1", "xa", "--")


WRONG = [  # a template, and what the loader says
    ('["{nobody}"]', "there is no such argument"),
    ('["{word"]', "cannot read"),
    ('["{word...}"]', "write {word}"),
    ('["--", "{files}"]', "write {files...}"),
    ('["--", "{flag}"]', "a boolean is for 'when'"),
    ('["--", "{maybe}"]', "may be absent"),
    ('["--", { when = "flag", then = ["{maybe}"] }]', "may be absent"),
    ('["-{word}"]', "behind dashes alone"),
    ('["--{word}=x"]', "behind dashes alone"),
    ('["-{count}"]', "behind dashes alone"),
    ('["{files...}{files...}"]', "repeat one element"),
    ('[{ when = "nobody", then = ["x"] }]', "there is no such argument"),
    ('[{ when = "word", then = ["x"] }]', "always has a value"),
    ('[{ when = "word", is = ["w"], then = ["x"] }]', "members of its choices"),
    ('[{ when = "choice", is = ["c"], then = ["x"] }]', "members of its choices"),
    ('["--"]', "no template uses it"),
    ('["a\\u0000b"]', "NUL"),
]


@pytest.mark.parametrize(("template", "problem"), WRONG)
def test_a_template_that_cannot_work_is_refused_at_load(
    load: Load, template: str, problem: str
) -> None:
    with pytest.raises(ProfileError) as caught:
        load(f"{ARGUMENTS}template = {template}")
    assert problem in caught.value.message


def test_no_text_ever_becomes_an_option(load: Load) -> None:
    """Property: outside "--" and own options, what begins with "-" is the template's own."""
    profile = load(f'{ARGUMENTS}template = ["-v", "x", "{{word}}", "{{files...}}", {USE_ALL}')
    texts = st.text(st.characters(codec="utf-8", categories=["L", "P", "S"]), max_size=6)
    paths = st.text("-ab", min_size=1, max_size=4)

    @given(texts, st.lists(paths, max_size=3))
    def check(word: str, files: list[str]) -> None:
        built = build(profile, word=word, files=files)
        hostile = [each for each in (word, *files) if each.startswith("-")]
        if isinstance(built, tuple):
            assert not hostile
            assert built == ("-v", "x", word, *files, f"x{word}", "x1", "xa", "--", *files)
        else:
            assert hostile

    check()


COMMAND_LINE = """
[argv]
passthrough = { max_items = 3, allow = ["[^-].*", "--(json|glob=.*)"], paths = true }
[workspace]
access = "read"
"""


@pytest.mark.parametrize(
    ("args", "target"),
    [
        (["--json", "a/b", "--glob=*"], None),
        ([], None),
        (["-json"], "args[0]"),
        (["a", "--jsonx"], "args[1]"),
        (["x--json", "-"], "args[1]"),
        (["../x"], "args[0]"),
        (["/etc/passwd"], "args[0]"),
        (["--glob=/etc"], None),
        (["a\n"], "args[0]"),
        (["--glob=\0"], "args[0]"),
        ([1], "args[0]"),
        (["a"] * 4, "args"),
        ("a", "args"),
        (None, "args"),
    ],
)
def test_a_command_line_passes_element_by_element(
    load: Load, args: object, target: str | None
) -> None:
    profile = load(COMMAND_LINE)
    values = check_arguments(profile, {"args": args})
    if isinstance(values, tuple):
        assert [denial.target for denial in values] == [target]
        return
    built = argv.build(profile.argv, profile.arguments, values, profile.name)
    if isinstance(built, Denial):
        assert built.target == target
    else:
        assert target is None
        assert list(built) == args


def test_a_command_line_takes_no_other_argument(load: Load) -> None:
    assert isinstance(check_arguments(load(COMMAND_LINE), {"argv": []}), tuple)
    assert load(COMMAND_LINE).parameters()["properties"]["args"]["maxItems"] == 3


@pytest.mark.parametrize(
    ("argv_sizes", "environment_sizes", "fits"),
    [
        ((4, argv.ARGUMENT_MAX - 5), (), True),
        ((4, argv.ARGUMENT_MAX - 4), (), False),
        ((4, argv.ARGUMENT_MAX + 1), (), False),
        ((1000,) * 130, (), True),
        ((1000,) * 131, (), False),
        ((1000,) * 100, (1000,) * 31, False),
    ],
)
def test_what_execve_could_not_take_is_known_before(
    argv_sizes: tuple[int, ...], environment_sizes: tuple[int, ...], *, fits: bool
) -> None:
    texts = tuple("x" * size for size in argv_sizes)
    variables = tuple("x" * size for size in environment_sizes)
    assert (argv.size_problem(texts, variables) is None) == fits
    doubled = tuple("é" * (size // 2) for size in argv_sizes)
    assert (argv.size_problem(doubled, variables) is None) >= fits
