"""The model card of an exported run: what was trained, on what, and how well it does, as `README.md`."""

from pathlib import Path

from mlm_jax import jsonl, records
from mlm_jax.config import Config, ModelConfig, rows_folder, to_json
from mlm_jax.logbook import STEPS

HEADER = """---
library_name: transformers
pipeline_tag: fill-mask
tags:
- fill-mask
- mlm_jax
---
"""
DISCRIMINATOR_HEADER = """---
library_name: transformers
tags:
- mlm_jax
---
"""
NAMES = {"loss": "loss", "perplexity": "perplexity", "accuracy": "accuracy", "unigram_loss": "by word frequency"}


def card(
    workdir: Path,
    config: Config,
    model: ModelConfig,
    step: int,
    data: str | None,
    parameters: int,
    mask: str | None,
) -> str:
    """Markdown. data: the fingerprint of the training rows, None where there were none.

    model: what is exported, of a run with `config`. mask: the token that it fills; None for a discriminator, which says
    which tokens were replaced.
    """
    trained = f"trained for {step:,} of {config.steps:,} steps with mlm_jax" if data else "as it was imported"
    if config.init_from:
        trained += f", beginning with the weights of `{Path(config.init_from).name}`"
    about = f"{model.family}, {model.layers} layers of {model.width}, {model.heads} heads, {parameters:,} parameters"
    kind, use = "masked language model", "from transformers import pipeline\n\n"
    use += f'pipeline("fill-mask", model="PATH")("A text with a {mask}.")'
    if mask is None:
        kind, use = "discriminator of replaced tokens", "from transformers import ElectraForPreTraining\n\n"
        use += 'ElectraForPreTraining.from_pretrained("PATH")'
    parts = [
        HEADER if mask else DISCRIMINATOR_HEADER,
        f"# {workdir.resolve().name}",
        f"A {kind} ({about}), {trained}.",
        f"```python\n{use}\n```",
        _data(workdir, config, data),
        _evaluation(workdir, step),
        f"## Config\n\n```json\n{to_json(config)}\n```\n" if data else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _data(workdir: Path, config: Config, fingerprint: str | None) -> str:
    lines = ["## Training text", ""]
    folder = rows_folder(config, workdir)
    manifest = records.read_manifest(folder) if (folder / records.MANIFEST).is_file() else None
    if manifest and manifest["fingerprint"] == fingerprint:
        lines += ["| source | rows | tokens |", "|---|---|---|"]
        for corpus in manifest["corpora"]:
            train = corpus["splits"]["train"]
            counts = " | ".join(f"{train[name]:,}" for name in ("rows", "tokens"))
            lines.append(f"| `{corpus['source']}` | {counts} |")
    else:
        lines += [f"- `{source}`" for source in config.data.sources]
    if fingerprint is None:
        return ""
    return "\n".join([*lines, "", f"Fingerprint of the prepared rows: `{fingerprint}`."])


def _evaluation(workdir: Path, step: int) -> str:
    """The last evaluation up to the step, by held-out set."""
    results: dict[str, dict[str, float]] = {}
    for record in jsonl.objects(workdir / STEPS):
        names = [name for name in record if name.startswith("eval/")]
        if names and record["step"] <= step:
            results = {}
            for name in names:
                _, of, key = name.split("/")
                results.setdefault(of, {"step": record["step"]})[key] = record[name]
    if not results:
        return ""
    lines = ["## Evaluation", ""]
    lines += [f"| held-out text | step | {' | '.join(NAMES.values())} |", "|---|" + "---|" * (1 + len(NAMES))]
    for of, values in results.items():
        numbers = " | ".join(f"{values[key]:.3f}" if key in values else "" for key in NAMES)
        lines.append(f"| {of} | {values['step']:,} | {numbers} |")
    rate = "Loss in nats a token, with the mask token at every selected place of held-out documents."
    return "\n".join([*lines, "", rate])
