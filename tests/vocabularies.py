"""Tiny tokenizers of every family, and text of invented words."""

import json
import random
from pathlib import Path

import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import models, pre_tokenizers

from mlm_jax.tokenizer import Tokenizer

PIECE = sentencepiece_model_pb2.ModelProto.SentencePiece
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPECIALS = [("[PAD]", CONTROL), ("[UNK]", UNKNOWN), ("[CLS]", CONTROL), ("[SEP]", CONTROL), ("[MASK]", CONTROL)]


def model(pieces: list[str], specials=SPECIALS, more=(), **spec) -> bytes:
    """A unigram model of exactly these pieces; longer ones are preferred."""
    proto = sentencepiece_model_pb2.ModelProto()
    for text, kind in [*specials, *more, *((piece, NORMAL) for piece in pieces)]:
        score = 0.0 if kind != NORMAL else -10.0 + 0.1 * len(text)
        proto.pieces.append(PIECE(piece=text, score=score, type=kind))
    proto.trainer_spec.model_type = proto.trainer_spec.UNIGRAM
    proto.trainer_spec.unk_id = next(i for i, (_, kind) in enumerate(specials) if kind == UNKNOWN)
    proto.trainer_spec.bos_id = proto.trainer_spec.eos_id = proto.trainer_spec.pad_id = -1
    for key, value in spec.items():
        setattr(proto.trainer_spec, key, value)
    proto.normalizer_spec.name = "identity"
    return proto.SerializeToString()


def groups(encoding) -> list[list[int]]:
    found = []
    for i, start in enumerate(encoding.word_starts):
        found = [*found, [i]] if start else [*found[:-1], [*found[-1], i]]
    return found


LETTERS = "abcdefghijklmnopqrstuvwxyz"


def prose(seed: int, characters: int) -> str:
    """Text of invented words with signs, digits and a few other scripts, different for each seed."""
    draw = random.Random(seed)
    vocabulary = ["".join(draw.choices(LETTERS, k=draw.randint(1, 9))) for _ in range(400)]
    odd = ["don't", "e.g.", "3.14", "天气很好", "(x)", "snake_case", "naïve", "と言う", "e\u0301a", "مُحَمَّد", "..."]
    text = ""
    while len(text) < characters:
        chosen = draw.choices(vocabulary, k=draw.randint(3, 12)) + draw.choices(odd, k=draw.randint(0, 2))
        draw.shuffle(chosen)
        text += " ".join(chosen).capitalize() + draw.choice([". ", "! ", "? ", ", ", "。"])
    return text


BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>"]


def word_pieces(folder: Path, pieces: list[str], specials=BERT, **options) -> Tokenizer:
    """A folder with a `vocab.txt` of these pieces, and its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_bytes("".join(f"{piece}\n" for piece in [*specials, *pieces]).encode())
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False, **options}))
    return Tokenizer.load(folder)


def byte_pairs(folder: Path, merges: list[str], change=lambda content: None, **config) -> Tokenizer:
    """A folder with the `tokenizer.json` of byte-level pairs, laid out as for RoBERTa, and its tokenizer.

    merges: "Ġ h", "Ġh o" and so on. change: of the content of the file. config: of `tokenizer_config.json`, if any.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: i for i, piece in enumerate([*ROBERTA, *alphabet, *(pair.replace(" ", "") for pair in merges)])}
    made = tokenizers.Tokenizer(models.BPE(vocab, [tuple(pair.split(" ")) for pair in merges]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([*ROBERTA, tokenizers.AddedToken("<mask>", lstrip=True)])
    made.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    content = json.loads(made.to_str())
    change(content)
    return from_content(folder, content, **config)


def from_content(folder: Path, content: dict, **config) -> Tokenizer:
    """A folder with this `tokenizer.json`, and its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.load(folder)


def unigram(folder: Path, pieces: list[str], change=lambda content: None) -> Tokenizer:
    """A folder with the `tokenizer.json` of a unigram model, laid out as for XLM-RoBERTa, and its tokenizer."""
    vocab = [(piece, 0.0) for piece in [*ROBERTA, "<mask>"]] + [(piece, -10.0 + 0.1 * len(piece)) for piece in pieces]
    made = tokenizers.Tokenizer(models.Unigram(vocab, 3, False))
    made.normalizer = tokenizers.normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = tokenizers.decoders.Metaspace()
    made.add_special_tokens([*ROBERTA, tokenizers.AddedToken("<mask>", lstrip=True)])
    content = json.loads(made.to_str())
    change(content)
    return from_content(folder, content)


# What goes wrong in text, and around a MASK.
NASTY = [
    "",
    " ",
    "\u200b",
    "a",
    "  doubled  spaces  ",
    "a\u00a0b\u3000c\td",
    "line\r\nbreak\rhere\n",
    "zero\u200bwidth co\u00adoperate \ufeffbom x\u0000y \ufffd a\u0085b a\u2028b",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd",
    "e\u0301a na\u00efve .\u0301x \u0301lone",
    "\u5929\u6c14\u5f88\u597d abc\u5929 \u3067\u3059\u3002\u304b \uac00\ub098",
    "\u0645\u064f\u062d\u064e\u0645\u0651\u064e\u062f",
    "don't (x) snake_case 3.14, e.g. <0x41> ...",
    "\u2581sign a\u2581b \u2581 end\u2581",
    "\U000e0001tag \ue000private \u0600 1\u2044\u00bd \u0130stanbul \ufb01ne",
]
AROUND = [
    "Tea MASK milk",
    "TeaMASK milk",
    "MASK milk",
    "Tea MASK",
    "MASK",
    "TeaMASKmilk",
    "MASKMASK",
    "MASK MASK.",
    "  MASK\u200b milk",
    "MASK\u2581sign",
    "MASK\u200bsign",
]
