"""ExecuTorch: custom_sdpa, the attention of its llm operators, called through PyTorch. [B, T, H, D]

Its operator on 8-bit caches, custom_quantized_sdpa, takes a hundred times as long as others and is left out.
"""

import importlib.metadata
import importlib.util
import itertools
import pathlib

import torch
from executorch.extension.pybindings import _C  # after torch, whose libraries it needs

from . import textbook
from .cases import ATTENTION

TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def version():
    return importlib.metadata.version("executorch")


def settings(threads):
    """Loads the operators alone: their Python module asks for all that exporting a model needs."""
    folder = pathlib.Path(importlib.util.find_spec("executorch").submodule_search_locations[0])
    torch.ops.load_library(folder / "extension/llm/custom_ops/libcustom_ops_aot_lib.so")
    torch.set_num_threads(threads)
    _C._unsafe_reset_threadpool(threads)
    return f"{threads} thread(s) in its pool, called through PyTorch {torch.__version__}"


def _rows(x, dtype):
    return torch.from_numpy(x).to(dtype).transpose(1, 2).contiguous()


def _back(x):
    return x.transpose(1, 2).float().numpy()


def variants(case):
    if case.kind not in ATTENTION or case.dtype not in TYPES:
        return {}
    q, k, v = (_rows(x, TYPES[case.dtype]) for x in textbook.numbers(case)[:3])
    turns = itertools.cycle(textbook.caches(case, [k, v], torch.clone))

    def run():
        return torch.ops.llama.custom_sdpa(q, *next(turns), case.tk - case.q_len, None, 0.0, case.causal, None)

    return {"custom_sdpa": (run, textbook.row_error(case, _back(run()), *map(_back, (q, k, v))))}
