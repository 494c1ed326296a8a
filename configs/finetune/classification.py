"""Texts into classes: a file of your own with the columns `text` and `label`, for any model.

Command:  python -m mlm_jax.finetune --config=configs/finetune/classification.py --config.model=runs/tiny \
            --config.task.train=PATH/train.tsv --workdir=runs/task
"""

from mlm_jax.config import FinetuneConfig, OptimizerConfig, TaskConfig


def get_config() -> FinetuneConfig:
    return FinetuneConfig(
        task=TaskConfig(kind="classification"),
        epochs=3,
        batch_size=32,
        row_length=128,
        optimizer=OptimizerConfig(learning_rate=5e-5, warmup=0.1, b2=0.999, layer_decay=0.9),
    )
