"""The generator of replaced token detection, as a config of its own."""

import dataclasses
import math

from mlm_jax.config.families import resolve
from mlm_jax.config.mesh import check_cut
from mlm_jax.config.schema import Config, ConfigError, ModelConfig, ReplacedConfig

SHARE = 4  # how many times as many heads the model has where the config does not say
KEY = "config.objectives.replaced"


def generator_of(model: ModelConfig, replaced: ReplacedConfig) -> ModelConfig:
    """The generator beside a model: like it in all but its sizes, its head tied to the tables that both share."""
    model = resolve(model)
    size = model.width // model.heads
    width = replaced.generator_width or size * max(model.heads // SHARE, 1)
    return dataclasses.replace(
        model,
        layers=replaced.generator_layers or model.layers,
        width=width,
        heads=replaced.generator_heads or max(width // size, 1),
        hidden=replaced.generator_hidden or max(model.hidden * width // model.width, 1),
        tied=True,
    )


def check_generator(config: Config, mesh: dict[str, int]) -> None:
    """Raises ConfigError where a size of the generator is none, or does not divide. mesh: axis -> devices."""
    replaced = config.objectives.replaced
    for name in ("generator_layers", "generator_width", "generator_heads", "generator_hidden"):
        value = getattr(replaced, name)
        if value is not None and not replaced.weight:
            raise ConfigError(f"{KEY}.{name}", value, f"there is no generator without {KEY}.weight; leave it out")
        if value is not None and value < 1:
            raise ConfigError(f"{KEY}.{name}", value, "must be at least 1, or None: by the model's size")
    if not replaced.weight:
        return
    if not 0 < replaced.generator_weight < math.inf:
        raise ConfigError(f"{KEY}.generator_weight", replaced.generator_weight, "must be greater than 0")
    generator = generator_of(config.model, replaced)
    if generator.width % generator.heads:
        heads = replaced.generator_heads or f"None, which makes {generator.heads}"
        raise ConfigError(f"{KEY}.generator_heads", heads, f"must divide the generator's width = {generator.width}")
    if generator.positions == "rotary" and generator.width // generator.heads % 2:
        size = generator.width // generator.heads
        fix = f"rotary positions turn pairs of values, and the generator's width / heads = {size} is odd"
        raise ConfigError(f"{KEY}.generator_heads", generator.heads, fix)
    for name in ("width", "heads", "hidden"):
        check_cut(config, mesh, name, f"{KEY}.generator_{name}", getattr(generator, name))
