"""A run that begins with the model of another: its parameters, for the ids of this run's tokenizer."""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from mlm_jax import convert, tree
from mlm_jax.checkpoint import load_model
from mlm_jax.config import ConfigError
from mlm_jax.models import Model
from mlm_jax.tokenizer import Tokenizer

KEY = "config.init_from"
ROLES = ("pad", "unk", "cls", "sep", "mask")
MOST_NAMED = 5  # of what differs


def params_from(source: str, model: Model, tokenizer: Tokenizer, say: Callable[[str], None]) -> tree.PyTree:
    """Parameters f32 of `model` on the host, from the model at `source`, a hub folder or a workdir.

    Raises ConfigError, naming what differs first, where the two are of different shape.
    """
    path = Path(source).expanduser()
    old_model, params, old = load_model(path, sharding=jax.sharding.SingleDeviceSharding(jax.local_devices()[0]))
    params = jax.device_get(params)
    sources = sources_of(old, tokenizer)
    spare = range(tokenizer.size, model.vocab_size)  # rows of a larger table without a token
    sources += [[i] if i < old_model.vocab_size else [] for i in spare]
    if sources != [[i] for i in range(old_model.vocab_size)]:
        kept, new = sum(len(ids) == 1 for ids in sources), sources.count([])
        means = len(sources) - kept - new
        text = f"{kept:,} rows of the word table are kept, {means:,} are means of pieces, {new:,} the mean of all"
        say(f"begins with {path}: {text}")
        params = convert.with_rows(params, old_model.vocab_size, sources)
    else:
        say(f"begins with {path}")
    check_shapes(params, model, source)
    return params


def sources_of(old: Tokenizer, new: Tokenizer) -> list[list[int]]:
    """For each id of a tokenizer, the ids of another that stood for it: the same piece, the same role, or its text's.

    An id whose text the other one does not know has none. Ids are found by their pieces, so that their order may
    differ, and rows without a token, such as holes, stay out of it.
    """
    if old.hash == new.hash:
        return [[i] for i in range(new.size)]
    by_piece = {piece: i for i, piece in enumerate(old.pieces)}
    roles = {getattr(new, role): getattr(old, role) for role in ROLES}
    special, ordinary = set(new.special.tolist()), set(new.ordinary.tolist())
    sources = []
    for i, (piece, shown) in enumerate(zip(new.pieces, new.shown)):
        if i in roles:
            sources.append([roles[i]])
        elif piece in by_piece:
            sources.append([by_piece[piece]])
        elif i in special or i not in ordinary:
            sources.append([])
        else:
            ids = old.encode_around(["", shown.replace("\u2581", " ")])[1:]  # what follows a MASK
            sources.append([] if old.unk in ids else list(ids))
    return sources


def check_shapes(params: tree.PyTree, model: Model, source: str) -> None:
    """Raises ConfigError, naming paths and both shapes, where parameters are not those of a model."""
    wanted = {path: leaf.shape for path, leaf in tree.leaves(jax.eval_shape(model.init, jax.random.key(0)))}
    found = {path: np.shape(leaf) for path, leaf in tree.leaves(params)}
    wrong = [path for path in sorted(wanted.keys() | found.keys()) if wanted.get(path) != found.get(path)]
    if wrong:
        named = "; ".join(f"{path} {found.get(path)}, here {wanted.get(path)}" for path in wrong[:MOST_NAMED])
        raise ConfigError(KEY, source, f"holds another model: {named}")
