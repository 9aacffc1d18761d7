"""Reads W&B's offline files, `run-<id>.wandb`, so that tests see what a run really logged.

A file is 7 bytes of W&B's own, then LevelDB's log format: blocks of 32 KiB (the 7 bytes are part of the first). A block
holds chunks: checksum (4 bytes), length (2 bytes, little-endian), type (1 byte), data. A record is one FULL chunk, or
FIRST, MIDDLE ..., LAST where it crosses the end of a block. Fewer than 7 bytes left in a block are padding.
"""

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from wandb.proto import wandb_internal_pb2

FILE_HEADER_SIZE = 7
BLOCK_SIZE = 32 * 1024
CHUNK_HEADER_SIZE = 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@dataclass
class WandbRun:
    """What one offline file holds."""

    id: str = ""
    name: str = ""
    group: str = ""
    project: str = ""
    config: dict = field(default_factory=dict)
    history: list[dict] = field(default_factory=list)  # one dict per log step
    summary: dict = field(default_factory=dict)
    step_metrics: dict[str, str] = field(default_factory=dict)  # metric or pattern -> its x axis
    exit_code: int | None = None  # None: never finished


def read_records(data: bytes) -> Iterator[bytes]:
    """Yields the whole records of a file's content; a record torn by a kill ends them."""
    position, record = FILE_HEADER_SIZE, b""
    while position + CHUNK_HEADER_SIZE <= len(data):
        left = BLOCK_SIZE - position % BLOCK_SIZE
        if left < CHUNK_HEADER_SIZE:
            position += left
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        position += CHUNK_HEADER_SIZE
        if kind not in (FULL, FIRST, MIDDLE, LAST) or position + length > len(data):
            return
        chunk = data[position : position + length]
        record = chunk if kind in (FULL, FIRST) else record + chunk
        if kind in (FULL, LAST):
            yield record
        position += length


def _items(items: Iterable) -> dict:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def read_wandb(path: Path) -> WandbRun:
    """Reads one offline file."""
    run = WandbRun()
    for data in read_records(path.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run.id, run.name = record.run.run_id, record.run.display_name
            run.group, run.project = record.run.run_group, record.run.project
            run.config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "history":
            run.history.append(_items(record.history.item))
        elif kind == "summary":
            run.summary |= _items(record.summary.update)
        elif kind == "metric":
            run.step_metrics[record.metric.name or record.metric.glob_name] = record.metric.step_metric
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    return run
