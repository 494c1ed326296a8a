"""BERT-base on rows of 512 tokens, by the recipe of the RoBERTa family (Liu et al., 2019, table 9).

Whole batches of 8,192 rows, peak rate 6e-4 after 24,000 of 500,000 steps, then linearly to zero; Adam with b2 = 0.98
and epsilon 1e-6, no clipping, dropout 0.1, a new mask of single tokens at every visit. What differs: rows are packed
with attention inside each document, and the vocabulary is SentencePiece unigram.

Command:   python -m mlm_jax.train --config=configs/base.py --config.data.sources=PATH/en.jsonl.gz --workdir=runs/base
Hardware:  meant for 8 accelerators or more; 32 rows a device at a time, on 8 with accumulation 32, which follows the
           number of devices.
Time and score: not measured.
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
        steps=500_000,
        batch_size=8192,
        rows_per_device=32,
        row_length=512,
        data=DataConfig(holdout=0.005, pack_groups=64, max_segments=32),
        tokenizer=TokenizerConfig(vocab_size=50_000, sample_bytes=100_000_000),
        mask=MaskConfig(rate=0.15, unit="token"),
        model=ModelConfig(layers=12, width=768, heads=12, hidden=3072, max_positions=512, norm_epsilon=1e-5),
        optimizer=OptimizerConfig(
            learning_rate=6e-4, schedule="linear", warmup=0.048, b2=0.98, epsilon=1e-6, weight_decay=0.01, clip_norm=0.0
        ),
        checkpoint=CheckpointConfig(every_steps=1000, keep=2),
        evaluate=EvaluateConfig(every_steps=5000),
    )
