"""`check`: every derived number and every contradiction of a config, in one place, before any device is touched."""

import dataclasses
import math
import types
import typing
from collections.abc import Sequence

from mlm_jax.config.accumulation import check_batch
from mlm_jax.config.attention import BACKENDS, check_attention
from mlm_jax.config.families import PRESETS, check_switches, positions, resolve
from mlm_jax.config.files import items
from mlm_jax.config.generator import check_generator
from mlm_jax.config.lengths import amount, in_steps, of_share, open_lengths
from mlm_jax.config.mask import capacity, check_mask, round_up
from mlm_jax.config.mesh import check_cut, mesh_shape
from mlm_jax.config.objectives import check_objectives, check_pairs
from mlm_jax.config.optimizer import check_optimizer
from mlm_jax.config.phases import check_phases, check_spans, naming, phase_configs, readings, streams
from mlm_jax.config.schema import Config, ConfigError
from mlm_jax.config.text import check_data, check_tokenizer
from mlm_jax.config.watch import check_watch


@dataclasses.dataclass(frozen=True)
class Derived:
    """Numbers that follow from a config and the machine.

    `vocab_*` and below are None before the rows are known, and the steps where a length waits for them. Those of a
    phase; `steps`, `warmup_steps`, `cooldown_steps`, `epochs` and `tokens` are the whole run's.
    """

    devices: int
    processes: int
    mesh: dict[str, int]  # axis -> devices
    accumulation: int  # microbatches of a step, k
    microbatch: int  # rows of one forward pass over all devices, b
    rows_per_device: int
    tokens_per_step: int  # places, padding included
    capacity: int  # most selected tokens of a row, m
    steps: int | None
    warmup_steps: int | None
    cooldown_steps: int | None  # 0 without schedule=wsd
    vocab_size: int | None = None
    vocab_rows: int | None = None  # rows of the word table inside: vocab_size rounded up to a multiple of 128
    train_rows: int | None = None
    evaluation_rows: int | None = None
    epochs: float | None = None
    tokens: float | None = None  # without padding


def check(
    config: Config, devices: int, processes: int = 1, manifest: dict | None = None, platform: str | None = None
) -> Derived:
    """Derives every number of a run, or raises `ConfigError` at the first contradiction.

    Called before any data is read, and again with the manifest of the prepared rows. platform: cpu, gpu or tpu, None
    where the run may be on another machine: whether it has what `model.attention` names is then not asked. Of phases
    all are checked; the numbers are those of the first, and the manifest is that of its rows.
    """
    return check_each(config, devices, processes, () if manifest is None else (manifest,), platform)[0]


def check_each(
    config: Config, devices: int, processes: int = 1, manifests: Sequence[dict] = (), platform: str | None = None
) -> tuple[Derived, ...]:
    """`check` with the numbers of every phase. manifests: of the streams, as far as they are known."""
    check_types(config, "config")
    _check_ranges(config)
    check_phases(config)
    read = readings(config, manifests) if manifests else None
    config = in_steps(config, read)
    if not config.length:
        check_spans(config)
    found = []
    for number, (stream, one) in enumerate(zip(streams(config), phase_configs(config))):
        with naming(config, number):
            derived = _check_phase(one, devices, processes, platform)
            if stream < len(manifests):
                derived = dataclasses.replace(derived, **_check_manifest(one, manifests[stream]))
        found.append(derived)
    if not read or open_lengths(config):
        return tuple(found)
    lengths = {unit: amount(unit, config, read) for unit in ("epochs", "tokens")}
    return tuple(dataclasses.replace(derived, **lengths) for derived in found)


def _check_phase(config: Config, devices: int, processes: int, platform: str | None) -> Derived:
    """The numbers of a config without phases, as far as they need no rows."""
    _check_ranges(config)
    if not open_lengths(config):
        check_optimizer(config)
    check_mask(config.mask, config.model.layers)
    check_data(config)
    check_tokenizer(config.tokenizer)
    check_watch(config)
    if config.branch_from and config.init_from:
        fix = "a run begins with a whole state or with parameters alone; leave one of both out: config.init_from is set"
        raise ConfigError("config.branch_from", config.branch_from, fix)
    mesh = mesh_shape(config, devices)
    _check_model(config, mesh)
    check_attention(config, platform)
    accumulation = check_batch(config, mesh)
    microbatch = config.batch_size // accumulation
    check_objectives(config, microbatch)
    check_generator(config, mesh)
    steps, optimizer = None if config.length else config.steps, config.optimizer
    known = steps is not None
    falls = optimizer.schedule == "wsd"
    return Derived(
        devices=devices,
        processes=processes,
        mesh=mesh,
        accumulation=accumulation,
        microbatch=microbatch,
        rows_per_device=microbatch // (mesh["data"] * mesh["fsdp"]),
        tokens_per_step=config.batch_size * config.row_length,
        capacity=capacity(config.mask, config.row_length, config.data.max_segments),
        steps=steps,
        warmup_steps=of_share(optimizer.warmup, steps) if known and not optimizer.warmup_length else None,
        cooldown_steps=of_share(optimizer.cooldown * falls, steps) if known and not optimizer.cooldown_length else None,
    )


def check_types(value: object, key: str) -> None:
    """Every field has the type that its annotation says; tuples are checked element by element."""
    hints = typing.get_type_hints(type(value))
    for field in dataclasses.fields(value):
        name, hint, given = f"{key}.{field.name}", hints[field.name], getattr(value, field.name)
        if dataclasses.is_dataclass(hint):
            if not isinstance(given, hint):
                raise ConfigError(name, given, f"must be a {hint.__name__}")
            check_types(given, name)
        elif kind := items(hint):
            if not _is(given, hint):
                fix = f"must be a tuple of {kind.__name__}, which only the config file can hold"
                raise ConfigError(name, given, f"{fix}; the command line changes single values ({name}[0].begin=0)")
            for i, item in enumerate(given):
                check_types(item, f"{name}[{i}]")
        elif not _is(given, hint):
            shown = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
            raise ConfigError(name, given, f"must be of type {shown.replace('typing.', '')}")


def _is(value: object, hint: object) -> bool:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_is(value, arg) for arg in args)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if args[-1] is Ellipsis:
            return all(_is(item, args[0]) for item in value)
        return len(value) == len(args) and all(map(_is, value, args))
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


UNITS = ("token", "word", "span", "ngram", "phrase", "sentence", "paragraph", "hierarchical")
CHOICES = {
    "data.pairs": ("none", "next", "order"),
    "data.duplicates": ("keep", "exact", "near"),
    "data.contamination_action": ("drop", "report"),
    "data.segmenter": ("none", "icu"),
    "tokenizer.kind": ("unigram", "bpe", "char", "wordpiece"),
    "mask.schedule": ("constant", "linear", "cosine", "step", "parts", "loss", "adaptive"),
    "mask.unit": UNITS,
    "mask.priority": ("uniform", "frequency", "importance"),
    "mask.importance": ("surprisal", "hidden", "attention"),
    "mask.regime": ("dynamic", "static", "multi-version"),
    "mask.corruption_per": ("token", "unit"),
    "mask.random_ids": ("uniform", "unigram"),
    "evaluate.unit": (*UNITS, None),
    "evaluate.priority": ("uniform", "frequency", None),
    "model.family": tuple(PRESETS),
    "model.dtype": ("auto", "float32", "bfloat16"),
    "model.attention": BACKENDS,
    "model.remat": ("none", "dots", "layer"),
    "objectives.contrastive.view": ("mask", "dropout"),
    "optimizer.name": ("adamw", "stable_adamw", "lamb", "muon"),
    "optimizer.bad_gradients": ("stop", "skip"),
    "watch.action": ("warn", "rewind"),
    "optimizer.schedule": ("linear", "cosine", "polynomial", "inverse_sqrt", "wsd", "step", "parts", "constant"),
}
AT_LEAST = {
    "seed": 0,
    "steps": 1,
    "batch_size": 1,
    "accumulation": 1,
    "rows_per_device": 0,
    "row_length": 8,
    "data.pack_groups": 1,
    "data.max_segments": 1,
    "data.collocations": 0,
    "data.collocation_longest": 2,
    "data.collocation_count": 1,
    "data.collocation_tokens": 1000,
    "data.filter.min_characters": 0,
    "data.filter.min_words": 0,
    "data.filter.max_word_characters": 0,
    "data.filter.max_symbols": 0.0,
    "data.duplicate_similarity": 0.5,
    "data.contamination_words": 1,
    "data.workers": 0,
    "tokenizer.vocab_size": 16,
    "tokenizer.sample_bytes": 1000,
    "mask.stairs": 1,
    "mask.span_cap": 1,
    "mask.ngram_max": 1,
    "mask.frequency_power": 0.0,
    "mask.versions": 1,
    "mask.min_per_segment": 0,
    "model.layers": 1,
    "model.width": 1,
    "model.heads": 1,
    "model.hidden": 1,
    "model.max_positions": 1,
    "model.initializer_range": 0.0,
    "model.logits_mib": 0,
    "model.unroll": 1,
    **{f"objectives.{name}.weight": 0 for name in ("mlm", "nsp", "sop", "contrastive", "replaced", "causal")},
    "optimizer.learning_rate": 0.0,
    "optimizer.step_every": 1,
    "optimizer.weight_decay": 0.0,
    "optimizer.clip_norm": 0.0,
    "optimizer.exploding": 0.0,
    "optimizer.most_skipped": 1,
    "checkpoint.every_steps": 1,
    "checkpoint.keep": 1,
    "evaluate.every_steps": 1,
    "evaluate.rows": 0,
    "evaluate.seed": 0,
    "audit.every_steps": 1,
    "watch.spike": 0.0,
    "watch.window": 8,
    "watch.spike_steps": 1,
    "watch.skip_steps": 1,
    "watch.most_rewinds": 1,
    "watch.stuck_seconds": 0.0,
}
POSITIVE = (
    "mask.reference_parameters",
    "mask.reference_entropy",
    "mask.surprisal_memory",
    "mask.temperature",
    "model.norm_epsilon",
    "objectives.contrastive.temperature",
    "optimizer.epsilon",
    "optimizer.power",
)
SHARES = {  # key -> is 1 allowed?
    "data.exponent": True,
    "data.holdout": False,
    "data.filter.min_letters": True,
    "data.filter.max_repeated_lines": True,
    "data.filter.max_repeated_text": True,
    "data.filter.max_repeated_ngrams": True,
    "data.duplicate_similarity": True,
    "mask.rate": True,
    "mask.max_rate": True,
    "mask.end_rate": True,
    "mask.random_end": True,
    "mask.span_p": False,
    "evaluate.rate": True,
    "model.dropout": False,
    "model.attention_dropout": False,
    "objectives.causal.ratio": True,
    "optimizer.warmup": False,
    "optimizer.b1": False,
    "optimizer.b2": False,
    "optimizer.step_factor": True,
    "optimizer.end": True,
    "optimizer.cooldown": True,
    "optimizer.muon_momentum": False,
    "optimizer.layer_decay": True,
    "optimizer.ema": False,
}


def get(config: Config, key: str) -> object:
    """The field at a dotted key such as `mask.rate`."""
    value = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _check_ranges(config: Config) -> None:
    for key, choices in CHOICES.items():
        if get(config, key) not in choices:
            raise ConfigError(f"config.{key}", get(config, key), f"must be one of {', '.join(filter(None, choices))}")
    for key, least in AT_LEAST.items():
        if not (get(config, key) >= least and math.isfinite(get(config, key))):
            raise ConfigError(f"config.{key}", get(config, key), f"must be at least {least}")
    for key in POSITIVE:
        if not 0 < get(config, key) < math.inf:
            raise ConfigError(f"config.{key}", get(config, key), "must be greater than 0")
    for key in ("seed", "evaluate.seed"):
        if get(config, key) >= 1 << 32:
            raise ConfigError(f"config.{key}", get(config, key), "must be less than 2**32")
    for key, one_allowed in SHARES.items():
        value = get(config, key)
        if value is not None and not (0 <= value < 1 or (one_allowed and value == 1)):
            raise ConfigError(f"config.{key}", value, f"must lie in [0, 1{']' if one_allowed else ')'}")


def _check_model(config: Config, mesh: dict[str, int]) -> None:
    model = config.model
    if model.vocab_size is not None and model.vocab_size < 1:
        raise ConfigError("config.model.vocab_size", model.vocab_size, "must be at least 1")
    if model.width % model.heads:
        raise ConfigError("config.model.heads", model.heads, f"must divide config.model.width = {model.width}")
    _check_embedding_width(config, mesh)
    check_switches(model)
    before = model.max_positions - positions(model)  # rows of the position table that stand before the first position
    if positions(model) < config.row_length:
        fix = f"must be at least config.row_length = {config.row_length}"
        if before:
            fix += f" + config.model.padding_id + 1 = {config.row_length + before}: positions begin at {before}"
        raise ConfigError("config.model.max_positions", model.max_positions, fix)
    for key in ("width", "heads", "hidden"):
        check_cut(config, mesh, key, f"config.model.{key}", getattr(model, key))
    axis = dict(config.mesh.rules).get("vocab")
    if axis and 128 % mesh[axis]:
        raise ConfigError(f"config.mesh.{axis}", mesh[axis], "must divide 128, by which the vocabulary is padded")


def _check_embedding_width(config: Config, mesh: dict[str, int]) -> None:
    key, width = "config.model.embedding_width", config.model.embedding_width
    if width is None:
        return
    if width < 1:
        raise ConfigError(key, width, "must be at least 1, or None: config.model.width")
    check_cut(config, mesh, "width", key, width)


def _check_manifest(config: Config, manifest: dict) -> dict[str, object]:
    tokenizer = manifest["tokenizer"]
    size = tokenizer["vocab_size"]
    if manifest["row_length"] != config.row_length:
        raise ConfigError("config.row_length", config.row_length, f"the rows are {manifest['row_length']} tokens long")
    pairs, found = config.data.pairs, manifest.get("pairs", "none")
    if pairs not in ("none", found):
        raise ConfigError("config.data.pairs", pairs, f"the rows were prepared with {found!r}; prepare others")
    check_pairs(config, found)
    if config.model.vocab_size is not None and size > config.model.vocab_size:
        raise ConfigError("config.model.vocab_size", config.model.vocab_size, f"the tokenizer has {size} ids")
    for name in ("pad", "cls", "sep", "mask"):
        if not 0 <= tokenizer.get(name, -1) < size:
            raise ConfigError("config.tokenizer.path", config.tokenizer.path, f"the tokenizer has no [{name.upper()}]")
    for name in ("unk", "pad"):
        if tokenizer["mask"] == tokenizer[name]:
            raise ConfigError("config.tokenizer.path", config.tokenizer.path, f"[MASK] has the id of [{name.upper()}]")
    padding_id = resolve(config.model).padding_id
    if padding_id not in (-1, tokenizer["pad"]):
        fix = f"[PAD] of the tokenizer has the id {tokenizer['pad']}: "
        fix += "begin with a model that agrees, or use its tokenizer" if config.init_from else "set it to that"
        raise ConfigError("config.model.padding_id", padding_id, fix)
    weights = config.data.weights
    if weights and len(weights) != len(manifest["corpora"]):
        fix = f"the rows hold {len(manifest['corpora'])} corpora; give one weight for each, or none"
        raise ConfigError("config.data.weights", weights, fix)
    train = sum(corpus["splits"]["train"]["rows"] for corpus in manifest["corpora"])
    held_out = sum(corpus["splits"]["eval"]["rows"] for corpus in manifest["corpora"])
    for corpus in manifest["corpora"]:
        if not corpus["splits"]["train"]["rows"]:
            raise ConfigError("config.data.sources", corpus["source"], "holds no text to train on")
    if config.mask.schedule == "loss" and not held_out:
        fix = "there is no held-out row whose loss the rate could follow; set config.data.holdout"
        raise ConfigError("config.mask.schedule", "loss", fix)
    vocab_size = config.model.vocab_size or size
    return {
        "vocab_size": vocab_size,
        "vocab_rows": round_up(vocab_size, 128),
        "train_rows": train,
        "evaluation_rows": held_out,
    }
