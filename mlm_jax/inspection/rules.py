"""What every row obeys: specials in place, no padding inside, flags that agree."""

from collections.abc import Iterator

import numpy as np

from mlm_jax.inspection.counts import Block, Ids
from mlm_jax.records import FLAGS, PARAGRAPH_START, PHRASE_JOIN, SECOND_OF_PAIR, SENTENCE_START, WORD_START, Layout

KNOWN = sum(FLAGS.values()) | SECOND_OF_PAIR
ALONE = 0xFF & ~SECOND_OF_PAIR  # all others
LABELS = (-1, 0, 1)


def broken(block: Block, layout: Layout, ids: Ids) -> dict[str, np.ndarray]:
    """Rule -> which of the rows break it, their numbers in the block; only rules that are broken."""
    found = {rule: np.flatnonzero(bad) for rule, bad in _rules(block, layout, ids)}
    return {rule: rows for rule, rows in found.items() if len(rows)}


def _rules(block: Block, layout: Layout, ids: Ids) -> Iterator[tuple[str, np.ndarray]]:
    """(rule, bool[b] where it is broken)."""
    raw, real, inner = block.raw, block.real, block.inner
    tokens, flags, firsts = raw["tokens"], raw["flags"], raw["firsts"].astype(np.int64)
    length = raw["length"].astype(np.int64)
    present = block.present
    both = present[:, 1:] & present[:, :-1]
    after = ~present[:, :-1] & present[:, 1:]
    yield f"a row holds 1 to {layout.row_length} tokens", (length < 1) | (length > layout.row_length)
    yield "the first segment begins at place 0", ~present[:, 0] | (firsts[:, 0] != 0)
    yield "segments stand in order", (after | (both & (np.diff(firsts, axis=1) <= 0))).any(1)
    yield "segments begin within the row", (present & (firsts >= length[:, None])).any(1)
    yield f"ids are below {ids.size}", (tokens >= ids.size).any(1)
    yield "each segment begins with CLS", (block.heads & (tokens != ids.cls)).any(1)
    yield "each segment ends with SEP", (block.tails & (tokens != ids.sep)).any(1)
    yield "SEP stands between the parts of a pair", (block.middles & (tokens != ids.sep)).any(1)
    specials = (tokens == ids.cls) | (tokens == ids.sep) | (tokens == ids.mask)
    yield "CLS, SEP and MASK stand nowhere else", (inner & specials).any(1)
    yield "no PAD inside a row", (inner & (tokens == ids.pad)).any(1)
    yield "PAD after a row's end, without flags", (~real & ((tokens != ids.pad) | (flags != 0))).any(1)
    begins = np.roll(block.heads | block.middles, 1, axis=1) & inner
    yield "each segment begins a word", (begins & (flags & WORD_START == 0)).any(1)
    word = flags & WORD_START != 0
    needs_word = flags & (SENTENCE_START | PARAGRAPH_START | PHRASE_JOIN) != 0
    yield "what begins or continues more begins a word", (inner & needs_word & ~word).any(1)
    yield "CLS and SEP bear no flag but that of a pair", (real & ~inner & (flags & np.uint8(ALONE) != 0)).any(1)
    yield "no unknown flags", (flags & np.uint8(0xFF & ~KNOWN) != 0).any(1)
    labels = raw["pair_labels"]
    wrong = np.where(present, ~np.isin(labels, LABELS), labels != -1)
    yield "pair labels are -1, 0 or 1, and -1 where no segment is", wrong.any(1)
