"""`python -m mlm_jax.finetune ...`."""

import sys

from mlm_jax.finetune.program import main

if __name__ == "__main__":
    sys.exit(main())
