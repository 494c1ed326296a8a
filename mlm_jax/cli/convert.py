"""`python -m mlm_jax convert SOURCE TARGET`: a run to a folder of the hub format, or such a folder to a run's."""

import dataclasses
import shutil
import tempfile
from pathlib import Path

from absl import flags

from mlm_jax import runtime
from mlm_jax.config import Config, ConfigError, hub, positions, to_json
from mlm_jax.flags import Arguments, Usage, command

USAGE = """usage: python -m mlm_jax convert SOURCE TARGET [--step=N] [--vocab_size=N] [--generator]

SOURCE is the folder of a run: TARGET becomes a folder that transformers loads (config.json, model.safetensors,
tokenizer, README.md). Or SOURCE is such a folder: TARGET becomes the folder of a run that fill-mask, evaluate and
--config.init_from read. BERT, RoBERTa, ELECTRA and ModernBERT. A run with config.objectives.replaced becomes its
discriminator, an ElectraForPreTraining, or with --generator its generator, an ElectraForMaskedLM. Examples:

  python -m mlm_jax convert runs/tiny exported/tiny
  python -m mlm_jax convert runs/electra exported/generator --generator
  python -m mlm_jax convert PATH/bert-base-uncased runs/bert
"""


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_integer("step", None, "checkpoint of a run; the newest by default", flag_values=values)
    flags.DEFINE_integer("vocab_size", None, "rows of the word table, where it is to change", 1, flag_values=values)
    flags.DEFINE_bool("generator", False, "of a run with replaced tokens, its generator", flag_values=values)


def main(argv: list[str]) -> int:
    return command(run, argv, USAGE, needs_config=False, define=define, words=True)


def run(arguments: Arguments) -> int:
    if len(arguments.rest) != 2:
        raise Usage("give SOURCE and TARGET, two folders")
    source, target = (Path(word).expanduser() for word in arguments.rest)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError("TARGET", str(target), "exists and is not empty; name another folder")
    runtime.start()
    target, partial = target.resolve(), None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        convert = import_model if hub.is_hub(source) else export_model
        lines = convert(source, partial, arguments)
        if target.exists():
            target.rmdir()
        partial.chmod(0o755)  # the library makes it readable by its owner alone
        partial.rename(target)
    except OSError as error:
        raise ConfigError("TARGET", str(target), f"cannot be written: {error}") from None
    finally:
        if partial:
            shutil.rmtree(partial, ignore_errors=True)
    print("\n".join([*lines, f"written: {target}"]))
    return 0


def export_model(workdir: Path, target: Path, arguments: Arguments) -> list[str]:
    """Writes a run as a folder of the hub format; returns lines that say what."""
    from mlm_jax import convert, tree
    from mlm_jax.card import card
    from mlm_jax.checkpoint import load_config, load_model, newest, read_meta
    from mlm_jax.convert.files import HEADS, WEIGHTS, read_tensors, write_tensors

    config = load_config(workdir)
    model, params, tokenizer = load_model(workdir, arguments.step)
    step = newest(workdir) if arguments.step is None else arguments.step
    vocab_size, params = resized(model, params, tokenizer, arguments.vocab_size)
    of_model, whole = model.config, params
    if arguments.generator and not model.generator:
        raise ConfigError("--generator", True, f"{workdir} has none; it was trained without config.objectives.replaced")
    if arguments.generator:
        of_model, params = convert.of_generator(model, params)
    elif model.generator:
        of_model, params = convert.of_discriminator(model, params)
    lost = convert.without_place(params, of_model)
    params = {name: part for name, part in params.items() if name not in lost}
    lost += [name for name in ("head", "pair", "contrast") if name in whole and name not in (*params, *lost)]
    ids = {role: getattr(tokenizer, role) for role in ("pad", "cls", "sep")}
    values = hub.config_values(of_model, vocab_size, ids, hub.architecture_of(of_model.family, params))
    tensors = convert.to_hub(params, of_model, vocab_size)
    if (workdir / HEADS).is_file():
        tensors |= read_tensors(workdir, HEADS)
    write_tensors(target / WEIGHTS, tensors)
    hub.write_config(target, values)
    # with one type, a table that all tokens share, there is nothing to tell
    tokenizer.save_hub(target, positions(model.config), types=model.config.types > 1)
    parameters = tree.size(params)
    mask = None if "discriminator" in params else tokenizer.pieces[tokenizer.mask]
    text = card(workdir, config, of_model, step, read_meta(workdir, step).get("data"), parameters, mask)
    (target / "README.md").write_text(text, encoding="utf-8")
    lines = [f"{values['architectures'][0]}, {parameters:,} parameters, step {step:,}, {vocab_size:,} ids"]
    return lines + [f"left out, for which the format has no place: {', '.join(lost)}"] if lost else lines


def import_model(source: Path, target: Path, arguments: Arguments) -> list[str]:
    """Writes a folder of the hub format as that of a run that has done no step; returns lines that say what."""
    import jax

    from mlm_jax import convert, tree
    from mlm_jax.checkpoint import Checkpoints, load_model
    from mlm_jax.convert.files import HEADS, read_tensors, write_tensors

    model, params, tokenizer = load_model(source, arguments.step)
    vocab_size, params = resized(model, params, tokenizer, arguments.vocab_size)
    of_model = dataclasses.replace(hub.read_config(source)[0], vocab_size=vocab_size)
    config = Config(model=of_model, row_length=positions(of_model))
    (target / "config.json").write_text(to_json(config) + "\n", encoding="utf-8")
    tokenizer.save(target / "tokenizer")
    checkpoints = Checkpoints(target, keep=1)
    checkpoints.save(
        0, {"params": jax.device_put(params)}, {"tokenizer": tokenizer.hash, "config": dataclasses.asdict(config)}
    )
    checkpoints.close()
    parameters = tree.size(params)
    lines = [f"{model.config.family}, {parameters:,} parameters, {vocab_size:,} ids"]
    heads = convert.left_out(read_tensors(source), model.config)
    if heads:
        write_tensors(target / HEADS, heads)
        lines.append(f"kept beside, for an export: {', '.join(heads)}")
    return lines


def resized(model, params: dict, tokenizer, asked: int | None) -> tuple[int, dict]:
    """The number of ids, and the parameters with so many rows. Raises ConfigError where the tokenizer has more."""
    import jax

    from mlm_jax import convert

    params = jax.device_get(params)
    if asked is None or asked == model.vocab_size:
        return model.vocab_size, params
    if asked < tokenizer.size:
        raise ConfigError("--vocab_size", asked, f"must be at least {tokenizer.size:,}, the ids of the tokenizer")
    sources = [[i] if i < model.vocab_size else [] for i in range(asked)]
    return asked, convert.with_rows(params, model.vocab_size, sources)
