"""ELECTRA-small: replaced token detection (Clark et al., 2020, table 6), on rows of 128 tokens.

A generator of a quarter of the size fills masked places by samples, and the model says of every token whether it was
replaced. 12 layers of width 256 over tables of width 128, 4 heads; weight 50, peak rate 5e-4 after 10,000 of 1,000,000
steps, then linearly to zero, batches of 128 rows, MASK at every selected place. What differs: rows are packed with
attention inside each document, and the gradient is clipped at 1 by its norm, as in the paper's code.

Command:   python -m mlm_jax.train --config=configs/electra_small.py --config.data.sources=PATH/en.jsonl.gz
Hardware:  one accelerator (the paper: 4 days on one V100).
Time and score: not measured for the full run. A ModernBERT of 3 layers of 128 by Muon, on 34 MB of English prose: the
discriminator's loss is 0.367 after 750 steps of 32 rows, the entropy of its labels 0.398. BERT of 2 layers of 128 by
AdamW had not left the start after 500.
"""

from mlm_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    EvaluateConfig,
    MaskConfig,
    MlmConfig,
    ModelConfig,
    ObjectivesConfig,
    OptimizerConfig,
    ReplacedConfig,
    TokenizerConfig,
)


def get_config() -> Config:
    return Config(
        steps=1_000_000,
        batch_size=128,
        row_length=128,
        data=DataConfig(holdout=0.005, pack_groups=64),
        tokenizer=TokenizerConfig(
            kind="wordpiece", vocab_size=30_522, sample_bytes=100_000_000, lowercase=True, strip_accents=True
        ),
        mask=MaskConfig(rate=0.15, unit="token", corruption=(1.0, 0.0, 0.0)),
        model=ModelConfig(
            family="electra", layers=12, width=256, embedding_width=128, heads=4, hidden=1024, max_positions=512
        ),
        objectives=ObjectivesConfig(mlm=MlmConfig(weight=0.0), replaced=ReplacedConfig(weight=50.0)),
        optimizer=OptimizerConfig(
            learning_rate=5e-4, schedule="linear", warmup=0.01, b1=0.9, b2=0.999, epsilon=1e-6, weight_decay=0.01
        ),
        checkpoint=CheckpointConfig(every_steps=10_000, keep=2),
        evaluate=EvaluateConfig(every_steps=10_000),
    )
