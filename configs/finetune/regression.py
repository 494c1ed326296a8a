r"""Texts to numbers: a file of your own with the columns `text` and `label`, chosen by Pearson's coefficient.

Command:  python -m mlm_jax.finetune --config=configs/finetune/regression.py --config.model=PATH/model \
            --config.task.train=PATH/train.tsv --workdir=runs/task
Rates:    5e-5 is for models of the size of BERT-base; a model of a few small layers wants 1e-3 and more.
Time and score: benchmarks/RESULTS.md has those of small models on a CPU; of larger ones nothing was measured.
"""

from mlm_jax.config import FinetuneConfig, OptimizerConfig, TaskConfig


def get_config() -> FinetuneConfig:
    return FinetuneConfig(
        task=TaskConfig(kind="regression"),
        epochs=3,
        batch_size=32,
        row_length=128,
        optimizer=OptimizerConfig(learning_rate=5e-5, warmup=0.1, b2=0.999, layer_decay=0.9),
    )
