"""What xformers' tests import from tests/utils.py, which its source distribution lacks: marks, a comparison; the references are its own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from xformers.attn_bias_utils import ref_attention, ref_attention_bmhk


def _as_it_is(test: Callable[..., Any]) -> Callable[..., Any]:
    return test


cuda_only = cuda_or_mtia_only = disable_on_mtia = disable_on_rocm = disable_tf32 = _as_it_is
rocm_only = pytest.mark.skip(reason="asks for AMD's GPUs")
ref_attention_for_test, ref_attention_bmhk_for_test = ref_attention, ref_attention_bmhk
construct_fp8_attention_inputs = None


def use_cpu_ref(device: str) -> bool:
    return False


def assert_allclose(out: torch.Tensor, ref: torch.Tensor, msg: str = "", atol: float = 1e-8, rtol: float = 1e-5) -> None:
    assert out.shape == ref.shape, f"{msg}: {tuple(out.shape)} is not {tuple(ref.shape)}"
    off = float(((out - ref).abs() - atol - rtol * ref.abs()).max()) if out.numel() else 0.0
    assert torch.allclose(out, ref, atol=atol, rtol=rtol), f"{msg}: {off:.2e} over the tolerance"
