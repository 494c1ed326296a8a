"""Makes FAMILY.npz: a tiny random masked language model of `transformers`, an input, and what it computes from it.

Command:  python tests/golden/make.py     (needs torch and transformers)

Weights are values that float16 holds exactly. Biases are far from 0 and norm scales from 1, so that a forgotten one
shows.
"""

import re
from pathlib import Path

import numpy as np
import torch
import transformers

MODELS = {
    "bert": (transformers.BertConfig, transformers.BertForMaskedLM),
    "roberta": (transformers.RobertaConfig, transformers.RobertaForMaskedLM),
    "electra": (transformers.ElectraConfig, transformers.ElectraForMaskedLM),
    "modernbert": (transformers.ModernBertConfig, transformers.ModernBertForMaskedLM),
}
PADDING = {"bert": 0, "roberta": 1, "electra": 0, "modernbert": 0}
# Six layers: one, a group of three, and two. The window reaches 2 places to either side.
LOCAL = {"local_attention": 4, "num_hidden_layers": 6, "pad_token_id": 0}
SPECIALS = {"bos_token_id": 0, "cls_token_id": 0, "eos_token_id": 0, "sep_token_id": 0}
TINY = {"num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 40}
SIZES = {  # of the golden files: vocab_size, lengths of the rows, and the rest
    "bert": (100, (12, 7, 4), TINY | {"hidden_size": 24, "max_position_embeddings": 16}),
    "roberta": (
        80,
        (12, 7, 4),
        TINY | {"hidden_size": 18, "max_position_embeddings": 18, "type_vocab_size": 1, "num_hidden_layers": 2},
    ),
    "modernbert": (
        60,
        (16, 9, 4),
        {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24} | LOCAL | SPECIALS,
    ),
}


def random_model(seed: int, family: str, **config: object) -> torch.nn.Module:
    """A model in evaluation mode whose every parameter is drawn, norm scales around 1 and all others around 0."""
    kind, model_kind = MODELS[family]
    torch.manual_seed(seed)
    model = model_kind(kind(attn_implementation="eager", **config)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = bool(re.search(r"(?i)norm\.weight$", name))
            parameter.copy_((torch.randn_like(parameter) * 0.2 + scale).half().float())
    return model


def random_input(seed: int, family: str, vocab_size: int, lengths: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Rows with padding, and token types where there are two. RoBERTa finds padding by its id: no real token has it."""
    random = np.random.default_rng(seed)
    place, lengths = np.arange(max(lengths)), np.array(lengths)[:, None]
    mask, pad = place < lengths, PADDING[family]
    arrays = {
        "input_ids": np.where(mask, random.integers(2 * pad, vocab_size, mask.shape), pad),
        "attention_mask": mask,
    }
    if family in ("bert", "electra"):
        arrays["token_type_ids"] = (place >= lengths // 2) & mask
    return {name: torch.tensor(array.astype(np.int64)) for name, array in arrays.items()}


def make(family: str) -> dict[str, np.ndarray]:
    vocab_size, lengths, sizes = SIZES[family]
    model = random_model(0, family, vocab_size=vocab_size, **sizes)
    given = random_input(1, family, vocab_size, lengths)
    with torch.no_grad():
        made = model(**given, output_hidden_states=True, output_attentions=True)
    tied = model.all_tied_weights_keys  # second names of one array
    arrays = {
        f"weights/{name}": tensor.half().numpy() for name, tensor in model.state_dict().items() if name not in tied
    }
    arrays |= {f"given/{name}": tensor.numpy().astype(np.uint8) for name, tensor in given.items()}
    arrays["made/logits"] = made.logits.numpy()
    arrays["made/hidden"] = torch.stack(made.hidden_states).numpy()
    real = given["attention_mask"].numpy()[None, :, None, :, None]
    arrays["made/attention"] = torch.stack(made.attentions).numpy() * real
    return arrays


if __name__ == "__main__":
    for family in SIZES:
        np.savez_compressed(Path(__file__).with_name(f"{family}.npz"), **make(family))
