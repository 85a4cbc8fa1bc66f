"""What the system says of a process (Linux; elsewhere the facts are unknown)."""

from __future__ import annotations

import os
from pathlib import Path


def pss_mib(pid: int) -> float | None:
    """Proportional memory of a process: shared pages count once over all processes that share them.

    Args:
        pid: The process.

    Returns:
        MiB, or None where the system does not tell.
    """
    return _mib(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")


def peak_rss_mib() -> float | None:
    """Largest resident memory that this process has had since it began to run its program.

    `getrusage` would also count what the process that started it had: that figure outlives an exec.

    Returns:
        MiB, or None where the system does not tell.
    """
    return _mib(Path("/proc/self/status"), "VmHWM:")


def cpu_seconds(pid: int) -> float | None:
    """Processor time that a process has used, over all of its threads.

    Args:
        pid: The process.

    Returns:
        Seconds, or None where the system does not tell.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in brackets may hold spaces; user and system time are the 12th and 13th field behind it.
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _mib(path: Path, label: str) -> float | None:
    """Reads one of the kernel's lines of the form `Label:  123 kB`."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(label)), None)
