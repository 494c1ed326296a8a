"""`python -m mlm_jax study STUDY`: questions about masking, answered by counting."""

from mlm_jax.flags import choose

STUDIES = {
    "coverage": (
        "mlm_jax.cli.study.coverage",
        "how often tokens are selected by static, multi-version and dynamic masks",
    ),
}


def main(argv: list[str]) -> int:
    return choose(argv, "python -m mlm_jax study", "study", STUDIES)
