"""The `tokenizers` side of `Tokenizer`: a `tokenizer.json` of any family, or a WordPiece `vocab.txt`."""

import contextlib
import copy
import functools
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from mlm_jax.config import ConfigError
from mlm_jax.text import is_ideograph
from mlm_jax.tokenizer.pieces import WordCache
from mlm_jax.tokenizer.spm import NAMES, SPACE
from mlm_jax.tokenizer.words import Encoding, find_words

KEY = "config.tokenizer.path"
JSON, VOCAB = "tokenizer.json", "vocab.txt"
CONFIG = "tokenizer_config.json"
ADDED = "added_tokens.json"
BESIDE = (CONFIG, "special_tokens_map.json", ADDED)
ROLES = {**NAMES, "unk": ("[UNK]", "<unk>")}
OTHER_ROLES = {"cls": "bos_token", "sep": "eos_token"}  # what some models call them
# Put before the special tokens where text is encoded: cleaned text has no such character, so it cannot spell one out.
HIDDEN = "\0"
UNUSED = re.compile(r"\[unused\d+\]")  # rows kept free, as in the vocabulary of BERT
NO_SPACE_BEFORE = frozenset(".,;:!?%)]}'’”»…")  # how word pieces are shown; as everywhere, ideographs stand close too
# Options of a `vocab.txt`, and what must not be asked of it: words cut by another program.
OPTIONS = {"do_lower_case": None, "strip_accents": None, "tokenize_chinese_chars": True}
BATCH = 1 << 18
LONGEST_WORD = 100  # characters, as in BERT; a longer one is unknown


class Hub:
    """A tokenizer of the library, given as the content of its file, and what the files beside it name as special.

    Text is encoded by a copy in which no text can reach a special token. Where words begin follows from the characters
    that each token stands for (`words.find_words`), for every family.
    """

    def __init__(self, content: dict, named: Mapping[str, str], origin: str):
        """content: of a `tokenizer.json`. named: role -> token. Raises ConfigError."""
        self.content = content
        model, added = content["model"], content["added_tokens"]
        self.vocab: dict[str, int] = entries(model) | {token["content"]: token["id"] for token in added}
        self.roles = _roles(model, self.vocab, named, origin)
        special = {token["id"] for token in added if token["special"]} | set(self.roles.values())
        size = max(self.vocab.values()) + 1
        self.pieces = [f"[{i}]" for i in range(size)]  # of an id without a token
        for token, i in self.vocab.items():
            self.pieces[i] = token
        real = {i for token, i in self.vocab.items() if token and not UNUSED.fullmatch(token)}
        self.special = np.array(sorted(special), np.int32)
        self.ordinary = np.array(sorted(real - special), np.int32)
        hidden = self._hidden(special)
        self._plain = load(hidden)
        self._words = WordCache(self._encode) if _cuts_at_spaces(hidden) else None
        self.shown = _shown(content, self.pieces, self._plain)
        ideographs = {char for char in set().union(*self.shown) if is_ideograph(char)}
        self.ideographs = np.array([not ideographs.isdisjoint(piece) for piece in self.shown])
        self.files: dict[str, bytes] = {}
        self.identity = b""

    def _hidden(self, ids: set[int]) -> dict:
        """The content with these tokens out of reach of any text, and without what is done after encoding."""
        content = {**self.content, "truncation": None, "padding": None, "post_processor": None}
        content["model"] = model = {**content["model"]}  # deeper copies cost more than all the rest
        content["added_tokens"] = [{**token} for token in content["added_tokens"]]
        names = {self.pieces[i]: HIDDEN + self.pieces[i] for i in ids}
        if isinstance(model["vocab"], dict):
            model["vocab"] = {names.get(token, token): i for token, i in model["vocab"].items()}
        else:
            model["vocab"] = [[names.get(token, token), score] for token, score in model["vocab"]]
        if model.get("unk_token") is not None:
            model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
        for token in content["added_tokens"]:
            token["content"] = names.get(token["content"], token["content"])
        return content

    @functools.cached_property
    def separators(self) -> int:
        """How many SEP stand between the texts of a pair, by what the file says of it."""
        library = load({**self.content, "truncation": None, "padding": None})
        return max(1, library.encode("a", "a").ids.count(self.roles["sep"]) - 1)  # one ends the pair

    @functools.cached_property
    def _with_mask(self) -> tokenizers.Tokenizer:
        """The copy in which MASK alone can be spelled out."""
        mask = self.roles["mask"]
        content = self._hidden(set(self.special.tolist()) - {mask})
        set_mask(content, self.pieces[mask], mask, lstrip=True)
        return load(content)

    def encode(self, texts: list[str], threads: int = 1) -> tuple[Encoding, np.ndarray]:
        """Ids and word starts of cleaned texts one after another, and how many ids each has, i64[texts]."""
        parts = [(np.zeros(0, np.int32), np.zeros(0, bool), np.zeros(0, np.int64), np.zeros(0, np.int64))]
        for batch in _batches(texts):
            if self._words and not any("  " in text for text in batch):
                values, begin, lengths = self._words(batch)
            else:
                (values, lengths), begin = self._encode(batch, threads), 0
            starts, places = find_words(batch, lengths, begin + values[:, 1], begin + values[:, 2])
            parts.append((values[:, 0], starts, places, lengths))
        ids, starts, places, lengths = map(np.concatenate, zip(*parts))
        return Encoding(ids, starts, places), lengths

    def _encode(self, texts: list[str], threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """The library's own results: id, first character and end of each token, i32[n,3]; tokens, i64[texts]."""
        with parallel(threads > 1):
            found = self._plain.encode_batch(texts, add_special_tokens=False)
        ids = np.fromiter(itertools.chain.from_iterable(each.ids for each in found), np.int32)
        pairs = itertools.chain.from_iterable(each.offsets for each in found)
        spans = np.fromiter(itertools.chain.from_iterable(pairs), np.int32)
        return np.column_stack([ids, spans.reshape(-1, 2)]), np.fromiter(map(len, found), np.int64, len(found))

    def around(self, parts: Sequence[str]) -> list[int]:
        """See `Tokenizer.encode_around`; parts: cleaned."""
        text = self.pieces[self.roles["mask"]].join(parts).strip(" ")
        return self._with_mask.encode(text, add_special_tokens=False).ids

    def tokens_at(
        self, texts: list[str], encoding: Encoding, lengths: np.ndarray, owners: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        """See `Tokenizer.tokens_at`."""
        base = np.cumsum([0, *map(len, texts)])
        found = np.searchsorted(encoding.places + np.repeat(base[:-1], lengths), base[owners] + places)
        return found[found < np.cumsum(lengths)[owners]]

    def places(self, texts: list[str], encoding: Encoding, lengths: np.ndarray) -> np.ndarray:
        """See `Tokenizer.places`."""
        return encoding.places

    def decode(self, each: list[list[int]]) -> list[str]:
        """The texts of lists of ids; special tokens leave nothing behind, unknown ones their name."""
        gone = set(self.special.tolist()) - {self.roles["unk"]}
        kept = [[i for i in ids if i not in gone] for ids in each]
        with parallel(False):
            texts = self._plain.decode_batch(kept, skip_special_tokens=False)
        return [text.replace(HIDDEN, "") for text in texts]


def _cuts_at_spaces(content: dict) -> bool:
    """Whether a text's tokens are those of its words, each with the space before it: known of BERT's and GPT-2's way.

    An added token that text can reach may hold a space, or take one.
    """
    if any(not token["content"].startswith(HIDDEN) for token in content["added_tokens"]):
        return False
    kind, cuts, changes = content["model"]["type"], content["pre_tokenizer"] or {}, content["normalizer"] or {}
    if kind == "WordPiece":
        return cuts.get("type") == "BertPreTokenizer" and changes.get("type", "BertNormalizer") == "BertNormalizer"
    bytewise = kind == "BPE" and cuts.get("type") == "ByteLevel" and cuts["use_regex"]
    return bytewise and not content["model"]["dropout"] and changes.get("type", "NFC") == "NFC"


def _batches(texts: list[str]) -> Iterator[list[str]]:
    """The texts in lists of at most about BATCH characters: the library's own results are large."""
    batch, room = [], BATCH
    for text in texts:
        batch.append(text)
        room -= len(text)
        if room <= 0:
            yield batch
            batch, room = [], BATCH
    if batch:
        yield batch


# ---- files ----


def from_json(files: Mapping[str, bytes], origin: str) -> Hub:
    """A tokenizer from a `tokenizer.json` and what stands beside it. Raises ConfigError."""
    beside = {name: json_object(files[name], name, origin) for name in BESIDE if name in files}
    given = json_object(files[JSON], JSON, origin)
    content = normal(given, origin)
    named = _named(beside)
    made = Hub(content, named, origin)
    made.files = {name: files[name] for name in (*BESIDE, JSON) if name in files}
    made.identity = files[JSON] + _dumps(named)
    return made


def from_vocab(files: Mapping[str, bytes], origin: str) -> Hub:
    """WordPiece from a `vocab.txt`, a token a line, and the options of BERT's tokenizer. Raises ConfigError.

    Without `do_lower_case` text is lower-cased unless an entry has a capital letter (A to Z). Other options default to
    what BERT does. An empty line is an id without a token; of equal lines the last one counts.
    """
    beside = {name: json_object(files[name], name, origin) for name in BESIDE if name in files}
    config = beside.get(CONFIG, {})
    for key, value in config.items():
        if key.endswith("word_tokenizer_type") or (key == "do_basic_tokenize" and not value):
            raise ConfigError(KEY, origin, f"has {key}={value!r}: words cut by another program are not supported")
    tokens = vocab_lines(files[VOCAB], origin)
    options = {key: config.get(key, default) for key, default in OPTIONS.items()}
    if options["do_lower_case"] is None:
        options["do_lower_case"] = not any(re.search("[A-Z]", token) for token in tokens if token[:1] not in "[<")
    named = _named(beside)
    vocab = {token: i for i, token in enumerate(tokens) if token}
    more = {*beside.get(ADDED, {}), *(entry["content"] for entry in config.get("added_tokens_decoder", {}).values())}
    if missing := sorted(more - vocab.keys()):
        fix = f"adds {', '.join(map(repr, missing[:5]))} to {VOCAB}, which cannot hold it: give its {JSON}"
        raise ConfigError(KEY, origin, fix)
    unk = named.get("unk") or next((name for name in ROLES["unk"] if name in vocab), "")
    roles = _roles({"unk_token": unk}, vocab, named, origin)
    made = Hub(_word_pieces(vocab, options, roles), named, origin)
    kept = {**options, **{f"{role}_token": made.pieces[i] for role, i in roles.items()}}
    made.files = {CONFIG: _dumps(kept), VOCAB: "".join(f"{token}\n" for token in tokens).encode()}
    made.identity = made.files[VOCAB] + made.files[CONFIG]
    return made


def vocab_lines(content: bytes, origin: str) -> list[str]:
    """The lines of a `vocab.txt`, cut at newlines alone; a carriage return before one and a BOM are left out."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(KEY, origin, f"{VOCAB} is not UTF-8 ({error})") from None
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


def _word_pieces(vocab: dict[str, int], options: dict, roles: dict[str, int]) -> dict:
    """What a `tokenizer.json` says of BERT's tokenizer. Text is cleaned before (`export` adds that)."""
    names = {i: token for token, i in vocab.items()}
    model = models.WordPiece(vocab, unk_token=names[roles["unk"]], max_input_chars_per_word=LONGEST_WORD)
    made = tokenizers.Tokenizer(model)
    made.normalizer = normalizers.BertNormalizer(
        clean_text=False,
        handle_chinese_chars=options["tokenize_chinese_chars"],
        strip_accents=options["strip_accents"],
        lowercase=options["do_lower_case"],
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens([names[i] for i in sorted(set(roles.values()))])
    return json.loads(made.to_str())


def normal(given: dict, origin: str) -> dict:
    """The content of a `tokenizer.json` as the library understands it, with every id as the file says.

    The library gives an added token that its model does not know the next id by its own count, whatever the file says;
    where ids have holes that is the id of another token. Such a token is put into the model's vocabulary where no text
    can reach it there. Raises ConfigError where that cannot be done, or for what the library does not read.
    """
    added = {token["content"]: token for token in given.get("added_tokens") or []}
    library = load(given, origin)
    if misplaced := _misplaced(library, added):
        given = copy.deepcopy(given)
        model = given["model"]
        taken = set(entries(model).values())
        for token in misplaced:
            if not isinstance(model["vocab"], dict) or token["id"] in taken:
                raise ConfigError(KEY, origin, f"the id {token['id']} of {token['content']!r} is another token's")
            if not token["special"] and model["type"] != "BPE":
                fix = (
                    f"the id {token['id']} of {token['content']!r} is not kept by the library: ids before it have holes"
                )
                raise ConfigError(KEY, origin, fix)
            model["vocab"][token["content"]] = token["id"]
        library = load(given, origin)
        if misplaced := _misplaced(library, added):
            names = ", ".join(repr(token["content"]) for token in misplaced)
            raise ConfigError(KEY, origin, f"the library gives other ids than the file to {names}")
    return json.loads(library.to_str())


def _misplaced(library: tokenizers.Tokenizer, added: dict[str, dict]) -> list[dict]:
    return [token for token in added.values() if library.token_to_id(token["content"]) != token["id"]]


def load(content: dict, origin: str = "") -> tokenizers.Tokenizer:
    """The library's tokenizer of a `tokenizer.json`. Raises ConfigError."""
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(content))
    except Exception as error:  # the library raises nothing more special
        raise ConfigError(KEY, origin, f"the tokenizers library does not read {JSON}: {error}") from None


def json_object(content: bytes, name: str, origin: str) -> dict:
    """The object that a JSON file holds. Raises ConfigError."""
    try:
        found = json.loads(content.decode("utf-8-sig"))
    except ValueError as error:
        raise ConfigError(KEY, origin, f"{name} is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ConfigError(KEY, origin, f"{name} holds no JSON object")
    return found


def _dumps(value: dict) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


# ---- tokens ----


def entries(model: dict) -> dict[str, int]:
    """Token -> id of a model's own vocabulary."""
    vocab = model["vocab"]
    return dict(vocab) if isinstance(vocab, dict) else {token: i for i, (token, _) in enumerate(vocab)}


def _named(beside: Mapping[str, dict]) -> dict[str, str]:
    """Role -> token, as the files beside name them; a token is a string, or an object with `content`."""
    found: dict[str, str] = {}
    for values in reversed(beside.values()):
        for role in ROLES:
            token = values.get(f"{role}_token") or values.get(OTHER_ROLES.get(role, ""))
            if isinstance(token, dict):
                token = token.get("content")
            if isinstance(token, str):
                found[role] = token
    return found


def _roles(model: dict, vocab: Mapping[str, int], named: Mapping[str, str], origin: str) -> dict[str, int]:
    """The ids of the special tokens. Raises ConfigError, naming the token that is missing."""
    own = model.get("unk_token")
    if own is None and model.get("unk_id") is not None:
        own = model["vocab"][model["unk_id"]][0]
    named = {**named, "unk": own} if own else named
    found = {}
    for role, names in ROLES.items():
        token = named.get(role) or next((name for name in names if name in vocab), None)
        if token is None:
            fix = f"there is no {' or '.join(names)}; add it, and name it in {CONFIG} as {role}_token"
            raise ConfigError(KEY, origin, fix)
        if token not in vocab:
            raise ConfigError(KEY, origin, f"its {role}_token {token} is not in the vocabulary")
        found[role] = vocab[token]
    for role, i in found.items():
        if role != "mask" and i == found["mask"]:
            raise ConfigError(KEY, origin, f"its mask_token is its {role}_token; MASK must be a token of its own")
    return found


def set_mask(content: dict, token: str, i: int, lstrip: bool) -> None:
    """Makes MASK an added token that can be spelled out in a text; lstrip: it takes white space before it."""
    found = [entry for entry in content["added_tokens"] if entry["content"] == token]
    if not found:
        found = [{"id": i, "content": token, "single_word": False, "rstrip": False, "normalized": False}]
        content["added_tokens"] = sorted([*content["added_tokens"], *found], key=lambda entry: entry["id"])
    found[0] |= {"lstrip": lstrip, "special": True}


def _shown(content: dict, pieces: list[str], library: tokenizers.Tokenizer) -> list[str]:
    """The pieces for a reader, U+2581 for white space before them."""
    if content["model"]["type"] == "WordPiece":
        prefix = content["model"]["continuing_subword_prefix"]
        return [_word_piece(piece, prefix) for piece in pieces]
    if '"ByteLevel"' in json.dumps([content["decoder"], content["pre_tokenizer"]]):
        decoder = library.decoder or decoders.ByteLevel()
        texts = [decoder.decode([piece]) for piece in pieces]
        # a part of a character is no text: its bytes stay as the file writes them
        return [piece if "\ufffd" in text else text.replace(" ", SPACE) for text, piece in zip(texts, pieces)]
    return pieces


def _word_piece(piece: str, prefix: str) -> str:
    if piece.startswith(prefix) and piece != prefix:
        return piece.removeprefix(prefix)
    close = piece[:1] in NO_SPACE_BEFORE or (piece != "" and is_ideograph(piece[0]))
    return piece if close or (piece.startswith("[") and piece.endswith("]")) else SPACE + piece


@contextlib.contextmanager
def parallel(wanted: bool) -> Iterator[None]:
    """The library's own threads, which it asks the environment about; off, as worker processes share the cores."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "true" if wanted else "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
