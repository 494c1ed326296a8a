"""`python -m mlm_jax study STUDY`: questions that are answered by counting, or by several runs."""

from mlm_jax.flags import choose
from mlm_jax.study.runs import STUDIES

COUNTING = {
    "coverage": (
        "mlm_jax.cli.study.coverage",
        "how often tokens are selected by static, multi-version and dynamic masks",
    ),
}


def main(argv: list[str]) -> int:
    if argv and argv[0] in STUDIES:
        from mlm_jax.cli.study import runs

        return runs.main(argv[0], argv[1:])
    table = COUNTING | {name: ("", study.question) for name, study in STUDIES.items()}
    return choose(argv, "python -m mlm_jax study", "study", table)
