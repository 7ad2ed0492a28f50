"""Is nothing shown that is not seen, and are texts of a command line read as they were meant?"""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.cli.arguments import read_arguments
from sandboxd.cli.endings import Shown, unseen
from sandboxd.cli.exec_options import parse_exec
from sandboxd.cli.ids import pick
from sandboxd.cli.terminal import reveal, write_all
from sandboxd.errors import NotFound, UsageError
from sandboxd.protocol import Event, Run, Stream

HIDDEN = [
    "\x00", "\x07", "\x1b", "\r", "\n", "\t", "\x7f", "\x80", "\x85", "\x9b", "\xa0", "\xad",
    "\u034f", "\u061c", "\u115f", "\u180e", "\u200b", "\u200d", "\u200e", "\u2028", "\u2029",
    "\u202a", "\u202e", "\u2060", "\u2066", "\u2069", "\u2800", "\u3000", "\u3164", "\ufe0f",
    "\ufeff", "\uffa0", "\ufff9", "\ue000", "\udc80", "\U000e0001", "\U000e0041", "\U000e0100",
]  # fmt: skip


@pytest.mark.parametrize("character", HIDDEN)
def test_what_is_not_plainly_seen_is_written_out(character: str) -> None:
    assert reveal(f"a{character}b") == f"a\\u{{{ord(character):x}}}b"


@pytest.mark.parametrize("text", ["plain", "äöü ß", "日本語", "Ελληνικά", "a\\b", "😀", "שלום"])
def test_letters_of_every_script_stay(text: str) -> None:
    assert reveal(text) == text


@given(st.text())
def test_nothing_that_is_shown_moves_a_cursor(text: str) -> None:
    assert all(c.isprintable() for c in reveal(text))
    assert all(c.isprintable() or c in "\n\t" for c in reveal(text, kept="\n\t"))


def test_everything_is_written_to_a_descriptor_that_does_not_wait() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        with open(reader, "rb") as pipe:
            os._exit(len(pipe.read()) != 1 << 20)
    os.close(reader)
    write_all(writer, b"x" * (1 << 20))
    os.close(writer)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


SCHEMA = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "quiet": {"type": "boolean"},
    "paths": {"type": "array", "items": {"type": "string"}},
    "sizes": {"type": "array", "items": {"type": "integer"}},
}
READ = [
    (["text=a=b"], {"text": "a=b"}),
    (["text="], {"text": ""}),
    (["text=7"], {"text": "7"}),
    (["count=7", "ratio=0.5", "quiet=true"], {"count": 7, "ratio": 0.5, "quiet": True}),
    (["quiet=No"], {"quiet": False}),
    (["paths=a"], {"paths": ["a"]}),
    (["paths=a", "text=x", "paths=b"], {"text": "x", "paths": ["a", "b"]}),
    (["sizes=1", "sizes=2"], {"sizes": [1, 2]}),
    (['paths:=["a", "b"]', "count:=3"], {"paths": ["a", "b"], "count": 3}),
    (["text:=null"], {"text": None}),
    (["count=seven"], {"count": "seven"}),
    (["unknown=7"], {"unknown": "7"}),
]


@pytest.mark.parametrize(("texts", "arguments"), READ)
def test_arguments_are_read_by_the_schema(texts: list[str], arguments: dict[str, object]) -> None:
    assert read_arguments(texts, SCHEMA) == arguments


@pytest.mark.parametrize(
    "texts", [["text"], ["=x"], [":=1"], ["text=a", "text=b"], ["text:={"], ["count:=NaN"]]
)
def test_what_is_no_argument_is_a_usage_error(texts: list[str]) -> None:
    with pytest.raises(UsageError):
        read_arguments(texts, SCHEMA)


def test_everything_behind_the_dashes_is_the_command() -> None:
    options = parse_exec(["-p", "sh", "-w", "d", "-i", "--", "-p", "--", "x"])
    assert (options.profile, options.workspace, options.interactive) == ("sh", "d", True)
    assert options.argv == ["-p", "--", "x"]


@pytest.mark.parametrize(
    "words", [["-p"], ["-p", "sh", "x", "--", "y"], ["-p", "sh", "--env", "X", "--", "y"]]
)
def test_a_wrong_exec_line_is_a_usage_error(words: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_exec(words)


IDS = ["run_ab01", "run_ab02", "run_cd03"]


@pytest.mark.parametrize("text", ["c", "cd03", "run_c", "run_cd03"])
def test_the_beginning_of_one_id_is_enough(text: str) -> None:
    assert pick(text, "run", IDS) == "run_cd03"


@pytest.mark.parametrize("text", ["", "run_", "r", "x", "d03", "run_cd03x"])
def test_what_begins_no_id_is_not_found(text: str) -> None:
    with pytest.raises(NotFound, match=r"^cannot find run "):
        pick(text, "run", IDS)


def test_what_begins_several_ids_names_them() -> None:
    with pytest.raises(UsageError, match=r"^cannot tell which run 'ab' is: run_ab01, run_ab02$"):
        pick("ab", "run", IDS)


SEAM = b"\n[... 7 bytes not shown ...]\n"
SHOWN = [  # events, what was kept, how much of that is the beginning, what the rest is
    (b"", b"abxyz", 2, b"ab" + SEAM + b"xyz"),
    (b"ab", b"abxyz", 2, SEAM + b"xyz"),
    (b"", b"abcde", 5, b"abcde" + SEAM),
    (b"", b"vwxyz", 0, SEAM + b"vwxyz"),
]


@pytest.mark.parametrize(("events", "kept", "head", "rest"), SHOWN)
def test_a_seam_stands_where_bytes_are_missing(
    events: bytes, kept: bytes, head: int, rest: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    stream = Stream.of(kept, head_bytes=head, total_bytes=12, sha256="")
    written: list[bytes] = []
    shown = Shown(lambda _, data: written.append(data))
    if events:
        told = Event(kind="output", run="r", stream="stdout", data=events.decode())
        shown.event(told)
    shown.rest(Run(id="r", command="c", status="exited", stdout=stream))
    assert b"".join(written) == events + rest
    assert stream.text().encode() == kept[:head] + SEAM + kept[head:]
    assert "7 bytes were dropped" in capfd.readouterr().err


@given(st.binary(max_size=60), st.integers(0, 60), st.integers(0, 30), st.integers(0, 30))
def test_events_and_record_together_show_all_that_was_kept(
    whole: bytes, limit: int, head: int, tail: int
) -> None:
    """The daemon tells the first ``limit`` bytes and keeps ``head`` and ``tail`` within it."""
    limit = min(limit, len(whole))
    truncated = head + tail < len(whole)
    kept = whole[:head] + whole[len(whole) - tail :] if truncated else whole
    stream = Stream.of(
        kept, head_bytes=head if truncated else len(whole), total_bytes=len(whole), sha256=""
    )
    new, missing = unseen(stream, limit)
    unkept = range(head, len(whole) - tail) if truncated else range(0)
    rest = range(limit, len(whole))
    assert new == bytes(whole[place] for place in rest if place not in unkept)
    assert missing == sum(1 for place in rest if place in unkept)
