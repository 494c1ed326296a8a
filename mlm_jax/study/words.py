"""The findings of a study in words: tables and sentences, which say no more than the numbers do."""

from collections.abc import Sequence
from typing import NamedTuple

from mlm_jax.study.runs import SCRATCH
from mlm_jax.study.summary import BETTER, NOISE, ONE_SEED, WORSE

NONE = "–"


class Table(NamedTuple):
    title: str
    note: str
    head: list[str]
    rows: list[list[str]]


class Measure(NamedTuple):
    """How a measure is written: its values, differences of it, and what it is called in a sentence."""

    form: str
    signed: str
    name: str


MEASURES = {
    "loss": Measure("{:.4f}", "{:+.4f}", "the held-out loss"),
    "accuracy": Measure("{:.2%}", "{:+.2%}", "the held-out accuracy"),
    "equal_time": Measure("{:.4f}", "{:+.4f}", "the held-out loss at equal time"),
    "steps_to_target": Measure("{:,.0f}", "{:+,.0f}", "the number of steps to that loss"),
}
SCORE = Measure("{:.4f}", "{:+.4f}", "the score")


def shown(form: str, value: float | None) -> str:
    return NONE if value is None else form.format(value)


def spread_cell(row: dict, name: str, form: str) -> str:
    """Mean ± deviation over the seeds; of one seed its value."""
    found = row["spread"].get(name)
    if not found:
        return NONE
    mean = form.format(found["mean"])
    return mean if found["n"] < 2 else f"{mean} ± {form.format(found['deviation'])}"


def difference_cells(row: dict, name: str, form: str) -> list[str]:
    """The difference to the reference with its interval, and the verdict."""
    found = row["compared"].get(name)
    if row["reference"] is None:
        return ["reference", ""]
    if not found:
        return [NONE, NONE]
    mean = f"{form.format(found['mean'])} to {row['reference']}"
    if found["low"] is None:
        return [mean, found["verdict"]]
    return [f"{mean} [{form.format(found['low'])}, {form.format(found['high'])}]", found["verdict"]]


def tables(found: dict) -> list[Table]:
    rows, made = found["variants"], [loss_table(found), masks_table(found)]
    if any(row["spread"].get("steps_to_target") for row in rows):
        made.append(target_table(found))
    if any(row["time"] for row in rows):
        made.append(time_table(found))
    return made + [task_table(task) for task in found["tasks"]]


def loss_table(found: dict) -> Table:
    rows = []
    for row in found["variants"]:
        cells = [spread_cell(row, name, MEASURES[name].form) for name in ("loss", "accuracy")]
        compared = [NONE, "not comparable"] if row["own_loss"] else difference_cells(row, "loss", "{:+.4f}")
        rows.append([row["name"], str(len(row["seeds"])), *cells, *compared])
    note = (
        "Nats per masked token after the last step, mean ± standard deviation over the seeds; the same held-out rows"
        " and masks for all that are compared. In brackets: the 95 % t-interval of the difference, seed by seed."
    )
    if masks := found["evaluation"]:
        note += f" Evaluation masks {masks['rate']:.0%} of the tokens, by the unit {masks['unit']}, with MASK at every"
        note += " selected place: a variant that trains on such masks is measured by what it has learned, others by"
        note += " something else. What a model is worth for tasks is another question (`--tasks`)."
    return Table(
        "Held-out loss", note, ["variant", "seeds", "loss", "accuracy", "difference of the loss", "verdict"], rows
    )


def masks_table(found: dict) -> Table:
    forms = {"rate": "{:.2%}", "epochs": "{:.2f}", "coverage": "{:.1%}"}
    rows = [[row["name"], *(shown(form, row[key]) for key, form in forms.items())] for row in found["variants"]]
    note = (
        "The share of the tokens that was really selected, over all steps; how often the rows were read; and the share"
        " of the tokens that was selected at least once, by the closed form for tokens that are selected independently"
        f" of each other ({NONE}: the variant prefers some tokens, so that the form does not hold)."
    )
    return Table("Masks", note, ["variant", "selected", "epochs", "coverage"], rows)


def target_table(found: dict) -> Table:
    rows = []
    for row in found["variants"]:
        steps = spread_cell(row, "steps_to_target", "{:,.0f}")
        rows.append([row["name"], steps, *difference_cells(row, "steps_to_target", "{:+,.0f}")])
    note = (
        f"To a held-out loss of {found['target']:.4f}, the highest final loss of these runs, so that all reach it; on"
        " straight lines between evaluations."
    )
    return Table("Steps to one loss", note, ["variant", "steps", "difference", "verdict"], rows)


def time_table(found: dict) -> Table:
    rows = []
    for row in found["variants"]:
        time = row["time"]
        ratio = "{relative:.3f} [{low:.3f}, {high:.3f}]".format(**time) if time else NONE
        cells = [shown("{:.4g} s", time.get("seconds")), ratio]
        share = found["budget"] and time and found["budget"] / time["relative"]
        at = shown("{:,.0f}", share and row["steps"] and share * row["steps"])
        cells += [at, spread_cell(row, "equal_time", "{:.4f}"), *difference_cells(row, "equal_time", "{:+.4f}")]
        rows.append([row["name"], *cells])
    note = (
        "Steps of all variants, measured in turn on one machine after the runs, so that other loads meet all alike:"
        " mean of a step, and of its ratio to the baseline's step beside it [10th, 90th percentile]. Equal time is"
        " that in which the variant with the shortest step does all its steps; the losses of the others are read from"
        " their curves where they are by then, with a learning rate that is not yet at its end."
    )
    head = ["variant", "a step", "to baseline", "steps in equal time", "loss then", "difference", "verdict"]
    return Table("Time", note, head, rows)


def task_table(task: dict) -> Table:
    rows = []
    for row in task["variants"]:
        score = spread_cell(row, task["metric"], SCORE.form)
        rows.append([row["name"], str(len(row["seeds"])), score, *difference_cells(row, task["metric"], SCORE.signed)])
    note = f"{task['metric'] or 'No score yet'} on the dev examples by the best epoch; `{SCRATCH}` is the architecture"
    note += " with random weights, fine-tuned in the same way."
    if task["unfinished"]:
        note += f" Not there yet: {', '.join(task['unfinished'])}."
    return Table(f"Fine-tuned on {task['task']}", note, ["variant", "seeds", "score", "difference", "verdict"], rows)


# ---- sentences ----


def sentences(found: dict) -> list[str]:
    """What was seen, each sentence from the numbers of one comparison, or from their count."""
    said = []
    if found["unfinished"]:
        said.append(f"Not finished, and left out: {', '.join(found['unfinished'])}.")
    before = list(said)
    for row in found["variants"]:
        said += _compared(row, "loss", MEASURES["loss"])
        if row["compared"].get("equal_time") != row["compared"].get("loss"):
            said += _compared(row, "equal_time", MEASURES["equal_time"])
    for task in found["tasks"]:
        for row in task["variants"]:
            measure = SCORE._replace(name=f"{task['metric']} on {task['task']}")
            said += _compared(row, task["metric"], measure)
    nothing = ["There is nothing to compare yet: no variant and its reference have a finished run of one seed."]
    return said + (_counted(found) if said != before else nothing)


def _compared(row: dict, name: str, measure: Measure) -> list[str]:
    """One sentence on a difference, or none."""
    found = row["compared"].get(name)
    if not found or row["reference"] is None:
        return []
    size = measure.form.format(abs(found["mean"]))
    than = f"{size} {'higher' if found['mean'] > 0 else 'lower'} than"
    if size == measure.form.format(0):
        than = "the same, to the digits shown here, as"
    differs = f"`{row['name']}`: {measure.name} is {than} that of `{row['reference']}`"
    if found["low"] is None:
        return [f"{differs} ({found['verdict']})."]
    interval = f"{measure.signed.format(found['low'])} to {measure.signed.format(found['high'])}"
    meaning = {
        NOISE: "the interval contains 0, so the difference is below the noise of the seeds",
        BETTER: "better, the interval does not contain 0",
        WORSE: "worse, the interval does not contain 0",
    }[found["verdict"]]
    return [f"{differs} ({found['n']} seeds, 95 % interval {interval}): {meaning}."]


def _counted(found: dict) -> list[str]:
    """How many comparisons of the loss there are, and what chance alone would do."""
    verdicts = [row["compared"]["loss"]["verdict"] for row in found["variants"] if row["compared"].get("loss")]
    real = [verdict for verdict in verdicts if verdict != ONE_SEED]
    if not real:
        return []
    counts = f"{real.count(BETTER)} better, {real.count(WORSE)} worse, {real.count(NOISE)} below noise"
    chance = f"Were there no differences at all, about {0.05 * len(real):.2g} of {len(real)} such intervals"
    return [f"Of {len(real)} comparisons of the held-out loss: {counts}. {chance} would be without 0 by chance."]


# ---- as text ----


def terminal(found: dict) -> str:
    lines = [found["title"]]
    for table in tables(found):
        lines += ["", table.title, *_aligned([table.head, *table.rows])]
    return "\n".join([*lines, "", *sentences(found)])


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def markdown(found: dict, facts: Sequence[Sequence[str]], command: str) -> str:
    """The report as a file for people: facts: (name, value) of machine and config; command: what was run."""
    lines = [f"# {found['title']}", "", found["question"], "", "## What was seen", ""]
    lines += [f"- {sentence}" for sentence in sentences(found)]
    for table in tables(found):
        lines += ["", f"## {table.title}", "", table.note, "", *_piped([table.head, *table.rows])]
    lines += ["", "## Variants", ""]
    for row in found["variants"]:
        changes = ", ".join(f"`{key} = {value}`" for key, value in row["overrides"].items())
        lines.append(f"- `{row['name']}`: {row['meaning']}{f' ({changes})' if changes else ''}")
    lines += ["", "## Machine and text", "", *_piped([["", ""], *facts])]
    return "\n".join([*lines, "", "## Command", "", f"    {command}", ""])


def _piped(rows: Sequence[Sequence[str]]) -> list[str]:
    made = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    return [made[0], "|" + "---|" * len(rows[0]), *made[1:]]
