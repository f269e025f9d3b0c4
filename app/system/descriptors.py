"""raise_limit: how many descriptors the process may have, files and connections among them."""

from __future__ import annotations

from contextlib import suppress


def raise_limit(wanted: int) -> int:
    """Have the system let the process open so many, as far as it may; returns how many it lets it.

    Shells and services begin with 1,024 mostly, and may have 500,000 for the asking.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit.
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    with suppress(OSError, ValueError):  # macOS refuses more than its kernel has.
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return min(wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
