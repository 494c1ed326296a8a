"""Words that become pieces of their own in a tokenizer that exists, so that all other text keeps its ids."""

import copy
import json
import re
from collections.abc import Callable

import numpy as np
import tokenizers
from sentencepiece import sentencepiece_model_pb2

from mlm_jax.config import ConfigError
from mlm_jax.text import clean
from mlm_jax.tokenizer.export import hub_files
from mlm_jax.tokenizer.hub import JSON, Hub, load
from mlm_jax.tokenizer.spm import GRID, MODEL, SentencePiece

UNKNOWN_PENALTY = 10.0  # below the worst piece: the score of an unknown character, in SentencePiece as in `tokenizers`
# How much better a term scores than the pieces before it, per character: a longer term beats a shorter one and a rest.
STEP = 1 / GRID
BYTE = re.compile("<0x[0-9A-F]{2}>")

Ids = Callable[[str], np.ndarray]  # ids of a text


def with_terms(backend: Hub | SentencePiece, terms: list[str]) -> tuple[dict[str, bytes], list[str]]:
    """Files of a tokenizer with these terms as pieces, and the texts that the new ids stand for, in their order.

    Raises ConfigError, naming the term, where it cannot be done.
    """
    for term in terms:
        if not term or clean(term) != term or " " in term:
            raise ConfigError(
                "terms", term, "must be one word, without white space or characters that cleaning removes"
            )

    def ids(text: str) -> np.ndarray:
        return backend.encode([text])[0].ids

    unk = backend.roles["unk"]
    new = [term for term in terms if len(ids(term)) != 1 or ids(term)[0] == unk]
    if not new:
        return dict(backend.files), []
    if isinstance(backend, SentencePiece):
        return _sentencepiece(backend, new, ids), new
    family = backend.content["model"]["type"]
    if family not in FAMILIES:
        raise ConfigError("terms", new[0], f"cannot be added to a tokenizer of the family {family}")
    content, texts = FAMILIES[family](copy.deepcopy(backend.content), backend, new, ids)
    files = hub_files(backend, None, True) if JSON not in backend.files else dict(backend.files)
    return files | {JSON: json.dumps(content, ensure_ascii=False).encode()}, texts


# ---- by scores: a unigram model takes the pieces whose scores add up to the most ----


def _sentencepiece(backend: SentencePiece, terms: list[str], ids: Ids) -> dict[str, bytes]:
    proto = sentencepiece_model_pb2.ModelProto.FromString(backend.files[MODEL])
    kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
    if proto.trainer_spec.model_type != proto.trainer_spec.UNIGRAM:
        raise ConfigError("terms", terms, "can be added to a unigram model alone; this one merges pairs")
    scores = {piece.piece: piece.score for piece in proto.pieces}
    worst = min(piece.score for piece in proto.pieces if piece.type == kinds.NORMAL)
    for term in terms:
        piece = backend.normalize(term)
        parts = zip(backend.surfaces(term), ids(term).tolist(), strict=True)
        score = sum(_score(backend, scores, worst, i, len(surface)) for surface, i in parts)
        _check_new(term, piece, scores)
        proto.pieces.add(piece=piece, score=score + STEP * len(piece), type=kinds.NORMAL)
        scores[piece] = score
    proto.trainer_spec.vocab_size = len(proto.pieces)
    return {MODEL: proto.SerializeToString(deterministic=True)}


def _unigram(content: dict, backend: Hub, terms: list[str], ids: Ids) -> tuple[dict, list[str]]:
    vocab = content["model"]["vocab"]
    worst = min(score for _, score in vocab)
    for piece in backend.pieces[len(vocab) :]:  # the new ids come after those of added tokens
        if backend.vocab.get(piece) not in backend.special.tolist():
            raise ConfigError("terms", terms, f"cannot be added after the added token {piece!r}")
        vocab.append([piece, worst])
    scores, library = dict(map(tuple, vocab)), load(backend.content)
    for term in terms:
        piece = _one_word(library, term)
        encoding = library.encode(term, add_special_tokens=False)
        parts = zip(encoding.offsets, encoding.ids)
        score = sum(_score(backend, scores, worst, i, end - start) for (start, end), i in parts)
        _check_new(term, piece, scores)
        vocab.append([piece, score + STEP * len(piece)])
        scores[piece] = score
    return content, terms


def _score(backend: Hub | SentencePiece, scores: dict[str, float], worst: float, i: int, characters: int) -> float:
    """What the id of a piece adds to the score of a text; unknown characters, and bytes, count as such."""
    piece = backend.pieces[i]
    if i == backend.roles["unk"]:
        return characters * (worst - UNKNOWN_PENALTY)
    if BYTE.fullmatch(piece):
        return 0.0 if 0x80 <= int(piece[3:5], 16) < 0xC0 else worst - UNKNOWN_PENALTY  # one for each character
    return scores[piece]


def _check_new(term: str, piece: str, scores: dict[str, float]) -> None:
    if piece in scores:
        raise ConfigError("terms", term, f"is the piece {piece} already, which the tokenizer does not choose for it")


# ---- as an added token: a whole word, found before text is cut into pieces ----


def _word_piece(content: dict, backend: Hub, terms: list[str], ids: Ids) -> tuple[dict, list[str]]:
    """In the vocabulary itself a term would also become the beginning of longer words."""
    flags = {"single_word": True, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    content["added_tokens"] += [{"id": backend.size + k, "content": term, **flags} for k, term in enumerate(terms)]
    return content, terms


# ---- as a whole word in the vocabulary, looked up before pairs are merged ----


def _byte_pairs(content: dict, backend: Hub, terms: list[str], ids: Ids) -> tuple[dict, list[str]]:
    """A term in two forms, after white space and without. Merges would make pieces that other words contain too."""
    library, model = load(backend.content), content["model"]
    if '"ByteLevel"' not in json.dumps(content["pre_tokenizer"]):
        raise ConfigError(
            "terms", terms, "can be added to pairs of bytes alone; this tokenizer merges pairs of characters"
        )
    if not model.get("ignore_merges"):
        # looking up whole words must change none of the words that are pieces already
        special = set(backend.special.tolist())
        for token, i in model["vocab"].items():
            if i not in special and [found.id for found in library.model.tokenize(token)] != [i]:
                raise ConfigError("terms", terms, f"cannot be added: merges do not lead to the piece {token!r}")
        model["ignore_merges"] = True
    texts = []
    for term in terms:
        for text in (f" {term}", term):
            piece = _one_word(library, text)
            if piece not in model["vocab"]:
                model["vocab"][piece] = backend.size + len(texts)
                texts.append(text)
    return content, texts


def _one_word(library: tokenizers.Tokenizer, text: str) -> str:
    """What the model is given for a text. Raises ConfigError where it is cut before."""
    text_after = library.normalizer.normalize_str(text) if library.normalizer else text
    words = (
        [word for word, _ in library.pre_tokenizer.pre_tokenize_str(text_after)]
        if library.pre_tokenizer
        else [text_after]
    )
    if len(words) != 1:
        raise ConfigError("terms", text.strip(), f"is cut into {' '.join(words)} before the tokenizer looks for pieces")
    return words[0]


FAMILIES = {"Unigram": _unigram, "WordPiece": _word_piece, "BPE": _byte_pairs}
