"""`python -m mlm_jax embed --workdir=DIR "a text"`: texts to vectors."""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from absl import flags

from mlm_jax import runtime
from mlm_jax.cli import texts
from mlm_jax.config import ConfigError
from mlm_jax.flags import Arguments, Usage, command
from mlm_jax.prepare.sources.needs import needed

USAGE = """usage: python -m mlm_jax embed --workdir=DIR [--out=FILE.npy|FILE.parquet] "a text" ["another text" ...]
       python -m mlm_jax embed --workdir=DIR [--out=...] --file=FILE

One vector for each text, by the states of the model's last layer: their mean, or with --pooling=cls that of CLS.
Without --out one JSON object a text; FILE.npy holds float32 [texts, width], FILE.parquet the columns text and
embedding. Example:

  python -m mlm_jax embed --workdir=runs/tiny --normalize "Return a list." "A dict is returned."
"""
ROWS = 1024  # of a row group of a Parquet file

Found = tuple[str, np.ndarray]  # a text and its vector f32[d]


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("pooling", "mean", "mean: over a text's tokens; cls: the state of CLS", flag_values=values)
    flags.DEFINE_bool("normalize", False, "vectors of length 1", flag_values=values)
    flags.DEFINE_string("out", None, "a file to write, .npy or .parquet, instead of JSON lines", flag_values=values)
    texts.define(values)


def main(argv: list[str]) -> int:
    return command(run, argv, USAGE, needs_config=False, define=define, words=True)


def run(arguments: Arguments) -> int:
    """Prints the vectors of texts, or writes them. Raises Usage, ConfigError."""
    if not arguments.given("workdir"):
        raise Usage("--workdir=DIR is missing")
    out = Path(arguments.out).expanduser() if arguments.given("out") else None
    if out and out.suffix not in WRITERS:
        raise Usage(f"--out={arguments.out}: must end in {' or '.join(WRITERS)}")
    given, copied = itertools.tee(texts.read(arguments))
    runtime.start()
    from mlm_jax.inference import embeddings, load

    loaded = load(arguments.workdir, arguments.step)
    found = zip(copied, embeddings(loaded, given, arguments.pooling, arguments.normalize))
    if not out:
        for text, vector in found:
            numbers = [float(str(number)) for number in vector]  # no more digits than tell float32 apart
            print(json.dumps({"text": text, "embedding": numbers}, ensure_ascii=False))
        return 0
    count = written(out, found, loaded.model.config.width)
    print(f"{out}: {count:,} vectors of {loaded.model.config.width}")
    return 0


def written(out: Path, found: Iterable[Found], width: int) -> int:
    """Writes a file that has its name only when it is whole; returns of how many vectors. Raises ConfigError."""
    partial = out.with_name(f"{out.name}.partial")
    try:
        count = WRITERS[out.suffix](partial, found, width)
        partial.rename(out)
    except OSError as error:
        raise ConfigError("--out", str(out), f"cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return count


def _npy(path: Path, found: Iterable[Found], width: int) -> int:
    """The header is written again when the number is known; numpy leaves room in it for any."""
    about = {"descr": "<f4", "fortran_order": False}
    count = 0
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, about | {"shape": (0, width)})
        for _, vector in found:
            file.write(vector.astype("<f4").tobytes())
            count += 1
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, about | {"shape": (count, width)})
    return count


def _parquet(path: Path, found: Iterable[Found], width: int) -> int:
    arrow, parquet = (needed(name, str(path), "--out") for name in ("pyarrow", "pyarrow.parquet"))
    schema = arrow.schema([("text", arrow.string()), ("embedding", arrow.list_(arrow.float32(), width))])
    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        for group in _groups(found):
            words, vectors = zip(*group)
            column = arrow.FixedSizeListArray.from_arrays(np.concatenate(vectors), width)
            writer.write_batch(arrow.record_batch([arrow.array(words, arrow.string()), column], schema=schema))
            count += len(group)
    return count


def _groups(found: Iterable[Found]) -> Iterator[list[Found]]:
    found = iter(found)
    while group := list(itertools.islice(found, ROWS)):
        yield group


WRITERS: dict[str, Callable[[Path, Iterable[Found], int], int]] = {".npy": _npy, ".parquet": _parquet}
