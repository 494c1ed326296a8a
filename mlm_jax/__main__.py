"""`python -m mlm_jax VERB ...`."""

import sys

from mlm_jax.flags import choose

VERBS = {
    "prepare": ("mlm_jax.cli.prepare", "text to rows: tokenizer, packed rows, manifest"),
    "inspect": ("mlm_jax.cli.inspect", "what is in a folder of rows, and whether it is whole"),
    "preview": ("mlm_jax.cli.preview", "what the model will see: rows with their words and masks"),
    "audit": ("mlm_jax.cli.audit", "what the masks of a config really do, counted on its rows"),
    "plan": ("mlm_jax.cli.plan", "what a run would need on TPUs that are not here: memory, FLOPs, collectives, days"),
    "study": ("mlm_jax.cli.study", "questions about masking, answered by counting: coverage"),
    "train": ("mlm_jax.train", "pretrain, or go on from the last checkpoint"),
    "finetune": ("mlm_jax.finetune.program", "train a model on a task: classes, numbers, tagged words, answers"),
    "evaluate": ("mlm_jax.cli.evaluate", "losses of any checkpoint, on any rows, at several mask rates"),
    "fill-mask": ("mlm_jax.cli.fill_mask", "what a trained model puts in the place of [MASK]"),
    "explain": ("mlm_jax.cli.explain", "which words of a text made the model predict a word at a [MASK]"),
    "embed": ("mlm_jax.cli.embed", "texts to vectors: JSON lines, .npy or .parquet"),
    "score": ("mlm_jax.cli.score", "how likely texts are: pseudo-log-likelihood and pseudo-perplexity"),
    "generate": ("mlm_jax.cli.generate", "text in the place of [MASK]s: mask-predict, Gibbs sampling, left to right"),
    "convert": ("mlm_jax.cli.convert", "a run to a folder that transformers loads, or such a folder to a run's"),
    "bench": ("mlm_jax.cli.bench", "what a step of a config costs on this machine"),
}


def main(argv: list[str] | None = None) -> int:
    return choose(sys.argv[1:] if argv is None else argv, "python -m mlm_jax", "verb", VERBS)


if __name__ == "__main__":
    sys.exit(main())
