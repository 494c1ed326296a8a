"""The model card of a fine-tuned model: what it was trained on, and how well it does, as `README.md`."""

from pathlib import Path

from mlm_jax.config import FinetuneConfig, Task, to_json

PIPELINES = {
    "classification": "text-classification",
    "regression": "text-classification",
    "tagging": "token-classification",
    "questions": "question-answering",
}
CALLS = {
    "classification": '("A text.")',
    "regression": '("A text.", function_to_apply="none")',
    "tagging": '("Words of a sentence.")',
    "questions": '(question="Who?", context="A text.")',
}


def card(config: FinetuneConfig, task: Task, count: int, seed: int, epoch: int, scores: dict[str, float]) -> str:
    """Markdown. count: of training examples; epoch: the chosen one, from 1; scores: of the dev examples."""
    pipeline = PIPELINES[task.kind]
    source = "with parameters drawn at random" if config.scratch else f"beginning with `{Path(config.model).name}`"
    dev = f"`{Path(config.task.dev).name}`" if config.task.dev else f"{config.task.dev_share:.0%} of the examples"
    trained = f"Trained on `{Path(config.task.train).name}` ({count:,} examples) with mlm_jax, {source}, seed {seed}."
    if task.labels:
        trained += f" Labels: {', '.join(task.labels)}."
    parts = [
        f"---\nlibrary_name: transformers\npipeline_tag: {pipeline}\ntags:\n- {pipeline}\n- mlm_jax\n---\n",
        f"# {config.task.name or Path(config.task.train).name.split('.')[0]}",
        trained,
        f'```python\nfrom transformers import pipeline\n\npipeline("{pipeline}", model="PATH"){CALLS[task.kind]}\n```',
        f"## Evaluation\n\nOn {dev}, after epoch {epoch} of {config.epochs}, the best one by these examples:\n",
        "\n".join(
            ["| metric | value |", "|---|---|", *(f"| {name} | {value:.4f} |" for name, value in scores.items())]
        ),
        f"## Config\n\n```json\n{to_json(config)}\n```\n",
    ]
    return "\n\n".join(parts)
