"""The configuration of fine-tuning: a task, the model to begin with, and how it is trained on it."""

import dataclasses

from mlm_jax.config.checks import check, check_types
from mlm_jax.config.families import positions
from mlm_jax.config.schema import CheckpointConfig, Config, ConfigError, MeshConfig, ModelConfig, OptimizerConfig

KINDS = ("classification", "regression", "tagging", "questions")


@dataclasses.dataclass(unsafe_hash=True)
class TaskConfig:
    """What is to be learned, and where its examples are.

    A task with a name of the table `finetune.tasks.TASKS` brings all that is left at its default here.
    """

    name: str = ""  # sst2, mnli, conll2003, squad, ...; empty: what stands below
    kind: str = "classification"  # classification | regression | tagging (BIO) | questions (extractive answers)
    # files (.gz too), or tfds:NAME/CONFIG:SPLIT
    train: str = ""
    dev: str = ""  # by which the epoch is chosen; empty: dev_share of the training examples
    test: str = ""  # predicted by the chosen epoch; it may be without labels
    format: str = ""  # tsv | csv | jsonl | conll | squad; empty: by the end of the file's name
    # columns by their names; in files without a header, and of the format conll, by their numbers, from 0 (conll: the
    # first and the last one, if nothing is said)
    header: bool = True
    text: str = "text"
    second: str = ""  # the second text of a pair
    label: str = "label"
    id: str = ""  # empty: the number of the example in its file, from 0
    # in the order of their ids, which files may have in their place; empty: those of the training examples, sorted
    labels: tuple[str, ...] = ()
    skip_broken: bool = False  # True: lines with too few or too many columns are skipped and counted (not of the test)
    drop_repeated: bool = False  # True: training examples that stand there before, with the same label, are dropped
    drop_seen: bool = False  # True: training examples whose text also stands in dev or test are dropped and counted
    unanswerable: bool = False  # kind=questions: a context may hold no answer, as in SQuAD 2.0
    metric: str = ""  # that chooses the epoch; empty: the first one of the task
    dev_share: float = 0.1  # without a dev file: share of the training examples, by a hash of their texts


@dataclasses.dataclass(unsafe_hash=True)
class FinetuneConfig:
    """Everything that defines the fine-tuning of a model on a task, once for each seed."""

    model: str = ""  # folder of a run (its newest checkpoint), one of its checkpoints, or a folder of the hub format
    # the head of a model that is fine-tuned for the same kind of task is kept, each label by its name; True: a new one
    new_head: bool = False
    scratch: bool = False  # True: its architecture and tokenizer, with parameters drawn by the seed
    task: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    seeds: tuple[int, ...] = (0, 1, 2)  # of the new head, the order of the examples, and dropout
    epochs: int = 3
    batch_size: int = 32  # examples (of questions and long texts: windows) of a step, over all devices
    accumulation: int = 1  # microbatches that a step adds up
    # tokens of a row, and the most of an example; several short ones share a row. What is longer is cut at its end, or
    # read in windows (tagging, questions)
    row_length: int = 128
    window_overlap: int = 32  # kind=questions: tokens that a window of the context shares with the next one
    dropout: float | None = None  # None: as the model has it
    attention_dropout: float | None = None
    dtype: str = "auto"  # compute type: float32 | bfloat16 | auto (bfloat16 on accelerators, float32 on a CPU)
    optimizer: OptimizerConfig = dataclasses.field(
        default_factory=lambda: OptimizerConfig(learning_rate=5e-5, warmup=0.1, b2=0.999, layer_decay=0.9)
    )
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=lambda: CheckpointConfig(every_steps=1000, keep=1))


def as_run(config: FinetuneConfig, model: ModelConfig, steps: int, rows: int, seed: int) -> Config:
    """The same as the config of a run, which is what step, state and optimizer know. model: of the source."""
    own = {key: value for key in ("dropout", "attention_dropout") if (value := getattr(config, key)) is not None}
    return Config(
        seed=seed,
        steps=steps,
        batch_size=rows,
        accumulation=config.accumulation,
        row_length=config.row_length,
        model=dataclasses.replace(model, **own, dtype=config.dtype),
        optimizer=config.optimizer,
        mesh=config.mesh,
        checkpoint=config.checkpoint,
    )


AT_LEAST = {"epochs": 1, "batch_size": 1, "accumulation": 1, "row_length": 8, "window_overlap": 0}


def check_finetune(config: FinetuneConfig, model: ModelConfig, devices: int, platform: str | None = None) -> dict:
    """Raises ConfigError at the first contradiction; returns axis -> devices of the mesh. model: of the source."""
    check_types(config, "config")
    for key, least in AT_LEAST.items():
        if getattr(config, key) < least:
            raise ConfigError(f"config.{key}", getattr(config, key), f"must be at least {least}")
    if not config.seeds or len(set(config.seeds)) < len(config.seeds) or min(config.seeds) < 0:
        raise ConfigError("config.seeds", config.seeds, "must be one or more different numbers, at least 0")
    for key in ("warmup_length", "cooldown_length"):
        if value := getattr(config.optimizer, key):
            raise ConfigError(f"config.optimizer.{key}", value, "fine-tuning goes by shares; leave it out")
    if config.row_length > positions(model):
        fix = f"{config.model} has positions for {positions(model)} tokens; make the rows shorter"
        raise ConfigError("config.row_length", config.row_length, fix)
    _check_task(config.task)
    one = as_run(config, model, steps=100, rows=devices * config.accumulation, seed=max(config.seeds))
    return check(one, devices, platform=platform).mesh


def _check_task(task: TaskConfig) -> None:
    if task.kind not in KINDS:
        raise ConfigError("config.task.kind", task.kind, f"must be one of {', '.join(KINDS)}")
    if not task.train:
        raise ConfigError("config.task.train", "", "names no examples: a file, or tfds:NAME/CONFIG:SPLIT")
    if not 0 < task.dev_share < 1:
        raise ConfigError("config.task.dev_share", task.dev_share, "must lie in (0, 1)")
    if task.labels and task.kind in ("regression", "questions"):
        raise ConfigError("config.task.labels", task.labels, f"kind={task.kind} has none; leave it out")
    if task.second and task.kind not in ("classification", "regression"):
        raise ConfigError("config.task.second", task.second, f"kind={task.kind} has no second text; leave it out")
    if task.unanswerable and task.kind != "questions":
        raise ConfigError("config.task.unanswerable", True, f"goes with kind=questions, not with {task.kind}")
    if len(set(task.labels)) < len(task.labels):
        raise ConfigError("config.task.labels", task.labels, "a name stands there twice")
