"""Three ModernBERT layers of 128 on little text, read several times: a run of a study, minutes on one CPU core.

The recipe leaves the plateau of word frequencies within a few hundred steps, as one with AdamW does not at this size.
Rows are few so that they come again: whether a mask is new at each visit can then matter.

Command:  python -m mlm_jax study masking --config=configs/study/small.py --config.data.sources=PATH/part.jsonl.gz \
            --workdir=studies/small
Hardware: two CPU cores
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
        steps=600,
        batch_size=32,
        row_length=128,
        data=DataConfig(holdout=0.1, max_segments=16),
        tokenizer=TokenizerConfig(vocab_size=4096),
        mask=MaskConfig(rate=0.15, unit="word"),
        model=ModelConfig(
            family="modernbert",
            layers=3,
            width=128,
            heads=4,
            hidden=256,
            max_positions=128,
            norm_epsilon=1e-5,
            dropout=0.0,
            attention_dropout=0.0,
        ),
        optimizer=OptimizerConfig(name="muon", learning_rate=5e-3, schedule="cosine", warmup=0.06),
        checkpoint=CheckpointConfig(every_steps=600, keep=1),
        evaluate=EvaluateConfig(every_steps=100, rows=256, rate=0.15, unit="word", priority="uniform"),
    )
