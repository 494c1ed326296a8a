"""Floating-point operations of a training step by formula, peak rates of chips, and model FLOP utilisation.

A matrix product of [m, k] and [k, n] counts 2 m k n operations; what is not a matrix product (norms, softmax, GELU,
rotary positions, table look-ups, the optimizer) is left out, as is usual, and so is what a kernel computes for keys
outside of a query's window. Compilers' own counts do not serve: they count the body of a scan over layers once.
"""

import re
from fractions import Fraction
from typing import NamedTuple

from mlm_jax.config import Config, Derived, ModelConfig, generator_of, is_local, resolve, together


class Chip(NamedTuple):
    """What the vendor publishes of one jax device: one core of two on TPU v2, v3 and 7x, else a whole chip."""

    flops: float  # dense bf16 operations per second, without sparsity
    memory: float | None = None  # bytes of HBM
    memory_bandwidth: float | None = None  # bytes per second between HBM and the chip
    link_bandwidth: float | None = None  # bytes per second that all its links to other chips together send
    clock: float | None = None  # cycles per second
    network: float | None = None  # bytes per second that it sends to other slices, in one direction


# By pattern of a device's `device_kind`; the first match counts. From the vendors' data sheets; of links they publish
# both directions together, so half of it is sent (v5e 400, v5p 1,200, v6e 800, 7x 1,200 GB/s, NVLink of A100 600, of
# H100 and H200 900; v4 2,400 Gb/s one way). A clock is the peak over the 2 x 128 x 128 operations a cycle of each of 4
# matrix units (8 on v4 and v5p). The network between slices: 6.4 and 25.6 Tb/s of a v5e and a v6e pod of 256 chips, 50
# Gb/s of a v5p chip. What is None is not known, or not needed here.
GIB = 2**30
CHIPS: tuple[tuple[str, Chip], ...] = (
    (r"TPU v2", Chip(45e12 / 2)),
    (r"TPU v3", Chip(123e12 / 2)),
    (r"TPU v4", Chip(275e12, 32 * GIB, 1228e9, 300e9, 1.05e9)),
    (r"TPU v5 ?(lite|e)", Chip(197e12, 16 * GIB, 819e9, 200e9, 1.5e9, 3.125e9)),
    (r"TPU v5p?", Chip(459e12, 95 * GIB, 2765e9, 600e9, 1.75e9, 6.25e9)),
    (r"TPU v6 ?(lite|e)", Chip(918e12, 32 * GIB, 1638e9, 400e9, network=12.5e9)),
    (r"TPU ?v?7x", Chip(2307e12 / 2, 192 * GIB / 2, 7380e9 / 2, 600e9 / 2)),
    (r"NVIDIA A100-SXM4-80GB", Chip(312e12, 80e9, 2039e9, 300e9)),
    (r".*\bA100\b.*", Chip(312e12)),
    (r".*\bH100 PCIe.*", Chip(756e12)),
    (r".*\bH100 NVL.*", Chip(835e12)),
    (r"NVIDIA H100 80GB HBM3", Chip(989e12, 80e9, 3352e9, 450e9)),
    (r"NVIDIA H200", Chip(989e12, 141e9, 4800e9, 450e9)),
    (r".*\b(H100|H200|GH200)\b.*", Chip(989e12)),
    (r".*\bB200\b.*", Chip(2250e12)),
    (r".*\bL4\b.*", Chip(121e12)),
)


def chip(device_kind: str) -> Chip | None:
    """The published figures of a jax device; None where the kind is not known, as for a CPU."""
    return next((found for pattern, found in CHIPS if re.fullmatch(pattern, device_kind)), None)


def peak(device_kind: str) -> float | None:
    """Dense bf16 operations per second of a jax device; None where the kind is not known, as for a CPU."""
    found = chip(device_kind)
    return None if found is None else found.flops


def attended(t: int, window: int, causal: bool = False) -> int:
    """Pairs of query and key of a segment of t tokens, at most window / 2 apart; 0: all. causal: without later keys."""
    reach = min(window // 2, t - 1) if window else t - 1
    pairs = t * t - (t - 1 - reach) * (t - reach)  # without two triangles
    return (pairs + t) // 2 if causal else pairs


def layer(model: ModelConfig, t: int, q: int, depth: int = 0, causal: bool = False) -> int:
    """Forward pass of one row through the layer at `depth`, whose output is asked for at q of its t positions.

    Keys and values are needed at all positions, everything else at those q only. Attention reaches all t in a global
    layer, and only the keys of the window in a local one (as many as a position has in the mean); with causal, those of
    them that do not stand later.
    """
    model = resolve(model)
    d, f = model.width, model.hidden
    keys_and_values = 2 * (2 * t * d * d)
    queries_and_output = 2 * (2 * q * d * d)
    pairs = q * attended(t, model.local_window if is_local(model, depth) else 0, causal) // t
    attention = 2 * (2 * pairs * d)  # scores, and the weighted sum of the values: all heads together are d wide
    feed_forward = (3 if model.ffn == "geglu" else 2) * (2 * q * d * f)
    return keys_and_values + queries_and_output + attention + feed_forward


def head(model: ModelConfig, m: int, vocab_rows: int) -> int:
    """Forward pass of the masked-language-model head at the m selected positions of a row."""
    e = resolve(model).embedding_width
    return 2 * m * model.width * e + 2 * m * e * vocab_rows


def projection(model: ModelConfig, t: int) -> int:
    """Forward pass of one row from the width of the embeddings to that of the layers."""
    e = resolve(model).embedding_width
    return 2 * t * e * model.width if e != model.width else 0


def pair_head(model: ModelConfig, p: int) -> int:
    """Forward pass of the head over pairs at the p segments of a row."""
    return 2 * p * model.width**2 + 2 * p * model.width * 2


def discriminator_head(model: ModelConfig, t: int) -> int:
    """Forward pass of the head over replaced tokens at all t positions of a row."""
    return 2 * t * model.width**2 + 2 * t * model.width


def contrast(model: ModelConfig, p: int, rows: int) -> int:
    """Forward pass of one row: the head over its p segments in both views, and their comparison with all of `rows`."""
    return 2 * (2 * p * model.width**2) + 2 * p * (rows * p) * model.width


def encoder(model: ModelConfig, t: int, q: int, causal: bool = False) -> int:
    """Forward pass of one row of t tokens: all layers but the last at all positions, the last one at q."""
    before = sum(layer(model, t, t, depth, causal) for depth in range(model.layers - 1))
    return projection(model, t) + before + layer(model, t, q, model.layers - 1, causal)


def forward(model: ModelConfig, t: int, q: int, m: int, vocab_rows: int) -> int:
    """The same and the masked-language-model head at m."""
    return encoder(model, t, q) + head(model, m, vocab_rows)


def step(model: ModelConfig, rows: int, t: int, q: int, m: int, vocab_rows: int) -> int:
    """Forward and backward pass of `rows` rows.

    q: positions per row at which the last layer is computed (m where only the selected ones are); m: slots of the
    head; vocab_rows: columns of the logits, the padding of the vocabulary included. The backward pass is two products
    for each one of the forward pass: by its input and by its weight.
    """
    return 3 * rows * forward(model, t, q, m, vocab_rows)


def of_run(config: Config, derived: Derived) -> int:
    """Forward and backward pass of an optimizer step of a run; with causal steps, what a step takes in the mean."""
    return sum(by_part(config, derived).values())


def by_part(config: Config, derived: Derived) -> dict[str, int]:
    """The same by what it is spent on. Parts that the objectives do not need are not there."""
    ratio, found = Fraction(config.objectives.causal.ratio), {}
    for share, parts in ((1 - ratio, of_ordinary_row), (ratio, of_causal_row)):
        for name, forward_pass in parts(config, derived).items() if share else ():
            found[name] = found.get(name, 0) + round(3 * config.batch_size * share * forward_pass)
    return found


def of_ordinary_row(config: Config, derived: Derived) -> dict[str, int | Fraction]:
    """Forward passes and heads of one row in a step that is not causal.

    The last layer is computed at the selected positions for masked tokens, at the first positions of segments for pairs
    and for both views of contrast; of replaced tokens, the generator's at the selected and the discriminator's at all
    positions. There are as many first positions as a row may have segments.
    """
    model, names = config.model, together(config.objectives)
    t, m, p = config.row_length, derived.capacity, config.data.max_segments
    pairs = [name for name in ("nsp", "sop") if name in names]
    contrastive = "contrastive" in names
    found = {}
    if asked := m * ("mlm" in names) + p * bool(pairs or contrastive):
        found["masked rows"] = encoder(model, t, asked)
    if "mlm" in names:
        found["vocabulary"] = head(model, m, derived.vocab_rows)
    if "replaced" in names:
        small = generator_of(model, config.objectives.replaced)
        found["generator"] = encoder(small, t, m)
        found["vocabulary"] = found.get("vocabulary", 0) + head(small, m, derived.vocab_rows)
        found["samples"] = Fraction(head(small, m, derived.vocab_rows), 3)  # without a backward pass
        found["discriminator"] = encoder(model, t, t) + discriminator_head(model, t)
    if pairs:
        found["pairs"] = len(pairs) * pair_head(model, p)
    if contrastive:
        found["other view"] = encoder(model, t, p)
        found["contrast"] = contrast(model, p, config.objectives.contrastive.group_rows)
    return found


def of_causal_row(config: Config, derived: Derived) -> dict[str, int]:
    """Forward pass and head of one row in a causal step, both at all positions. Attention counts what a token sees."""
    model, t = config.model, config.row_length
    return {"causal rows": encoder(model, t, t, causal=True), "vocabulary": head(model, t, derived.vocab_rows)}


def utilisation(
    step_flops: float | int, step_tokens: int, tokens_per_second: float | int, devices: int, device_kind: str
) -> float | None:
    """Model FLOP utilisation in real tokens: the share of the devices' peak that is spent on tokens, not on padding.

    step_flops: of a step with `step_tokens` places, padding included; tokens_per_second: real tokens over all devices.
    A full row at a rate r uses as much as a half-empty one at rate 2 r of places. None where the peak is not known.
    """
    rate = peak(device_kind)
    return None if rate is None else step_flops / step_tokens * tokens_per_second / (devices * rate)
