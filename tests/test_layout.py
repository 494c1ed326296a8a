"""The files of the package stand in a total order: each imports only what stands before it."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "mlm_jax"
HOST = [
    "config",
    "flags",
    "cluster",
    "memory",
    "jsonl",
    "text",
    "tokenizer",
    "records",
    "position",
    "spikes",
    "stuck",
    "prepare",
]  # never import jax: worker processes stay light
ARRAYS = [
    "runtime",
    "tree",
    "compilation",
    "usage",
    "sharding",
    "parallel",
    "flops",
    "timing",
    "metrics",
    "batch",
    "keys",
    "order",
    "data",
    "masking",
    "audit",
]
ARRAYS += ["kernels", "models", "convert", "replaced"]
ARRAYS += [
    "objectives",
    "optim",
    "feedback",
    "state",
    "checkpoint",
    "step",
    "initial",
    "branch",
    "rewind",
    "plan",
    "evaluate",
    "samples",
    "phases",
    "console",
    "logbook",
    "card",
    "report",
    "inspection",
    "preview",
    "study",
    "inference",
]
PROGRAMS = ["finetune", "train", "cli", "__main__"]
ORDER = HOST + ARRAYS + PROGRAMS


def imports():
    """(file, module of the package, everything that it imports) for every file."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        found = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
        if module != "__init__":
            yield path, module, found


def test_every_file_has_its_place():
    assert {module for _, module, _ in imports()} == set(ORDER)


def test_a_file_imports_only_what_stands_before_it():
    for path, module, found in imports():
        for name in found:
            package, _, rest = name.partition(".")
            if package == "mlm_jax" and rest.split(".")[0] in ORDER:
                other = rest.split(".")[0]
                assert other == module or ORDER.index(other) < ORDER.index(module), f"{path} imports {name}"
                assert other not in PROGRAMS or other == module, f"{path} imports the program {name}"


def test_libraries_have_their_place():
    for path, module, found in imports():
        libraries = {name.split(".")[0] for name in found}
        assert module not in HOST or not libraries & {"jax", "flax", "optax", "grain"}, path
        assert module == "models" or "flax" not in libraries, path
        assert module == "data" or "grain" not in libraries, path
        assert not libraries & {"torch", "transformers", "tensorflow"}, path
