"""effective: the knobs in force, where they differ from the requested ones."""

from __future__ import annotations

from engine.api.knob_spec import KnobValue
from engine.api.knobs import KNOB_SPECS, Knobs
from engine.scheduling.composer import Books, Policy
from engine.scheduling.orders import ORDERS


def effective(knobs: Knobs, policy: Policy, books: Books) -> dict[str, tuple[KnobValue, str]]:
    """Knobs that are ignored or whose value in force differs from the requested one, and why.

    Args:
        policy: the policy that composed the last step.
    """
    cache, num_running = books.cache, len(books.running)
    notes: dict[str, tuple[KnobValue, str]] = {}
    users = {"policy": (policy.name, policy.uses)}
    users["order"] = (knobs.order, ORDERS[knobs.order].uses)
    for spec in KNOB_SPECS:
        who, uses = users.get(spec.acts, ("", {spec.name}))
        if spec.name not in uses:
            notes[spec.name] = (getattr(knobs, spec.name), f"ignored by {who}")
    limit = min(("max_num_seqs", "queue_limit"), key=lambda name: int(getattr(knobs, name)))
    most = int(getattr(knobs, limit))
    if "static_batch_size" in policy.uses and knobs.static_batch_size > most:
        notes["static_batch_size"] = (most, f"{limit} allows no more")
    if (preemption := books.swaps.effective(knobs)) is not None:
        notes["preemption"] = preemption
    if knobs.prefix_caching and cache.snapshots is not None and not cache.snapshots.num_snapshots:
        note = "no memory is set aside for states of prefixes (snapshot_memory)"
        notes["prefix_caching"] = (False, note)
    if policy.name != knobs.policy:
        notes["policy"] = (policy.name, "takes effect with the next step")
    excess = num_running + books.groups.num_parked - knobs.max_num_seqs
    if excess > 0:
        note = f"{excess} more than requested still run"
        notes["max_num_seqs"] = (knobs.max_num_seqs + excess, note)
    if num_running > knobs.max_num_batched_tokens:
        note = f"{num_running} still run: the last admitted get no token for now"
        notes["max_num_batched_tokens"] = (knobs.max_num_batched_tokens, note)
    if knobs.draining and num_running:
        notes["draining"] = (True, f"{num_running} still run")
    return notes
