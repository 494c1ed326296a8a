"""A small ModernBERT in three phases: a larger batch after a fifth of the run, longer rows in the last tenth.

The order of things is that of ModernBERT (Warner et al., 2024): a small batch first, most of the run on short rows,
then rows four times as long at a higher base of the rotary positions of global layers. 30 % of the tokens are masked,
and 15 % in the last phase (Yang et al., 2023, let the rate fall, too). The sizes are for two CPU cores. The length of
the run is in tokens, its warm-up in steps.

Command:  python -m mlm_jax.train --config=configs/phases.py [--config.data.sources=PATH/en.jsonl.gz]
Result:   on 34 MB of English prose, 412 steps: held-out loss 6.440, 5.470 and 5.004 after 100, 200 and 300 steps, in
          rows of 128, and 4.768 at the end, in rows of 512 (words around shuffled 7.112, by word frequency 6.55)
Time:     13 minutes in steps, on two CPU cores that had other work to do; packing the text again took 5 s
"""

from mlm_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    EvaluateConfig,
    MaskConfig,
    ModelConfig,
    OptimizerConfig,
    PhaseConfig,
    TokenizerConfig,
)


def get_config() -> Config:
    return Config(
        length="6e6 tokens",
        batch_size=128,
        accumulation=2,
        row_length=128,
        data=DataConfig(sources=("builtin:pydoc",), max_segments=16),
        tokenizer=TokenizerConfig(vocab_size=4096),
        mask=MaskConfig(rate=0.15, unit="word"),
        model=ModelConfig(
            family="modernbert",
            layers=2,
            width=128,
            heads=4,
            hidden=256,
            max_positions=512,
            local_window=64,
            rotary_base=10_000.0,
            norm_epsilon=1e-5,
        ),
        optimizer=OptimizerConfig(learning_rate=3e-3, schedule="wsd", warmup_length="40 steps", cooldown=0.2),
        checkpoint=CheckpointConfig(every_steps=100),
        evaluate=EvaluateConfig(every_steps=100),
        phases=(
            PhaseConfig(batch_size=64, accumulation=1, mask_rate=0.3),
            PhaseConfig(begin=0.2, mask_rate=0.3),
            PhaseConfig(begin=0.9, row_length=512, batch_size=32, rotary_base=160_000.0),
        ),
    )
