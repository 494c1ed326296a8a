"""A run that begins with the model of another: its parameters, for the ids of this run's tokenizer."""

import re
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from mlm_jax import convert, tree
from mlm_jax.checkpoint import differences, listed, load_model, newest, split_step
from mlm_jax.config import Config, ConfigError, Task, hub, read_task
from mlm_jax.convert.files import HEADS as HEADS_BESIDE
from mlm_jax.convert.files import read_tensors, weight_files
from mlm_jax.keys import INIT, root
from mlm_jax.models import Model
from mlm_jax.models.encoder import HEADS
from mlm_jax.tokenizer import Tokenizer

KEY = "config.init_from"
PARTS = (*HEADS, tree.GENERATOR)
ROLES = ("pad", "unk", "cls", "sep", "mask")


def params_from(config: Config, model: Model, tokenizer: Tokenizer, say: Callable[[str], None]) -> tree.PyTree:
    """Parameters f32 of `model` on the host, from the model at `init_from`, a hub folder or a workdir.

    Heads that it lacks are drawn by the seed; those that no objective needs are left out. Raises ConfigError, naming
    what differs first, where the two are of different shape.
    """
    source = config.init_from
    path = Path(source).expanduser()
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    old_model, params, old = load_model(path, step_of(path), here)
    params = jax.device_get(params)
    sources = sources_of(old, tokenizer)
    spare = range(tokenizer.size, model.vocab_size)  # rows without a token, as far as neither tokenizer has one there
    sources += [[i] if old.size <= i < old_model.vocab_size else [] for i in spare]
    if sources != [[i] for i in range(old_model.vocab_size)]:
        kept, new = sum(len(ids) == 1 for ids in sources), sources.count([])
        means = len(sources) - kept - new
        text = f"{kept:,} rows of the word table are kept, {means:,} are means of pieces, {new:,} the mean of all"
        say(f"begins with {path}: {text}")
        params = convert.with_rows(params, old_model.vocab_size, sources)
    else:
        say(f"begins with {path}")
    params = with_heads(params, model, config, say)
    check_shapes(params, model, source)
    return params


def with_heads(params: tree.PyTree, model: Model, config: Config, say: Callable[[str], None]) -> tree.PyTree:
    """The parameters with the heads of `model`: those that are there, else drawn; and none besides."""
    wanted = jax.eval_shape(model.init, jax.random.key(0))
    new = [name for name in PARTS if name in wanted and name not in params]
    left = [name for name in PARTS if name in params and name not in wanted]
    if left:
        say(f"  no objective needs its {' and '.join(left)}")
    if not new:
        return {name: part for name, part in params.items() if name not in left}
    say(f"  new: {' and '.join(new)}")
    drawn = jax.device_get(jax.jit(model.init)(root(config.seed, INIT)))
    return {name: params[name] if name in params else drawn[name] for name in wanted}


def with_task(
    params: tree.PyTree, had: Task | None, model: Model, task: Task, seed: int, source: str, say: Callable[[str], None]
) -> tree.PyTree:
    """The parameters of an encoder, of any heads, with the head of a task; all others are left out.

    had: the head that they have at `source`, if it is to be kept. One of the same kind is kept, its labels put in order
    by their names; of another one nothing is. BERT's head for texts begins with the pooler, where there is one: it is
    the dense layer of a pair head, or lies beside the model. The rest is drawn by the seed. Raises ConfigError where
    the labels are not those of the task.
    """
    encoder = {name: part for name, part in params.items() if name not in PARTS}
    if had is not None and had.kind == task.kind:
        say(f"  goes on with its head for {task.kind}")
        order = order_of(had, task, source)
        last = {name: np.asarray(leaf)[..., order] for name, leaf in params["task"]["classifier"].items()}
        return encoder | {"task": params["task"] | {"classifier": last}}
    if left := ["fine-tuned head" if name == "task" else name for name in PARTS if name in params]:
        say(f"  {task.kind} does not need its {' and '.join(left)}")
    drawn = jax.device_get(jax.jit(lambda key: model.init(key)["task"])(root(seed, INIT)))
    pooler = _pooler(params, model, source) if task.of_texts else None
    if pooler:
        drawn = drawn | {"dense": pooler}
    say(f"  new: the head for {task.kind}{', but for the pooler' if pooler else ''}")
    return encoder | {"task": drawn}


def order_of(had: Task, task: Task, source: str) -> np.ndarray:
    """For each output of the task, which output of a head it is: by the label's name, if need be in any case.

    Raises ConfigError where the head at `source` has other labels.
    """
    if not task.labels:
        return np.arange(task.outputs)
    for same in (str, str.casefold):
        names, wanted = list(map(same, had.labels)), list(map(same, task.labels))
        if len(set(names)) == len(names) and sorted(names) == sorted(wanted):
            return np.array([names.index(name) for name in wanted])
    fix = f"{source} has the labels {', '.join(had.labels)}"
    if all(re.fullmatch(r"LABEL_\d+", name) for name in had.labels):
        fix += ", which says nothing of what they mean; put their names into id2label of its config.json"
    else:
        fix += "; name the same ones"
    raise ConfigError("config.task.labels", task.labels, f"{fix}, or begin with a new head: --config.new_head=True")


def _pooler(params: tree.PyTree, model: Model, source: str) -> tree.PyTree | None:
    """The dense layer that BERT has for texts, from the head of pairs or of another task, or beside the model."""
    if model.config.family != "bert":
        return None
    for name in ("pair", "task"):
        if "dense" in params.get(name, {}):
            return params[name]["dense"]
    path, _ = split_step(Path(source).expanduser())
    if hub.is_hub(path):
        return convert.pooler_of(read_tensors(path), model.config)
    beside = read_tensors(path, HEADS_BESIDE) if (path / HEADS_BESIDE).is_file() else {}
    return convert.pooler_of(beside, model.config)


def params_at_start(config: Config, model: Model, tokenizer: Tokenizer) -> tree.PyTree:
    """What a run begins with: drawn by its seed, or the parameters of `init_from`."""
    if config.init_from:
        return params_from(config, model, tokenizer, lambda line: None)
    return jax.jit(model.init)(root(config.seed, INIT))


def step_of(path: Path, key: str = KEY) -> int | None:
    """The checkpoint that all processes take, as process 0 finds it; None for a folder of the hub format.

    Raises ConfigError for `key` where there is none.
    """
    if hub.is_hub(path):
        return None
    found = newest(path) if jax.process_index() == 0 else None
    found = int(multihost_utils.broadcast_one_to_all(np.int32(-1 if found is None else found)))
    if found == -1:
        raise ConfigError(key, str(path), "holds no whole checkpoint")
    return found


def check_source(source: str) -> None:
    """Raises ConfigError where there are no weights to begin with, or only those of a fine-tuned model.

    Called before anything is prepared.
    """
    path = Path(source).expanduser()
    if not hub.is_hub(path):
        step_of(path)
    elif jax.process_index() == 0:
        if task := read_task(path):
            raise ConfigError(KEY, source, f"is fine-tuned for {task.kind}, and has no head that fills masks")
        weight_files(path)


def sources_of(old: Tokenizer, new: Tokenizer) -> list[list[int]]:
    """For each id of a tokenizer, the ids of another that stood for it: the same piece, the same role, or its text's.

    An id whose text the other one does not know has none. Ids are found by what their pieces say, white space before
    them included, so that order and family may differ; rows without a token, such as holes, stay out of it.
    """
    if old.hash == new.hash:
        return [[i] for i in range(new.size)]
    ordinary_before = set(old.ordinary.tolist())
    by_piece = {piece: i for i, piece in enumerate(old.shown) if i in ordinary_before}
    by_name = {piece: i for i, piece in enumerate(old.pieces) if i not in ordinary_before}
    roles = {getattr(new, role): getattr(old, role) for role in ROLES}
    special, ordinary = set(new.special.tolist()), set(new.ordinary.tolist())
    sources = []
    for i, (piece, shown) in enumerate(zip(new.pieces, new.shown)):
        if i in roles:
            sources.append([roles[i]])
        elif i in special or i not in ordinary:
            sources.append([by_name[piece]] if piece in by_name else [])
        elif shown in by_piece:
            sources.append([by_piece[shown]])
        else:
            ids = old.encode_around(["", shown.replace("\u2581", " ")])[1:]  # what follows a MASK
            sources.append([] if old.unk in ids else list(ids))
    return sources


def check_shapes(params: tree.PyTree, model: Model, source: str) -> None:
    """Raises ConfigError, naming paths and both shapes, where parameters are not those of a model."""
    if found := differences(params, jax.eval_shape(model.init, jax.random.key(0))):
        raise ConfigError(KEY, source, listed("holds another model:", found))
