"""What tests of flash_attn, fla and xformers import beside the functions under test, from the peers' checkouts: references, helpers,
descriptions of kernels.

fla: the modules `naive`, fla.utils' assert_close, gates. xformers 0.0.35: create_attn_bias and the classes of fmha.common; one kernel, of
every bias, on the CPU, under the names cutlass, flash and triton_splitk; what its tests call beside (xformers_utils.py).
"""

import ast
import math
import os
import sys
import types
from typing import Any


def _functions(path: str, scope: dict[str, Any], *words: str) -> dict[str, Any]:
    """Functions of a file whose names hold one of the words."""
    tree = ast.parse(open(path).read())
    nodes = [x for x in tree.body if isinstance(x, ast.FunctionDef) and any(word in x.name for word in words)]
    scope = scope | {"__name__": path}
    exec(compile(ast.Module(nodes, []), path, "exec"), scope)
    return {x.name: scope[x.name] for x in nodes}


def fla(checkout: str) -> None:
    """Puts them into the stand-in's table."""
    import logging
    import warnings

    import torch
    from einops import rearrange, repeat
    from qkv.standins.fla import MODULES

    scope = {"torch": torch, "F": torch.nn.functional, "rearrange": rearrange, "repeat": repeat, "warnings": warnings}
    ops = os.path.join(checkout, "fla", "ops")
    for family in ("linear_attn", "retention", "simple_gla", "gla", "delta_rule", "gated_delta_rule", "kda"):
        MODULES[f"fla.ops.{family}.naive"] = _functions(os.path.join(ops, family, "naive.py"), scope, "")
        if family in ("gated_delta_rule", "kda"):
            MODULES[f"fla.ops.{family}.gate"] |= _functions(os.path.join(ops, family, "gate.py"), scope, "naive")
    scope |= {"logger": logging.getLogger("fla"), "FLA_CI_ENV": False}
    flags = "INTEL_ALCHEMIST NPU NVIDIA NVIDIA_BLACKWELL NVIDIA_HOPPER NVIDIA_SM100 NVIDIA_SM120"
    MODULES["fla.utils"] = _functions(os.path.join(checkout, "fla/utils/_testing.py"), scope, "")
    MODULES["fla.utils"] |= {"device": "cpu", "device_platform": "cpu"} | {f"IS_{x}": False for x in flags.split()}
    MODULES |= {"fla.ops.utils": {}, "fla.ops.utils.cache": {"FLA_CACHE_MODE": types.SimpleNamespace(uses_default_config=lambda: False)}}
    MODULES["fla.ops.gated_delta_rule.wy_fast"] = dict.fromkeys(("prepare_wy_repr_bwd", "recompute_w_u_fwd"))
    MODULES["fla.ops.kda.fused_recurrent"]["fused_recurrent_kda_fwd"] = None
    sys.modules["triton"] = types.ModuleType("triton")
    sys.modules["triton"].next_power_of_2 = lambda n: 1 << (n - 1).bit_length()  # type: ignore[attr-defined]
    os.environ["FLA_DISABLE_BACKEND_DISPATCH"] = "1"


def shrunk(sizes: dict[str, Any]) -> None:
    """Sizes of a case of fla's, an eighth of the tokens, half the width."""
    for name, (most, by) in {"T": (256, 8), "D": (64, 2), "K": (64, 2), "B": (2, 2)}.items():
        while isinstance(sizes.get(name), int) and sizes[name] > most:
            sizes[name] = max(sizes[name] // by, 1)
    if sizes.get("cu_seqlens", [0])[-1] > 300:
        ends = [0]
        for end in sizes["cu_seqlens"][1:]:
            ends.append(max(end // 8, ends[-1] + 1))
        sizes["cu_seqlens"] = ends


def xformers(checkout: str) -> None:
    """Puts them into the stand-in's table."""
    import torch
    from qkv.standins.xformers import CLASSES, MODULES, AttentionBias

    folder = os.path.join(checkout, "xformers")

    def load(name: str, file: str, *changes: tuple[str, str]) -> dict[str, Any]:
        text = open(os.path.join(folder, file)).read()
        for old, new in changes:
            text = text.replace(old, new)
        made = {"__name__": name}
        exec(compile(text, file, "exec", dont_inherit=True), made)
        for module in [x for x in sys.modules if x.startswith("xformers")]:
            del sys.modules[module]
        MODULES[name] = made
        return made

    base = "class BaseOperator:\n    is_available = classmethod(lambda cls: True)\n"
    own = (("from ..common import BaseOperator", base), ("from ..._cpp_lib import _built_with_cuda", "_built_with_cuda = True"))
    common = load("xformers.ops.fmha.common", "ops/fmha/common.py", *own, ("from .attn_bias", "from xformers.ops.fmha.attn_bias"))
    known = open(os.path.join(folder, "attn_bias_utils.py")).read()
    kinds = [x for x in CLASSES.values() if issubclass(x, AttentionBias) and x.__name__ != "AttentionBias" and x.__name__ in known]
    for kind in kinds:
        if kind.__name__.startswith("Paged"):
            kind._UNPAGED_TYPE = CLASSES[kind.__name__[5:].replace("LocalPadded", "LocalAttentionPadded")]
    flags = "DROPOUT CUSTOM_SCALE DIFFERENT_VALUE_EMBED OUTPUT_DTYPE PARTIAL BMGHK ATTN_BIAS_GRAD"
    rules = {f"SUPPORTS_{x}": True for x in flags.split()} | {
        "NAME": "qkv", "OPERATOR": None, "SUPPORTED_DEVICES": {"cpu"}, "SUPPORTED_MAX_K": math.inf, "SPLIT_K": 1, "_TEST_BATCH_SIZES": [1, 3],
        "SUPPORTED_DTYPES": {torch.float32, torch.float16, torch.bfloat16}, "SUPPORTED_ATTN_BIAS_TYPES": (type(None), torch.Tensor, *kinds),
    }  # fmt: skip

    def kernel(kind: str, **more: Any) -> Any:
        made = type("Op", (common[f"Attention{kind}OpBase"],), rules | more)
        made.not_supported_reasons = classmethod(lambda cls, x: [y for y in super(made, cls).not_supported_reasons(x) if "bf16" not in y])
        return made

    forward = kernel("Fw")
    backward = kernel("Bw", SUPPORTED_ATTN_BIAS_TYPES=tuple(x for x in rules["SUPPORTED_ATTN_BIAS_TYPES"] if "Paged" not in x.__name__))
    none = {"SUPPORTED_DEVICES": {"none"}, "NAME": "none", "is_available": classmethod(lambda cls: False)}
    for name in ("cutlass", "flash", "triton_splitk", "cutlass_blackwell", "flash3", "ck", "ck_splitk", "ck_decoder"):
        here = name in ("cutlass", "flash", "triton_splitk")
        one = forward if here else kernel("Fw", **none)
        one = type("SplitK", (one,), {"NAME": "splitk"}) if "splitk" in name else one
        names = ("FwOp", "FwOp_KVSplit", *(f"FwOp_S{2**n}" for n in range(8)))
        more = {"BwOp": backward if here else kernel("Bw", **none), "FwOp_Map": dict.fromkeys(range(512), one)}
        MODULES[f"xformers.ops.fmha.{name}"] = dict.fromkeys(names, one) | more
    MODULES["xformers.ops.fmha.dispatch"] = dict.fromkeys(("_dispatch_fw_priority_list", "_set_use_fa3", "_get_use_fa3"))
    MODULES["xformers.ops.fmha"] |= {x: common[x] for x in ("Inputs", "AttentionFwOpBase", "AttentionBwOpBase", "AttentionOpBase")}
    MODULES["xformers.ops.fmha"] |= {"ALL_FW_OPS": [forward], "ALL_BW_OPS": [backward], "_dispatch_fw": None, "_dispatch_bw": None}
    load("xformers.attn_bias_utils", "attn_bias_utils.py", ('"cuda"', '"cpu"'))


def as_on_an_h100(_: str) -> None:
    """What flash_attn's tests ask CUDA for, to leave cases out that no memory holds."""
    import torch

    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=80 * 2**30)


#: Rows of run.py's table.
ROWS: dict[str, dict[str, Any]] = {
    "flash_attn": {
        "tests": ["tests/test_flash_attn.py", "tests/test_rotary.py", "tests/ops/triton/test_layer_norm.py"],
        "references": {"flash_attn.ops.triton.layer_norm": ["flash_attn/ops/triton/layer_norm.py"]},
        "sdist": "flash-attn==2.8.3.post2 --hash=sha256:d0f9f0b08a986cdeadbffcf5ec8b3a8f514366c68ad1853d3ab061bc83cc340b",
        # S_dmask holds the weights themselves here: there is nothing to normalise.
        "changes": [
            (r"\nimport triton\n|    layer_norm_linear_fn,\n", "\n"), (r"range\(250\)|range\(50\)", "range(3)"),
            ("batch_size = 60", "batch_size = 4"),
            (r"def normalize_flash_attn_S\(", "def normalize_flash_attn_S(s, *a, **k):\n    return s\n\n\ndef _theirs("),
        ],
        "prepare": as_on_an_h100,
        "left_out": {"generator_arg": "the raw entry points of the CUDA extension", "compilation_count": "counts Triton's compilations",
                     "layer_norm_linear": "refused: layer_norm_linear_fn"},
    },
    "fla": {
        "tests": [f"tests/ops/test_{x}.py" for x in "linear_attn retention lightning_attn simple_gla gla delta gdn kda".split()],
        "changes": [],
        "prepare": fla,
        "sizes": shrunk,
        "left_out": {
            "flash_qla|flash_kda|triton|wy_repr|vllm": "Triton's and CUTLASS's kernels by their own names",
            "intermediate_states": "refused: return_intermediate_states",
        },
        "commit": ("https://github.com/fla-org/flash-linear-attention", "bc3b101dcb713ddc5bd8924b66754eb68b5ccf89"),
    },
    "xformers": {
        "tests": ["tests/test_mem_eff_attention.py"],
        "helpers": {"utils.py": "xformers_utils.py"},
        "sdist": "xformers==0.0.35 --hash=sha256:f7fc183a58e4bf0e2ae339a18fb1b1d4a37854c0f2545b4f360fef001646ab76",
        "changes": [
            (r"from \.utils", "from utils"), (r"torch\._C\._get_accelerator\(\)\.type", '"cpu"'), (r"torch\.cuda\.is_available\(\)", "True"),
            (r"_devices \+= .*", ""), (r'torch\.cuda\.get_device_capability\("cpu"\)', "(8, 0)"), (r" import triton\n", " pass\n"),
            (r"triton\.__version__", '"3.3.0"'), (r"from scipy.stats import binomtest", ""),
        ],
        "prepare": xformers,
        "left_out": {
            "cuda_streams|dispatch|unsupported|wrong_strides|fp8|_ck|flash3|fav3|nans_in": "CUDA's devices, strides, other kernels",
            r"decoder\[.*-True-|paged_attention\[(gappy)?-\d+-[18]-": "refused: keys of 4 bits",
        },
    },
}  # fmt: skip
