r"""ModernBERT-large on rows of 1,024 tokens: the first and longest phase of its training (Warner et al., 2024).

1.7 T tokens in batches of 4,928 rows, 30 % of the tokens masked, rate 5e-4 after 2 G tokens of warm-up and a tenth of
it after 900 G tokens. The published model was also rolled back at that point, and began as a blown-up copy of the base
model; here it begins at random. The rest, and what else differs, as in modern_base.py; the published decay of 1e-5 a
step at the peak rate is 0.02 x 5e-4 here.

Command:   python -m mlm_jax.train --config=configs/modern_large.py --config.data.sources=PATH/en.jsonl.gz \
             --workdir=runs/modern
Hardware:  meant for 8 accelerators or more; 56 rows a device at a time, on 8 with accumulation 11, which follows the
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
        steps=337_000,
        batch_size=4928,
        rows_per_device=56,
        row_length=1024,
        data=DataConfig(holdout=0.005, pack_groups=64, max_segments=64),
        tokenizer=TokenizerConfig(vocab_size=50_368, sample_bytes=100_000_000),
        mask=MaskConfig(rate=0.3, unit="token"),
        model=ModelConfig(
            family="modernbert",
            layers=28,
            width=1024,
            heads=16,
            hidden=2624,
            max_positions=1024,
            rotary_base=10_000.0,
            norm_epsilon=1e-5,
            dropout=0.0,
            attention_dropout=0.0,
        ),
        optimizer=OptimizerConfig(
            name="stable_adamw",
            learning_rate=5e-4,
            schedule="step",
            step_every=178_500,
            step_factor=0.1,
            warmup=0.00118,
            b2=0.98,
            epsilon=1e-6,
            weight_decay=0.02,
            clip_norm=0.0,
        ),
        checkpoint=CheckpointConfig(every_steps=1000, keep=2),
        evaluate=EvaluateConfig(every_steps=4000),
    )
