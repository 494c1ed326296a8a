"""A small ModernBERT that learns four things at once: masked tokens, the order of pairs, which text is which, and, in a
quarter of the steps, the next token.

Three layers of 128, Muon: a model that soon leaves the plateau of word frequencies, without which no order is learned
(benchmarks/RESULTS.md, objectives on English prose). The rows hold pairs in order.

Command:  python -m mlm_jax.train --config=configs/multitask.py [--config.data.sources=PATH/en.jsonl.gz]
Hardware: two CPU cores
Result:   not measured as it stands. With masked tokens and order alone, batches of 32 and 2,000 steps on 34 MB of
          English prose: 59.4 % of the pairs, held-out loss 4.616 (by word frequency 6.845), 12 minutes on two cores
          that had other work to do
"""

from mlm_jax.config import (
    CausalConfig,
    CheckpointConfig,
    Config,
    ContrastiveConfig,
    DataConfig,
    EvaluateConfig,
    MaskConfig,
    ModelConfig,
    ObjectiveConfig,
    ObjectivesConfig,
    OptimizerConfig,
    TokenizerConfig,
)


def get_config() -> Config:
    return Config(
        steps=1000,
        batch_size=64,
        row_length=128,
        data=DataConfig(sources=("builtin:pydoc",), max_segments=8, pairs="order"),
        tokenizer=TokenizerConfig(vocab_size=8192),
        mask=MaskConfig(rate=0.15, unit="word"),
        model=ModelConfig(
            family="modernbert", layers=3, width=128, heads=4, hidden=256, max_positions=128, local_window=0
        ),
        objectives=ObjectivesConfig(
            sop=ObjectiveConfig(weight=1.0),
            contrastive=ContrastiveConfig(weight=0.1, group_rows=8),
            causal=CausalConfig(ratio=0.25),
        ),
        optimizer=OptimizerConfig(name="muon", learning_rate=5e-3, schedule="cosine", warmup=0.06),
        checkpoint=CheckpointConfig(every_steps=250),
        evaluate=EvaluateConfig(every_steps=250),
    )
