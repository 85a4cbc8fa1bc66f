"""Byte counts as text for error messages."""

from __future__ import annotations

_DIGITS = 10  # One byte is 9.3e-10 GiB: ten digits keep any two sizes apart.


def format_gib(size_bytes: int) -> str:
    """Write a byte count in GiB, precisely enough to be used as an option's value.

    Args:
        size_bytes: A number of bytes, at least 0.

    Returns:
        A decimal number of GiB without the unit, rounded up at the tenth digit, so that the value given back
        as a budget is never a byte too small.
    """
    scaled = -(-size_bytes * 10**_DIGITS // 1024**3)
    whole, fraction = divmod(scaled, 10**_DIGITS)
    return f"{whole}.{fraction:0{_DIGITS}d}".rstrip("0").rstrip(".")
