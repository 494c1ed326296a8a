"""Strict settings for the whole suite: 8 fake CPU devices, no rank promotion, shapes of public functions checked."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import jax

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

from absl import flags
from jaxtyping import install_import_hook

flags.FLAGS.mark_as_parsed()  # Grain reads absl flags
install_import_hook("mlm_jax", "beartype.beartype")
