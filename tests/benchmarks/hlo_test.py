"""Counting of collectives, FLOPs and bytes in a program's text."""

import hlo
import jax
import jax.numpy as jnp
import pytest

# Two iterations of a matrix product of a slice, and as many as are passed of a loop over micro-batches, which gathers.
TEXT = """
HloModule example, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%sliced_product (p0: bf16[2,64,32], p1: s32[]) -> f32[64,64] {
  %p0 = bf16[2,64,32]{2,1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %slice = bf16[1,64,32]{2,1,0} dynamic-slice(%p0, %p1, %zero, %zero), dynamic_slice_sizes={1,64,32}
  %matrix = bf16[64,32]{1,0} bitcast(%slice)
  ROOT %product = f32[64,64]{1,0} dot(%matrix, %matrix), lhs_contracting_dims={1}, rhs_contracting_dims={1}
}

%all-reduce-scatter (p0: f32[64,64]) -> f32[16,64] {
  %p0 = f32[64,64]{1,0} parameter(0)
  %total = f32[64,64]{1,0} all-reduce(%p0), replica_groups={{0,1,2,3}}, to_apply=%add
  %start = s32[] constant(0)
  ROOT %shard = f32[16,64]{1,0} dynamic-slice(%total, %start, %start), dynamic_slice_sizes={16,64}
}

%layer (p: (s32[], bf16[2,64,32])) -> (s32[], bf16[2,64,32]) {
  %p = (s32[], bf16[2,64,32]{2,1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %weights = bf16[2,64,32]{2,1,0} get-tuple-element(%p), index=1
  %out = f32[64,64]{1,0:T(8,128)S(1)} fusion(%weights, %i), kind=kOutput, calls=%sliced_product
  ROOT %next = (s32[], bf16[2,64,32]{2,1,0}) tuple(%i, %weights)
}

%layer_condition (p: (s32[], bf16[2,64,32])) -> pred[] {
  %p = (s32[], bf16[2,64,32]{2,1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] constant(2)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

%micro_batch (p: (s32[], bf16[2,64,32], s32[])) -> (s32[], bf16[2,64,32], s32[]) {
  %p = (s32[], bf16[2,64,32]{2,1,0}, s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %weights = bf16[2,64,32]{2,1,0} get-tuple-element(%p), index=1
  %n = s32[] get-tuple-element(%p), index=2
  %state = (s32[], bf16[2,64,32]{2,1,0}) tuple(%i, %weights)
  %layers = (s32[], bf16[2,64,32]{2,1,0}) while(%state), condition=%layer_condition, body=%layer
  %start = (bf16[2,64,32]{2,1,0}, bf16[8,64,32]{2,1,0}) all-gather-start(%weights), replica_groups={{0,1,2,3}}
  %copy = bf16[2,64,32]{2,1,0} copy(%weights)
  %done = bf16[8,64,32]{2,1,0} all-gather-done(%start)
  ROOT %next = (s32[], bf16[2,64,32]{2,1,0}, s32[]) tuple(%i, %weights, %n)
}

%more (p: (s32[], bf16[2,64,32], s32[])) -> pred[] {
  %p = (s32[], bf16[2,64,32]{2,1,0}, s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] get-tuple-element(%p), index=2
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (weights: bf16[2,64,32], gradient: f32[64,64], n: s32[]) -> f32[16,64] {
  %weights = bf16[2,64,32]{2,1,0} parameter(0)
  %gradient = f32[64,64]{1,0} parameter(1)
  %n = s32[] parameter(2)
  %zero = s32[] constant(0)
  %state = (s32[], bf16[2,64,32]{2,1,0}, /*index=2*/s32[]) tuple(%zero, %weights, %n)
  %loop = (s32[], bf16[2,64,32]{2,1,0}, s32[]) while(%state), condition=%more, body=%micro_batch
  ROOT %shard = f32[16,64]{1,0} fusion(%gradient), kind=kCustom, calls=%all-reduce-scatter
}
"""
RATES = hlo.Rates(flops_per_second=1e6, bytes_per_second=1e5)


def test_loops_multiply_costs():
    cost = hlo.count(hlo.parse(TEXT), 3.5, RATES, 1.0)
    product_flops = 2 * 64 * 64 * 32
    assert cost.flops == 3.5 * 2 * product_flops
    # The product reads one of two slices and the counter, and its result is in on-chip memory; a copy reads and writes.
    slice_bytes = 64 * 32 * 2
    assert cost.bytes == 3.5 * (2 * (slice_bytes + 4) + 2 * 2 * slice_bytes)
    assert cost.seconds == pytest.approx(3.5 * (2 * product_flops / 1e6 + 4 * slice_bytes / 1e5))


def test_collectives_are_told_apart():
    gather, scatter = hlo.count(hlo.parse(TEXT), 3.5, RATES, 1.0).collectives
    slice_bytes = 64 * 32 * 2
    copy_seconds = pytest.approx(4 * slice_bytes / RATES.bytes_per_second)
    assert gather == ("all-gather", 8 * slice_bytes, "{{0,1,2,3}}", 1, 3.5, copy_seconds)
    assert scatter == ("reduce-scatter", 4 * 64 * 64, "{{0,1,2,3}}", 0, 1.0, 0.0)


def test_convolution_counts_only_positions_inside_of_the_input():
    """As TPUs write a product over 3 heads of width 5: a convolution of 3 positions, padded to keep one of each."""
    text = """
ENTRY %main (x: f32[1,7,11], w: f32[3,11,5]) -> f32[3,7,5] {
  %x = f32[1,7,11]{2,1,0} parameter(0)
  %w = f32[3,11,5]{2,1,0} parameter(1)
  ROOT %y = f32[3,7,5]{2,1,0} convolution(%x, %w), window={size=3 pad=2_2 rhs_reversal=1}, dim_labels=0bf_0io->0bf
}
"""
    assert hlo.count(hlo.parse(text), 1.0, RATES, 1.0).flops == 2 * 7 * 11 * 3 * 5


def test_attention_kernel_counts_the_share_of_pairs_that_it_computes():
    text = """
ENTRY %main (q: bf16[2,64,3,8]) -> bf16[2,3,64,8] {
  %q = bf16[2,64,3,8]{3,2,1,0} parameter(0)
  ROOT %o = bf16[2,3,64,8]{3,1,2,0} custom-call(%q, %q, %q), custom_call_target="__cudnn$fmhaScaleBiasSoftmax"
}
"""
    cost = hlo.count(hlo.parse(text), 1.0, RATES, 0.5)
    assert cost.flops == 2 * 2 * 2 * 3 * 64 * 64 * 8 / 2


CUBLAS = """
ENTRY %main (x: bf16[5,64,24], w: bf16[5,24,32], c: f32[5,64,32]) -> f32[5,64,32] {
  %x = bf16[5,64,24]{2,1,0} parameter(0)
  %w = bf16[5,24,32]{2,1,0} parameter(1)
  %c = f32[5,64,32]{2,1,0} parameter(2)
  %product = (f32[5,64,32]{2,1,0}, s8[33554432]{0}) custom-call(%x, %w, %c), custom_call_target="__cublas$lt$matmul", \
backend_config={"gemm_backend_config":{"alpha_real":1,"beta":1,"dot_dimension_numbers":{"lhs_contracting_dimensions":\
["2"],"rhs_contracting_dimensions":["1"],"lhs_batch_dimensions":["0"],"rhs_batch_dimensions":["0"]},"alpha_imag":0}}
  ROOT %y = f32[5,64,32]{2,1,0} get-tuple-element(%product), index=0
}
""".replace("\\\n", "")


def test_matrix_product_of_cublas_counts_without_its_workspace():
    cost = hlo.count(hlo.parse(CUBLAS), 1.0, RATES, 1.0)
    assert cost.flops == 2 * 5 * 64 * 24 * 32
    # Two matrices and the sum to which the product is added are read, and the sum is written.
    assert cost.bytes == 2 * 5 * (64 * 24 + 24 * 32) + 2 * 4 * 5 * 64 * 32


def triton_kernel(name: str, results: str, first: str) -> str:
    """Returns a program that calls a Pallas kernel with an array of a type and with int32 numbers."""
    return f"""
ENTRY %main (number: s32[2,64], x: {first}) -> {results} {{
  %number = s32[2,64]{{1,0}} parameter(0)
  %x = {first} parameter(1)
  ROOT %pallas_call.7 = {results} custom-call(%number, %x), custom_call_target="__gpu$xla.gpu.triton", \
metadata={{op_name="jit(step)/while/body/jvp(TransformerLM.hidden)/blocks_0/attn/{name}/pallas_call"}}, \
backend_config={{debug = false, grid_x = 1 : i32, ir = "ML\\EFR(attention_forward)"}}
}}
""".replace("\\\n", "")


@pytest.mark.parametrize(
    ("name", "products"),
    [
        ("attention_forward", 2),
        ("attention_backward_queries", 3),
        ("attention_backward_keys", 4),
    ],
)
def test_our_attention_kernels_count_their_products(name: str, products: int):
    text = triton_kernel(name, "bf16[2,64,3,8]", "bf16[2,64,3,8]")
    cost = hlo.count(hlo.parse(text), 1.0, RATES, 0.25)
    assert cost.flops == 2 * products * 2 * 3 * 64 * 64 * 8 / 4


def test_our_embedding_kernel_multiplies_gradients_by_rows():
    text = triton_kernel("embedding_gradient", "f32[512,24]", "bf16[128,24]")
    assert hlo.count(hlo.parse(text), 1.0, RATES, 0.25).flops == 2 * 64 * 128 * 24


def test_a_compiled_program():
    def loop(x):
        return jax.lax.fori_loop(0, x.shape[0], lambda i, y: y @ y + x[i], jnp.eye(16))

    text = jax.jit(loop).lower(jnp.zeros((5, 16, 16))).compile().as_text() or ""
    cost = hlo.count(hlo.parse(text), 1.0, RATES, 1.0)
    assert cost.flops == 5 * 2 * 16**3
    assert cost.bytes >= 5 * 4 * 16 * 16 * 4
    assert hlo.collectives(text) == []


def test_text_that_is_not_a_program():
    with pytest.raises(ValueError, match="no ENTRY computation"):
        hlo.parse("HloModule empty")
