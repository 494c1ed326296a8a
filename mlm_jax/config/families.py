"""Families of encoders: the switches of a model that a family presets, and what they must not contradict."""

import dataclasses

from mlm_jax.config.schema import ConfigError, ModelConfig

# What a key of ModelConfig that is None means. BERT: Devlin et al., 2019; RoBERTa: Liu et al., 2019; ELECTRA: Clark et
# al., 2020, section 3.1: as BERT; ModernBERT: Warner et al., 2024, section 2.1.
PRESETS: dict[str, dict[str, object]] = {
    "bert": {
        "norm": "post",
        "positions": "learned",
        "padding_id": -1,
        "types": 2,
        "ffn": "gelu",
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "biases": True,
        "local_window": 0,
        "global_every": 3,
        "rotary_base": 10_000.0,
        "rotary_local_base": 10_000.0,
    },
    "modernbert": {
        "norm": "pre",
        "positions": "rotary",
        "padding_id": -1,
        "types": 0,
        "ffn": "geglu",
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "biases": False,
        "local_window": 128,
        "global_every": 3,
        "rotary_base": 160_000.0,
        "rotary_local_base": 10_000.0,
    },
}
PRESETS["roberta"] = PRESETS["bert"] | {"padding_id": 1, "types": 1}
PRESETS["electra"] = PRESETS["bert"]

CHOICES = {"norm": ("post", "pre"), "positions": ("learned", "rotary"), "ffn": ("gelu", "geglu")}


def resolve(model: ModelConfig) -> ModelConfig:
    """The config with every switch that is None set as its family has it, and `embedding_width`."""
    preset = PRESETS[model.family] | {"embedding_width": model.width}
    return dataclasses.replace(model, **{k: v for k, v in preset.items() if getattr(model, k) is None})


def positions(model: ModelConfig) -> int:
    """Tokens of the longest segment that the model has positions for."""
    return model.max_positions - (resolve(model).padding_id + 1)


def is_local(model: ModelConfig, depth: int) -> bool:
    """Whether the layer at `depth`, from 0, attends within a window only; of a resolved config."""
    return model.local_window > 0 and depth % model.global_every != 0


def check_switches(given: ModelConfig) -> None:
    """Raises ConfigError for a switch out of range, and for one whose effect another one rules out."""
    model = resolve(given)

    def wrong(key: str, fix: str) -> ConfigError:
        return ConfigError(f"config.model.{key}", getattr(model, key), fix)

    for key, choices in CHOICES.items():
        if getattr(model, key) not in choices:
            raise wrong(key, f"must be one of {', '.join(choices)}, or None: as config.model.family has it")
    for key, least in (("types", 0), ("padding_id", -1), ("local_window", 0), ("global_every", 1)):
        if getattr(model, key) < least:
            raise wrong(key, f"must be at least {least}")
    for key in ("rotary_base", "rotary_local_base"):
        if not 1 < getattr(model, key) < float("inf"):
            raise wrong(key, "must be greater than 1")
        if getattr(given, key) is not None and model.positions != "rotary":
            raise wrong(key, f"has no place in config.model.positions = {model.positions!r}; leave it out")
    if model.positions == "rotary" and model.padding_id >= 0:
        raise wrong("padding_id", "shifts a table of positions, and config.model.positions = 'rotary' has none: set -1")
    if model.positions == "rotary" and model.width // model.heads % 2:
        size = model.width // model.heads
        raise wrong("heads", f"rotary positions turn pairs of values, and width / heads = {size} is odd")
    _check_window(given, model)


def _check_window(given: ModelConfig, model: ModelConfig) -> None:
    if model.local_window % 2:
        fix = f"must be even, half of it on either side: {model.local_window - 1} or {model.local_window + 1}"
        raise ConfigError("config.model.local_window", model.local_window, fix)
    if model.local_window and model.global_every == 1:
        fix = (
            "makes every layer global: set config.model.local_window = 0, or let every second layer or fewer be global"
        )
        raise ConfigError("config.model.global_every", 1, fix)
    for key in ("global_every", "rotary_local_base"):
        if getattr(given, key) is not None and not model.local_window:
            fix = "is of local layers, and config.model.local_window = 0 makes none; leave it out"
            raise ConfigError(f"config.model.{key}", getattr(given, key), fix)
