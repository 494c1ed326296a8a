"""Hugging Face's BertForMaskedLM or ModernBertForMaskedLM in PyTorch, with the parts that its Trainer has by default.

A DataLoader in the same process with DataCollatorForLanguageModeling (masks made on the host), fused AdamW without
decay on biases and norms, clipping of the whole gradient, linear schedule with warm-up. Rows come with
`special_tokens_mask`, as the run_mlm.py example makes them. Attention is `case["attention"]`, sdpa or eager; with
`case["compiled"]` the model goes through torch.compile, forward and backward.
"""

import torch
import transformers
from torch.utils.data import DataLoader
from worker import begin, serve

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # ids 0 to 4


def tokenizer_of(vocab_size: int) -> transformers.PreTrainedTokenizerFast:
    """A tokenizer with the special tokens in their places; the collator asks it for ids and for its size."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = [*SPECIAL, *(f"w{i}" for i in range(len(SPECIAL), vocab_size))]
    raw = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    names = {f"{word[1:-1].lower()}_token": word for word in SPECIAL}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=raw, **names)


def batches_of(case: dict, tokens):
    """Batches without end."""
    collator = transformers.DataCollatorForLanguageModeling(
        tokenizer_of(case["vocab_size"]), mlm_probability=case["rate"]
    )
    rows = [
        {"input_ids": row, "attention_mask": [1] * len(row), "special_tokens_mask": [int(i < 5) for i in row]}
        for row in tokens.tolist()
    ]
    loader = DataLoader(rows, batch_size=case["rows"], shuffle=True, drop_last=True, collate_fn=collator)
    while True:
        yield from loader


def model_of(case: dict) -> torch.nn.Module:
    sizes = {
        "vocab_size": case["vocab_size"],
        "num_hidden_layers": case["layers"],
        "hidden_size": case["width"],
        "num_attention_heads": case["heads"],
        "intermediate_size": case["hidden"],
        "max_position_embeddings": case["max_positions"],
        "attn_implementation": case["attention"],
    }
    if case["family"] == "modernbert":
        ids = {"pad_token_id": 0, "cls_token_id": 2, "bos_token_id": 2, "sep_token_id": 3, "eos_token_id": 3}
        return transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**sizes, **ids)).train()
    dropout = {"hidden_dropout_prob": case["dropout"], "attention_probs_dropout_prob": case["dropout"]}
    config = transformers.BertConfig(**sizes, **dropout, bos_token_id=None, eos_token_id=None)
    return transformers.BertForMaskedLM(config).train()


def optimizer_of(case: dict, model: torch.nn.Module) -> torch.optim.Optimizer:
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=case["learning_rate"], betas=(0.9, 0.98), eps=1e-6, fused=True)


def main() -> None:
    case, tokens, answers = begin()
    model, batches = model_of(case), batches_of(case, tokens)
    optimizer, forward = optimizer_of(case, model), torch.compile(model) if case["compiled"] else model
    steps = case["schedule_steps"]
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, round(0.06 * steps), steps)

    def run(steps: int) -> float:
        for _ in range(steps):
            loss = forward(**next(batches)).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        return loss.item()

    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    about = f"{versions}, {torch.get_num_threads()} threads, attention {model.config._attn_implementation}"
    about += ", compiled" if case["compiled"] else ""
    serve(answers, run, {"versions": about, "parameters": sum(p.numel() for p in model.parameters())})


if __name__ == "__main__":
    main()
