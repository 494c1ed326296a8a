"""Words that become pieces of their own in a tokenizer that exists, so that all other text keeps its ids."""

import copy
import json
import re
from collections.abc import Callable

import tokenizers
from sentencepiece import sentencepiece_model_pb2

from mlm_jax.config import ConfigError
from mlm_jax.text import clean, is_ideograph
from mlm_jax.tokenizer.export import hub_files
from mlm_jax.tokenizer.hub import JSON, VOCAB, Hub, load
from mlm_jax.tokenizer.spm import GRID, MODEL, SPACE, SentencePiece

UNKNOWN_PENALTY = 10.0  # below the worst piece: the score of an unknown character, in SentencePiece as in `tokenizers`
# How much better a term scores than the pieces before it, per character: a longer term beats a shorter one and a rest.
STEP = 1 / GRID
BYTE = re.compile("<0x[0-9A-F]{2}>")

Ids = Callable[[str], list[int]]  # ids of a text that follows a MASK: " term" after white space, "term" without


def with_terms(backend: Hub | SentencePiece, terms: list[str]) -> tuple[dict[str, bytes], list[str]]:
    """Files of a tokenizer with these terms as pieces, and the texts that the new ids stand for, in their order.

    A text is a term, with white space before it or without, as far as the tokenizer tells the two apart and the text is
    no piece yet. Raises ConfigError, naming the term, where it cannot be done.
    """
    for term in terms:
        if not term or clean(term) != term or " " in term:
            fix = "must be one word, without white space and characters that cleaning removes"
            raise ConfigError("terms", term, fix)

    def ids(text: str) -> list[int]:
        return backend.around(["", text])[1:]

    unk = backend.roles["unk"]
    spelling = _spelling(backend)
    terms = list({spelling(term): term for term in reversed(terms)}.values())[::-1]  # the first of each spelling
    texts = [text for term in terms for text in (f" {term}", term)]
    texts = [text for text in texts if len(ids(text)) > 1 or ids(text) == [unk]]
    texts = [text for text in texts if text[0] == " " or ids(text) != ids(f" {text}")]
    if not texts:
        return dict(backend.files), []
    if isinstance(backend, SentencePiece):
        return _sentencepiece(backend, texts, ids), texts
    family = backend.content["model"]["type"]
    if family not in FAMILIES:
        raise ConfigError("terms", terms, f"cannot be added to a tokenizer of the family {family}")
    files = dict(backend.files)
    if JSON not in backend.files:  # without a config that nobody gave
        files = {JSON: hub_files(backend, None, True)[JSON]} | {n: f for n, f in backend.files.items() if n != VOCAB}
    content = json.loads(files[JSON]) if JSON not in backend.files else copy.deepcopy(backend.content)
    FAMILIES[family](content, backend, texts, ids)
    return files | {JSON: json.dumps(content, ensure_ascii=False).encode()}, texts


def _spelling(backend: Hub | SentencePiece) -> Callable[[str], str]:
    """What a tokenizer makes of a word before it looks for pieces: without case and accents, for some."""
    if isinstance(backend, SentencePiece):
        return backend.normalize
    normalizer = load(backend.content).normalizer
    return normalizer.normalize_str if normalizer else str


# ---- by scores: a unigram model takes the pieces whose scores add up to the most ----


def _sentencepiece(backend: SentencePiece, texts: list[str], ids: Ids) -> dict[str, bytes]:
    proto = sentencepiece_model_pb2.ModelProto.FromString(backend.files[MODEL])
    kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
    if proto.trainer_spec.model_type != proto.trainer_spec.UNIGRAM:
        fix = "can be added to a unigram model alone; this one takes characters, or merges pairs of them"
        raise ConfigError("terms", [text.strip() for text in texts[:5]], fix)
    scores = {piece.piece: piece.score for piece in proto.pieces}
    worst = min(piece.score for piece in proto.pieces if piece.type == kinds.NORMAL)
    for text in texts:
        spaced = SPACE * (text[0] == " ")
        piece = spaced + backend.normalize(text.strip()).removeprefix(SPACE)
        _add_score(backend, scores, worst, text, piece, ids(text))
        proto.pieces.add(piece=piece, score=scores[piece], type=kinds.NORMAL)
    proto.trainer_spec.vocab_size = len(proto.pieces)
    return {MODEL: proto.SerializeToString(deterministic=True)}


def _unigram(content: dict, backend: Hub, texts: list[str], ids: Ids) -> None:
    vocab = content["model"]["vocab"]
    worst = min(score for _, score in vocab)
    for i in range(len(vocab), len(backend.pieces)):  # the new ids come after those of added tokens
        if i not in backend.special:
            fix = f"cannot be added after {backend.pieces[i]!r}, which is no piece of the model"
            raise ConfigError("terms", texts, fix)
        vocab.append([backend.pieces[i], worst])
    scores, library = {piece: score for piece, score in vocab}, load(backend.content)
    for text in texts:
        piece = _one_word(library, text.strip()).removeprefix(SPACE)
        piece = SPACE * (text[0] == " ") + piece
        _add_score(backend, scores, worst, text, piece, ids(text))
        vocab.append([piece, scores[piece]])


def _add_score(
    backend: Hub | SentencePiece, scores: dict[str, float], worst: float, text: str, piece: str, before: list[int]
) -> None:
    """The score of a new piece: a little above the sum of those that it replaces, so that little else changes.

    Unknown characters, and bytes, count as the library counts them.
    """
    if piece in scores:
        raise ConfigError("terms", text, f"is the piece {piece} already, which the tokenizer does not choose for it")
    known = {i: backend.pieces[i] for i in before if i != backend.roles["unk"]}
    unknown = len(piece) - sum(len(known.get(i, "")) for i in before if not BYTE.fullmatch(known.get(i, "")))
    total = sum(scores[known[i]] for i in before if i in known and not BYTE.fullmatch(known[i]))
    scores[piece] = total + unknown * (worst - UNKNOWN_PENALTY) + STEP * len(piece)


# ---- as an added token: a whole word, found before text is cut into pieces ----


def _word_piece(content: dict, backend: Hub, texts: list[str], ids: Ids) -> None:
    """In the vocabulary itself a term would also become the beginning of longer words.

    A term of ideographs is found wherever it stands, since no white space shows where such a word ends.
    """
    for i, text in enumerate(texts, start=len(backend.pieces)):
        term = text.strip()
        written = [is_ideograph(char) for char in term]
        if any(written) and not all(written):
            raise ConfigError("terms", term, "mixes ideographs with others; where such a word ends cannot be told")
        flags = {"single_word": not written[0], "normalized": not written[0], "lstrip": False, "rstrip": False}
        content["added_tokens"].append({"id": i, "content": term, **flags, "special": False})


# ---- as a whole word in the vocabulary, looked up before pairs are merged ----


def _byte_pairs(content: dict, backend: Hub, texts: list[str], ids: Ids) -> None:
    """A term in two forms, after white space and without. Merges would make pieces that other words contain too."""
    library, model = load(backend.content), content["model"]
    if '"ByteLevel"' not in json.dumps(content["pre_tokenizer"]):
        raise ConfigError("terms", texts, "can be added to pairs of bytes alone; this one merges pairs of characters")
    if not model.get("ignore_merges"):
        # looking up whole words must change none of the words that are pieces already
        added = {token["content"] for token in content["added_tokens"]} | {backend.pieces[i] for i in backend.special}
        for token, i in model["vocab"].items():
            if token not in added and [found.id for found in library.model.tokenize(token)] != [i]:
                raise ConfigError("terms", texts, f"cannot be added: merges do not lead to the piece {token!r}")
        model["ignore_merges"] = True
    for i, text in enumerate(texts, start=len(backend.pieces)):
        if any(map(is_ideograph, text)):
            raise ConfigError("terms", text.strip(), "has ideographs, but whole runs of them alone would be looked up")
        model["vocab"][_one_word(library, text)] = i


def _one_word(library: tokenizers.Tokenizer, text: str) -> str:
    """What the model is given for a text. Raises ConfigError where it is cut before."""
    changed = library.normalizer.normalize_str(text) if library.normalizer else text
    pairs = library.pre_tokenizer.pre_tokenize_str(changed) if library.pre_tokenizer else [(changed, None)]
    words = [word for word, _ in pairs]
    if len(words) != 1:
        raise ConfigError("terms", text.strip(), f"is cut into {' '.join(words)} before the tokenizer looks for pieces")
    return words[0]


FAMILIES = {"Unigram": _unigram, "WordPiece": _word_piece, "BPE": _byte_pairs}
