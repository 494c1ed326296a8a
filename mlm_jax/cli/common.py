"""What verbs that look at rows share."""

import math
from pathlib import Path

from mlm_jax import config as config_module
from mlm_jax import records
from mlm_jax.config import Config


def devices_asked(config: Config) -> int:
    """As many devices as the mesh of a config asks for: any machine may look at its rows."""
    return math.prod(max(1, size) for size in (config.mesh.data, config.mesh.fsdp, config.mesh.tensor))


def checked_rows(config: Config, workdir: Path) -> tuple[Path, dict]:
    """The folder of a config's rows, prepared if they are missing, and its manifest. Raises ConfigError."""
    config_module.check(config, devices=devices_asked(config))
    folder = config_module.rows_folder(config, workdir)
    if not (folder / records.MANIFEST).exists():
        from mlm_jax.prepare import prepare

        config_module.check_writable(workdir)
        prepare(config, folder)
    manifest = records.read_manifest(folder)
    config_module.check(config, devices=devices_asked(config), manifest=manifest)
    return folder, manifest
