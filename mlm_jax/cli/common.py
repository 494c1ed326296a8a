"""What verbs that look at rows share."""

import functools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlm_jax import config as config_module
from mlm_jax import records, runtime
from mlm_jax.config import Config
from mlm_jax.tokenizer import Tokenizer, Vocabulary

SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}  # as a tokenizer that is trained here has them


class Rows(NamedTuple):
    """Prepared rows that are looked at, those of the first phase, their ids, and the config that they are masked by."""

    config: Config  # of that phase, its lengths in steps
    folder: Path
    manifest: dict
    tokenizer: Tokenizer
    vocabulary: Vocabulary


def open_rows(config: Config, workdir: Path) -> Rows:
    """The rows of a config, prepared if they are missing, which bear the marks that its masks need; starts jax.

    Raises ConfigError.
    """
    folder, manifest = checked_rows(config, workdir)
    runtime.start()
    from mlm_jax.audit import check_rows

    config = config_module.first_phase(config, manifest)
    check_rows(manifest, config.mask)
    tokenizer = Tokenizer.load(folder / "tokenizer")
    return Rows(config, folder, manifest, tokenizer, tokenizer.vocabulary(np.array(manifest["unigrams"])))


def masks_at_start(config: Config, rows: Rows) -> tuple[Callable, dict]:
    """`mask(step, batch [b,t]) -> Masked` as a run of the config makes them at its start, and `feedback.start`."""
    from mlm_jax import feedback
    from mlm_jax.initial import params_at_start
    from mlm_jax.keys import MASK, root
    from mlm_jax.models import build

    model = build(config.model, config.model.vocab_size or rows.vocabulary.size, config.objectives)
    make_params = functools.partial(params_at_start, config, model, rows.tokenizer)
    mask, fed = feedback.make_mask_at_start(model, rows.vocabulary, config, make_params)
    key = root(config.seed, MASK)
    return lambda step, batch: mask(step, key, batch), fed


def reader(config: Config) -> Callable:
    """`read(batch [b,t]) -> batch`: the rows as training reads them, see `order.as_read`."""
    import jax

    from mlm_jax import keys, order

    key = keys.root(config.seed, keys.ORDER)
    return jax.jit(lambda batch: order.as_read(key, batch, config))


def devices_asked(config: Config) -> int:
    """As many devices as the mesh of a config asks for: any machine may look at its rows."""
    return math.prod(max(1, size) for size in (config.mesh.data, config.mesh.fsdp, config.mesh.tensor))


def checked_rows(config: Config, workdir: Path) -> tuple[Path, dict]:
    """The folder of a config's rows, and its manifest; prepared as `train` would prepare them. Raises ConfigError.

    Of a config with phases the rows of the first one.
    Rows of a run with a checkpoint stay as they are, with a warning where the sources or options have changed.
    """
    config_module.check(config, devices=devices_asked(config))
    from mlm_jax.prepare import prepare_or_keep

    has_checkpoint = any((workdir / "checkpoints").glob("*"))
    changed = prepare_or_keep(config, workdir, kept=int(has_checkpoint), streams=1)
    folder = config_module.rows_folder(config, workdir)
    manifest = records.read_manifest(folder)
    for change in changed:
        print(f"mlm_jax: warning: these rows were made before this changed: {change}", file=sys.stderr)
    config_module.check(config, devices=devices_asked(config), manifest=manifest)
    return folder, manifest


def vocabulary_of(config: Config) -> Vocabulary:
    """The ids that the config's tokenizer has, or will have when it is trained."""
    if config.tokenizer.path:
        return Tokenizer.load(config.tokenizer.path).vocabulary()
    size = config.tokenizer.vocab_size
    return Vocabulary(size=size, special=np.arange(5), ordinary=np.arange(5, size), **SPECIAL)
