"""Makes bert.npz: a tiny random BertForMaskedLM of `transformers`, an input, and what that model computes from it.

Command:  python tests/golden/make_bert.py     (needs torch and transformers)

Weights are values that float16 holds exactly. Biases are far from 0 and norm scales from 1, so that a forgotten one
shows.
"""

from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM

VOCAB, WIDTH, LENGTH = 100, 24, 12
LENGTHS = (12, 7, 4)  # real tokens of the three rows


def random_model(seed: int, **config: object) -> BertForMaskedLM:
    """A model in evaluation mode whose every parameter is drawn, norm scales around 1 and all others around 0."""
    torch.manual_seed(seed)
    model = BertForMaskedLM(BertConfig(attn_implementation="eager", **config)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn_like(parameter) * 0.2 + ("LayerNorm.weight" in name)
            parameter.copy_(drawn.half().float())
    return model


def random_input(seed: int, vocab_size: int) -> dict[str, torch.Tensor]:
    """Three rows with padding and token types."""
    random = np.random.default_rng(seed)
    place = np.arange(LENGTH)
    mask = place < np.array(LENGTHS)[:, None]
    types = (place >= np.array(LENGTHS)[:, None] // 2) & mask
    ids = np.where(mask, random.integers(0, vocab_size, mask.shape), 0)
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {name: torch.tensor(array.astype(np.int64)) for name, array in arrays.items()}


def main() -> None:
    model = random_model(
        seed=0,
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=16,
    )
    given = random_input(seed=1, vocab_size=VOCAB)
    with torch.no_grad():
        made = model(**given, output_hidden_states=True, output_attentions=True)
    arrays = {f"weights/{name}": tensor.half().numpy() for name, tensor in model.state_dict().items()}
    for copy in ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias"):
        del arrays[f"weights/{copy}"]
    arrays |= {f"given/{name}": tensor.numpy().astype(np.uint8) for name, tensor in given.items()}
    arrays["made/logits"] = made.logits.numpy()
    arrays["made/hidden"] = torch.stack(made.hidden_states).numpy()
    arrays["made/attention"] = torch.stack(made.attentions).numpy()
    np.savez_compressed(Path(__file__).with_name("bert.npz"), **arrays)


if __name__ == "__main__":
    main()
