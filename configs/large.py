"""RoBERTa-large on rows of 512 tokens, by its recipe (Liu et al., 2019, table 9).

Whole batches of 8,192 rows, peak rate 4e-4 after 30,000 of 500,000 steps, then linearly to zero; Adam with b2 = 0.98
and epsilon 1e-6, no clipping, dropout 0.1, a new mask of single tokens at every visit. What differs: rows are packed
with attention inside each document, the vocabulary is SentencePiece unigram, and [PAD] has the id 0 there, so that the
table of positions has 513 rows. With another tokenizer set model.padding_id, and max_positions to 513 + padding_id.

Command:   python -m mlm_jax.train --config=configs/large.py --config.data.sources=PATH/en.jsonl.gz --workdir=runs/large
Hardware:  meant for 32 accelerators or more; 8 rows a device at a time, on 32 with accumulation 32, which follows the
           number of devices; mesh.fsdp=8 cuts parameters and optimizer state over 8 devices.
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
        rows_per_device=8,
        row_length=512,
        data=DataConfig(holdout=0.005, pack_groups=64, max_segments=32),
        tokenizer=TokenizerConfig(vocab_size=50_000, sample_bytes=100_000_000),
        mask=MaskConfig(rate=0.15, unit="token"),
        model=ModelConfig(
            family="roberta",
            padding_id=0,
            layers=24,
            width=1024,
            heads=16,
            hidden=4096,
            max_positions=513,
            norm_epsilon=1e-5,
        ),
        optimizer=OptimizerConfig(
            learning_rate=4e-4, schedule="linear", warmup=0.06, b2=0.98, epsilon=1e-6, weight_decay=0.01, clip_norm=0.0
        ),
        checkpoint=CheckpointConfig(every_steps=1000, keep=2),
        evaluate=EvaluateConfig(every_steps=5000),
    )
