"""Studies that compare runs: variants of one config, each trained with several seeds, on the same rows.

A variant is what it changes of the config. What all share, rows and the masks of evaluation, `plan` sets.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mlm_jax.config import Config, ConfigError, get

# of evaluation, unless the config names others: all variants are measured by the same masks
EVALUATION = {"evaluate.rate": 0.15, "evaluate.unit": "word", "evaluate.priority": "uniform"}
# A run that begins with the model of another one with its seed would read the same rows with the same masks again.
CONTINUED_SEEDS = 1000
SCRATCH = "random"  # beside the variants, where models are fine-tuned: the baseline's architecture, not pretrained


@dataclasses.dataclass(frozen=True)
class Variant:
    """What is different in some runs of a study.

    overrides: key of the config -> value. continued: begins with the weights of `--init_from`, or of the baseline's run
    of the same seed. own_loss: its held-out loss is not of the model that the others' is of, and is compared with none.
    """

    name: str
    meaning: str
    overrides: Mapping[str, object] = dataclasses.field(default_factory=dict)
    continued: bool = False
    own_loss: bool = False

    @property
    def rows(self) -> str:
        """The folder of its rows, below that of the study."""
        pairs = self.overrides.get("data.pairs", "none")
        return "rows" if pairs == "none" else f"rows-{pairs}"


@dataclasses.dataclass(frozen=True)
class Study:
    """A question, and the runs that answer it.

    expects: key of the config -> what it must be, so that the variants are what their names say. references: variant
    -> the one that it is compared with, "": with none; those that are not named here: with the baseline.
    """

    title: str
    question: str
    variants: tuple[Variant, ...]
    expects: Mapping[str, object]
    references: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def baseline(self) -> str:
        return self.variants[0].name

    def variant(self, name: str) -> Variant:
        return next(variant for variant in self.variants if variant.name == name)

    def reference(self, name: str) -> str | None:
        """The name of the variant that this one is compared with; None for the baseline, and for other references."""
        return None if name == self.baseline else self.references.get(name, self.baseline) or None


class Run(NamedTuple):
    """One run of a study; `changes`: key of the config -> value, all that the command line adds to the user's."""

    variant: Variant
    seed: int
    folder: Path
    changes: dict[str, object]

    @property
    def name(self) -> str:
        return f"{self.variant.name}/seed-{self.seed}"

    @property
    def words(self) -> list[str]:
        """The changes and the folder as words of the command line of `train`."""
        return [f"--config.{key}={value}" for key, value in self.changes.items()] + [f"--workdir={self.folder}"]


WORD_MASKS = {
    "mask.unit": "word",
    "mask.priority": "uniform",
    "mask.regime": "dynamic",
    "mask.stratify": False,
    "mask.schedule": "constant",
}
PLAIN = {**WORD_MASKS, "mask.corruption": (0.8, 0.1, 0.1)}
ALL_MASK = (1.0, 0.0, 0.0)
MLM_ALONE = {
    "data.pairs": "none",
    "objectives.mlm.weight": 1.0,
    **{f"objectives.{name}.weight": 0.0 for name in ("nsp", "sop", "contrastive", "replaced")},
    "objectives.causal.ratio": 0.0,
}
DYNAMIC = Variant("dynamic", "whole words, masks that are new at each visit: the config as it is")  # of all studies

STUDIES = {
    "masking": Study(
        "Ways of masking",
        "Does it matter when masks are drawn anew, what is masked together, and which units go first?",
        (
            DYNAMIC,
            Variant("static", "the same masks at each visit of a row", {"mask.regime": "static"}),
            Variant("versions-2", "two masks a row in turn", {"mask.regime": "multi-version", "mask.versions": 2}),
            Variant("token", "single tokens, not whole words", {"mask.unit": "token"}),
            Variant("span", "spans of one to ten words", {"mask.unit": "span"}),
            Variant("hierarchical", "words, spans or sentences, by the sentence", {"mask.unit": "hierarchical"}),
            Variant("rare-first", "words, rare ones more often", {"mask.priority": "frequency"}),
            Variant(
                "surprisal",
                "words, those more often whose tokens the model predicts worse",
                {"mask.priority": "importance", "mask.importance": "surprisal"},
            ),
        ),
        WORD_MASKS,
    ),
    "mask-rate": Study(
        "Mask rates",
        "How many tokens are best masked, constantly or falling, and does the corruption matter?",
        (
            DYNAMIC,
            Variant("rate-30", "30 % of the tokens", {"mask.rate": 0.3}),
            Variant("rate-40", "40 % of the tokens", {"mask.rate": 0.4}),
            Variant(
                "rate-30-to-15",
                "30 % at the first step, falling in a line to 15 % at the last",
                {"mask.rate": 0.3, "mask.schedule": "linear", "mask.end_rate": 0.15},
            ),
            Variant("rate-15-all-mask", "15 %, MASK at every selected place", {"mask.corruption": ALL_MASK}),
            Variant(
                "rate-40-all-mask",
                "40 %, MASK at every selected place",
                {"mask.rate": 0.4, "mask.corruption": ALL_MASK},
            ),
        ),
        {**PLAIN, "mask.rate": 0.15},
        {"rate-40-all-mask": "rate-40"},
    ),
    "learning-rates": Study(
        "Layer-wise learning rates",
        "Do learning rates that fall towards the embeddings help, from scratch and in continued pretraining?",
        (
            DYNAMIC,
            Variant("decay-0.9", "a layer has 0.9 of the rate of the one above it", {"optimizer.layer_decay": 0.9}),
            Variant("decay-0.8", "a layer has 0.8 of the rate of the one above it", {"optimizer.layer_decay": 0.8}),
            Variant("continued", "from trained weights, one rate for all", continued=True),
            Variant("continued-decay-0.9", "from trained weights, 0.9", {"optimizer.layer_decay": 0.9}, continued=True),
            Variant("continued-decay-0.8", "from trained weights, 0.8", {"optimizer.layer_decay": 0.8}, continued=True),
        ),
        {"optimizer.layer_decay": 1.0, "optimizer.groups": (), "init_from": ""},
        {"continued": "", "continued-decay-0.9": "continued", "continued-decay-0.8": "continued"},
    ),
    "objectives": Study(
        "Objectives",
        "What do objectives beside masked tokens do to the masked-token loss, and to what is learned from the model?",
        (
            DYNAMIC,
            Variant("next-rows", "masked tokens alone, on the rows of mlm+nsp", {"data.pairs": "next"}),
            Variant(
                "mlm+nsp",
                "and whether the second text of a pair follows the first",
                {"data.pairs": "next", "objectives.nsp.weight": 1.0},
            ),
            Variant("order-rows", "masked tokens alone, on the rows of mlm+sop", {"data.pairs": "order"}),
            Variant(
                "mlm+sop",
                "and whether two texts stand in order",
                {"data.pairs": "order", "objectives.sop.weight": 1.0},
            ),
            Variant(
                "mlm+contrastive",
                "and which segment is the same under another mask",
                {"objectives.contrastive.weight": 0.1},
            ),
            Variant("mlm+causal", "and the next token, in a quarter of the steps", {"objectives.causal.ratio": 0.25}),
            Variant(
                "replaced",
                "which tokens a small generator has replaced (ELECTRA); its loss would be the generator's",
                {"objectives.mlm.weight": 0.0, "objectives.replaced.weight": 50.0},
                own_loss=True,
            ),
        ),
        MLM_ALONE,
        {"mlm+nsp": "next-rows", "mlm+sop": "order-rows"},
    ),
}


def check_base(study: Study, config: Config) -> None:
    """Raises ConfigError where the variants would not be what their names say, or could not be compared."""
    for key, expected in study.expects.items():
        value = get(config, key)
        if value != expected:
            fix = f"this study sets it itself in its variants, and its baseline has {expected!r}; leave it so"
            raise ConfigError(f"config.{key}", value, fix)
    if config.phases:
        fix = 'a study compares runs of one phase; leave them out with --config.phases="()"'
        raise ConfigError("config.phases", f"{len(config.phases)} phases", fix)
    if config.branch_from:
        raise ConfigError("config.branch_from", config.branch_from, "has one seed; a study begins its runs anew")
    if config.data.rows:
        raise ConfigError("config.data.rows", config.data.rows, "a study keeps its rows in WORKDIR/rows; leave it out")


def chosen(study: Study, names: Sequence[str]) -> list[Variant]:
    """The variants of these names, in the order of the study; all without a name. Raises ConfigError."""
    known = [variant.name for variant in study.variants]
    for name in names:
        if name not in known:
            raise ConfigError("--runs", name, f"is no variant of this study, which has {', '.join(known)}")
    return [variant for variant in study.variants if not names or variant.name in names]


def plan(
    study: Study, config: Config, folder: Path, variants: Sequence[Variant], seeds: Sequence[int], init_from: str = ""
) -> list[Run]:
    """The runs of a study in their order: all variants of a seed before the next seed, FOLDER/runs/VARIANT/seed-N.

    config: the user's, by which `check_base` has nothing to say; init_from: that of continued variants, empty: the
    baseline's run of the same seed.
    """
    shared: dict[str, object] = {key: value for key, value in EVALUATION.items() if get(config, key) is None}
    if any(variant.rows != "rows" for variant in study.variants) and not config.data.encoded:
        shared["data.encoded"] = str(folder / "encoded")
    runs = []
    for seed in seeds:
        for variant in variants:
            changes = {**shared, "data.rows": str(folder / variant.rows), **variant.overrides}
            if variant.continued:
                changes["init_from"] = init_from or str(run_folder(folder, study.baseline, seed))
                changes["data.rows"] = str(folder / ("rows-continued" if init_from else "rows"))
            changes["seed"] = seed + CONTINUED_SEEDS * variant.continued
            runs.append(Run(variant, seed, run_folder(folder, variant.name, seed), changes))
    return runs


def run_folder(folder: Path, variant: str, seed: int) -> Path:
    return folder / "runs" / variant / f"seed-{seed}"


def task_folder(folder: Path, task: str, variant: str, seed: int) -> Path:
    return folder / "tasks" / task / variant / f"seed-{seed}"
