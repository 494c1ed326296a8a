"""The tensors of a folder of the hub format."""

import json
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes  # noqa: F401  (so that safetensors knows bfloat16)
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from mlm_jax.config import ConfigError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
HEADS = "heads.safetensors"  # in a run's folder: what came with an imported model and this package has no place for
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def weight_files(folder: str | Path, name: str = WEIGHTS) -> list[str]:
    """`model.safetensors`, or the files that its index names. Raises ConfigError where there are none."""
    folder = Path(folder)
    if name == WEIGHTS and (folder / INDEX).is_file():
        names = sorted(set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
    elif (folder / name).is_file():
        names = [name]
    else:
        pickled = next((pickled for pickled in PICKLED if (folder / pickled).exists()), None)
        fix = f"holds no {name}"
        if pickled:
            fix += f", but {pickled}, a pickle, which can run any program when it is opened and is not read; "
            fix += "load the model in transformers and save_pretrained it, which writes safetensors"
        raise ConfigError("path", str(folder), fix)
    return names


def read_tensors(folder: str | Path, name: str = WEIGHTS) -> dict[str, np.ndarray]:
    """The arrays of `model.safetensors`, or of the files that its index names. Raises ConfigError."""
    tensors: dict[str, np.ndarray] = {}
    for file in weight_files(folder, name):
        try:
            tensors |= load_file(Path(folder) / file)
        except (OSError, SafetensorError) as error:
            raise ConfigError("path", str(Path(folder) / file), f"cannot be read: {error}") from None
    return tensors


def write_tensors(path: str | Path, tensors: Mapping[str, np.ndarray]) -> None:
    save_file(dict(tensors), path, metadata={"format": "pt"})
    Path(path).chmod(0o644)  # the library makes it readable by its owner alone
