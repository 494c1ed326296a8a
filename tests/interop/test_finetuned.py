"""What fine-tuning leaves behind, asked by `transformers`: the same pairs of texts, the same probabilities."""

import json

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from vocabularies import byte_pairs, word_pieces  # noqa: E402

from mlm_jax import convert  # noqa: E402
from mlm_jax.config import ModelConfig, hub  # noqa: E402
from mlm_jax.convert.files import WEIGHTS, write_tensors  # noqa: E402
from mlm_jax.finetune.program import main  # noqa: E402
from mlm_jax.models import build  # noqa: E402

WORDS = ["it", "rains", "sun", "shines", "cold", "warm", "is", "day", "the"]
CONFIG = """
from mlm_jax.config import FinetuneConfig, OptimizerConfig, TaskConfig
def get_config():
    return FinetuneConfig(
        task=TaskConfig(second="second"), seeds=(0,), epochs=1, batch_size=8, row_length=64,
        optimizer=OptimizerConfig(learning_rate=1e-2))
"""


def source(folder, family):
    """A folder of the hub format with drawn parameters; RoBERTa's tokenizer puts two SEP between texts."""
    tokenizer = word_pieces(folder, WORDS) if family == "bert" else byte_pairs(folder, ["t h", "th e"])
    types = {"types": 1, "padding_id": tokenizer.pad} if family == "roberta" else {}
    sizes = {"layers": 2, "width": 16, "heads": 2, "hidden": 24, "max_positions": 80, "initializer_range": 0.2}
    model = build(ModelConfig(family=family, dropout=0.0, attention_dropout=0.0, **sizes, **types), tokenizer.size)
    params = jax.device_get(jax.jit(model.init)(jax.random.key(0)))
    ids = {role: getattr(tokenizer, role) for role in ("pad", "cls", "sep")}
    hub.write_config(folder, hub.config_values(model.config, tokenizer.size, ids))
    write_tensors(folder / WEIGHTS, convert.to_hub(params, model.config, tokenizer.size))


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_pairs_have_the_same_ids_and_probabilities(family, tmp_path):
    source(tmp_path / "source", family)
    draws = np.random.default_rng(0)
    lines = ["text\tsecond\tlabel"]
    for _ in range(40):
        first, second = (" ".join(draws.choice(WORDS, draws.integers(1, 5))) for _ in range(2))
        lines.append(f"{first}\t{second}\t{draws.choice(['neutral', 'entailed'])}")
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    (tmp_path / "config.py").write_text(CONFIG)
    argv = [f"--config={tmp_path / 'config.py'}", f"--config.model={tmp_path / 'source'}"]
    argv += [f"--config.task.{name}={tmp_path / 'train.tsv'}" for name in ("train", "test")]
    assert main([*argv, f"--workdir={tmp_path / 'run'}"]) == 0

    made = tmp_path / "run" / "seed-0"
    tokenizer = transformers.AutoTokenizer.from_pretrained(made / "model")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(made / "model").eval()
    said = [json.loads(line) for line in (made / "predictions-test" / "test.jsonl").read_text().splitlines()]
    for line, ours in zip(lines[1:], said, strict=True):
        first, second, _ = line.split("\t")
        with torch.no_grad():
            chances = model(**tokenizer(first, second, return_tensors="pt")).logits.softmax(-1)[0].numpy()
        theirs = {model.config.id2label[i]: chance for i, chance in enumerate(chances)}
        assert ours["probabilities"] == pytest.approx(theirs, abs=1e-4), line
