"""Every option's range, and messages that name the option, the value and the range."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from lerobot_streaming.errors import OptionError
from lerobot_streaming.options import OPTION_SPECS, Options, validate_option


def test_every_option_has_one_description_and_the_same_default() -> None:
    assert {field.name: field.default for field in fields(Options)} == {
        name: spec.default for name, spec in OPTION_SPECS.items()
    }


def _bad_values(name: str) -> list[Any]:
    spec = OPTION_SPECS[name]
    if spec.choices is not None:
        return ["other", "", 1, None]
    bad: list[Any] = [-1, -0.5, math.nan, math.inf, "4", True, [1]]
    if spec.exclusive:
        bad.append(0)
    if spec.kind is int:
        bad += [1.5, 2.0]
    if not spec.optional:
        bad.append(None)
    return bad


@pytest.mark.parametrize(
    ("name", "value"), [(name, bad) for name in OPTION_SPECS for bad in _bad_values(name)]
)
def test_a_value_outside_the_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(OptionError) as caught:
        Options(**{name: value})
    message = str(caught.value)
    assert name in message
    assert repr(value) in message
    assert OPTION_SPECS[name].range_text in message


def test_the_message_says_the_name_that_the_user_knows() -> None:
    with pytest.raises(
        OptionError, match=r"^--dataset.streaming_decode_threads must be an integer > 0, got 0"
    ):
        validate_option("decode_threads", 0, shown_as="--dataset.streaming_decode_threads")


def test_numpy_numbers_are_numbers() -> None:
    Options(decode_threads=np.int64(3), byte_budget_gb=np.float32(0.5))  # type: ignore[arg-type]


def test_skipping_damaged_episodes_is_refused_until_it_works() -> None:
    with pytest.raises(OptionError, match=r"on_error='skip' is not available.*episodes="):
        Options(on_error="skip")


@pytest.mark.parametrize(
    ("options", "workers", "size"),
    [
        ({}, 0, 32),
        ({}, 1, 32),
        ({}, 3, 11),
        ({}, 64, 1),
        ({"buffer_size": 10}, 2, 5),
        ({"episode_pool_size": 7}, 4, 7),
    ],
)
def test_the_default_pool_is_shared_out_over_the_workers(
    options: dict[str, Any], workers: int, size: int
) -> None:
    assert Options(**options).pool_size_for_worker(workers) == size
