"""Any tokenizer as the files of the hub format: `tokenizer.json` and `tokenizer_config.json`."""

import copy
import functools
import json
import unicodedata

import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from mlm_jax.config import ConfigError
from mlm_jax.text import DROPPED, SPACES, cleaned
from mlm_jax.tokenizer.hub import CONFIG, JSON, ROLES, VOCAB, Hub, json_object, load, set_mask
from mlm_jax.tokenizer.spm import LOWERCASE, SPACE, SentencePiece

PIECE = sentencepiece_model_pb2.ModelProto.SentencePiece
CLASS = "PreTrainedTokenizerFast"  # of transformers: takes tokenizer.json as it is


def hub_files(backend: Hub | SentencePiece, max_length: int | None, types: bool) -> dict[str, bytes]:
    """Files by name, see `Tokenizer.save_hub`."""
    if isinstance(backend, Hub) and JSON in backend.files:
        return _written_back(backend, max_length, types)
    content = sentencepiece_content(backend) if isinstance(backend, SentencePiece) else copy.deepcopy(backend.content)
    if VOCAB in backend.files:
        steps = [json.loads(step.__getstate__()) for step in _cleaning()]
        content["normalizer"] = {"type": "Sequence", "normalizers": [*steps, content["normalizer"]]}
    return {JSON: _dumps(with_ends(content, backend)), CONFIG: _dumps(_config({}, backend, max_length, types))}


def _written_back(backend: Hub, max_length: int | None, types: bool) -> dict[str, bytes]:
    """The files that a tokenizer was read from, as they were but for what training relies on.

    That is: CLS and SEP around a text; MASK as a token that takes white space before it, where that makes a difference;
    every id as the file says (see `hub.normal`); the names of the special tokens.
    """
    files = dict(backend.files)
    beside = {name: json_object(content, name, JSON) for name, content in files.items() if name != JSON}
    content = with_ends(copy.deepcopy(backend.content), backend)
    mask = backend.pieces[backend.roles["mask"]]
    if not _takes_white_space(content, mask):
        set_mask(content, mask, backend.roles["mask"], lstrip=True)
        for values in beside.values():
            _set_lstrip(values, mask)
    if content != json.loads(load(json_object(files[JSON], JSON, "")).to_str()):
        files[JSON] = _dumps(content)
    beside[CONFIG] = _config(beside.get(CONFIG, {}), backend, max_length, types)
    for name, values in beside.items():
        if name not in files or values != json_object(files[name], name, JSON):
            files[name] = _dumps(values)
    return files


def _takes_white_space(content: dict, mask: str) -> bool:
    """Whether white space before MASK leaves no token, and MASK is found in a text at all."""
    library = load(content)
    spaced, glued = (library.encode(f"a{space}{mask} a", add_special_tokens=False).ids for space in (" ", ""))
    return spaced == glued and library.token_to_id(mask) in spaced


def _set_lstrip(value: object, mask: str) -> None:
    """Sets lstrip wherever an object describes MASK."""
    if isinstance(value, dict):
        if value.get("content") == mask:
            value["lstrip"] = True
        for inner in value.values():
            _set_lstrip(inner, mask)


def with_ends(content: dict, backend: Hub | SentencePiece) -> dict:
    """The content with CLS before and SEP after a text, and after each of a pair, if it has them not yet."""
    cls, sep = backend.roles["cls"], backend.roles["sep"]
    found = load(content).encode("a").ids
    if len(found) > 1 and (found[0], found[-1]) == (cls, sep):
        return content
    first, last = backend.pieces[cls], backend.pieces[sep]
    # by lists, as the one-line form gives a meaning to ":" and "$" in names
    template = processors.TemplateProcessing(
        single=[first, "$A", last],
        pair=[first, "$A", last, "$B:1", f"{last}:1"],
        special_tokens=[(first, cls), (last, sep)],
    )
    return content | {"post_processor": json.loads(template.__getstate__())}


def _config(given: dict, backend: Hub | SentencePiece, max_length: int | None, types: bool) -> dict:
    """What transformers wants to know beside: `given` with the names that it lacks, or all of it where nothing is."""
    names = {f"{role}_token": backend.pieces[backend.roles[role]] for role in ROLES}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    made = {
        "clean_up_tokenization_spaces": False,
        "model_input_names": inputs if types else [name for name in inputs if name != "token_type_ids"],
    }
    if max_length is not None:
        made["model_max_length"] = max_length
    if given:
        longest = given.get("model_max_length")
        if max_length is not None and (longest is None or longest > max_length):
            given = given | {"model_max_length": max_length}
        if not types and "token_type_ids" in given.get("model_input_names", inputs):
            given = given | {"model_input_names": made["model_input_names"]}
    return {**names, "tokenizer_class": CLASS, **(given or made)}


# ---- from SentencePiece ----


def sentencepiece_content(backend: SentencePiece) -> dict:
    """A SentencePiece model as the content of a `tokenizer.json`. Raises ConfigError where that cannot be.

    The library adds the scores of a unigram model as float64, SentencePiece as float32: ids are equal where the sums
    are exact in both, as those of `prepare.training` are, or where no two ways to cut a word are within rounding of
    each other.
    """
    proto = backend.proto()
    _check_expressible(proto)
    made = tokenizers.Tokenizer(_model(proto, backend))
    spec = proto.normalizer_spec
    # White space is put before a text where its first character is that of the string; so that one must not vanish.
    steps = [_replace(rf"\A[{''.join(_classes())}]+", " "), *_cleaning()]
    if spec.name == LOWERCASE:
        # the library applies a table to the first character of what a reader takes for one, and drops the marks on it
        steps.append(normalizers.Lowercase())
    elif spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    # what SentencePiece drops at the end of a text, its own sign included
    steps += [_replace(" {2,}", " "), _replace(rf"[ {SPACE}]+\z", "")]
    # else the library takes a sign at the start of a text for the white space that it puts there
    steps.append(_replace(rf"\A{SPACE}", f" {SPACE}"))
    made.normalizer = normalizers.Sequence(steps)
    split = not any(SPACE in piece.piece[1:] for piece in proto.pieces)
    made.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=split)
    if _has_bytes(proto) and proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM:
        # else the library finds the piece <0x41> where a text spells it
        spelled = pre_tokenizers.Split(Regex("(?<=<)0x(?=[0-9A-F]{2}>)"), "merged_with_next")
        made.pre_tokenizer = pre_tokenizers.Sequence([made.pre_tokenizer, spelled])
    made.decoder = _decoder(_has_bytes(proto))
    mask = backend.roles["mask"]
    made.add_special_tokens(
        [AddedToken(backend.pieces[i], lstrip=i == mask, normalized=False) for i in backend.special.tolist()]
    )
    return json.loads(made.to_str())


def _has_bytes(proto: sentencepiece_model_pb2.ModelProto) -> bool:
    return any(piece.type == PIECE.BYTE for piece in proto.pieces)


def _model(proto: sentencepiece_model_pb2.ModelProto, backend: SentencePiece) -> models.Model:
    unk, kinds = backend.roles["unk"], proto.trainer_spec
    if kinds.model_type == kinds.UNIGRAM:
        return models.Unigram([(piece.piece, piece.score) for piece in proto.pieces], unk, _has_bytes(proto))
    vocab = {piece.piece: i for i, piece in enumerate(proto.pieces)}
    merges = [] if kinds.model_type == kinds.CHAR else _merges(proto)
    return models.BPE(vocab, merges, unk_token=backend.pieces[unk], fuse_unk=True, byte_fallback=_has_bytes(proto))


def _merges(proto: sentencepiece_model_pb2.ModelProto) -> list[tuple[str, str]]:
    """The pairs that make pieces, first what is merged first.

    SentencePiece merges the neighbours whose joint piece has the best score, of equal ones the first in the text. The
    library ranks pairs, so the ways to make one piece stand next to each other. Where two of them can overlap in a text
    (as `ab a` and `a ba` in `ab a ba`), the one that comes first there has the better rank.
    """
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == PIECE.NORMAL}
    merges = []
    for piece in sorted(scores, key=lambda piece: -scores[piece]):  # stable: equal scores in order of ids
        cuts = [at for at in range(1, len(piece)) if piece[:at] in scores and piece[at:] in scores]
        # the overlapping counterpart of a cut is as far from the end as the cut is from the beginning
        cuts.sort(key=lambda at: (min(at, len(piece) - at), piece[at:] != piece[: len(piece) - at], at))
        merges += [(piece[:at], piece[at:]) for at in cuts]
    return merges


def _check_expressible(proto: sentencepiece_model_pb2.ModelProto) -> None:
    spec = proto.trainer_spec
    problem = ""
    if spec.model_type not in (spec.UNIGRAM, spec.BPE, spec.CHAR):
        problem = "takes whole words as pieces"
    elif spec.treat_whitespace_as_suffix or not proto.normalizer_spec.escape_whitespaces:
        problem = "writes white space after words, or not at all"
    elif not (proto.normalizer_spec.add_dummy_prefix and proto.normalizer_spec.remove_extra_whitespaces):
        problem = "puts no white space before a text, or keeps what is doubled"
    elif proto.denormalizer_spec.precompiled_charsmap:
        problem = "changes text after decoding"
    for piece in proto.pieces:
        if piece.type in (PIECE.USER_DEFINED, PIECE.UNUSED):
            problem = f"has {piece.piece!r} as a user-defined or unused piece"
    if problem:
        raise ConfigError("tokenizer", "spm.model", f"{problem}; {JSON} cannot express that")


def _decoder(byte_fallback: bool) -> decoders.Decoder:
    if not byte_fallback:
        return decoders.Metaspace(SPACE, prepend_scheme="first")
    steps = [
        decoders.Replace(SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", left=1, right=0),
    ]
    return decoders.Sequence(steps)


# ---- cleaning ----


def _cleaning() -> list[normalizers.Normalizer]:
    """`text.clean` as two steps of the library."""
    spaces, dropped = _classes()
    return [_replace(f"[{spaces}]", " "), _replace(f"[{dropped}]", "")]


def _replace(pattern: str, by: str) -> normalizers.Normalizer:
    return normalizers.Replace(Regex(pattern), by)


@functools.cache
def _classes() -> tuple[str, str]:
    """The characters that become a space, and those that vanish, as a regular expression writes them in brackets."""
    spaces, dropped = [], []
    for char in map(chr, range(0x110000)):
        category = unicodedata.category(char)
        if category == "Cs" or (category not in DROPPED + SPACES and char != "\ufffd"):
            continue  # surrogates are no text there
        if (after := cleaned(char)) != char:
            (spaces if after else dropped).append(ord(char))
    return _ranges(spaces), _ranges(dropped)


def _ranges(codes: list[int]) -> str:
    """Code points in ascending order as ranges."""
    ranges: list[list[int]] = []
    for code in codes:
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ranges)


def _dumps(value: dict) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
