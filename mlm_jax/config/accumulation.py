"""How the rows of a step are cut: over devices by the mesh, then one after another by accumulation."""

import dataclasses

from mlm_jax.config.mask import round_up
from mlm_jax.config.schema import Config, ConfigError


def check_batch(config: Config, mesh: dict[str, int]) -> int:
    """The accumulation of a config without phases; raises ConfigError where the batch does not divide by it.

    It is `accumulation`, or follows from `rows_per_device` (see there). An accumulation other than 1 beside it must be
    the one that follows.
    """
    key, size, most = "config.batch_size", config.batch_size, config.rows_per_device
    parallel, cut = mesh["data"] * mesh["fsdp"], f"{mesh['data']} x {mesh['fsdp']}"
    if not most:
        unit, what = config.accumulation * parallel, "accumulation x mesh.data x mesh.fsdp"
        if size % unit:
            fix = f"must be a multiple of {what} = {config.accumulation} x {cut} = {unit}; nearest: {near(size, unit)}"
            raise ConfigError(key, size, fix)
        return config.accumulation
    if size % parallel:
        fix = f"must be a multiple of mesh.data x mesh.fsdp = {cut} = {parallel}; nearest: {near(size, parallel)}"
        raise ConfigError(key, size, fix)
    rows = size // parallel
    accumulation = rows // max(part for part in range(1, min(most, rows) + 1) if rows % part == 0)
    if config.accumulation not in (1, accumulation):
        fix = (
            f"contradicts config.rows_per_device = {most}, by which it is {accumulation} on this mesh ({rows} rows for"
            " each device along data and fsdp): leave it at 1, or set rows_per_device=0"
        )
        raise ConfigError("config.accumulation", config.accumulation, fix)
    return accumulation


def near(size: int, unit: int) -> str:
    """The nearest multiples of `unit` that are at least 1, such as `96 or 120`."""
    return " or ".join(str(one) for one in (size // unit * unit, round_up(size, unit)) if one)


def with_accumulation(config: Config, accumulation: int) -> Config:
    """The config with the accumulation that was derived for the devices at hand, for what reads it from there."""
    return dataclasses.replace(config, accumulation=accumulation)
