"""`plan`: collectives and bytes by hand, FLOPs against the formula, roofline, the search for what fits, messages."""

import dataclasses
import json
import re
import types

import jax
import jax.numpy as jnp
import pytest
from batches import vocabulary
from jax.sharding import PartitionSpec as P
from test_train import SMALL

from mlm_jax import flops, sharding, step
from mlm_jax import plan as plan_module
from mlm_jax.cli import plan as verb
from mlm_jax.config import (
    CausalConfig,
    Config,
    ConfigError,
    ContrastiveConfig,
    DataConfig,
    MeshConfig,
    ModelConfig,
    ObjectiveConfig,
    ObjectivesConfig,
)
from mlm_jax.plan import ahead, collectives, fit, hlo, products, roofline
from mlm_jax.plan.advice import slices
from mlm_jax.plan.outcome import gib

GIB = 2**30
CHIP = flops.chip("TPU v5 lite")

# By hand. The loop runs 5 times; 64 floats are 256 bytes. S(1) is a memory on the chip.
PROGRAM = """HloModule by_hand, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%fused_update (whole: f32[5,64], one: f32[64], at: s32[]) -> f32[5,64] {
  %whole = f32[5,64]{1,0:T(8,128)} parameter(0)
  %one = f32[64]{0:T(128)} parameter(1)
  %row = f32[1,64]{1,0:T(8,128)} bitcast(%one)
  %at = s32[]{:T(128)} parameter(2)
  %zero = s32[] constant(0)
  ROOT %updated = f32[5,64]{1,0:T(8,128)} dynamic-update-slice(%whole, %row, %at, %zero)
}

%fused_slice (whole.1: f32[5,64], at.1: s32[]) -> f32[64] {
  %whole.1 = f32[5,64]{1,0:T(8,128)} parameter(0)
  %at.1 = s32[]{:T(128)} parameter(1)
  %zero.1 = s32[] constant(0)
  %cut = f32[1,64]{1,0:T(8,128)} dynamic-slice(%whole.1, %at.1, %zero.1), dynamic_slice_sizes={1,64}
  ROOT %row.1 = f32[64]{0:T(128)} bitcast(%cut)
}

%all-reduce-scatter (big: f32[64]) -> f32[8] {
  %big = f32[64]{0:T(128)} parameter(0)
  %reduced = f32[64]{0:T(128)} all-reduce(%big), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add
  %zero.2 = s32[] constant(0)
  ROOT %part = f32[8]{0:T(128)} dynamic-slice(%reduced, %zero.2), dynamic_slice_sizes={8}
}

%condition (state: (s32[], f32[5,64])) -> pred[] {
  %state = (s32[]{:T(128)}, f32[5,64]{1,0:T(8,128)}) parameter(0)
  %five = s32[]{:T(128)} constant(5)
  %counter = s32[]{:T(128)} get-tuple-element(%state), index=0
  ROOT %less = pred[]{:T(512)} compare(%counter, %five), direction=LT
}

%body (state.1: (s32[], f32[5,64])) -> (s32[], f32[5,64]) {
  %state.1 = (s32[]{:T(128)}, f32[5,64]{1,0:T(8,128)}) parameter(0)
  %counter.1 = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  %rows = f32[5,64]{1,0:T(8,128)} get-tuple-element(%state.1), index=1
  %row.2 = f32[64]{0:T(128)S(1)} fusion(%rows, %counter.1), kind=kLoop, calls=%fused_slice
  %summed = f32[64]{0:T(128)} all-reduce(%row.2), replica_groups=mesh['a'=4,'b'=2] {'a'}, metadata={op_name="loop/sum"}
  %written = f32[5,64]{1,0:T(8,128)} fusion(%rows, %summed, %counter.1), kind=kLoop, calls=%fused_update
  ROOT %next = (s32[]{:T(128)}, f32[5,64]{1,0:T(8,128)}) tuple(%counter.1, %written)
}

ENTRY %main (given: f32[5,64], w: f32[64,64]) -> f32[8] {
  %given = f32[5,64]{1,0:T(8,128)} parameter(0)
  %w = f32[64,64]{1,0:T(8,128)} parameter(1)
  %start = s32[]{:T(128)} constant(0)
  %both = (s32[]{:T(128)}, f32[5,64]{1,0:T(8,128)}) tuple(%start, %given)
  %loop = (s32[]{:T(128)}, /*index=1*/f32[5,64]{1,0:T(8,128)}) while(%both), condition=%condition, body=%body
  %out = f32[5,64]{1,0:T(8,128)} get-tuple-element(%loop), index=1
  %fetch = (f32[64,64]{1,0:T(8,128)S(1)}, f32[64,64]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%w)
  %fetched = f32[64,64]{1,0:T(8,128)S(1)} copy-done(%fetch)
  %product = f32[5,64]{1,0:T(8,128)S(1)} convolution(%out, %fetched), backend_config={"estimated_cycles":"700"}
  %flat = f32[64]{0:T(128)} slice(%product), slice={[0:64]}
  %begun = (f32[64]{0:T(128)}, f32[128]{0:T(128)}) all-gather-start(%flat), replica_groups=[4,2]<=[8], dimensions={0}
  %gathered = f32[128]{0:T(128)} all-gather-done(%begun)
  %moved = f32[64]{0:T(128)} collective-permute(%flat), source_target_pairs={{0,1},{1,0}}
  ROOT %scattered = f32[8]{0:T(128)} fusion(%moved), kind=kCustom, calls=%all-reduce-scatter
}
"""


def test_collectives_by_hand():
    found = collectives.read(hlo.parse(PROGRAM), 8)
    assert {(one.kind, one.times, one.size, one.group) for one in found} == {
        ("all-reduce", 5, 256, 4),
        ("all-gather", 1, 512, 2),
        ("permute", 1, 256, 2),
        ("reduce-scatter", 1, 256, 8),
    }
    assert found[0].kind == "all-reduce" and found[0].type == "f32[64]" and found[0].source == "loop/sum"
    total = collectives.totals(found)
    assert total["all-reduce"] == collectives.Total(5, 5 * 256, 5 * 256 * 2 * 3 / 4)
    assert total["all-gather"].sent == 512 / 2 and total["permute"].sent == 256
    assert total["reduce-scatter"].sent == 256 * 7 / 8


def test_a_collective_in_several_fusions_counts_once():
    """As the compiler for TPUs cuts it: a start, a part beside other work, an end; another channel is another one."""
    fused = "\n\n".join(
        f"%part.{i} (x.{i}: f32[8]) -> f32[64] {{\n"
        f"  %x.{i} = f32[8]{{0}} parameter(0)\n"
        f"  ROOT %gathered.{i} = f32[64]{{0}} all-gather(%x.{i}), channel_id={channel}, replica_groups=[1,8]<=[8]\n}}"
        for i, channel in enumerate((3, 3, 3, 4))
    )
    calls = "\n".join(f"  %f.{i} = f32[64]{{0}} fusion(%x), kind=kCustom, calls=%part.{i}" for i in range(4))
    text = f"{fused}\n\nENTRY %main (x: f32[8]) -> f32[8] {{\n  ROOT %x = f32[8]{{0}} parameter(0)\n{calls}\n}}\n"
    total = collectives.totals(collectives.read(hlo.parse(text), 8))
    assert total == {"all-gather": collectives.Total(2, 2 * 256, 2 * 256 * 7 / 8)}


def test_bytes_and_cycles_by_hand():
    program = hlo.parse(PROGRAM)
    # in the loop: a row is read into the chip (256, and 4 of the counter); summed from there to memory (256); read and
    # written to its place (512, and 4). After it: 64 x 64 floats come in; the product reads 5 rows and writes none
    loop = 5 * (256 + 4 + 256 + 512 + 4)
    slice_of_product = 2 * 256
    gather, permute, scatter = 256 + 512 + 256, 2 * 256, 256 + 32
    products_moved, others = hlo.moved(program)
    assert products_moved == 5 * 256
    assert others == loop + 4 * 64 * 64 + slice_of_product + gather + permute + scatter
    assert hlo.cycles(program) == 700 and not program.unknown_loops


def test_what_a_loop_carries_by_hand():
    assert hlo.carried(hlo.parse(PROGRAM)) == [("f32[5,64]", 5 * 256), ("s32[]", 4)]


def test_a_loop_without_a_count_is_said():
    program = hlo.parse(PROGRAM.replace("direction=LT", "direction=NE"))
    assert collectives.totals(collectives.read(program, 8))["all-reduce"].count == 1
    assert program.unknown_loops == ["loop"]
    named = PROGRAM.replace("direction=LT", "direction=NE").replace(
        "body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"7"}}'
    )
    program = hlo.parse(named)
    assert collectives.totals(collectives.read(program, 8))["all-reduce"].count == 7


@pytest.mark.parametrize(
    "groups, devices",
    [
        ("replica_groups={{0,2},{1,3}}", 2),
        ("replica_groups={}", 8),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", 4),
        ("replica_groups=mesh['x'=4,'y'=2] {'x','y'}", 8),
        ("replica_groups=mesh['x'=4,'y'=2] {'x':(2)2}", 2),
        ("replica_groups=mesh['x'=1,'y'=4,'z'=2], device_ids=([2,4]T(1,0)) {'y'}, use_global_device_ids=true", 4),
        ("source_target_pairs={{0,0},{1,1}}", 1),
    ],
)
def test_groups(groups, devices):
    assert collectives.group_size(hlo.Instruction("x", "f32[]", "all-reduce", (), groups, False), 8) == devices


def test_collectives_of_a_compiled_scan():
    """Three layers on 8 devices: each gathers its weight and sums over the batch; a scatter and a swap after them."""
    mesh = sharding.make_mesh({"data": 8, "fsdp": 1, "tensor": 1})

    def layers(x, weights):
        def layer(x, w):
            whole = jax.lax.all_gather(w, "data", tiled=True)
            return jnp.tanh(x @ whole) + jax.lax.psum(x, "data"), None

        x, _ = jax.lax.scan(layer, x, weights)
        part = jax.lax.psum_scatter(x, "data", tiled=True)
        return jax.lax.ppermute(part, "data", [(i, (i + 1) % 8) for i in range(8)])

    sharded = jax.shard_map(layers, mesh=mesh, in_specs=(P("data"), P(None, "data")), out_specs=P("data"))
    x, weights = jax.ShapeDtypeStruct((64, 16), jnp.float32), jax.ShapeDtypeStruct((3, 16, 16), jnp.float32)
    program = hlo.parse(jax.jit(sharded).lower(x, weights).compile().as_text())
    counted = collectives.totals(collectives.read(program, 8))
    assert {kind: (total.count, total.size) for kind, total in counted.items()} == {
        "all-gather": (3, 3 * 16 * 16 * 4),
        "all-reduce": (3, 3 * 8 * 16 * 4),
        "reduce-scatter": (1, 8 * 16 * 4),
        "permute": (1, 1 * 16 * 4),
    }
    assert not program.unknown_loops


def config_of(**changes) -> Config:
    small = {"width": 16, "heads": 2, "hidden": 32, "max_positions": 32, "dropout": 0.0, "attention_dropout": 0.0}
    model = ModelConfig(layers=4, dtype="float32", **small)
    return Config(**{"steps": 50, "batch_size": 32, "row_length": 32, "model": model, **changes})


def here(limit: int = GIB) -> ahead.Topology:
    return ahead.Topology("here", tuple(jax.devices()), "TPU v5 lite", CHIP, limit)


@pytest.fixture(scope="module")
def compiled():
    """The real step, compiled for the 8 devices of the tests."""
    return ahead.compile_step(config_of(), vocabulary(40), here())


TABLES, LAYER, DENSE = (128 + 32 + 2) * 16, 4 * 16 * 16 + 2 * 16 * 32, 16 * 16  # numbers in matrices
VECTORS = 4 * (4 * 16 + 32 + 16 + 4 * 16) + 2 * 16 + (16 + 2 * 16 + 128)  # biases and norms


def test_with_data_parallelism_gradients_are_reduced_once(compiled):
    """Of two microbatches, too: all parameters once, the table with them, and some numbers such as the loss."""
    several = ahead.compile_step(config_of(batch_size=64, accumulation=2), vocabulary(40), here())
    for one_step in (compiled, several):
        found = collectives.read(one_step.program, 8)
        assert {one.kind for one in found} == {"all-reduce"} and all(one.group == 8 for one in found)
        more = sum(one.times * one.size for one in found) - one_step.memory.parameters
        assert 0 <= more < 256


def test_with_fsdp_layers_are_gathered_twice_and_scattered_once_in_each_microbatch():
    """On 2 x 4 devices, of four layers three that are stacked.

    The last one stays from forward to backward pass; a compiler may gather it once for both microbatches.
    """
    config = config_of(batch_size=64, accumulation=2, mesh=MeshConfig(data=2, fsdp=4))
    program = ahead.compile_step(config, vocabulary(40), here()).program
    found = collectives.read(program, 8)
    by_kind = collectives.totals(found)
    last = (by_kind["all-gather"].size - 4 * (2 * 2 * 3 * LAYER + TABLES)) / (4 * (LAYER + DENSE))
    assert last in (1, 2)
    assert by_kind["reduce-scatter"].size == 4 * (2 * (4 * LAYER + DENSE) + TABLES)
    # what is left of the reduction, once: over data alone, of the parts; and of what lies whole on every device
    parts = (4 * LAYER + DENSE + TABLES) // 4
    assert 0 <= sum(one.times * one.size for one in found if one.kind == "all-reduce") - 4 * (parts + VECTORS) < 512
    assert {one.group for one in found if one.kind != "all-reduce"} == {4}
    assert set(by_kind) == {"all-gather", "reduce-scatter", "all-reduce"}
    # no layer is kept whole for the backward pass
    whole = {f"f32[3,{shape}]" for shape in ("16,128", "16,2,8", "2,8,16", "16,16", "16,32", "32,16")}
    assert not whole & {kind for kind, _ in hlo.carried(program)}


def test_memory_by_hand(compiled):
    parameters = TABLES + 4 * LAYER + DENSE + VECTORS
    assert compiled.memory.parameters == 4 * parameters
    assert compiled.memory.optimizer == 2 * 4 * parameters + 2 * 4  # and two counters
    # 4 rows: ids, segments, positions of 4 bytes and flags of 1 at 32 places, 32 firsts and labels, 3 numbers
    assert compiled.memory.batch == 4 * (13 * 32 + 2 * 4 * 32 + 12)
    assert compiled.memory.needs == sum(compiled.memory[1:]) and compiled.fits


def test_the_formula_counts_the_products_of_the_traced_step(compiled, monkeypatch):
    assert compiled.traced_flops == flops.of_run(config_of(), compiled.derived)
    monkeypatch.setattr(ahead, "_compile", lambda *options: (None, 0))
    on = ObjectiveConfig(weight=1.0)
    several = ObjectivesConfig(nsp=on, contrastive=ContrastiveConfig(weight=1.0, group_rows=4))
    config = config_of(accumulation=4, objectives=several, data=DataConfig(pairs="next", max_segments=5))
    traced = ahead.compile_step(config, vocabulary(40), here())
    assert traced.traced_flops == flops.of_run(config, traced.derived) and not traced.fits


def test_a_causal_step_counts_by_its_share(monkeypatch):
    """The scores of all 32 x 32 pairs are computed, and only those of 32 x 33 / 2 are needed."""
    monkeypatch.setattr(ahead, "_compile", lambda *options: (None, 0))
    config = config_of(objectives=ObjectivesConfig(causal=CausalConfig(ratio=0.25)))
    traced = ahead.compile_step(config, vocabulary(40), here())
    more = 3 * 32 * 4 * 2 * (2 * 16 * (32 * 32 - 32 * 33 // 2)) // 4
    assert traced.traced_flops == flops.of_run(config, traced.derived) + more


def test_both_kinds_of_a_step_run_by_their_share():
    """By what the instructions of a branch are named by; both branches count of another choice, also within them."""
    scope = f"jit(train_step)/{step.KIND_OF_STEP}/cond"
    branch = "%{name} (x: f32[64]) -> f32[64] {{\n  %x.{name} = f32[64]{{0}} parameter(0)\n"
    branch += '  ROOT %{name}.out = f32[64]{{0}} negate(%x.{name}), metadata={{op_name="{scope}/neg"}}\n{more}}}\n\n'
    inner = "  %c = f32[64]{0} conditional(%x.causal, %x.causal), branch_computations={%one, %two}\n"
    text = branch.format(name="ordinary", scope=f"{scope}/branch_0_fun", more="")
    text += branch.format(name="causal", scope=f"{scope}/branch_1_fun", more=inner)
    text += branch.format(name="one", scope=f"{scope}/branch_1_fun/cond/branch_0_fun", more="")
    text += branch.format(name="two", scope=f"{scope}/branch_1_fun/cond/branch_1_fun", more="")
    text += branch.format(name="other", scope="jit(train_step)/cond/branch_1_fun", more="")
    text += "ENTRY %main (x: f32[64]) -> f32[64] {\n  %x = f32[64]{0} parameter(0)\n"
    text += "  %y = f32[64]{0} conditional(%x, %x, %x), branch_computations={%ordinary, %causal}\n"
    text += "  ROOT %z = f32[64]{0} conditional(%x, %x), true_computation=%other, false_computation=%other\n}\n"
    program = hlo.parse(text, 0.25)
    counts: dict[str, float] = {}
    for _, one, times in program.executed():
        counts[one.name] = counts.get(one.name, 0) + times
    assert {name: counts[f"{name}.out"] for name in ("ordinary", "causal", "one", "two", "other")} == {
        "ordinary": 0.75,
        "causal": 0.25,
        "one": 0.25,
        "two": 0.25,
        "other": 2,
    }
    assert hlo.moved(program) == (0, 512 * 3.5)


def test_products_by_hand():
    def scanned(x, w):
        def body(x, w):
            x @ w.T  # no result depends on it
            return x @ w, None

        return jax.lax.scan(body, x, w)[0]

    jaxpr = jax.make_jaxpr(scanned)(jnp.zeros((5, 8)), jnp.zeros((3, 8, 8)))
    assert products.flops(jaxpr) == 3 * 2 * 5 * 8 * 8


def test_roofline_by_hand():
    # 1.97e14 operations, 8.19e10 and 8.19e11 bytes on a chip of 1.97e14 and 8.19e11 a second; 1e11 bytes at 2e11
    s = roofline.seconds(CHIP, 1.97e14, 819 * 10**8, 819 * 10**9, 1e11, 0)
    assert s.products == pytest.approx(1.0) and s.others == pytest.approx(1.0) and s.links == pytest.approx(0.5)
    assert s.cycles is None and s.step == pytest.approx(2.5)
    slow = roofline.seconds(CHIP, 1.97e14, 2 * 819 * 10**9, 819 * 10**9, 0.0, 6 * 10**9)
    assert slow.products == pytest.approx(2.0) and slow.cycles == pytest.approx(4.0) and slow.step == pytest.approx(4.0)
    assert roofline.days(86_400, 0.5) == 0.5


# ---- what fits ----


def search(first_rows, batch_rows, needs, limit):
    """Largest microbatch where rows need needs(rows) bytes, and which rows were compiled for it."""
    config = config_of(batch_size=8 * batch_rows, accumulation=batch_rows // first_rows)
    tried = []

    def compile_with(accumulation):
        rows = batch_rows // accumulation
        tried.append(rows)
        memory = ahead.Memory(needs(rows), parameters=100, optimizer=200, batch=0, rest=0)
        derived = dataclasses.replace(check(config), rows_per_device=rows)
        return ahead.Compiled(derived, memory, 0, 0.0, 0.0, None)

    first = compile_with(config.accumulation)
    tried.clear()
    return fit.largest(config, first, limit, compile_with), tried


def check(config):
    return ahead.check(config, vocabulary(40), here())


def test_the_largest_microbatch_is_found_and_compiled():
    found, tried = search(8, 64, lambda rows: 600 + 50 * rows, 2300)
    # of 1,000 for 8 rows 400 are taken to be constant, so that 16 would need 1,600 and 32 would need 2,800; 16 need
    # 1,400, by the line through both 32 need 2,200
    assert tried == [16, 32]
    assert found == fit.Largest(32, 2, 2200, 64, 3800, False)


def test_it_goes_down_where_the_config_does_not_fit():
    found, tried = search(32, 32, lambda rows: 500 + 100 * rows, 1000)
    assert tried == [4] and found == fit.Largest(4, 8, 900, 8, 1300, False)


def test_nothing_fits_and_all_fits():
    found, tried = search(2, 2, lambda rows: 5000 + rows, 1000)
    assert found is None and tried == [1]
    found, tried = search(4, 4, lambda rows: 500 + rows, 1000)
    assert found.rows == 4 and found.next_rows is None and found.accumulation == 1 and not tried


@pytest.mark.parametrize(
    "message, found",
    [
        (
            "XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 20.18G of 15.75G hbm.",
            (20.18, 15.75),
        ),
        ("the total memory required for HLO temporaries (128.00G) exceeds available HBM (31.25G).", (128, 31.25)),
        ("INTERNAL: something else", None),
    ],
)
def test_the_compiler_says_what_does_not_fit(message, found):
    assert ahead.too_large(message) == (found and tuple(round(number * GIB) for number in found))


# ---- what a person and a program read ----


def plan_of(compiled, config, **changes):
    read = plan_module.read(config, here(), compiled, 0.98, 0.4, None)
    return dataclasses.replace(read, **changes)


def test_advice_by_hand(compiled):
    config = config_of()
    lines = "\n".join(plan_module.advise(plan_of(compiled, config)))
    model = config.model
    m, v = 8, 128
    step = 32 * 3 * flops.forward(model, 32, m, m, v)
    assert f"the vocabulary head takes {32 * 3 * flops.head(model, m, v) / step:.1%} of the FLOPs" in lines
    empty = 1 - flops.forward(model, 32, 5, 5, v) / flops.forward(model, 32, m, m, v)
    assert f"8 slots a row for about 5 targets: {empty:.1%}" in lines  # 0.15 x 32 x 0.98 = 4.7
    assert "88 of 128 columns of the logits stand for no id" in lines
    assert "2.0% of the places hold no token" in lines
    assert "heads of 8 fill 6% of a matrix unit 128 wide" in lines
    assert "model.width = 16 and model.hidden = 32: no multiple of 128" in lines
    assert "accumulation" not in lines

    found = fit.Largest(16, 2, 3 * GIB, 32, 5 * GIB, False)
    (line,) = [x for x in plan_module.advise(plan_of(compiled, config, largest=found)) if "at a time" in x]
    assert line == (
        "16 rows a device at a time fit (3 GiB of 1 GiB, compiled; 32 would need about 5 GiB), the config has 4:"
        " --config.accumulation=2 gives the same batch_size"
    )


def test_what_crosses_slices_is_said(compiled):
    """Two slices of four devices: of the gradient each sends 2 (2 - 1) / 2 times the quarter that it holds then."""

    def of(number: int, **shape: int) -> str:
        devices = [types.SimpleNamespace(slice_index=number) for number in (0, 0, 0, 0, 1, 1, 1, 1)]
        mesh = dataclasses.replace(compiled.derived, mesh={"data": 1, "fsdp": 1, "tensor": 1, **shape})
        plan = plan_of(dataclasses.replace(compiled, derived=mesh), config_of())
        return str(slices(dataclasses.replace(plan, topology=here()._replace(devices=devices[:number]))))

    quarter = compiled.memory.parameters / 4
    assert f"sends {gib(quarter)} from a chip to others, {quarter / CHIP.network * 1e3:.3g} ms" in of(8, data=8)
    assert "mesh.fsdp crosses the 2 slices" in of(8, fsdp=8) and "multiple of 2" in of(8, fsdp=8)
    assert of(4, data=4) == "None"


def test_a_plan_that_does_not_fit_is_a_result(compiled):
    too_much = dataclasses.replace(compiled, program=None)
    read = plan_module.read(config_of(), here(2**20), too_much, 0.98, 0.4, None)
    advice = plan_module.advise(read)
    assert "do not fit" in advice[0] and "raise accumulation" in advice[0]
    assert "DOES NOT FIT" in plan_module.show([read], [advice])
    assert json.loads(json.dumps(plan_module.numbers(read, advice)))["seconds"] is None


def arguments(tmp_path, *more):
    return ["--config=configs/tiny.py", f"--workdir={tmp_path}", *SMALL, "--config.model.dropout=0", *more]


def test_the_verb(tmp_path, monkeypatch, capfd, compiled):
    def compile_step(config, vocabulary, on):
        derived = ahead.check(config, vocabulary, on)
        return dataclasses.replace(compiled, derived=derived, traced_flops=flops.of_run(config, derived))

    monkeypatch.setattr(ahead, "compile_step", compile_step)
    monkeypatch.setattr(ahead, "ENVIRONMENT", {})
    monkeypatch.setattr(plan_module, "topology", lambda name: here()._replace(name=name))
    assert verb.main(arguments(tmp_path, "--topology=v5e:2x4", "--json", "--fill=0.5", "--config.accumulation=1")) == 0
    (result,) = json.loads(capfd.readouterr().out)["plans"]
    assert result["topology"] == "v5e:2x4" and result["devices"] == 8 and result["fits"]
    assert result["tokens_per_step"] == 0.5 * 16 * 32 and result["tokens"] == result["steps"] * 256
    assert result["flops_traced"] == result["flops_per_step"] == 8 * result["flops_per_device"]
    assert result["seconds"]["step"] > 0 and result["collectives"]["all-reduce"]["count"] > 0
    assert result["largest"]["rows"] == result["rows_per_device"] == 2 and result["largest"]["next_rows"] is None
    assert not list(tmp_path.iterdir())  # it leaves nothing behind


def test_what_a_person_reads(compiled):
    read = plan_of(compiled, config_of())
    shown = plan_module.show([read, read], [["one"], ["other"]])
    lines = {line[:26].strip(): line[26:].split() for line in shown.split("\n\n")[0].splitlines()}
    assert lines[""] == ["here", "here"] and lines["rows a device at a time"] == ["4", "4"]
    assert lines["steps"] == ["50", "50"] and lines["mesh"] == ["data", "8", "data", "8"]
    assert "  - one" in shown and "  - other" in shown and "Nothing of it is measured" in shown


@pytest.mark.parametrize(
    "more, says",
    [
        ([], "--topology=NAME is missing"),
        (["--topology=v5e:2x4", "--config.batch_size=17"], "config.batch_size = 17: on v5e:2x4: must be a multiple"),
        (["--topology=v5e:2x4", "--fill=1.5"], "fill"),
        (["--topologi=v5e:2x4"], "topologi"),
    ],
)
def test_what_the_user_can_mend_is_one_message_and_code_two(tmp_path, monkeypatch, capfd, more, says):
    monkeypatch.setattr(ahead, "ENVIRONMENT", {})
    monkeypatch.setattr(plan_module, "topology", lambda name: here()._replace(name=name))
    assert verb.main(arguments(tmp_path, *more)) == 2
    error = capfd.readouterr().err
    assert says in error and error.startswith("mlm_jax: ") and "Traceback" not in error


def test_without_libtpu_the_message_names_the_extra(monkeypatch):
    monkeypatch.setattr(ahead.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=re.escape("pip install -e '.[tpu]'")):
        ahead.topology("v5e:2x4")


@pytest.mark.parametrize("name, gpus", [("h100:8", 8), ("a100:4x8", 32), ("h200:1", 1)])
def test_gpus_by_name(monkeypatch, name, gpus):
    from jax.experimental import topologies

    asked = {}

    def described(**options):
        asked.update(options)
        hosts, each = map(int, options["topology"].split("x")[1:])
        return types.SimpleNamespace(devices=[object()] * hosts * each)

    monkeypatch.setattr(ahead.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(topologies, "get_topology_desc", described)
    on = ahead.topology(name)
    assert len(on.devices) == gpus and asked["platform"] == "cuda"
    published = {"a100": (80e9, 2039e9, 200e9), "h100": (80e9, 3352e9, 450e9), "h200": (141e9, 4800e9, 450e9)}
    memory, bandwidth, links = published[name.split(":")[0]]  # 8 network cards of 25 GB/s between the A100's hosts
    assert on.chip[1:4] == (memory, bandwidth, links)
    assert 0.74 * memory < on.limit < 0.81 * memory  # GB of data sheets are not those of drivers
    assert f'device_description_str: "{on.kind}"' in asked["target_config"]


def test_a_host_of_nine_gpus_is_refused():
    with pytest.raises(ConfigError, match="h100:4x8"):
        ahead.topology("h100:9")


def test_without_the_plugin_for_cuda_the_message_names_the_extra(monkeypatch):
    monkeypatch.setattr(ahead.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=re.escape("pip install -e '.[cuda]'")):
        ahead.topology("h100:8")


def test_products_of_libraries_are_products():
    text = """ENTRY %main (x: f32[8,8]) -> f32[8,8] {
  %x = f32[8,8]{1,0} parameter(0)
  ROOT %y = f32[8,8]{1,0} custom-call(%x, %x), custom_call_target="__cublas$lt$matmul"
}"""
    assert hlo.moved(hlo.parse(text)) == (3 * 8 * 8 * 4, 0)


def test_an_unknown_topology_names_known_ones(monkeypatch):
    from jax.experimental import topologies

    def unknown(**asked):
        raise RuntimeError("INVALID_ARGUMENT: no such thing\nmore")

    monkeypatch.setattr(ahead.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(topologies, "get_topology_desc", unknown)
    with pytest.raises(ConfigError, match=r"v9:2x2.*no such thing\); names look like v4:2x2x1, v5e:1x1"):
        ahead.topology("v9:2x2")


def test_auto_is_bfloat16_on_an_accelerator():
    config = config_of(model=ModelConfig())
    assert ahead.for_accelerator(config).model.dtype == "bfloat16" and config.model.dtype == "auto"
    assert ahead.for_accelerator(config_of()).model.dtype == "float32"
