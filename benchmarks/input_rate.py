"""Reading rate of the input pipeline in one process: shards on disk to batches on the device.

    python benchmarks/input_rate.py [--row_length 512] [--batch_size 256] [--accumulation 1] [--rows 32768]

Writes synthetic shards (ids drawn like words, by a power law) to a temporary folder. Target: 8 million tokens a second
at rows of 512, where a step on one chip needs less than a tenth of that.
"""

import argparse
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from mlm_jax import data, records
from mlm_jax.config import Config


def write_shards(folder: Path, row_length: int, rows: int, shards: int = 8) -> dict:
    """Full rows of four segments in `shards` files, and their manifest."""
    layout = records.Layout(row_length, 32, "uint16")
    rng = np.random.default_rng(0)
    firsts = np.arange(0, row_length, row_length // 4)
    entries = []
    for shard in range(shards):
        tokens = rng.zipf(1.3, (rows // shards, row_length)) % 32000
        flags = rng.integers(0, 2, (rows // shards, row_length))
        content = (records.encode_row(layout, *row, firsts, [-1] * len(firsts), 0) for row in zip(tokens, flags))
        file = f"train-{shard}.arrayrecord"
        entries.append({"file": file, "rows": records.write_shard(folder / file, content), "hash": ""})
    train = {"rows": rows // shards * shards, "tokens": rows // shards * shards * row_length, "shards": entries}
    return {
        "row_length": row_length,
        "max_segments": layout.max_segments,
        "dtype": layout.dtype,
        "tokenizer": {"pad": 0, "vocab_size": 32000},
        "corpora": [{"source": "synthetic", "splits": {"train": train}}],
    }


def rate(batches, tokens_per_batch: int, seconds: float) -> float:
    """Tokens a second over `seconds`, after two batches of warming up."""
    for _ in range(2):
        jax.block_until_ready(next(batches))
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        jax.block_until_ready(next(batches))
        count += 1
    elapsed = time.perf_counter() - start
    batches.close()
    return count * tokens_per_batch / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row_length", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--rows", type=int, default=32768)
    parser.add_argument("--seconds", type=float, default=10)
    args = parser.parse_args()
    config = Config(batch_size=args.batch_size, accumulation=args.accumulation, row_length=args.row_length)
    mesh = jax.make_mesh((jax.device_count(),), ("data",), (jax.sharding.AxisType.Auto,))
    sharding = NamedSharding(mesh, P(None, "data"))
    tokens = args.batch_size * args.row_length
    with tempfile.TemporaryDirectory() as folder:
        manifest = write_shards(Path(folder), args.row_length, args.rows)
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        print(f"{args.rows:,} rows of {args.row_length} tokens, {size / 1e6:.1f} MB; {data.THREADS} reading thread(s)")
        host = rate(data.host_batches(folder, manifest, config), tokens, args.seconds)
        print(f"numpy batches:  {host / 1e6:.2f} M tokens/s")
        device = rate(data.train_batches(folder, manifest, config, 0, sharding), tokens, args.seconds)
        print(f"device batches: {device / 1e6:.2f} M tokens/s ({jax.device_count()} x {jax.devices()[0].device_kind})")


if __name__ == "__main__":
    main()
