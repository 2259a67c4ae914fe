"""Every Triton kernel, compiled ahead of time for sm_80 and sm_90, without a GPU."""

from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from stemkv.kernels import triton_copy, triton_decode, triton_prefill, triton_tile, triton_write

CAPABILITIES = (80, 90)
# Bytes of shared memory that one program can have; sm_86 and sm_89, which run sm_80's code, have
# the least.
SHARED_BYTES = 99 * 1024
MODELS = (  # dtype, head size, query heads of a key/value head, block size
    (torch.bfloat16, 64, 3, 16),
    (torch.float16, 256, 8, 32),
    (torch.float32, 80, 1, 16),
)
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
FIXED_TYPES = {
    **dict.fromkeys(("mixed_ptr", "peaks_ptr", "totals_ptr"), "*fp32"),
    **dict.fromkeys(("tables_ptr", "context_lens_ptr", "query_start_ptr"), "*i32"),
    **dict.fromkeys(("slots_ptr", "source_ptr", "destination_ptr", "tokens_ptr"), "*i64"),
    **dict.fromkeys(("scale", "softcap"), "fp32"),
}


def compile_kernel(
    kernel: Any, dtype: torch.dtype, constants: dict[str, Any], capability: int, **options: int
) -> Any:
    """Compile for one chip as a launch would: pointers and strides divisible by 16."""
    signature, aligned = {}, {}
    for index, name in enumerate(kernel.arg_names):
        default = f"*{TYPES[dtype]}" if name.endswith("_ptr") else "i32"
        signature[name] = "constexpr" if name in constants else FIXED_TYPES.get(name, default)
        if name.endswith(("_ptr", "_stride")):
            aligned[(index,)] = [["tt.divisibility", 16]]
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, constexprs=places, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def attention_constants(kernel: Any, tile: triton_tile.TileShape, model: Any) -> dict[str, Any]:
    """Return the constants of an attention kernel for a model, every option turned on."""
    _, head_dim, group, block_size = model
    every = {
        "group": group,
        "chunk": triton_decode.CHUNK,
        "block_size": block_size,
        "head_dim": head_dim,
        "padded_dim": tile.head_dim,
        "tile_rows": tile.rows,
        "tile_keys": tile.keys,
        "capped": True,
        "has_sinks": True,
        "merge_chunks": triton_decode.MERGE_CHUNKS,
    }
    return {name: value for name, value in every.items() if name in kernel.arg_names}


def check_fits(compiled: Any) -> None:
    """Hold machine code to exist and to fit the smallest chip that it may run on."""
    assert compiled.asm["cubin"].startswith(b"\x7fELF")
    assert ".entry" in compiled.asm["ptx"]
    assert compiled.metadata.shared <= SHARED_BYTES


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_attention_compiles_and_uses_matrix_units(phase: str, model: Any, capability: int) -> None:
    """Attention compiles and fits; in half precision with matrix instructions, else without."""
    dtype, head_dim, group, _ = model
    kernel = {"decode": triton_decode.decode_kernel, "prefill": triton_prefill.prefill_kernel}
    wanted_rows = {"decode": group, "prefill": 4096}
    tile = triton_tile.tile_shape(wanted_rows[phase], group, head_dim, dtype)
    constants = attention_constants(kernel[phase], tile, model)
    compiled = compile_kernel(
        kernel[phase],
        dtype,
        constants,
        capability,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    check_fits(compiled)
    uses_matrix_units = any(name in compiled.asm["ptx"] for name in ("mma.sync", "wgmma"))
    assert uses_matrix_units == (dtype != torch.float32)


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_merge_write_and_copy_compile(dtype: torch.dtype, capability: int) -> None:
    """The kernels without dots compile and fit, in two dtypes."""
    tile = triton_tile.tile_shape(3, 3, 80, dtype)
    merge = attention_constants(triton_decode.merge_kernel, tile, (dtype, 80, 3, 16))
    write = {
        "block_size": 16,
        "key_dim": 80,
        "value_dim": 64,
        "padded_dim": 128,
        "tile_heads": triton_write.TILE_HEADS,
    }
    copy = {"tile_elements": triton_copy.TILE_ELEMENTS}
    check_fits(compile_kernel(triton_decode.merge_kernel, dtype, merge, capability))
    check_fits(compile_kernel(triton_write.write_kernel, dtype, write, capability))
    check_fits(compile_kernel(triton_copy.copy_kernel, dtype, copy, capability))


@pytest.mark.parametrize("dtype", list(TYPES), ids=str)
@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128, 192, 256, 512])
@pytest.mark.parametrize("group", [1, 3, 8, 16, 71])
def test_tiles_hold_whole_groups_and_divide_a_chunk(
    group: int, head_dim: int, dtype: torch.dtype
) -> None:
    """A tile has a power of two of rows, with room for a group, and its keys divide a chunk."""
    for wanted in (1, group, 40, 4096):
        tile = triton_tile.tile_shape(wanted, group, head_dim, dtype)
        assert tile.rows >= max(16, group)
        assert tile.rows & (tile.rows - 1) == 0
        assert tile.head_dim >= head_dim
        assert triton_decode.CHUNK % tile.keys == 0
