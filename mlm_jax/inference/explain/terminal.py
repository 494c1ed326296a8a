"""An explanation for the terminal."""

from mlm_jax.inference.explain.page import CUT, completeness, percent, plain, signed

LONGEST_BAR, MOST_WIDE = 10, 24
NAMES = ("taken away", "gradients", "attention")


def terminal(found: dict) -> str:
    """The text, and for each gap the guesses, and all words with their scores. found: of `explain`."""
    lines = [found["text"]]
    for number, gap in enumerate(found["masks"], start=1):
        lines += ["", f"  [MASK] {number}" if len(found["masks"]) > 1 else "  [MASK]"]
        lines += [f"    {guess['probability']:6.1%}  {plain(guess['token'])}" for guess in gap["predictions"]]
        lines += ["", f"  why “{plain(gap['target']['token'])}” ({percent(gap['target']['probability'])})", ""]
        lines += [] if gap["whole"] else [f"  {CUT}", ""]
        lines += _table(gap)
        lines += ["", f"  gradients: {completeness(gap['integrated_gradients'])}"]
    return "\n".join(lines)


def _table(gap: dict) -> list[str]:
    """A line for each word: nats by two methods, █ for the guess and ░ against it, and shares of attention."""
    columns = [gap["leave_one_out"], gap["integrated_gradients"]["words"], gap["rollout"]]
    shown = [i for i, word in enumerate(gap["words"]) if word["kind"] == "word"]
    width = min(MOST_WIDE, max((len(gap["words"][i]["text"]) for i in shown), default=0))
    cells = [[_cell(column[i], [column[j] for j in shown], n == 2) for n, column in enumerate(columns)] for i in shown]
    head = f"  {'':{width}}  " + "  ".join(f"{name:{LONGEST_BAR + 7}}" for name in NAMES)
    return [head.rstrip()] + [
        f"  {gap['words'][i]['text'][:MOST_WIDE]:{width}}  {'  '.join(row)}".rstrip() for i, row in zip(shown, cells)
    ]


def _cell(score: float, column: list[float], share: bool) -> str:
    most = max(map(abs, column)) or 1.0
    bar = ("█" if score >= 0 else "░") * round(LONGEST_BAR * abs(score) / most)
    return f"{f'{score:.1%}' if share else signed(score):>6} {bar:{LONGEST_BAR}}"
