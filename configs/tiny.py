"""Two layers of 128 on the embedded text: a model that learns to fill masks on two CPU cores.

Command:  python -m mlm_jax.train --config=configs/tiny.py
"""

from mlm_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    EvaluateConfig,
    MaskConfig,
    ModelConfig,
    OptimizerConfig,
    TokenizerConfig,
)


def get_config() -> Config:
    return Config(
        steps=3000,
        batch_size=64,
        row_length=64,
        data=DataConfig(sources=("builtin:pydoc",), max_segments=8),
        tokenizer=TokenizerConfig(vocab_size=4096),
        mask=MaskConfig(rate=0.15, unit="word"),
        model=ModelConfig(
            layers=2, width=128, heads=4, hidden=512, max_positions=64, dropout=0.0, attention_dropout=0.0, unroll=1
        ),
        optimizer=OptimizerConfig(learning_rate=3e-3, schedule="cosine", warmup=0.06),
        checkpoint=CheckpointConfig(every_steps=500),
        evaluate=EvaluateConfig(every_steps=500),
    )
