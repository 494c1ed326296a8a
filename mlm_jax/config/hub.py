"""What the `config.json` of a model in the hub format says, as a config of this package, and back."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from mlm_jax.config.families import resolve
from mlm_jax.config.schema import ConfigError, ModelConfig

CONFIG = "config.json"

Values = dict[str, object]


def is_hub(folder: str | Path) -> bool:
    """Whether a folder holds a model of the hub format: its `config.json` names a `model_type`."""
    try:
        return "model_type" in json.loads((Path(folder) / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def read_config(folder: str | Path) -> tuple[ModelConfig, int]:
    """The model's config and its number of ids. Raises ConfigError for what this package has no model for."""
    path = Path(folder) / CONFIG
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError("path", str(path), f"cannot be read: {error}") from None
    family = values.get("model_type")
    if family not in FIELDS:
        raise ConfigError("model_type", family, f"{path}: models of {', '.join(FIELDS)} can be read")
    for key, wanted in FIXED[family].items():
        if values.get(key, wanted) != wanted:
            raise ConfigError(key, values[key], f"{path}: this package has models with {wanted!r} only")
    fields = {ours: values.get(theirs, default) for ours, (theirs, default) in FIELDS[family].items()}
    fields |= OTHERS[family](values, path) if family in OTHERS else {}
    vocab_size = fields.pop("vocab_size")
    return ModelConfig(family=family, **fields), vocab_size


def config_values(
    config: ModelConfig, vocab_size: int, ids: Mapping[str, int], architecture: str | None = None
) -> Values:
    """What `config.json` says of a model. ids: those of pad, cls and sep by name. Raises ConfigError.

    architecture: the class that `transformers` has for it, None for the family's masked language model.
    """
    family, model = config.family, resolve(config)
    if family == "roberta" and model.padding_id < 0:
        raise ConfigError("config.model.padding_id", -1, "the hub's format of 'roberta' begins positions after padding")
    if family != "modernbert" and not model.types:
        raise ConfigError("config.model.types", 0, f"the hub's format of {family!r} has a table of token types")
    ours = {name: getattr(model, name) for name in FIELDS[family] if name != "vocab_size"} | {"vocab_size": vocab_size}
    values: Values = {"architectures": [architecture or ARCHITECTURES[family]], "model_type": family}
    values |= {theirs: ours[name] for name, (theirs, _) in FIELDS[family].items()}
    values |= FIXED[family] | {"dtype": "float32"}
    values |= {f"{name}_token_id": ids[role] for name, role in TOKENS[family].items()}
    return values | (WRITTEN[family](model) if family in WRITTEN else {})


def architecture_of(family: str, parts: Collection[str]) -> str:
    """The class that `transformers` has for a model with these parts of the parameters, such as `head` and `pair`."""
    if "discriminator" in parts:
        return DISCRIMINATOR
    if family == "bert" and "pair" in parts:
        return PRETRAINING if "head" in parts else NEXT_SENTENCE
    return ARCHITECTURES[family]


def write_config(folder: str | Path, values: Values) -> None:
    (Path(folder) / CONFIG).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


# ---- what a family's config.json says ----

ARCHITECTURES = {
    "bert": "BertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
    "electra": "ElectraForMaskedLM",
    "modernbert": "ModernBertForMaskedLM",
}
DISCRIMINATOR = "ElectraForPreTraining"
PRETRAINING, NEXT_SENTENCE = "BertForPreTraining", "BertForNextSentencePrediction"
BERT = {  # our key -> theirs, and what it is where the file does not say
    "vocab_size": ("vocab_size", 30522),
    "layers": ("num_hidden_layers", 12),
    "width": ("hidden_size", 768),
    "heads": ("num_attention_heads", 12),
    "hidden": ("intermediate_size", 3072),
    "max_positions": ("max_position_embeddings", 512),
    "types": ("type_vocab_size", 2),
    "norm_epsilon": ("layer_norm_eps", 1e-12),
    "tied": ("tie_word_embeddings", True),
    "initializer_range": ("initializer_range", 0.02),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
}
FIELDS: dict[str, dict[str, tuple[str, object]]] = {
    "bert": BERT,
    "roberta": BERT | {"vocab_size": ("vocab_size", 50265), "padding_id": ("pad_token_id", 1)},
    "electra": BERT
    | {
        "width": ("hidden_size", 256),
        "embedding_width": ("embedding_size", 128),
        "heads": ("num_attention_heads", 4),
        "hidden": ("intermediate_size", 1024),
    },
    "modernbert": {
        "vocab_size": ("vocab_size", 50368),
        "layers": ("num_hidden_layers", 22),
        "width": ("hidden_size", 768),
        "heads": ("num_attention_heads", 12),
        "hidden": ("intermediate_size", 1152),
        "max_positions": ("max_position_embeddings", 8192),
        "local_window": ("local_attention", 128),
        "norm_epsilon": ("norm_eps", 1e-5),
        "tied": ("tie_word_embeddings", True),
        "initializer_range": ("initializer_range", 0.02),
        "dropout": ("mlp_dropout", 0.0),
        "attention_dropout": ("attention_dropout", 0.0),
    },
}
PLAIN = {"hidden_act": "gelu", "is_decoder": False, "add_cross_attention": False}
FIXED: dict[str, Values] = {
    "bert": PLAIN | {"position_embedding_type": "absolute"},
    "roberta": PLAIN | {"position_embedding_type": "absolute"},
    "electra": PLAIN | {"position_embedding_type": "absolute"},
    "modernbert": {"hidden_activation": "gelu", "classifier_activation": "gelu", "decoder_bias": True},
}
# their name of a special token -> ours; RoBERTa's padding is a field of its own
TOKENS = {
    "bert": {"pad": "pad"},
    "roberta": {"bos": "cls", "eos": "sep"},
    "electra": {"pad": "pad"},
    "modernbert": {"pad": "pad", "bos": "cls", "cls": "cls", "eos": "sep", "sep": "sep"},
}
GLOBAL, LOCAL = "full_attention", "sliding_attention"
BIASES = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")  # the last: of the head's dense layer
BASES = {"rotary_base": (GLOBAL, "global_rope_theta", 160_000.0), "rotary_local_base": (LOCAL, "local_rope_theta", 1e4)}


def _modernbert(values: Values, path: Path) -> Values:
    """The fields of which one is told by several of theirs, in the old or the new way to write them."""
    biases = {values.get(key, False) for key in BIASES}
    if len(biases) > 1:
        raise ConfigError("norm_bias", values.get("norm_bias", False), f"{path}: must be equal to {BIASES[1:]}")
    if values.get("embedding_dropout", 0.0) != values.get("mlp_dropout", 0.0):
        raise ConfigError("embedding_dropout", values.get("embedding_dropout", 0.0), f"{path}: must equal mlp_dropout")
    layers = values.get("num_hidden_layers", 22)
    kinds = values.get("layer_types")
    every = values.get("global_attn_every_n_layers", 3)
    if kinds is not None and LOCAL not in kinds:
        every = 1
    elif kinds is not None:
        # the second global layer, after the first one that is layer 0
        every = next((i for i, kind in enumerate(kinds) if i and kind == GLOBAL), max(layers, 2))
        if list(kinds) != _layer_types(layers, every):
            raise ConfigError("layer_types", kinds, f"{path}: {GLOBAL} must be layers 0, n, 2 n and so on")
    found: Values = {"biases": biases.pop()}
    found |= {"local_window": 0} if every == 1 else {"global_every": every}
    ropes = values.get("rope_parameters") or {}
    for ours, (kind, theirs, default) in BASES.items():
        if kind == LOCAL and every == 1:
            continue
        rope = ropes.get(kind) or {}
        if rope.get("rope_type", "default") != "default":
            raise ConfigError("rope_type", rope["rope_type"], f"{path}: must be 'default'")
        found[ours] = float(rope.get("rope_theta", values.get(theirs) or default))
    return found


def _layer_types(layers: int, every: int) -> list[str]:
    return [LOCAL if depth % every else GLOBAL for depth in range(layers)]


def _modernbert_written(model: ModelConfig) -> Values:
    bases = {theirs: getattr(model, ours) for ours, (_, theirs, _) in BASES.items()}
    ropes = {kind: {"rope_type": "default", "rope_theta": getattr(model, ours)} for ours, (kind, _, _) in BASES.items()}
    every = model.global_every if model.local_window else 1
    return {
        **dict.fromkeys(BIASES, model.biases),
        "local_attention": model.local_window or 128,  # of no layer, but it must be a window
        "embedding_dropout": model.dropout,
        "global_attn_every_n_layers": every,
        "layer_types": _layer_types(model.layers, every),
        **bases,
        "rope_parameters": ropes,
    }


OTHERS = {"modernbert": _modernbert}
WRITTEN = {"modernbert": _modernbert_written}
