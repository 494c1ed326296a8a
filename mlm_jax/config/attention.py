"""Which attention backend can serve what. Plain facts in, so that a start, a plan and the model itself ask the same."""

import dataclasses

from mlm_jax.config.families import resolve
from mlm_jax.config.schema import Config, ConfigError, ModelConfig

BACKENDS = ("auto", "reference", "blocks", "cudnn", "splash")
NEEDED = {"cudnn": "gpu", "splash": "tpu"}  # platform of a backend; the others run anywhere


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of attention."""

    platform: str  # cpu, gpu, tpu
    row_length: int  # t
    head_size: int  # k
    dtype: str
    window: int  # 0: a global layer
    dropout: float = 0.0  # of the probabilities
    causal: bool = False  # a query sees no key that stands after it; every backend can


def obstacle(backend: str, case: Case) -> str | None:
    """What a backend lacks for a case, and what would be right; None where it can serve. `reference` always can."""
    if backend == "reference":
        return None
    if case.dropout:
        return "drops no probabilities: set config.model.attention_dropout = 0"
    if backend == "blocks":
        return None if case.window else "is for local layers, and config.model.local_window = 0 makes none"
    if case.platform != (needed := NEEDED[backend]):
        return f"needs a {needed.upper()}, and this is a {case.platform.upper()}"
    return _obstacle_of_cudnn(case) if backend == "cudnn" else None


def _obstacle_of_cudnn(case: Case) -> str | None:
    if case.dtype not in ("bfloat16", "float16"):
        return f"computes in bfloat16, and config.model.dtype makes it {case.dtype}"
    if case.head_size % 8 or case.head_size > 128:
        return f"has heads of 8 to 128 values, by eights, and config.model.width / heads = {case.head_size}"
    return "has rows of an even length only" if case.row_length % 2 else None


def check_attention(config: Config, platform: str | None) -> None:
    """Raises ConfigError for a backend that is forced and cannot serve. platform: cpu, gpu or tpu; None: not known."""
    model = resolve(config.model)
    if model.attention == "auto":
        return
    platform = platform or NEEDED.get(model.attention, "cpu")
    dtype = dtype_on(model, platform)
    size = model.width // model.heads
    case = Case(platform, config.row_length, size, dtype, model.local_window, model.attention_dropout)
    if fix := obstacle(model.attention, case):
        raise ConfigError("config.model.attention", model.attention, f"{fix}; 'auto' takes what can serve")


def dtype_on(model: ModelConfig, platform: str) -> str:
    """The name of the compute type of a model on a platform."""
    if model.dtype != "auto":
        return model.dtype
    return "float32" if platform == "cpu" else "bfloat16"
