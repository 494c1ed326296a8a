"""The mesh of a config: how many devices along each axis, and what must divide by them."""

import math

from mlm_jax.config.schema import Config, ConfigError

LOGICAL_AXES = ("width", "heads", "hidden", "vocab")  # `width` stands with each of the others in some parameter


def mesh_shape(config: Config, devices: int) -> dict[str, int]:
    """Axis -> devices. Raises ConfigError where the axes do not hold the devices, or rules contradict."""
    shape = {"data": config.mesh.data, "fsdp": config.mesh.fsdp, "tensor": config.mesh.tensor}
    open_axes = [axis for axis, size in shape.items() if size == -1]
    for axis, size in shape.items():
        if size < 1 and size != -1:
            raise ConfigError(f"config.mesh.{axis}", size, "must be a number of devices, or -1 for all that are left")
    if len(open_axes) > 1:
        raise ConfigError(f"config.mesh.{open_axes[1]}", -1, f"only one axis can be -1, config.mesh.{open_axes[0]} is")
    fixed = math.prod(size for size in shape.values() if size != -1)
    if open_axes:
        axis = open_axes[0]
        if devices % fixed:
            raise ConfigError(f"config.mesh.{axis}", -1, f"{devices} devices do not divide by the other axes' {fixed}")
        shape[axis] = devices // fixed
    elif fixed != devices:
        raise ConfigError("config.mesh", shape, f"the axes hold {fixed} devices, {devices} are present")
    _check_rules(config.mesh.rules, tuple(shape))
    return shape


def _check_rules(rules: tuple[tuple[str, str], ...], axes: tuple[str, ...]) -> None:
    key, table = "config.mesh.rules", dict(rules)
    for logical, axis in rules:
        if axis not in axes:
            raise ConfigError(key, (logical, axis), f"mesh axes are {', '.join(axes)}")
        if axis == "data":
            raise ConfigError(key, (logical, axis), "parameters are whole along data; fsdp is the axis that cuts both")
        if logical not in LOGICAL_AXES:
            raise ConfigError(key, (logical, axis), f"logical axes are {', '.join(LOGICAL_AXES)}")
        if logical != "width" and axis == table.get("width"):
            raise ConfigError(key, (logical, axis), f"some parameters would have {axis} twice: width has it already")
    if len(table) != len(rules):
        raise ConfigError(key, rules, "a logical axis stands twice")


def check_cut(config: Config, mesh: dict[str, int], logical: str, key: str, value: int) -> None:
    """Raises ConfigError for `key` where a size does not divide by the devices that its logical axis is cut over."""
    axis = dict(config.mesh.rules).get(logical)
    if axis and value % mesh[axis]:
        raise ConfigError(key, value, f"must be a multiple of config.mesh.{axis} = {mesh[axis]}")
