"""The policies that exist, by name."""

from __future__ import annotations

from engine.scheduling.policy import Policy
from engine.scheduling.stall_free import StallFree

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (StallFree,)}
POLICY_NAMES = tuple(POLICIES)
