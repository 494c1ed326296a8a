"""What README.md and docs/ tell a reader to type can be typed: verbs, flags, keys, files, links and imports exist."""

import ast
import dataclasses
import importlib
import re
import shlex
import typing
from pathlib import Path

import pytest

from mlm_jax import flags
from mlm_jax.__main__ import VERBS
from mlm_jax.config import Config, FinetuneConfig

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = {"mlm_jax": [], "mlm_jax.train": ["train"], "mlm_jax.finetune": ["finetune"]}  # module -> verb
# the words between a launcher and the flags of the run
LAUNCHERS = {"launch/slurm.sbatch": 0, "launch/local.sh": 1, "launch/mpi.sh": 1, "launch/tpu_vm.sh": 2}
FOLDERS = ("benchmarks", "configs", "docs", "launch", "mlm_jax", "tests", ".ci")
PLACEHOLDER = re.compile(r"\.\.\.|…|\b(VERB|NAME|TASK|KEY|OPTIONS|VALUE)\b")


class Parsed(Exception):
    """A command line was read; the program need not run."""


def fences(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def spans(text: str) -> list[str]:
    """What stands in backticks outside of fences, each on one line."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


def commands(script: str) -> list[list[str]]:
    """The commands of a bash script as words; arrays (`flags=(...)`, `"${flags[@]}"`) are put in their places."""
    script = re.sub(r"\s#\s.*$", "", script, flags=re.MULTILINE).replace("\\\n", " ")
    lexer = shlex.shlex(script, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    found, words, arrays, array = [], [], {}, None
    for token in [*lexer, "\n"]:
        name = re.fullmatch(r"\$\{(\w+)\[@\]\}", token)
        if array is not None:  # between the brackets of one a new line is a space
            array += [token] if token.strip("()\n") else []
            array = None if ")" in token else array
        elif words and re.fullmatch(r"\w+\+?=", words[-1]) and token.startswith("("):
            array = arrays.setdefault(words.pop().rstrip("+="), [])
        elif name:
            words += arrays[name[1]]
        elif token.strip("();<>|&\n"):
            words.append(token)
        elif words:
            found, words = [*found, words], []
    return found


def argv_of(words: list[str]) -> list[str] | None:
    """The verb of `python -m mlm_jax` that a command runs, with its arguments; None: it runs another program."""
    for place, word in enumerate(words):
        if word == "mlm-jax":
            return words[place + 1 :]
        if word == "-m" and words[place + 1] in PROGRAMS:
            return PROGRAMS[words[place + 1]] + words[place + 2 :]
        if word in LAUNCHERS and any(flag.startswith("--config=") for flag in words):
            return ["train", *words[place + 1 + LAUNCHERS[word] :]]
    return None


def typed(page: Path) -> list[list[str]]:
    """Every command line of the package on a page, in fences and in the text."""
    text = page.read_text(encoding="utf-8")
    found = [argv_of(words) for words in commands("\n".join(fences(text, "bash")))]  # one shell for the whole page
    runs = [span for span in spans(text) if re.search(r"mlm_jax|mlm-jax|^launch/", span)]
    inline = [argv_of(words) for span in runs if not PLACEHOLDER.search(span) for words in commands(span)]
    found += [argv for argv in inline if argv and any(set(word) & set("=/") for word in argv)]  # not a name alone
    return [argv for argv in found if argv]


def has_key(kind: type, key: str) -> bool:
    """Whether a config has a key such as `data.filter.min_words` or `phases[1].rate`."""
    first, _, rest = key.partition(".")
    types = typing.get_type_hints(kind)
    name = first.partition("[")[0]
    if name not in types:
        return False
    inner = typing.get_args(types[name])[0] if "[" in first else types[name]
    return not rest or (dataclasses.is_dataclass(inner) and has_key(inner, rest))


@pytest.fixture
def read_only(monkeypatch):
    """Programs read their command line, and then raise Parsed; folders that it names need not be there."""

    def parse(*args, **kwargs):
        flags.parse(*args, **kwargs)
        raise Parsed

    def command(run, *args, **kwargs):
        parse(*args, **kwargs)

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(flags, "with_source", lambda config, workdir: config)
    modules = [importlib.import_module(module) for module, _ in VERBS.values()]
    for module in [*modules, importlib.import_module("mlm_jax.cli.study.runs")]:
        for name, stand_in in (("parse", parse), ("command", command)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, stand_in)
    monkeypatch.setattr(importlib.import_module("mlm_jax.cli.study.coverage"), "command", command)


def test_commands_are_read_as_bash_reads_them():
    script = """
A=1 python -m mlm_jax.train --config=x.py \\
  --config.data.sources="('a b', 'c')"   # a remark
flags=(--config=x.py
  --workdir=y)
flags+=(--json)
pip install -e . && python -m mlm_jax audit "${flags[@]}" | head > z
"""
    assert list(map(argv_of, commands(script))) == [
        ["train", "--config=x.py", "--config.data.sources=('a b', 'c')"],
        None,
        ["audit", "--config=x.py", "--workdir=y", "--json"],
        None,
        None,
    ]
    assert argv_of(["sbatch", "--nodes=2", "launch/slurm.sbatch", "--config=x.py"]) == ["train", "--config=x.py"]


def test_keys_are_found_at_any_depth():
    assert has_key(Config, "data.filter.min_words") and has_key(Config, "phases[1].batch_size")
    assert not has_key(Config, "data.filter.words") and not has_key(Config, "steps.more")


def test_commands_that_cannot_be_typed_are_found(read_only):
    for words in (["audit", "--config=configs/none.py"], ["audit", "--config=configs/tiny.py", "--config.stepz=1"]):
        with pytest.raises((flags.Usage, flags.ConfigError)):
            importlib.import_module("mlm_jax.__main__").main(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_can_be_typed(page, read_only, capsys):
    for argv in typed(page):
        words = shlex.join(argv)
        try:
            code = importlib.import_module("mlm_jax.__main__").main(argv)
        except Parsed:
            continue
        except (flags.Usage, flags.ConfigError) as error:
            pytest.fail(f"{page.name}: {words}\n{error}")
        pytest.fail(f"{page.name}: {words}\nends with {code}: {capsys.readouterr().err}")


def test_pages_hold_commands():
    assert all(typed(page) for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_key_in_the_text_is_one(page):
    names = "|".join(field.name for field in (*dataclasses.fields(Config), *dataclasses.fields(FinetuneConfig)))
    key = re.compile(rf"^(?:--)?(config\.)?((?:{names})(?:\[\d\])?(?:\.[\w\[\]]+)*)(=.*)?$")
    for span in spans(page.read_text(encoding="utf-8")):
        found = key.match(span)
        if found and ("." in found[2] or found[1]) and not found[2].endswith((".py", ".json", ".safetensors")):
            assert has_key(Config, found[2]) or has_key(FinetuneConfig, found[2]), f"{page.name}: {span}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_and_link_is_there(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target:
            assert (page.parent / target.partition("#")[0]).exists(), f"{page.name}: {target}"
    names = rf"(?<![\w./-])(?:{'|'.join(map(re.escape, FOLDERS))})/[\w./-]*\w"
    for name in re.findall(names, text):
        assert (ROOT / name).exists() or re.search(r"[A-Z]{4}", Path(name).stem), f"{page.name}: {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_import_is_there(page):
    for script in fences(page.read_text(encoding="utf-8"), "python"):
        for node in ast.walk(ast.parse(script)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("mlm_jax"):
                module = importlib.import_module(node.module)
                assert all(hasattr(module, alias.name) for alias in node.names), f"{page.name}: {ast.unparse(node)}"


def test_the_readme_lists_every_verb_and_every_page():
    readme = PAGES[0].read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)", readme.partition("## Verbs")[2].partition("\n## ")[0], re.MULTILINE)
    assert set(rows) == set(VERBS)
    assert all(f"](docs/{page.name})" in readme for page in PAGES[1:])
