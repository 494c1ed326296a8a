"""Names and axes of hub checkpoints: one table per family, read in both directions."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Shape = tuple[int, ...]


class Axes(NamedTuple):
    """How one array is laid out on either side; shapes are ours.

    Where the hub joins several of our arrays along its first axis, `part` is this one's place among `parts`.
    """

    to_hub: Callable[[np.ndarray], np.ndarray]
    from_hub: Callable[[np.ndarray, Shape], np.ndarray]
    hub_shape: Callable[[Shape], Shape]
    part: int = 0
    parts: int = 1

    def joined(self, part: int, parts: int) -> "Axes":
        return self._replace(part=part, parts=parts)


SAME = Axes(lambda x: x, lambda x, shape: x, lambda shape: shape)
# Torch's linear layers hold [out, in], and the axes (heads, head size) of ours are one axis of theirs.
FLAT = Axes(lambda x: x.reshape(-1), lambda x, shape: x.reshape(shape), lambda shape: (math.prod(shape),))
FROM_ONE = Axes(  # [in, *out] <-> [out, in]
    lambda x: x.reshape(x.shape[0], -1).T,
    lambda x, shape: x.T.reshape(shape),
    lambda shape: (math.prod(shape[1:]), shape[0]),
)
TO_ONE = Axes(  # [*in, out] <-> [out, in]
    lambda x: x.reshape(-1, x.shape[-1]).T,
    lambda x, shape: x.T.reshape(shape),
    lambda shape: (shape[-1], math.prod(shape[:-1])),
)

Table = tuple[tuple[str, str, Axes], ...]  # layer path of a parameter (see `tree.layer_paths`), hub name, axes


class Format(NamedTuple):
    """How the hub writes the models of a family."""

    table: Table
    old_names: tuple[tuple[str, str], ...]  # names that other versions use, as (pattern, the name in the table)
    decoder: str  # name of the decoder's table; of a tied model the second name of the word table
    copies: dict[str, str]  # other second names of an array -> that in the table; transformers computes with the second
    left_out: tuple[str, ...]  # parts of a checkpoint that this model does not have; not read
    free: tuple[str, ...]  # switches that may differ from the family's: the hub's config can say so


def encoder_of_bert(prefix: str) -> Table:
    """Embeddings and layers as BERT and RoBERTa name them."""
    layer = rf"{prefix}.encoder.layer.\1"
    return (
        (r"embeddings/word/table", rf"{prefix}.embeddings.word_embeddings.weight", SAME),
        (r"embeddings/position/table", rf"{prefix}.embeddings.position_embeddings.weight", SAME),
        (r"embeddings/type/table", rf"{prefix}.embeddings.token_type_embeddings.weight", SAME),
        (r"embeddings/norm/scale", rf"{prefix}.embeddings.LayerNorm.weight", SAME),
        (r"embeddings/norm/bias", rf"{prefix}.embeddings.LayerNorm.bias", SAME),
        (r"layers/(\d+)/attention/(query|key|value)/kernel", rf"{layer}.attention.self.\2.weight", FROM_ONE),
        (r"layers/(\d+)/attention/(query|key|value)/bias", rf"{layer}.attention.self.\2.bias", FLAT),
        (r"layers/(\d+)/attention/out/kernel", rf"{layer}.attention.output.dense.weight", TO_ONE),
        (r"layers/(\d+)/attention/out/bias", rf"{layer}.attention.output.dense.bias", SAME),
        (r"layers/(\d+)/attention/norm/scale", rf"{layer}.attention.output.LayerNorm.weight", SAME),
        (r"layers/(\d+)/attention/norm/bias", rf"{layer}.attention.output.LayerNorm.bias", SAME),
        (r"layers/(\d+)/ffn/up/kernel", rf"{layer}.intermediate.dense.weight", FROM_ONE),
        (r"layers/(\d+)/ffn/up/bias", rf"{layer}.intermediate.dense.bias", SAME),
        (r"layers/(\d+)/ffn/down/kernel", rf"{layer}.output.dense.weight", FROM_ONE),
        (r"layers/(\d+)/ffn/down/bias", rf"{layer}.output.dense.bias", SAME),
        (r"layers/(\d+)/ffn/norm/scale", rf"{layer}.output.LayerNorm.weight", SAME),
        (r"layers/(\d+)/ffn/norm/bias", rf"{layer}.output.LayerNorm.bias", SAME),
    )


def head(dense: str, norm: str, decoder: str, bias: str) -> Table:
    """The head of any family, under these names of its parts."""
    return (
        (r"head/dense/kernel", f"{dense}.weight", FROM_ONE),
        (r"head/dense/bias", f"{dense}.bias", SAME),
        (r"head/norm/scale", f"{norm}.weight", SAME),
        (r"head/norm/bias", f"{norm}.bias", SAME),
        (r"head/decoder/table", decoder, SAME),
        (r"head/bias", bias, SAME),
    )


GAMMA_BETA = ((r"(.*LayerNorm|.*layer_norm)\.gamma", r"\1.weight"), (r"(.*LayerNorm|.*layer_norm)\.beta", r"\1.bias"))
CLS = "cls.predictions.transform"
DROPOUT = ("dropout", "attention_dropout")

BERT = Format(
    encoder_of_bert("bert")
    + head(f"{CLS}.dense", f"{CLS}.LayerNorm", "cls.predictions.decoder.weight", "cls.predictions.bias")
    + (
        (r"pair/dense/kernel", "bert.pooler.dense.weight", FROM_ONE),
        (r"pair/dense/bias", "bert.pooler.dense.bias", SAME),
        (r"pair/classifier/kernel", "cls.seq_relationship.weight", FROM_ONE),
        (r"pair/classifier/bias", "cls.seq_relationship.bias", SAME),
    ),
    (*GAMMA_BETA, (r"((?:embeddings|encoder|pooler)\..*)", r"bert.\1")),
    "cls.predictions.decoder.weight",
    {"cls.predictions.decoder.bias": "cls.predictions.bias"},
    (r"bert\.embeddings\.position_ids", r"bert\.pooler\.dense\.(weight|bias)", r"cls\.seq_relationship\.(weight|bias)"),
    ("types", *DROPOUT),
)

ROBERTA = Format(
    encoder_of_bert("roberta") + head("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder.weight", "lm_head.bias"),
    (*GAMMA_BETA, (r"((?:embeddings|encoder|pooler)\..*)", r"roberta.\1")),
    "lm_head.decoder.weight",
    {"lm_head.decoder.bias": "lm_head.bias"},
    (r"roberta\.embeddings\.position_ids", r"roberta\.pooler\.dense\.(weight|bias)"),
    ("types", "padding_id", *DROPOUT),
)

ELECTRA = Format(
    encoder_of_bert("electra")
    + (
        (r"embeddings/project/kernel", "electra.embeddings_project.weight", FROM_ONE),
        (r"embeddings/project/bias", "electra.embeddings_project.bias", SAME),
    )
    + head(
        "generator_predictions.dense",
        "generator_predictions.LayerNorm",
        "generator_lm_head.weight",
        "generator_lm_head.bias",
    )
    + (
        (r"discriminator/dense/kernel", "discriminator_predictions.dense.weight", FROM_ONE),
        (r"discriminator/dense/bias", "discriminator_predictions.dense.bias", SAME),
        (r"discriminator/classifier/kernel", "discriminator_predictions.dense_prediction.weight", FROM_ONE),
        (r"discriminator/classifier/bias", "discriminator_predictions.dense_prediction.bias", SAME),
    ),
    (*GAMMA_BETA, (r"((?:embeddings|embeddings_project|encoder)\..*)", r"electra.\1")),
    "generator_lm_head.weight",
    {},
    (r"electra\.embeddings\.position_ids",),
    ("types", "embedding_width", *DROPOUT),
)

MODERNBERT = Format(
    (
        (r"embeddings/word/table", r"model.embeddings.tok_embeddings.weight", SAME),
        (r"embeddings/norm/scale", r"model.embeddings.norm.weight", SAME),
        (r"embeddings/norm/bias", r"model.embeddings.norm.bias", SAME),
        *(
            (rf"layers/(\d+)/attention/{name}/{ours}", rf"model.layers.\1.attn.Wqkv.{theirs}", axes.joined(part, 3))
            for part, name in enumerate(("query", "key", "value"))
            for ours, theirs, axes in (("kernel", "weight", FROM_ONE), ("bias", "bias", FLAT))
        ),
        (r"layers/(\d+)/attention/out/kernel", r"model.layers.\1.attn.Wo.weight", TO_ONE),
        (r"layers/(\d+)/attention/out/bias", r"model.layers.\1.attn.Wo.bias", SAME),
        (r"layers/(\d+)/attention/norm/scale", r"model.layers.\1.attn_norm.weight", SAME),
        (r"layers/(\d+)/attention/norm/bias", r"model.layers.\1.attn_norm.bias", SAME),
        *(
            (rf"layers/(\d+)/ffn/{name}/{ours}", rf"model.layers.\1.mlp.Wi.{theirs}", axes.joined(part, 2))
            for part, name in enumerate(("up", "gate"))
            for ours, theirs, axes in (("kernel", "weight", FROM_ONE), ("bias", "bias", SAME))
        ),
        (r"layers/(\d+)/ffn/down/kernel", r"model.layers.\1.mlp.Wo.weight", FROM_ONE),
        (r"layers/(\d+)/ffn/down/bias", r"model.layers.\1.mlp.Wo.bias", SAME),
        (r"layers/(\d+)/ffn/norm/scale", r"model.layers.\1.mlp_norm.weight", SAME),
        (r"layers/(\d+)/ffn/norm/bias", r"model.layers.\1.mlp_norm.bias", SAME),
        (r"norm/scale", r"model.final_norm.weight", SAME),
        (r"norm/bias", r"model.final_norm.bias", SAME),
        *head("head.dense", "head.norm", "decoder.weight", "decoder.bias"),
    ),
    ((r"((?:embeddings|layers|final_norm)\..*)", r"model.\1"),),
    "decoder.weight",
    {},
    (),
    (*DROPOUT, "biases", "local_window", "global_every", "rotary_base", "rotary_local_base"),
)

# ---- heads of fine-tuned models ----


def of_task(dense: str, classifier: str, norm: str = "") -> Table:
    """The head of a task, under these names of its parts."""
    return (
        (r"task/dense/kernel", f"{dense}.weight", FROM_ONE),
        (r"task/dense/bias", f"{dense}.bias", SAME),
        (r"task/norm/scale", f"{norm}.weight", SAME),
        (r"task/norm/bias", f"{norm}.bias", SAME),
        (r"task/classifier/kernel", f"{classifier}.weight", FROM_ONE),
        (r"task/classifier/bias", f"{classifier}.bias", SAME),
    )


OF_TEXTS, OF_TOKENS, OF_QUESTIONS = "texts", "tagging", "questions"
_MODERN = of_task("head.dense", "classifier", "head.norm")
_TOKENS = {OF_TOKENS: of_task("", "classifier"), OF_QUESTIONS: of_task("", "qa_outputs")}
TASKS: dict[str, dict[str, Table]] = {
    "bert": {OF_TEXTS: of_task("bert.pooler.dense", "classifier")} | _TOKENS,
    "roberta": {OF_TEXTS: of_task("classifier.dense", "classifier.out_proj")} | _TOKENS,
    "electra": {OF_TEXTS: of_task("classifier.dense", "classifier.out_proj")} | _TOKENS,
    "modernbert": {OF_TEXTS: _MODERN, OF_TOKENS: _MODERN, OF_QUESTIONS: _MODERN},
}

FORMATS = {"bert": BERT, "roberta": ROBERTA, "electra": ELECTRA, "modernbert": MODERNBERT}
