"""Random access to the rows of a split, and batches of those that are asked for."""

from pathlib import Path

import numpy as np
from jaxtyping import Int

from mlm_jax import records
from mlm_jax.batch import Batch
from mlm_jax.config import ConfigError
from mlm_jax.data.streams import MOST_ROWS

# What a reader fetches at once should be no more than a record or two.
READER_OPTIONS, READER_BUFFER_BYTES = "readahead_buffer_size:0", 4096


class Shards:
    """Random access to the rows of one split, the corpora one after another in the order of the manifest."""

    def __init__(self, folder: str | Path, manifest: dict, split: str, first_row: int = 0):
        """Opens every shard. Raises ConfigError where one is missing, broken, or holds another number of rows.

        first_row: what rows are numbered from.
        """
        self.first_row = first_row
        self.layout = records.layout_of(manifest)
        pad = manifest["tokenizer"]["pad"]
        self.padding = records.encode_row(self.layout, [], [], [], [], pad)
        shards = [corpus["splits"][split] for corpus in manifest["corpora"]]
        self.rows = [corpus["rows"] for corpus in shards]
        self.files = [(Path(folder) / shard["file"], shard["rows"]) for corpus in shards for shard in corpus["shards"]]
        for source, corpus in zip(manifest["corpora"], shards):
            found = sum(shard["rows"] for shard in corpus["shards"])
            if found != corpus["rows"]:
                fix = f"{source['source']} has {corpus['rows']} rows, its shards {found}; run prepare again"
                raise ConfigError("config.data.rows", str(folder), fix)
        if sum(self.rows) > MOST_ROWS:
            raise ConfigError("config.data.rows", str(folder), f"row numbers go up to {MOST_ROWS}")
        self.readers = [_open(path, rows) for path, rows in self.files]
        self.ends = np.cumsum([rows for _, rows in self.files], dtype=np.int64)

    def read(self, numbers: Int[np.ndarray, " n"]) -> list[bytes]:
        """The records of these rows, in this order; row -1 is all padding. Raises ValueError for a damaged record."""
        found = [self.padding] * len(numbers)
        rows = np.where(numbers < 0, -1, numbers - self.first_row)
        shard_of = np.where(rows < 0, -1, np.searchsorted(self.ends, rows, side="right"))
        for shard in np.unique(shard_of[rows >= 0]):
            places = np.flatnonzero(shard_of == shard)
            path, count = self.files[shard]
            try:
                rows_read = self.readers[shard].read((rows[places] - (self.ends[shard] - count)).tolist())
            except RuntimeError as error:
                raise ValueError(f"{path}: {error}") from error
            for place, record in zip(places.tolist(), rows_read):
                found[place] = record
        return found

    def batch(self, numbers: Int[np.ndarray, "*b 2"]) -> Batch:
        """A numpy batch from (row, visit) pairs of any leading shape."""
        rows, visits = numbers[..., 0], numbers[..., 1]
        arrays = records.decode_rows(self.layout, self.read(rows.reshape(-1)))
        return Batch(
            **{name: array.reshape(*rows.shape, *array.shape[1:]) for name, array in arrays.items()},
            row=rows.astype(np.int32),
            visit=visits.astype(np.int32),
            weight=(rows >= 0).astype(np.float32),
        )


def _open(path: Path, rows: int) -> object:
    from array_record.python.array_record_module import ArrayRecordReader

    if not path.is_file():
        raise ConfigError("config.data.rows", str(path), "this shard of the manifest is missing; run prepare again")
    reader = ArrayRecordReader(str(path), options=READER_OPTIONS, file_reader_buffer_size=READER_BUFFER_BYTES)
    if not reader.ok():  # it does not raise, and says that it has no rows
        raise ConfigError("config.data.rows", str(path), "this shard is damaged; run prepare again")
    if reader.num_records() != rows:
        fix = f"holds {reader.num_records()} rows, the manifest says {rows}; run prepare again"
        raise ConfigError("config.data.rows", str(path), fix)
    return reader
