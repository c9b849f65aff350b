"""qkv.torch.latent_attention in both forms against keys and values of all heads written out in PyTorch: lengths, types, masks, caches.
"""

import pytest

torch = pytest.importorskip("torch")
import qkv.torch
from operators import latent_by_hand
from qkv.torch import latent as module
from support_torch import compare, numbers
from torch import Tensor
from torch.autograd import forward_ad

B, H, R, DN, DR, DV = 2, 3, 24, 10, 6, 7
forms = pytest.mark.parametrize("form", ["absorbed", "materialised"])


def problem(q_len: int, kv_len: int) -> list[Tensor]:
    made = [
        numbers(1, B, H, q_len, DN + DR), numbers(2, B, kv_len, R), numbers(3, B, kv_len, DR), numbers(4, H * (DN + DV), R) / R**0.5
    ]  # fmt: skip
    return [x.half().bfloat16().double().requires_grad_() for x in made]


def lower_right(q_len: int, kv_len: int) -> Tensor:
    return torch.ones(q_len, kv_len, dtype=torch.bool).tril(kv_len - q_len)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("q_len,kv_len", [(1, 1), (1, 19), (5, 19), (19, 19)])
@pytest.mark.parametrize("causal", [False, True])
@forms
def test_values_and_gradients(form: str, causal: bool, q_len: int, kv_len: int, dtype: torch.dtype) -> None:
    mask = lower_right(q_len, kv_len) if causal else None
    ours = lambda *t: qkv.torch.latent_attention(*t, is_causal=causal, scale=0.3, form=form)
    compare(ours, lambda *t: latent_by_hand(*t, mask=mask, scale=0.3), problem(q_len, kv_len), dtype)


@pytest.mark.parametrize("q_len", [1, 4])
@pytest.mark.parametrize("shape", [(B, 1, 1, 19), (1, H, 0, 19), (19,), (0, 19), (B, H, 0, 19)])
@pytest.mark.parametrize("floats", [False, True])
@forms
def test_masks(form: str, floats: bool, shape: tuple[int, ...], q_len: int) -> None:
    mask = numbers(5, *(n or q_len for n in shape))
    mask = mask if floats else mask > -0.5
    arguments = [*problem(q_len, 19), mask.requires_grad_(floats)]
    ours = lambda *t: qkv.torch.latent_attention(*t, form=form)
    compare(ours, latent_by_hand, arguments)


@forms
def test_a_mask_beside_causal(form: str) -> None:
    keep = numbers(5, B, 1, 4, 19) > -0.5
    for tracing in (False, True):
        function = torch.compile(qkv.torch.latent_attention, fullgraph=True, backend="aot_eager") if tracing else None
        ours = lambda *t: (function or qkv.torch.latent_attention)(*t, keep, is_causal=True, form=form)
        compare(ours, lambda *t: latent_by_hand(*t, mask=keep & lower_right(4, 19)), problem(4, 19))


def test_columns_of_one_cache_are_read_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    q, c, r, weight = (x.detach().float() for x in problem(1, 19))
    cache = torch.zeros(B, 32, R + DR)
    cache[:, :19, :R], cache[:, :19, R:] = c, r
    want = qkv.torch.latent_attention(q, c, r, weight, form="absorbed")
    results = []
    joined = module._joined
    monkeypatch.setattr(module, "_joined", lambda *t: results.append(joined(*t)) or results[-1])
    out = qkv.torch.latent_attention(q, cache[:, :19, :R], cache[:, :19, R:], weight, form="absorbed")
    assert torch.equal(out, want) and results[0].data_ptr() == cache.data_ptr() and results[0].shape == (B, 19, R + DR)
    # Neighbours in memory that are not columns of the same rows.
    other = torch.cat((c.flatten(), r.flatten()))
    apart = [other[: c.numel()].view(B, 19, R), other[c.numel() :].view(B, 19, DR)]
    assert torch.equal(qkv.torch.latent_attention(q, *apart, weight, form="absorbed"), want)


def test_auto_takes_the_form_with_fewer_operations() -> None:
    assert module.cheaper_form(1, 8192, 512, 128, 64, 128) == "absorbed"
    assert module.cheaper_form(8192, 8192, 512, 128, 64, 128) == "materialised"
    arguments = [x.detach().float() for x in problem(1, 19)]
    made = qkv.torch.latent_attention(*arguments)
    assert torch.equal(made, qkv.torch.latent_attention(*arguments, form=module.cheaper_form(1, 19, R, DN, DR, DV)))


def test_forward_mode_of_columns_of_one_tensor() -> None:
    """Tangents of c and r, which lie side by side: the absorbed form's are the materialised form's."""
    memory, tangent = numbers(1, B, 19, R + DR), numbers(2, B, 19, R + DR)
    query, weight = numbers(3, B, H, 2, DN + DR), numbers(4, H * (DN + DV), R)
    got = []
    for form in ("absorbed", "materialised"):
        with forward_ad.dual_level():
            pairs = zip(memory.split((R, DR), 2), tangent.split((R, DR), 2))
            c, r = (forward_ad.make_dual(x, t) for x, t in pairs)
            got.append(forward_ad.unpack_dual(qkv.torch.latent_attention(query, c, r, weight, form=form)).tangent)
    torch.testing.assert_close(*got)
