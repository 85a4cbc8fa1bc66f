"""A Hub on the loopback interface: the real client reads from it, writes to it, and meets its faults."""

from __future__ import annotations

from tests.support.hub.client import online, run_client
from tests.support.hub.faults import (
    ChangedObject,
    Drop,
    ExpiredSignature,
    FaultRule,
    ShortBody,
    SlowFirstByte,
    Stall,
    Status,
    WholeFile,
    WrongContentRange,
)
from tests.support.hub.log import Request
from tests.support.hub.server import LoopbackHub
from tests.support.hub.stores import Bucket, Dataset

__all__ = [
    "Bucket",
    "ChangedObject",
    "Dataset",
    "Drop",
    "ExpiredSignature",
    "FaultRule",
    "LoopbackHub",
    "Request",
    "ShortBody",
    "SlowFirstByte",
    "Stall",
    "Status",
    "WholeFile",
    "WrongContentRange",
    "online",
    "run_client",
]
