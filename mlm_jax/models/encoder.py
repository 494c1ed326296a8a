"""From modules to pure functions: parameters as nested dicts, layers stacked and scanned."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from mlm_jax import sharding
from mlm_jax.batch import Batch, Encoded
from mlm_jax.config import ModelConfig
from mlm_jax.models.layers import Draws, compute_dtype, fold_in

Params = dict[str, object]
WANTED = ("hidden", "attention", "attention_received")


class Model(NamedTuple):
    """An encoder as pure functions over a nested dict of float32 arrays.

    The dict holds `embeddings`, the layers, and `head`. `last` is the final layer; `body` the layers before it, stacked
    along a leading axis of l - 1; `first` is empty. `body` is empty where there is one layer.
    """

    init: Callable[..., Params]  # init(key) -> params
    apply: Callable[..., Encoded]  # apply(params, batch, *, at, row_keys, want, upto) -> Encoded; the last are optional
    logits: Callable[..., Array]  # logits(params, hidden [*b,d]) -> f32[*b,v], v: vocab_size rounded up to 128
    config: ModelConfig
    vocab_size: int


def assemble(
    config: ModelConfig,
    vocab_size: int,
    *,
    embeddings: Callable[[Draws], nnx.Module],
    layer: Callable[[Draws], nnx.Module],
    head: Callable[[Draws], nnx.Module],
) -> Model:
    """A model from the makers of its parts, each called with a `Draws`.

    embeddings(tokens, positions, types, keys, dtype) -> x [b,t,d]; layer(x, segments, at, keys) -> x [b,q,d];
    head(hidden, word table) -> logits.
    """
    dtype = compute_dtype(config)
    before = config.layers - 1  # layers before the last
    parts = {"embeddings": _Part(embeddings), "layer": _Part(layer), "head": _Part(head)}

    def init(key: Key[Array, ""]) -> Params:
        """Float32 parameters. A layer's draw depends on its depth alone, not on the number of layers."""

        def draw(name: str, number: Int[Array, ""] | int) -> Params:
            return parts[name].draw(jax.random.fold_in(key, number), config.initializer_range)

        layers = jax.lax.map(lambda depth: draw("layer", 2 + depth), jnp.arange(config.layers))
        return {
            "embeddings": draw("embeddings", 0),
            "first": {},
            "body": {"0": jax.tree.map(lambda leaf: leaf[:before], layers)} if before else {},
            "last": {"0": jax.tree.map(lambda leaf: leaf[before], layers)},
            "head": draw("head", 1),
        }

    def apply(
        params: Params,
        batch: Batch,
        *,
        at: Int[Array, "b q"] | None = None,
        row_keys: Key[Array, "b"] | None = None,
        want: tuple[str, ...] = (),
        upto: int | None = None,
    ) -> Encoded:
        """Hidden states [b,q,d] at the positions `at`, or [b,t,d] at all, in the compute type.

        The last layer is computed at `at` alone. row_keys: one dropout key per row; None: no dropout. upto: how many
        layers to run, from 1; None: all l. want: names of what `out` shall hold as well, where `at` is None:
        `hidden` [l+1,b,t,d], the states after the embeddings and after each layer; `attention` f32[l,b,h,t,t], the
        probabilities before dropout; `attention_received` f32[b,t], what the last of the layers that run gives to each
        token: the sum over the queries of its segment, the mean over heads. It is 1 on average.
        """
        _check_want(want, at)
        count = config.layers if upto is None else upto
        if not 1 <= count <= config.layers:
            raise ValueError(f"upto = {upto}: the model has layers 1 to {config.layers}")

        def run(weights: Params, prefix: str, x: Array, depth: Int[Array, ""] | int, at: Array | None) -> tuple:
            module = nnx.merge(parts["layer"].graph, sharding.at_use(weights, prefix, dtype))
            y = module(x, batch.segments, at, fold_in(row_keys, 1 + depth))
            y = sharding.constrain(y, "batch", None, None)
            out = {"hidden": y} if "hidden" in want else {}
            if "attention" in want:
                out["attention"] = module.attention.probabilities(x, batch.segments)
            return y, out

        # Looked up in float32: the tables' gradient is a sum over all positions.
        module = nnx.merge(parts["embeddings"].graph, sharding.at_use(params["embeddings"], "embeddings", jnp.float32))
        x = module(batch.tokens, batch.positions, batch.types, fold_in(row_keys, 0), dtype)
        x = start = sharding.constrain(x, "batch", None, None)
        outs = []
        weights, prefix, body = params["last"]["0"], "last/0", params["body"].get("0")
        if count < config.layers:  # a slice copies the layers that run: the price of leaving the others out
            weights, prefix = jax.tree.map(lambda leaf: leaf[count - 1], body), "body/0"
            body = jax.tree.map(lambda leaf: leaf[: count - 1], body)
        if count > 1:
            layers = (body, jnp.arange(count - 1))
            x, out = jax.lax.scan(lambda x, xs: run(xs[0], "body/0", x, xs[1], None), x, layers, unroll=config.unroll)
            outs.append(out)
        entered = x
        x, out = run(weights, prefix, x, count - 1, at)
        outs.append({name: value[None] for name, value in out.items()})
        if "hidden" in want:
            outs.insert(0, {"hidden": start[None]})
        stacked = [name for name in want if name != "attention_received"]
        gathered = {name: jnp.concatenate([out[name] for out in outs if name in out]) for name in stacked}
        if "attention_received" in want:
            module = nnx.merge(parts["layer"].graph, sharding.at_use(weights, prefix, dtype))
            gathered["attention_received"] = _received(module.attention.probabilities(entered, batch.segments), batch)
        return Encoded(hidden=x, out=gathered)

    def logits(params: Params, hidden: Float[Array, "*b d"]) -> Float[Array, "*b v"]:
        """Logits f32[*b,v]; columns at and above vocab_size have probability 0."""
        weights = sharding.at_use(params["head"], "head", dtype)
        word = sharding.at_use(params["embeddings"]["word"], "embeddings/word", dtype)
        out = nnx.merge(parts["head"].graph, weights)(hidden, word["table"])
        return sharding.constrain(out, "batch", *(None,) * (out.ndim - 2), "vocab")

    return Model(init, apply, logits, config, vocab_size)


def _received(probabilities: Float[Array, "b h t t"], batch: Batch) -> Float[Array, "b t"]:
    """What each token gets from the queries of its segment. Those of the padding, which see nothing, do not count."""
    asks = (batch.segments > 0).astype(jnp.float32)
    return jnp.einsum("bhqs,bq->bs", probabilities, asks) / probabilities.shape[1] * asks


class _Part:
    """The structure of a module without its parameters, and how to draw them."""

    def __init__(self, make: Callable[[Draws], nnx.Module]):
        counted = Draws()
        self.make = make
        self.graph = nnx.split(nnx.eval_shape(lambda: make(counted)))[0]
        self.number = counted.used

    def draw(self, key: Key[Array, ""], deviation: float) -> Params:
        module = self.make(Draws.from_key(key, self.number, deviation))
        return nnx.to_pure_dict(nnx.state(module, nnx.Param))


def _check_want(want: tuple[str, ...], at: object) -> None:
    for name in want:
        if name not in WANTED:
            raise ValueError(f"want = {name!r}: there is {', '.join(WANTED)}")
    if want and at is not None:
        raise ValueError(f"want = {want}: only with at=None, since the last layer is computed at some positions alone")
