"""This project's step as a contender: rows read from shards, masks made in the step, the jitted step of training."""

import tempfile
from pathlib import Path

import numpy as np
from worker import begin, serve

from mlm_jax import config as config_module
from mlm_jax import data, keys, optim, runtime, sharding, state, step
from mlm_jax.cli.bench import SPECIAL, write_rows
from mlm_jax.config import Config, DataConfig, MaskConfig, ModelConfig, OptimizerConfig, TokenizerConfig
from mlm_jax.models import build
from mlm_jax.tokenizer import Vocabulary


def config_of(case: dict) -> Config:
    names, of_family = ("layers", "width", "heads", "hidden", "max_positions"), {"family": case["family"]}
    if case["family"] == "bert":
        of_family |= {"dropout": case["dropout"], "attention_dropout": case["dropout"]}
    else:
        of_family |= {"norm_epsilon": 1e-5}
    return Config(
        steps=case["schedule_steps"],
        batch_size=case["rows"],
        row_length=case["row_length"],
        data=DataConfig(max_segments=1),
        tokenizer=TokenizerConfig(vocab_size=case["vocab_size"]),
        mask=MaskConfig(rate=case["rate"], unit="token"),
        model=ModelConfig(**{name: case[name] for name in names}, **of_family),
        optimizer=OptimizerConfig(learning_rate=case["learning_rate"], weight_decay=0.01, clip_norm=1.0),
    )


def main() -> None:
    case, tokens, answers = begin()
    runtime.start()
    import jax

    config = config_of(case)
    vocabulary = Vocabulary(case["vocab_size"], np.arange(5), np.arange(5, case["vocab_size"]), **SPECIAL)
    folder = tempfile.TemporaryDirectory()
    rows = [("rows", tokens, np.ones(tokens.shape, np.uint8))]
    manifest = write_rows(Path(folder.name), rows, np.array([0]), 1, vocabulary)
    derived = config_module.check(config, jax.device_count(), 1, manifest)
    mesh = sharding.make_mesh(derived.mesh)
    model, optimizer = build(config.model, derived.vocab_size), optim.optimizer(config.optimizer, config.steps)
    batches = data.train_batches(folder.name, manifest, config, 0, sharding.batch_sharding(mesh, leading=1))
    train_step = step.make_train_step(model, optimizer, vocabulary, config, mesh)
    roots = keys.roots(config.seed)
    with sharding.activate(mesh, config.mesh):
        now = state.create(model, optimizer, mesh, config.mesh, keys.root(config.seed, keys.INIT))

        def run(steps: int) -> float:
            nonlocal now
            before = None
            for _ in range(steps):
                now, values = train_step(now, next(batches), roots)
                if before is not None:
                    jax.device_get(before)
                before = values
            jax.block_until_ready(now)
            return before["loss"]

        parameters = sum(leaf.size for leaf in jax.tree.leaves(now.params))
        serve(answers, run, {"versions": f"jax {jax.__version__}", "parameters": parameters})


if __name__ == "__main__":
    main()
