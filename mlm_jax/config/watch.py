"""Checks of what a run looks out for."""

from mlm_jax.config.schema import Config, ConfigError

SHARE = 4  # a spike of so small a part of the window does not move its median much


def check_watch(config: Config) -> None:
    """Raises ConfigError where a spike is what is usual, or no checkpoint might be left from before it."""
    watch, saves = config.watch, config.checkpoint
    if watch.window < SHARE * watch.spike_steps:
        fix = f"must be at least {SHARE} times config.watch.spike_steps = {watch.spike_steps}"
        raise ConfigError("config.watch.window", watch.window, f"{fix}: what is usual must not be the spike itself")
    if watch.action != "rewind":
        return
    if not watch.spike:
        raise ConfigError("config.watch.action", "rewind", "never happens with config.watch.spike = 0; set that to 6")
    if watch.skip_steps < watch.spike_steps:
        fix = f"must be at least config.watch.spike_steps = {watch.spike_steps}, the steps of the spike"
        raise ConfigError("config.watch.skip_steps", watch.skip_steps, fix)
    # when a spike is found, the oldest checkpoint that is left may be so many steps old, and not more
    if (least := -(-watch.skip_steps // saves.every_steps) + 1) > saves.keep:
        fix = (
            f"must be at least {least}, so that with one every {saves.every_steps} steps there is always one from"
            f" before the last config.watch.skip_steps = {watch.skip_steps} steps"
        )
        raise ConfigError("config.checkpoint.keep", saves.keep, fix)
