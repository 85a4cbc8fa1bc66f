"""Settings of small jobs."""

from __future__ import annotations

from typing import Any

from lerobot_streaming.plan import OrderSettings


def make_settings(**changes: Any) -> OrderSettings:
    values = {
        "world_size": 2,
        "num_workers": 2,
        "pool_size": 3,
        "rank_pool": 32,
        "byte_budget": 10_000,
        "strategy": "remaining",
        "seed": 42,
        "shuffle": True,
        "repeat": True,
    }
    return OrderSettings.from_dict(values | changes)
