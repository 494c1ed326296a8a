r"""Answers as pieces of a context: files in the format of SQuAD 1.1; with --config.task.name=squad2 those of 2.0.

Command:  python -m mlm_jax.finetune --config=configs/finetune/questions.py --config.model=PATH/model \
            --config.task.train=PATH/train.json --config.task.dev=PATH/dev.json --workdir=runs/task
Rates:    5e-5 is for models of the size of BERT-base; a model of a few small layers wants 1e-3 and more.
Time and score: benchmarks/RESULTS.md has those of small models on a CPU; of larger ones nothing was measured.
"""

from mlm_jax.config import FinetuneConfig, OptimizerConfig, TaskConfig


def get_config() -> FinetuneConfig:
    return FinetuneConfig(
        task=TaskConfig(kind="questions", format="squad"),
        epochs=3,
        batch_size=32,
        row_length=384,
        window_overlap=128,
        optimizer=OptimizerConfig(learning_rate=3e-5, warmup=0.1, b2=0.999, layer_decay=0.9),
    )
