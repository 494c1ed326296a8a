"""What stands on top of the encoder."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from mlm_jax.config import ModelConfig, Task, round_up
from mlm_jax.kernels.dropout import dropout
from mlm_jax.kernels.vocabulary import Decoding
from mlm_jax.models.layers import VOCAB_MULTIPLE, Draws, Linear, Norm, Table, fold_in, gelu, output_scale

PAIR_LABELS = 2  # follows or in order, random or out of order

# Places of dropout in the head of a task, as its keys count them.
BEFORE_DENSE, BEFORE_CLASSIFIER = range(2)

# Logit of a column that stands for no id. Finite; its probability is exactly zero, and with it every gradient.
ABSENT = -1e30


class MaskedHead(nnx.Module):
    """Dense, GELU, normalisation, then the word table as the decoder, and a bias. BERT (2019), section 3.1.

    Where the config does not tie them, the decoder is a table of its own. The dense layer leads to the width of the
    tables, e.

    ModernBERT's dense layer and normalisation have no bias, and its kernel begins as small as those that write into the
    residual stream, as in the `transformers` library.
    """

    def __init__(self, config: ModelConfig, vocab_size: int, draw: Draws):
        d, e = config.width, config.embedding_width
        self.vocab_size = vocab_size
        self.dense = Linear((d, e), (e,), draw, biased=config.biases, scale=output_scale(config))
        self.norm = Norm(config, e)
        rows = round_up(vocab_size, VOCAB_MULTIPLE)
        if not config.tied:
            self.decoder = Table(rows, e, draw, used=vocab_size)
        self.bias = nnx.Param(jnp.zeros(rows))

    def __call__(self, hidden: Float[Array, "*b d"], word: Float[Array, "v e"]) -> Decoding:
        """What the logits over the rows of the decoder are made of. word: the word table."""
        table = self.decoder.table[...] if hasattr(self, "decoder") else word
        bias = self.bias[...].astype(jnp.float32)
        bias = jnp.where(jnp.arange(bias.size) < self.vocab_size, bias, ABSENT)
        return Decoding(self.norm(gelu(self.dense(hidden))), table, bias)


class PairHead(nnx.Module):
    """Logits of a pair's labels by the state of its CLS: dense, tanh (BERT's pooler), then a linear layer.

    BERT (2019), section 3.1, task #2. Column 0: the second text follows, or both are in order.
    """

    def __init__(self, config: ModelConfig, draw: Draws):
        d = config.width
        self.dense = Linear((d, d), (d,), draw, biased=config.biases)
        self.classifier = Linear((d, PAIR_LABELS), (PAIR_LABELS,), draw)

    def __call__(self, hidden: Float[Array, "*b d"]) -> Float[Array, "*b c"]:
        return self.classifier(jnp.tanh(self.dense(hidden))).astype(jnp.float32)


class DiscriminatorHead(nnx.Module):
    """The logit of a token's having been replaced: dense, GELU, then a linear layer to one number.

    ELECTRA (2020), section 2, equation 2; the dense layer is of its published code.
    """

    def __init__(self, config: ModelConfig, draw: Draws):
        d = config.width
        self.dense = Linear((d, d), (d,), draw, biased=config.biases)
        self.classifier = Linear((d, 1), (1,), draw)

    def __call__(self, hidden: Float[Array, "*b d"]) -> Float[Array, "*b"]:
        return self.classifier(gelu(self.dense(hidden)))[..., 0].astype(jnp.float32)


class ContrastHead(nnx.Module):
    """What segments are compared by: dense, tanh of the state of their CLS. SimCSE (2021), section 6.3."""

    def __init__(self, config: ModelConfig, draw: Draws):
        d = config.width
        self.dense = Linear((d, d), (d,), draw, biased=config.biases)

    def __call__(self, hidden: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        return jnp.tanh(self.dense(hidden))


class TaskHead(nnx.Module):
    """What a fine-tuned model says of a text, by the state of its CLS, or of each token: a linear layer.

    Before it stands what the family has there in the `transformers` library. For texts: dense and tanh (BERT, where it
    is the pooler, and RoBERTa) or GELU (ELECTRA); in ModernBERT dense, GELU and normalisation, for tokens as well.
    Dropout as there: before the linear layer, and in RoBERTa and ELECTRA before the dense layer, too; none for
    questions, but in ModernBERT.

    ModernBERT's dense kernel begins as small as those that write into the residual stream, and its classifier with a
    deviation of 1 / sqrt(d), as in that library.
    """

    def __init__(self, config: ModelConfig, task: Task, draw: Draws):
        d, modern = config.width, config.family == "modernbert"
        self.tanh = config.family in ("bert", "roberta")
        self.rate = config.dropout if modern or task.kind != "questions" else 0.0
        self.rate_before_dense = config.dropout if config.family in ("roberta", "electra") else 0.0
        if modern or task.of_texts:
            self.dense = Linear((d, d), (d,), draw, biased=config.biases, scale=output_scale(config))
        if modern:
            self.norm = Norm(config)
        scale = d**-0.5 / (config.initializer_range or 1.0) if modern else 1.0
        self.classifier = Linear((d, task.outputs), (task.outputs,), draw, scale=scale)

    def __call__(self, hidden: Float[Array, "b q d"], keys: Key[Array, "b"] | None = None) -> Float[Array, "b q c"]:
        """keys: of the dropout of each row; None: no dropout."""
        if hasattr(self, "dense"):
            hidden = self.dense(dropout(fold_in(keys, BEFORE_DENSE), hidden, self.rate_before_dense))
            hidden = jnp.tanh(hidden) if self.tanh else gelu(hidden)
        if hasattr(self, "norm"):
            hidden = self.norm(hidden)
        return self.classifier(dropout(fold_in(keys, BEFORE_CLASSIFIER), hidden, self.rate)).astype(jnp.float32)
