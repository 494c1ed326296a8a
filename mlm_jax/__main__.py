"""`python -m mlm_jax VERB ...`."""

import importlib
import sys

VERBS = {
    "prepare": ("mlm_jax.cli.prepare", "text to rows: tokenizer, packed rows, manifest"),
    "preview": ("mlm_jax.cli.preview", "what the model will see: rows with their words and masks"),
    "audit": ("mlm_jax.cli.audit", "what the masks of a config really do, counted on its rows"),
    "train": ("mlm_jax.train", "pretrain, or go on from the last checkpoint"),
    "evaluate": ("mlm_jax.cli.evaluate", "losses of any checkpoint, on any rows, at several mask rates"),
    "fill-mask": ("mlm_jax.cli.fill_mask", "what a trained model puts in the place of [MASK]"),
    "bench": ("mlm_jax.cli.bench", "what a step of a config costs on this machine"),
}


def usage() -> str:
    lines = ["usage: python -m mlm_jax VERB ...   (VERB --help shows its flags and an example)", ""]
    return "\n".join(lines + [f"  {verb:10} {text}" for verb, (_, text) in VERBS.items()])


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if argv else 2
    verb, *rest = argv
    if verb not in VERBS:
        print(f"mlm_jax: there is no verb {verb!r}\n\n{usage()}", file=sys.stderr)
        return 2
    return importlib.import_module(VERBS[verb][0]).main(rest)


if __name__ == "__main__":
    sys.exit(main())
