"""Fine-tuning: `python -m mlm_jax.finetune --config=configs/finetune/TASK.py`."""
