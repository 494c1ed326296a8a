r"""Words to BIO tags: CoNLL files, a word and its tag a line; chosen by the F1 of whole entities.

Command:  python -m mlm_jax.finetune --config=configs/finetune/tagging.py --config.model=PATH/model \
            --config.task.train=PATH/train.conll --config.task.dev=PATH/dev.conll --workdir=runs/task
Rates:    5e-5 is for models of the size of BERT-base; a model of a few small layers wants 1e-3 and more.
Time and score: benchmarks/RESULTS.md has those of small models on a CPU; of larger ones nothing was measured.
"""

from mlm_jax.config import FinetuneConfig, OptimizerConfig, TaskConfig


def get_config() -> FinetuneConfig:
    return FinetuneConfig(
        task=TaskConfig(kind="tagging", format="conll"),
        epochs=3,
        batch_size=32,
        row_length=128,
        optimizer=OptimizerConfig(learning_rate=5e-5, warmup=0.1, b2=0.999, layer_decay=0.9),
    )
