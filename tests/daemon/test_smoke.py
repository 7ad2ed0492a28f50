"""Does a request go all the way through?"""

from __future__ import annotations

from tests.daemon.harness import Wire


def test_an_allowed_command_runs_at_once(agent: Wire) -> None:
    run = agent.ask("Run", command="echo", arguments={"text": "hi"})
    assert (run["status"], run["exit_code"], run["stdout"]["data"]) == ("exited", 0, "hi\n")
