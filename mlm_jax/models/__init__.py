"""Encoders as pairs of pure functions: `build(config, vocab_size)` -> `Model(init, apply, ...)`."""

import functools

from mlm_jax.config import ModelConfig, ObjectivesConfig, Task, filler, fills_masks, generator_of, is_local, resolve
from mlm_jax.models import encoder
from mlm_jax.models.block import Layer
from mlm_jax.models.embeddings import Embeddings, Projection
from mlm_jax.models.encoder import Model
from mlm_jax.models.heads import ContrastHead, DiscriminatorHead, MaskedHead, PairHead, TaskHead
from mlm_jax.models.layers import Norm
from mlm_jax.tree import GENERATOR

Maker = functools.partial  # of a part of a model, called with a `Draws`


def build(
    config: ModelConfig, vocab_size: int, objectives: ObjectivesConfig | None = None, task: Task | None = None
) -> Model:
    """The model that a config describes, with the heads that its objectives need; None: a masked language model's.

    vocab_size: ids of the tokenizer, or rows of an imported word table. task: what it is fine-tuned for; it then has
    no other head.
    """
    config, objectives = resolve(config), objectives or ObjectivesConfig()
    if task:
        heads = {"task": functools.partial(TaskHead, config, task)}
        return _assemble(config, vocab_size, functools.partial(Embeddings, config, vocab_size), heads)
    heads = {}
    if fills_masks(objectives):
        heads["head"] = functools.partial(MaskedHead, config, vocab_size)
    if objectives.nsp.weight or objectives.sop.weight:
        heads["pair"] = functools.partial(PairHead, config)
    if objectives.contrastive.weight:
        heads["contrast"] = functools.partial(ContrastHead, config)
    embeddings = functools.partial(Embeddings, config, vocab_size)
    if not objectives.replaced.weight:
        return _assemble(config, vocab_size, embeddings, heads)
    heads["discriminator"] = functools.partial(DiscriminatorHead, config)
    small = generator_of(config, objectives.replaced)
    head = {"head": functools.partial(MaskedHead, small, vocab_size)}
    generator = _assemble(small, vocab_size, embeddings, head, within=GENERATOR)
    model = _assemble(config, vocab_size, embeddings, heads)
    return encoder.with_generator(model, generator, fills=filler(objectives) == "generator")


def _assemble(config: ModelConfig, vocab_size: int, embeddings: Maker, heads: dict[str, Maker], **rest: str) -> Model:
    pre = config.norm == "pre"

    def layer(depth: int) -> Maker:
        # the embeddings' norm stands right before the first layer
        return functools.partial(Layer, config, is_local(config, depth), pre and depth == 0)

    return encoder.assemble(
        config,
        vocab_size,
        embeddings=embeddings,
        projection=functools.partial(Projection, config) if config.embedding_width != config.width else None,
        layer=layer,
        norm=(lambda draw: Norm(config)) if pre else None,
        heads=heads,
        **rest,
    )


__all__ = ["Model", "build"]
