r"""ModernBERT-base on rows of 1,024 tokens: the first and longest phase of its training (Warner et al., 2024).

1.7 T tokens in batches of 4,608 rows, 30 % of the tokens masked, rate 8e-4 constant after 3 G tokens of warm-up,
StableAdamW with b2 = 0.98 and epsilon 1e-6, rotary base 10,000 in all layers (that of the global ones became 160,000
only when the published model went on with rows of 8,192 tokens), no dropout within layers but for what is named below.

What differs: batches have their full size from the start; no dropout of 0.1 on what attention gives; rows are packed
with attention inside each document; the vocabulary is SentencePiece unigram. The published decay takes 1e-5 of a
parameter at each step at the peak rate; here decay is multiplied by the rate: 0.0125 x 8e-4 = 1e-5.

Command:   python -m mlm_jax.train --config=configs/modern_base.py --config.data.sources=PATH/en.jsonl.gz \
             --workdir=runs/modern
Hardware:  meant for 8 accelerators or more; 96 rows a device at a time, on 8 with accumulation 6, which follows the
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
        steps=364_000,
        batch_size=4608,
        rows_per_device=96,
        row_length=1024,
        data=DataConfig(holdout=0.005, pack_groups=64, max_segments=64),
        tokenizer=TokenizerConfig(vocab_size=50_368, sample_bytes=100_000_000),
        mask=MaskConfig(rate=0.3, unit="token"),
        model=ModelConfig(
            family="modernbert",
            layers=22,
            width=768,
            heads=12,
            hidden=1152,
            max_positions=1024,
            rotary_base=10_000.0,
            norm_epsilon=1e-5,
            dropout=0.0,
            attention_dropout=0.0,
        ),
        optimizer=OptimizerConfig(
            name="stable_adamw",
            learning_rate=8e-4,
            schedule="constant",
            warmup=0.00175,
            b2=0.98,
            epsilon=1e-6,
            weight_decay=0.0125,
            clip_norm=0.0,
        ),
        checkpoint=CheckpointConfig(every_steps=1000, keep=2),
        evaluate=EvaluateConfig(every_steps=4000),
    )
