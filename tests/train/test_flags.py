from __future__ import annotations

import json
from dataclasses import MISSING, fields, make_dataclass
from typing import TYPE_CHECKING, Any

import draccus
import pytest
from draccus.utils import ParsingError

from lerobot_streaming.errors import OptionError
from lerobot_streaming.options import OPTION_SPECS
from tests.train.support import parse

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("lerobot_train")

# Flag -> (text of a good value, that value, texts of bad values); SPEC section 14.
FLAGS: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "streaming_episode_pool_size": ("5", 5, ("0", "-1")),
    "streaming_sampling_strategy": ("round_robin", "round_robin", ("random",)),
    "streaming_prefetch_episodes": ("0", 0, ("-1",)),
    "streaming_byte_budget_gb": ("0.25", 0.25, ("0", "-1", ".nan", ".inf")),
    "streaming_decode_threads": ("3", 3, ("0", "-2")),
    "streaming_decoded_queue_size": ("1", 1, ("0",)),
    "video_decoder_cache_size": ("4", 4, ("0",)),
    "streaming_native_http_connections": ("16", 16, ("0",)),
    "streaming_native_http_subranges": ("2", 2, ("0",)),
    "streaming_sidecar_lock_timeout_s": ("0.5", 0.5, ("0", "-1")),
    "streaming_frame_cache_gb": ("0", 0.0, ("-0.5",)),
    "streaming_on_error": ("raise", "raise", ("ignore",)),
}
DEFAULTS = {
    "streaming_episode_pool_size": None,
    "streaming_sampling_strategy": "remaining",
    "streaming_prefetch_episodes": 8,
    "streaming_byte_budget_gb": 8.0,
    "streaming_decode_threads": 2,
    "streaming_decoded_queue_size": 8,
    "video_decoder_cache_size": None,
    "streaming_native_http_connections": None,
    "streaming_native_http_subranges": 1,
    "streaming_sidecar_lock_timeout_s": 1800,
    "streaming_frame_cache_gb": 1.0,
    "streaming_on_error": "raise",
}


def parse_dataset(*arguments: str) -> Any:
    """Parse `--dataset.*` arguments alone: lerobot's whole parser takes a second to set up."""
    from lerobot_streaming.train.config import StreamingDatasetConfig

    only_dataset = make_dataclass("OnlyDataset", [("dataset", StreamingDatasetConfig)])
    return draccus.parse(only_dataset, args=["--dataset.repo_id=a/b", *arguments]).dataset


def stock_dataset_names() -> set[str]:
    from lerobot.configs.default import DatasetConfig

    return {field.name for field in fields(DatasetConfig)}


def test_the_flags_are_those_of_the_specification_with_its_defaults() -> None:
    dataset = parse(["--dataset.repo_id=a/b"]).dataset
    added = {field.name for field in fields(dataset)} - stock_dataset_names() - {"streaming_order"}
    # A selection is no number within a range, and has tests of its own.
    added -= {"streaming_features"}
    assert added == set(FLAGS) == set(DEFAULTS)
    assert {name: getattr(dataset, name) for name in FLAGS} == DEFAULTS


def test_defaults_are_those_of_the_options() -> None:
    from lerobot_streaming.train.config import FLAG_OF_OPTION, option_values

    dataset = parse_dataset()
    assert sorted(FLAG_OF_OPTION.values()) == sorted(FLAGS)
    assert option_values(dataset) == {option: OPTION_SPECS[option].default for option in FLAG_OF_OPTION}


def test_the_whole_parser_takes_every_flag() -> None:
    dataset = parse(
        ["--dataset.repo_id=a/b", *(f"--dataset.{flag}={text}" for flag, (text, _, _) in FLAGS.items())]
    ).dataset
    assert {flag: getattr(dataset, flag) for flag in FLAGS} == {f: FLAGS[f][1] for f in FLAGS}


def test_a_plain_config_stands_for_the_defaults() -> None:
    from lerobot.configs.default import DatasetConfig

    from lerobot_streaming.train.config import option_values

    assert option_values(DatasetConfig("a/b")) == option_values(parse_dataset())


@pytest.mark.parametrize("flag", FLAGS)
def test_good_value(flag: str) -> None:
    text, value, _ = FLAGS[flag]
    read = getattr(parse_dataset(f"--dataset.{flag}={text}"), flag)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize("flag", [flag for flag, default in DEFAULTS.items() if default is None])
def test_null_unsets(flag: str) -> None:
    assert getattr(parse_dataset(f"--dataset.{flag}=null"), flag) is None


@pytest.mark.parametrize(("flag", "text"), [(flag, text) for flag in FLAGS for text in FLAGS[flag][2]])
def test_bad_value_is_named_with_flag_value_and_range(flag: str, text: str) -> None:
    with pytest.raises(ParsingError) as caught:
        parse_dataset(f"--dataset.{flag}={text}")
    cause = caught.value.__cause__
    assert isinstance(cause, OptionError)
    assert f"--dataset.{flag} must be " in str(cause)
    assert f"got {text.lstrip('.')}" in str(cause).replace("'", "").replace(".0", "")


@pytest.mark.parametrize(
    "flag", [flag for flag in FLAGS if flag not in ("streaming_sampling_strategy", "streaming_on_error")]
)
def test_text_for_a_number_is_refused(flag: str) -> None:
    with pytest.raises(ParsingError, match=flag):
        parse_dataset(f"--dataset.{flag}=many")


def test_a_config_file_sets_flags_and_the_command_line_wins(tmp_path: Path) -> None:
    from lerobot.configs.train import TrainPipelineConfig

    file = tmp_path / "run.json"
    file.write_text(
        json.dumps(
            {
                "dataset": {
                    "repo_id": "a/b",
                    "streaming": True,
                    "streaming_decode_threads": 7,
                    "streaming_byte_budget_gb": 2,
                }
            }
        )
    )
    cfg = TrainPipelineConfig.from_pretrained(file, cli_args=["--dataset.streaming_decode_threads=5"])
    assert cfg.dataset.streaming_decode_threads == 5
    assert cfg.dataset.streaming_byte_budget_gb == 2.0


def test_help_describes_every_flag_and_its_range(capsys: pytest.CaptureFixture[str]) -> None:
    from lerobot.configs import parser
    from lerobot.configs.train import TrainPipelineConfig

    parser.print_scoped_help(TrainPipelineConfig, [])
    words = " ".join(capsys.readouterr().out.split())
    for flag, default in DEFAULTS.items():
        # First in the usage line, then in the list.
        _, _, entry = words.split(f"--dataset.{flag} ", 2)
        description, _, rest = entry.partition(" (default: ")
        assert rest.startswith(f"{default})")
        for part in OPTION_SPECS[flag.removeprefix("streaming_")].choices or (">",):
            assert part in description


def test_saved_config_without_streaming_is_stock(tmp_path: Path, stock_lerobot: Any) -> None:
    from lerobot_streaming.train import enable

    saved: list[bytes] = []
    for switched_on in (False, True):
        if switched_on:
            enable()
        cfg = parse(["--dataset.repo_id=a/b", "--dataset.episodes=[1,2]", "--batch_size=3"])
        folder = tmp_path / str(len(saved))
        folder.mkdir()
        cfg.save_pretrained(folder)
        saved.append((folder / "train_config.json").read_bytes())
    assert saved[0] == saved[1]
    assert stock_lerobot is not None


def test_saved_config_with_streaming_comes_back(tmp_path: Path) -> None:
    from lerobot.configs.train import TrainPipelineConfig

    cfg = parse(
        [
            "--dataset.repo_id=a/b",
            "--dataset.streaming=true",
            *(f"--dataset.{flag}={value[0]}" for flag, value in FLAGS.items()),
        ]
    )
    cfg.dataset.streaming_order = "abc"
    cfg.save_pretrained(tmp_path)
    again = TrainPipelineConfig.from_pretrained(tmp_path)
    assert {flag: getattr(again.dataset, flag) for flag in FLAGS} == {f: FLAGS[f][1] for f in FLAGS}
    assert type(again.dataset) is type(cfg.dataset)
    assert again.dataset.streaming_order == "abc"


def test_a_file_saved_by_stock_lerobot_loads(tmp_path: Path, stock_lerobot: Any) -> None:
    from lerobot.configs.default import DatasetConfig
    from lerobot.configs.train import TrainPipelineConfig

    from lerobot_streaming.train import enable

    stock: Any = TrainPipelineConfig(dataset=DatasetConfig("a/b", streaming=True))
    stock.save_pretrained(tmp_path)
    enable()
    cfg = TrainPipelineConfig.from_pretrained(tmp_path)
    assert cfg.dataset.streaming
    assert cfg.dataset.streaming_order is None
    assert draccus.encode(cfg.dataset).items() >= draccus.encode(stock.dataset).items()
    assert stock_lerobot is not None


def test_what_stock_has_keeps_its_names_order_and_defaults() -> None:
    from lerobot.configs.default import DatasetConfig

    from lerobot_streaming.train.config import StreamingDatasetConfig

    def facts(config: type) -> list[tuple[Any, ...]]:
        return [
            (field.name, field.default, getattr(field.default_factory, "__name__", MISSING))
            for field in fields(config)
        ]

    stock = facts(DatasetConfig)
    assert facts(StreamingDatasetConfig)[: len(stock)] == stock


def test_skip_is_refused_while_it_is_not_built() -> None:
    with pytest.raises(ParsingError) as caught:
        parse_dataset("--dataset.streaming_on_error=skip")
    assert "on_error='skip' is not available" in str(caught.value.__cause__)
