"""What the keys of text, from sources to tokenizer, must not contradict."""

import math

from mlm_jax.config.schema import Config, ConfigError, TokenizerConfig

LONGEST_COLLOCATION = 16  # words
SHORTEST_PAIR = 32  # places of a row
LEAST_WITH_BYTES = 16 + 256


def check_data(config: Config) -> None:
    """Raises ConfigError for sources and options of preparation that contradict each other, or the rows."""
    data = config.data
    if not data.sources:
        raise ConfigError("config.data.sources", (), "name at least one source, such as ('builtin:pydoc',)")
    if any(not source.strip() for source in data.sources):
        raise ConfigError("config.data.sources", data.sources, "a source has no name")
    if any(not source.strip() for source in data.contamination):
        raise ConfigError("config.data.contamination", data.contamination, "a file has no name")
    if data.weights and len(data.weights) != len(data.sources):
        fix = f"give one weight for each of the {len(data.sources)} sources, or none"
        raise ConfigError("config.data.weights", data.weights, fix)
    if any(not (weight > 0 and math.isfinite(weight)) for weight in data.weights):
        raise ConfigError("config.data.weights", data.weights, "weights must be positive")
    if data.weights and data.exponent != 1:
        fix = "must be 1 where config.data.weights is set: they give the shares themselves"
        raise ConfigError("config.data.exponent", data.exponent, fix)
    if data.collocation_longest > LONGEST_COLLOCATION:
        fix = f"must be at most {LONGEST_COLLOCATION}"
        raise ConfigError("config.data.collocation_longest", data.collocation_longest, fix)
    if config.evaluate.unit == "phrase" and not data.collocations and not data.rows:
        fix = "needs rows that mark phrases: set config.data.collocations, such as 10_000"
        raise ConfigError("config.evaluate.unit", "phrase", fix)
    levels = [name for name, weight in config.mask.levels if weight] if config.mask.unit == "hierarchical" else []
    if "phrase" in (config.mask.unit, *levels) and not data.collocations and not data.rows:
        fix = "needs rows that mark phrases: set config.data.collocations, such as 10_000"
        raise ConfigError("config.mask.levels" if levels else "config.mask.unit", "phrase", fix)
    if data.pairs != "none" and config.row_length < SHORTEST_PAIR:
        fix = f"must be at least {SHORTEST_PAIR} with config.data.pairs = {data.pairs!r}: two texts share a segment"
        raise ConfigError("config.row_length", config.row_length, fix)
    if config.row_length > 65535:
        raise ConfigError("config.row_length", config.row_length, "must be at most 65535")


def check_tokenizer(tokenizer: TokenizerConfig) -> None:
    """Raises ConfigError for what the kind of tokenizer, or one that is given, rules out."""
    if tokenizer.path:  # a tokenizer is taken as it is
        for key in ("kind", "byte_fallback", "lowercase", "strip_accents"):
            if getattr(tokenizer, key) != getattr(TokenizerConfig(), key):
                fix = (
                    f"is for a tokenizer that is trained; config.tokenizer.path = {tokenizer.path!r} is taken as it is"
                )
                raise ConfigError(f"config.tokenizer.{key}", getattr(tokenizer, key), fix)
    elif tokenizer.terms and tokenizer.kind in ("bpe", "char"):
        fix = f"cannot be added to config.tokenizer.kind = {tokenizer.kind!r}; take unigram or wordpiece"
        raise ConfigError("config.tokenizer.terms", tokenizer.terms, fix)
    if tokenizer.byte_fallback and tokenizer.kind == "wordpiece":
        fix = "WordPiece knows no bytes; config.tokenizer.kind must be unigram, bpe or char"
        raise ConfigError("config.tokenizer.byte_fallback", True, fix)
    if tokenizer.byte_fallback and not tokenizer.path and tokenizer.vocab_size < LEAST_WITH_BYTES:
        fix = f"must be at least {LEAST_WITH_BYTES} with config.tokenizer.byte_fallback: 256 pieces are bytes"
        raise ConfigError("config.tokenizer.vocab_size", tokenizer.vocab_size, fix)
