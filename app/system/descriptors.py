"""raise_limit: raises the process's limit of descriptors, which files and connections use."""

from __future__ import annotations

from contextlib import suppress


def raise_limit(wanted: int) -> int:
    """Raise the limit to `wanted`, as far as the system allows; returns the resulting limit.

    Shells and services mostly start with 1,024, and may raise that to 500,000.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit.
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    with suppress(OSError, ValueError):  # macOS refuses more than its kernel's limit.
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return min(wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
