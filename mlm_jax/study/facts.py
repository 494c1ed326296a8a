"""Where and from what the runs of a study were made: facts for its report, from the files in their folders."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from mlm_jax.jsonl import objects
from mlm_jax.report.read import number, read_object

Fact = tuple[str, str]


def facts(folders: Sequence[Path], rows: Path) -> list[Fact]:
    """Machine, versions, model and text of the runs in `folders` that have begun, and of the rows."""
    starts = [start for folder in folders for start in objects(folder / "starts.jsonl")]
    config = next(filter(None, (read_object(folder / "config.json") for folder in folders)), {})
    return [*_machine(starts), *_model(config), *_text(read_object(rows / "manifest.json"))]


def _machine(starts: Sequence[dict]) -> list[Fact]:
    found = [("report made on", f"{platform.platform()}, {os.cpu_count()} cores")]
    devices = {f"{one.get('devices')} x {one.get('device_kind')}, {one.get('system')}" for one in starts}
    versions: dict[str, set[str]] = {}
    for one in starts:
        for name, version in one.get("versions", {}).items():
            versions.setdefault(name, set()).add(str(version))
    if devices:
        found.append(("runs on", "; ".join(sorted(devices))))
    if versions:
        each = (f"{name} {' and '.join(sorted(several))}" for name, several in versions.items())
        found.append(("versions", ", ".join(each)))
    return found


def _model(config: dict) -> list[Fact]:
    model, optimizer = config.get("model"), config.get("optimizer")
    if not model or not optimizer:
        return []
    sizes = f"{model['layers']} layers of {model['width']}, {model['heads']} heads"
    rate = f"{optimizer['name']}, peak rate {optimizer['learning_rate']:g}, {optimizer['schedule']}"
    steps = f"{config['steps']:,} steps of {config['batch_size']} rows of {config['row_length']} tokens"
    return [("model", f"{model['family']}, {sizes}"), ("training", f"{steps}; {rate}")]


def _text(manifest: dict) -> list[Fact]:
    found = []
    for corpus in manifest.get("corpora", []):
        train, held = (corpus["splits"][split] for split in ("train", "eval"))
        parts = f"{number(train['tokens']):,.0f} training tokens in {number(train['rows']):,.0f} rows"
        found.append(("text", f"{corpus['source']}: {parts}, {number(held['rows']):,.0f} held-out rows"))
    if size := manifest.get("tokenizer", {}).get("vocab_size"):
        found.append(("tokenizer", f"{size:,} pieces"))
    return found
