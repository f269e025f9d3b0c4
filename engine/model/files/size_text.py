"""format_bytes: formats a size for people."""

from __future__ import annotations


def format_bytes(count: int) -> str:
    """Format a size for people."""
    if count >= 1 << 30:
        return f"{count / (1 << 30):.2f} GiB"
    return f"{count / (1 << 20):.1f} MiB"
