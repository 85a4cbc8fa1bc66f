"""The Markdown tables that are made of the committed results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.benchmarks.chart import LABELS
from tests.benchmarks.contenders import LEROBOT, MAP_PYAV, MAP_TORCHCODEC, RAW, RAW_RANDOM, STREAMING
from tests.benchmarks.results import Result, ratio, speed
from tests.benchmarks.shapes import SHAPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOTHING = "Nothing measured yet."

_NONE = "–"  # noqa: RUF001  A dash, as in any table.


def describe_shape(name: str) -> str:
    """Say in a few words what a shape is.

    Args:
        name: One of `SHAPES`.

    Returns:
        Cameras, size, codec and GOP.
    """
    shape = SHAPES[name]
    codec = shape.encoder.get("vcodec", "AV1").upper()
    cameras = "1 camera" if shape.cameras == 1 else f"{shape.cameras} cameras"
    return f"{cameras}, {shape.width}x{shape.height}, {codec}, GOP {shape.encoder.get('g', 2)}"


def _number(value: float | None, digits: int = 1) -> str:
    return _NONE if value is None else f"{value:.{digits}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table.

    Args:
        head: Titles of the columns.
        rows: The cells of each row.

    Returns:
        The table's text, without a line end.
    """
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def conditions(results: Sequence[Mapping[str, Any]]) -> str:
    """Say how and where some results were measured.

    Args:
        results: At least one; all of a kind.

    Returns:
        A sentence for each group of results that have it in common.
    """
    groups: dict[str, list[str]] = {}
    for one in results:
        used, versions = one["settings"], one["versions"]
        how = []
        if "workers" in used:
            how.append(f"{used['workers']} DataLoader workers")
        how.append(f"batch {used['batch_size']}")
        if "rounds" in used:
            rounds = "1 round" if used["rounds"] == 1 else f"{used['rounds']} interleaved rounds"
            how.append(f"medians of {rounds} of {used['seconds']:g} s")
        if used["option"]:
            how.append("options " + " ".join(f"`{option}`" for option in used["option"]))
        text = (
            f"{', '.join(how)}, seed {used['seed']}; {one['cpu_count']} cores ({one['cpu']}), Python "
            f"{versions['python']}, lerobot {versions['lerobot']}, torch {versions['torch']}, torchcodec "
            f"{versions['torchcodec']}, PyAV {versions['av']}; commit {_commit(one['git_commit'])}."
        )
        groups.setdefault(text, []).append(one["shape"])
    return " ".join(f"Shape {', '.join(shapes)}: {text}" for text, shapes in groups.items())


def _commit(text: str) -> str:
    commit, _, changes = text.partition(" ")
    return commit[:12] + (f" {changes}" if changes else "")


def throughput(results: Sequence[Result]) -> str:
    """Write the table of README.md.

    Args:
        results: `compare` results.

    Returns:
        The table and the notes that belong to it.
    """
    if not results:
        return NOTHING
    others = [name for name in (MAP_TORCHCODEC, MAP_PYAV, LEROBOT, RAW, RAW_RANDOM) if _ran(results, name)]
    head = ["shape", "samples/s", *(f"times {LABELS[name]}" for name in others), "decodes"]
    rows = [
        [
            f"{one['shape']}: {describe_shape(one['shape'])}",
            _number(speed(one, STREAMING), 0),
            *(_number(ratio(one, STREAMING, name)) for name in others),
            _number(one["contenders"].get(STREAMING, {}).get("decodes_per_sample"), 2),
        ]
        for one in results
    ]
    notes = [conditions(results)]
    remarks: dict[str, list[str]] = {}
    for one in results:
        for remark in one["remarks"]:
            remarks.setdefault(remark, []).append(one["shape"])
    notes += [f"Shape {', '.join(shapes)}: {remark}." for remark, shapes in remarks.items()]
    return table(head, rows) + "\n\n" + "\n".join(f"* {note}" for note in notes)


def _ran(results: Sequence[Result], name: str) -> bool:
    return any(name in one["contenders"] for one in results)


def details(results: Sequence[Result]) -> str:
    """Write every contender's numbers.

    Args:
        results: `compare` results.

    Returns:
        The table.
    """
    if not results:
        return NOTHING
    head = [
        "shape",
        "contender",
        "samples/s",
        "lowest",
        "highest",
        "first batch, s",
        "MiB per worker",
        "cores",
    ]
    rows = []
    for one in results:
        for name in LABELS:
            found = one["contenders"].get(name)
            if found is None:
                continue
            every = found["samples_per_second"]
            cores = found["cores_used"]
            rows.append(
                [
                    one["shape"],
                    LABELS[name],
                    _number(speed(one, name)),
                    _number(min(every)),
                    _number(max(every)),
                    _number(found["first_batch_s"], 2),
                    _number(found["worker_pss_mib"], 0),
                    _NONE if cores is None else f"{cores:.0%}",
                ]
            )
    return table(head, rows)


def per_sample(results: Sequence[Result]) -> str:
    """Write what the library's own counters say of the timed parts.

    Args:
        results: `compare` results.

    Returns:
        The table.
    """
    found = [
        (one["shape"], one["contenders"][STREAMING]) for one in results if STREAMING in one["contenders"]
    ]
    if not found:
        return NOTHING
    times = sorted({name for _, ours in found for name in ours.get("share_of_time", {})})
    head = ["shape", "decodes", "bytes", "requests", *(f"`{name}` per s" for name in times)]
    rows = [
        [
            shape,
            _number(ours.get("decodes_per_sample"), 2),
            _number(ours.get("bytes_per_sample"), 0),
            _number(ours.get("requests_per_sample"), 4),
            *(_number(ours.get("share_of_time", {}).get(name), 2) for name in times),
        ]
        for shape, ours in found
    ]
    return table(head, rows)


def threads(results: Sequence[Result]) -> str:
    """Write what more decode threads bring to one worker.

    Args:
        results: `scaling` results.

    Returns:
        The table.
    """
    if not results:
        return NOTHING
    head = ["shape", "decode threads", "samples/s", "times one thread", "cores"]
    rows = [
        [
            one["shape"],
            number,
            _number(found["samples_per_second"]),
            _number(found["against_one"], 2),
            f"{found['cores_used']:.0%}",
        ]
        for one in results
        for number, found in one["threads"].items()
    ]
    return table(head, rows) + f"\n\n{conditions(results)}"


def memory(results: Sequence[Result]) -> str:
    """Write the memory of the workers at each epoch's end.

    Args:
        results: `memory` results.

    Returns:
        The tables.
    """
    if not results:
        return NOTHING
    parts = []
    for one in results:
        epochs = one["epochs"]
        kinds = list(epochs[0]["workers"][0]["kinds"])
        head = ["MiB per worker (PSS)", *(f"epoch {found['epoch']}" for found in epochs)]
        rows = [["all", *(_mean(found, None) for found in epochs)]]
        rows += [[kind, *(_mean(found, kind) for found in epochs)] for kind in kinds]
        for name, title in (("frame_cache_bytes", "decoded frames"), ("pool_bytes", "compressed video")):
            cells = [_number(found["counters"][name] / 2**20 / len(found["workers"])) for found in epochs]
            rows.append([f"of it, by the library's counters: {title}", *cells])
        grown = one["growth"]
        parts.append(
            f"{table(head, rows)}\n\nGrowth from epoch {grown['from_epoch']} to {grown['to_epoch']}: "
            f"{grown['mib']:+.1f} MiB per worker ({grown['percent']:+.1f} %). {conditions([one])}"
        )
    return "\n\n".join(parts)


def _mean(found: Mapping[str, Any], kind: str | None) -> str:
    workers = found["workers"]
    sizes = [one["pss_mib"] if kind is None else one["kinds"][kind]["pss_mib"] for one in workers]
    return _number(sum(sizes) / len(sizes))


def training(results: Sequence[Result]) -> str:
    """Write who spends a training step whose policy is faster than the loader.

    Args:
        results: `train_gap` results.

    Returns:
        The table.
    """
    if not results:
        return NOTHING
    names = {
        "dataloading_s": "`dataloading_s`",
        "next_s": "of it waiting for the loader",
        "prepare_s": "of it preparing the batch in the training process",
        "update_s": "`update_s`",
        "step_s": "the whole step",
        "decode_s": "cores: decode threads",
        "delivery_s": "cores: delivery",
        "training_s": "cores: training process",
        "others_s": "cores: other programs",
        "idle_s": "cores: idle",
        "unexplained_s": "unexplained",
    }
    head = ["ms per step", *(f"shape {one['shape']}" for one in results)]
    rows = [
        [title, *(_number(1000 * one["account"][name]) for one in results)] for name, title in names.items()
    ]
    for name, title in (
        ("decoding_share", "decode threads inside of decoders"),
        ("unexplained_share", "unexplained share of `dataloading_s`"),
    ):
        rows.append([title, *(f"{one['account'][name]:.1%}" for one in results)])
    return table(head, rows) + f"\n\n{conditions(results)}"
