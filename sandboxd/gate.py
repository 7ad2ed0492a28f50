"""May a request that is right in itself run, must somebody be asked, or is it refused?

A pure function of the profile: nothing that a client writes takes part in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

Mode = Literal["deny", "ask", "allow_safe", "allow"]
Risk = Literal["low", "medium", "high"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the gate says, and the rule that it follows from."""

    decision: Literal["allow", "ask", "deny"]
    rule: str


def decide(*, mode: Mode, risk: Risk, network: str) -> Decision:
    """Decide from a profile's ``[approval]`` mode, its risk and its network."""
    rule = f"approval.mode = {mode}"
    match mode:
        case "deny":
            return Decision(decision="deny", rule=rule)
        case "ask":
            return Decision(decision="ask", rule=rule)
        case "allow":
            return Decision(decision="allow", rule=rule)
        case "allow_safe":
            safe = risk == "low" and network == "none"
            shown = f"{rule}, risk = {risk}, network = {network}"
            return Decision(decision="allow" if safe else "ask", rule=shown)
        case _:
            assert_never(mode)
