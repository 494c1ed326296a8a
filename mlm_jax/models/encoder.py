"""From modules to pure functions: parameters as nested dicts, layers stacked and scanned."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from mlm_jax import parallel, sharding, tree
from mlm_jax.batch import Batch, Encoded
from mlm_jax.config import ModelConfig
from mlm_jax.kernels import splash, vocabulary
from mlm_jax.kernels.vocabulary import Losses
from mlm_jax.models.attention import places_of
from mlm_jax.models.layers import Draws, compute_dtype, fold_in

Params = dict[str, object]
# Name -> number of its draw; layers count from 2.
HEADS = {"head": 1, "pair": 2**31, "contrast": 2**31 + 1, "discriminator": 2**31 + 2, "task": 2**31 + 5}
TASK_DROPOUT = 2**31  # its place in a row, as the keys of dropout count them: layers are 1 + depth
PROJECTION_NUMBER, GENERATOR_NUMBER = 2**31 + 3, 2**31 + 4
WANTED = ("hidden", "attention", "attention_received")
# By `remat`, what the forward pass of a layer keeps beside its inputs: of `none` all but what `parallel` gathers, if it
# does. Products with weights have no batch axes, those of attention have, and the scores would be the most of all; its
# kernel keeps as little as a product.
POLICIES = {
    "none": parallel.keep_all_but_gathered,
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        jax.checkpoint_policies.save_only_these_names(splash.RESIDUALS),
    ),
    "layer": jax.checkpoint_policies.nothing_saveable,
}


class Model(NamedTuple):
    """An encoder as pure functions over a nested dict of float32 arrays.

    The dict holds `embeddings`, the layers, `norm` (of the last states, with pre-norm only), and the heads that there
    are, `head` (over the vocabulary), `pair`, `contrast` and `discriminator`, or `task` alone; a function of a head
    that is not there fails. With replaced token detection also `generator`, all of another encoder but its tables,
    which are those of this one: the functions of `Model.generator` take this very dict.

    Layers of different kinds follow one another in groups of equal sequence: (local, local, global), or one layer.
    `body` holds the whole groups that fit before the final layer: a subtree for each layer of a group, stacked along a
    leading axis of groups. `first` is layer 0 where it is of another kind than its like in the groups, and not the
    final one; `last` the layers that are left, the final one at least. A subtree without layers is empty.
    """

    init: Callable[..., Params]  # init(key) -> params
    apply: Callable[..., Encoded]  # apply(params, batch, *, at, row_keys, want, upto, causal, words), * are optional
    logits: Callable[..., Array]  # logits(params, hidden [*b,d]) -> f32[*b,v], v: vocab_size rounded up to 128
    losses: Callable[..., Losses]  # losses(params, hidden [b,m,d], targets i32[b,m], weights f32[b,m], z_loss)
    config: ModelConfig
    vocab_size: int
    pair: Callable[..., Array]  # pair(params, hidden [*b,d]) -> f32[*b,2], logits of a pair's labels
    contrast: Callable[..., Array]  # contrast(params, hidden [*b,d]) -> [*b,d], what segments are compared by
    discriminate: Callable[..., Array]  # discriminate(params, hidden [*b,d]) -> f32[*b], logits of being replaced
    sample: Callable[..., Array]  # sample(params, hidden [b,m,d], uniforms f32[b,m]) -> i32[b,m], ids by their logits
    # classify(params, hidden [b,q,d], row_keys) -> f32[b,q,c], of the head of a fine-tuning task; keys as for apply
    classify: Callable[..., Array] | None = None
    generator: "Model | None" = None
    fills_by_generator: bool = False

    @property
    def filler(self) -> "Model":
        """What is trained to fill masks: this model, or its generator alone."""
        return self.generator if self.fills_by_generator else self


class Stack(NamedTuple):
    """How many layers stand where: `first`, `groups` of `size` layers in `body`, the others in `last`."""

    first: int
    size: int
    groups: int

    @classmethod
    def of(cls, config: ModelConfig) -> "Stack":
        """Of a resolved config. Layer 0 stands alone with pre-norm, where it has a norm less."""
        first = int(config.norm == "pre" and config.layers > 1)
        size = config.global_every if config.local_window else 1
        return cls(first, size, (config.layers - 1 - first) // size)

    @property
    def before_last(self) -> int:
        return self.first + self.groups * self.size


def assemble(
    config: ModelConfig,
    vocab_size: int,
    *,
    embeddings: Callable[[Draws], nnx.Module],
    projection: Callable[[Draws], nnx.Module] | None = None,
    layer: Callable[[int], Callable[[Draws], nnx.Module]],
    norm: Callable[[Draws], nnx.Module] | None,
    heads: dict[str, Callable[[Draws], nnx.Module]],
    within: str = "",
) -> Model:
    """A model of a resolved config from the makers of its parts, each called with a `Draws`; layers by their depth.

    embeddings(batch, keys, dtype, words) -> x [b,t,e]; projection(x) -> x [b,t,d], None: e is d; layer(x, places, at,
    keys, reference, causal) -> x [b,q,d]; norm(x) of the last states, None: they stay as they are; head(hidden, word
    table) -> Decoding.

    within: the key under which all parameters lie but those of the embeddings, which are another model's.
    """
    dtype = compute_dtype(config)
    stack, prefix = Stack.of(config), f"{within}/" if within else ""
    parts = {"embeddings": _Part(embeddings), "layer": _Part(layer(1))}
    optional = {"projection": projection, "norm": norm, **heads}
    parts |= {name: _Part(make) for name, make in optional.items() if make}
    layers = _Layers(stack, [_Part(layer(depth)) for depth in range(config.layers)], prefix)

    def own(params: Params) -> Params:
        """What is of this model alone."""
        return params[within] if within else params

    def place(name: str, params: Params, path: str) -> _Where:
        """A part that shares the subtree at `path` with others, or has it alone; params: of the subtree."""
        return _Where(parts[name], parts[name].own(params), path)

    def init(key: Key[Array, ""]) -> Params:
        """Float32 parameters. A layer's draw depends on its depth alone, not on the number of layers.

        (With pre-norm, the scale of some kernels does, see `layers.output_scale`.)
        """

        def draw(name: str, number: Int[Array, ""] | int) -> Params:
            return parts[name].draw(jax.random.fold_in(key, number), config.initializer_range)

        drawn = jax.lax.map(lambda depth: draw("layer", 2 + depth), jnp.arange(config.layers))
        params = {**layers.split(drawn), **{name: draw(name, HEADS[name]) for name in heads}}
        params |= {"norm": draw("norm", 0)} if norm else {}  # a norm draws nothing
        tables = {} if within else draw("embeddings", 0)
        tables |= draw("projection", PROJECTION_NUMBER) if projection else {}
        return params | ({"embeddings": tables} if tables else {})

    def apply(
        params: Params,
        batch: Batch,
        *,
        at: Int[Array, "b q"] | None = None,
        row_keys: Key[Array, "b"] | None = None,
        want: tuple[str, ...] = (),
        upto: int | None = None,
        causal: bool = False,
        words: Float[Array, "b t e"] | None = None,
    ) -> Encoded:
        """Hidden states [b,q,d] at the positions `at`, or [b,t,d] at all, in the compute type.

        The last layer is computed at `at` alone. row_keys: one dropout key per row; None: no dropout. upto: how many
        layers to run, from 1; None: all l, and then the norm if the model has one. want: names of what `out` shall hold
        as well, where `at` is None: `hidden` [l+1,b,t,d], the states after the embeddings and after each layer, the
        last one being the result; `attention` f32[l,b,h,t,t], the probabilities before dropout; `attention_received`
        f32[b,t], what the last of the layers that run gives to each token: the sum over the queries of its segment, the
        mean over heads. It is 1 on average. causal: a position sees those before it in its segment, and itself, and no
        later ones. words: the word vectors of the tokens, in float32; None: those of the table.
        """
        _check_want(want, at)
        count = config.layers if upto is None else upto
        if not 1 <= count <= config.layers:
            raise ValueError(f"upto = {upto}: the model has layers 1 to {config.layers}")
        places = places_of(batch, config)

        def run(where: _Where, x: Array, depth: Int[Array, ""] | int, final: bool = False) -> tuple:
            def layer(weights: Params, x: Array, depth: Int[Array, ""] | int) -> tuple:
                module = where._replace(weights=weights).module(dtype)
                keys = fold_in(row_keys, 1 + depth)
                y = module(x, places, at if final else None, keys, reference="attention" in want, causal=causal)
                y = sharding.constrain(y, "batch", None, None)
                out = {"hidden": y} if "hidden" in want else {}
                if "attention" in want:
                    out["attention"] = module.attention.weights(x, places, causal)
                return y, out

            # the backward pass begins with the final layer: what it would free is wanted again at once
            if not final and (config.remat != "none" or parallel.gathers_weights()):
                layer = jax.checkpoint(layer, policy=POLICIES[config.remat])
            return layer(where.weights, x, depth)

        def run_group(x: Array, group: tuple) -> tuple:
            outs = []
            for where, depth in layers.of_group(*group):
                x, out = run(where, x, depth)
                outs.append(out)
            return x, {name: jnp.stack([out[name] for out in outs]) for name in outs[0]}

        # Looked up in float32: the tables' gradient is a sum over all positions.
        start = place("embeddings", params["embeddings"], "embeddings").module(jnp.float32)
        x = start(batch, fold_in(row_keys, 0), dtype, words)
        params = own(params)
        if projection:
            x = place("projection", params["embeddings"], f"{prefix}embeddings").module(dtype)(x)
        x = sharding.constrain(x, "batch", None, None)
        outs = [{"hidden": x[None]}]
        groups = max(count - 1 - stack.first, 0) // stack.size  # whole ones before the last layer that runs
        depth = 0
        while depth < count:
            if depth == stack.first and groups:
                body = params["body"]
                if groups < stack.groups:
                    body = jax.tree.map(lambda leaf: leaf[:groups], body)
                x, out = jax.lax.scan(run_group, x, (body, jnp.arange(groups)), unroll=config.unroll)
                outs.append({name: value.reshape(-1, *value.shape[2:]) for name, value in out.items()})
                depth += groups * stack.size
            entered, where = x, layers.at(params, depth)
            x, out = run(where, x, depth, final=depth == count - 1)
            outs.append({name: value[None] for name, value in out.items()})
            depth += 1
        if norm and count == config.layers:
            x = _Where(parts["norm"], params["norm"], f"{prefix}norm").module(dtype)(x)
            outs[-1] |= {"hidden": x[None]}
        stacked = [name for name in want if name != "attention_received"]
        gathered = {name: jnp.concatenate([out[name] for out in outs if name in out]) for name in stacked}
        if "attention_received" in want:
            weights = where.module(dtype).attention.weights(entered, places, causal)
            gathered["attention_received"] = _received(weights, batch)
        return Encoded(hidden=x, out=gathered)

    def decoding(params: Params, hidden: Float[Array, "*b d"]) -> vocabulary.Decoding:
        word = parallel.at_use(params["embeddings"]["word"], "embeddings/word", dtype)
        head = _Where(parts["head"], own(params)["head"], f"{prefix}head").module(dtype)
        return head(hidden, word["table"])

    def logits(params: Params, hidden: Float[Array, "*b d"]) -> Float[Array, "*b v"]:
        """Logits f32[*b,v]; columns at and above vocab_size have probability 0."""
        out = vocabulary.logits(decoding(params, hidden))
        return sharding.constrain(out, "batch", *(None,) * (out.ndim - 2), "vocab")

    def losses(
        params: Params,
        hidden: Float[Array, "b m d"],
        targets: Int[Array, "b m"],
        weights: Float[Array, "b m"],
        z_loss: float = 0.0,
    ) -> Losses:
        """Losses and hits of targets by the same logits, of which `logits_mib` are held at once.

        z_loss: so many times the square of the logarithm of their sum is part of the total; see `vocabulary.losses`.
        """
        most_mib = vocabulary.piece_mib(config.logits_mib)
        return vocabulary.losses(decoding(params, hidden), targets, weights, most_mib, z_loss)

    def sample(params: Params, hidden: Float[Array, "b m d"], uniforms: Float[Array, "b m"]) -> Int[Array, "b m"]:
        """Ids by the softmax of the logits, one for each uniform in [0, 1); no gradient passes."""
        most_mib = vocabulary.piece_mib(config.logits_mib)
        return vocabulary.sample(decoding(params, hidden), uniforms, most_mib)

    def head(name: str) -> Callable[[Params, Float[Array, "*b d"]], Float[Array, "*b c"]]:
        return lambda params, hidden: _Where(parts[name], params[name], name).module(dtype)(hidden)

    def classify(
        params: Params, hidden: Float[Array, "b q d"], row_keys: Key[Array, "b"] | None = None
    ) -> Float[Array, "b q c"]:
        """In float32, whatever the compute type: it is small, and new."""
        module = _Where(parts["task"], params["task"], "task").module(jnp.float32)
        return module(hidden.astype(jnp.float32), fold_in(row_keys, TASK_DROPOUT))

    others = (head(name) for name in ("pair", "contrast", "discriminator"))
    return Model(init, apply, logits, losses, config, vocab_size, *others, sample, classify)


def with_generator(model: Model, generator: Model, fills: bool) -> Model:
    """A model with a generator, whose parameters stand in those of the model. fills: it alone is trained to."""

    def init(key: Key[Array, ""]) -> Params:
        return model.init(key) | {tree.GENERATOR: generator.init(jax.random.fold_in(key, GENERATOR_NUMBER))}

    return model._replace(init=init, generator=generator, fills_by_generator=fills)


def _received(probabilities: Float[Array, "b h t t"], batch: Batch) -> Float[Array, "b t"]:
    """What each token gets from the queries of its segment. Those of the padding, which see nothing, do not count."""
    asks = (batch.segments > 0).astype(jnp.float32)
    return jnp.einsum("bhqs,bq->bs", probabilities, asks) / probabilities.shape[1] * asks


class _Part:
    """The structure of a module without its parameters, and how to draw them."""

    def __init__(self, make: Callable[[Draws], nnx.Module]):
        counted = Draws()
        self.make = make
        self.graph, abstract = nnx.split(nnx.eval_shape(lambda: make(counted)))
        self.names = nnx.to_pure_dict(abstract)
        self.number = counted.used

    def draw(self, key: Key[Array, ""], deviation: float) -> Params:
        module = self.make(Draws.from_key(key, self.number, deviation))
        return nnx.to_pure_dict(nnx.state(module, nnx.Param))

    def own(self, params: Params) -> Params:
        """Of the parameters of a part that has more, those that this one has."""

        def pick(params: Params, names: Params) -> Params:
            return {n: pick(params[n], sub) if isinstance(sub, dict) else params[n] for n, sub in names.items()}

        return pick(params, self.names)


class _Where(NamedTuple):
    """A part of the model, its parameters, and the path at which they lie."""

    part: _Part
    weights: Params
    prefix: str

    def module(self, dtype: jax.typing.DTypeLike) -> nnx.Module:
        """The part as it enters the computation."""
        return nnx.merge(self.part.graph, parallel.at_use(self.weights, self.prefix, dtype))


class _Layers:
    """What kind the layers of a model are of, and where their parameters lie."""

    def __init__(self, stack: Stack, kinds: list[_Part], prefix: str):
        self.stack, self.kinds = stack, kinds  # by depth; layers of all groups are like those of the first
        self.prefix = prefix  # of their paths

    def split(self, stacked: Params) -> Params:
        """`first`, `body` and `last` of the parameters of all layers, stacked in the order of depth."""
        first, size, groups = self.stack
        before = self.stack.before_last

        def of(depth: int, where: int | slice) -> Params:
            return self.kinds[depth].own(jax.tree.map(lambda leaf: leaf[where], stacked))

        grouped = range(first, first + size if groups else first)
        return {
            "first": {str(depth): of(depth, depth) for depth in range(first)},
            "body": {str(depth - first): of(depth, slice(depth, before, size)) for depth in grouped},
            "last": {str(depth - before): of(depth, depth) for depth in range(before, len(self.kinds))},
        }

    def of_group(self, weights: Params, number: Int[Array, ""]) -> list[tuple[_Where, Int[Array, ""]]]:
        """The layers of a group of `body`, with their depths; weights: of this group."""
        first, size, _ = self.stack
        return [
            (_Where(self.kinds[first + i], weights[str(i)], f"{self.prefix}body/{i}"), first + number * size + i)
            for i in range(size)
        ]

    def at(self, params: Params, depth: int) -> _Where:
        """One layer. One of `body` is a slice of the stacked ones, which copies it."""
        first, size, _ = self.stack
        part, place = "first", depth
        if depth >= self.stack.before_last:
            part, place = "last", depth - self.stack.before_last
        elif depth >= first:
            group, place = divmod(depth - first, size)
            weights = jax.tree.map(lambda leaf: leaf[group], params["body"][str(place)])
            return _Where(self.kinds[depth], weights, f"{self.prefix}body/{place}")
        return _Where(self.kinds[depth], params[part][str(place)], f"{self.prefix}{part}/{place}")


def _check_want(want: tuple[str, ...], at: object) -> None:
    for name in want:
        if name not in WANTED:
            raise ValueError(f"want = {name!r}: there is {', '.join(WANTED)}")
    if want and at is not None:
        raise ValueError(f"want = {want}: only with at=None, since the last layer is computed at some positions alone")
