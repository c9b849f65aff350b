"""The forms of attention of docs/layers.md as a person writes them in PyTorch, beside the layers of qkv.nn on one state_dict: outputs, weights and
gradients, with padding, a row that may attend nothing, and in training with the same dropout mask. Scores are a T x T matrix, masks a fill,
dropout a product with given factors. The hand-written form in float64 is the truth, in float32 the naive form."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import qkv
from support_torch import expect_all, numbers
from torch import Tensor, nn

B, T, E, SEED = 3, 9, 12, 2**40 + 5


class Form(nn.Module):
    """x [B, T, E] -> (y, weights after dropout [B, H, T, T]). names: the projections of q, k and v, or the one of all three; out: of the output."""

    def __init__(
        self, *names: str, out: str = "", width: int = E, heads: int = 1, bias: bool = True, causal: bool = False, fill: float = -1e20
    ) -> None:
        super().__init__()
        self.names, self.out, self.heads, self.causal, self.fill = names, out, heads, causal, fill
        for name in names:
            self.add_module(name, nn.Linear(E, 3 * width // len(names), bias))
        if out:
            self.add_module(out, nn.Linear(width, E, bias))
        for n, parameter in enumerate(self.parameters()):
            parameter.data = numbers(20 + n, *parameter.shape, dtype=torch.float32) / 4

    def forward(self, x: Tensor, keep: Tensor | None = None, factors: Tensor | None = None) -> tuple[Tensor, Tensor]:
        projected = torch.cat([getattr(self, name)(x) for name in self.names], -1).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in projected)
        if self.causal:
            keep = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        weights = (scores if keep is None else scores.masked_fill(~keep, self.fill)).softmax(-1)
        weights = weights if factors is None else weights * factors.to(weights.dtype)
        y = (weights @ v).transpose(1, 2).flatten(2)
        return getattr(self, self.out)(y) if self.out else y, weights


FORMS: dict[str, tuple[Callable[[], Form], Callable[[float], Any]]] = {
    "v1": (lambda: Form("query_proj", "key_proj", "value_proj"), lambda p: qkv.nn.SelfAttentionV1(E, dropout=p)),
    "v2": (lambda: Form("proj"), lambda p: qkv.nn.SelfAttentionV2(E, dropout=p)),
    "v3": (lambda: Form("proj", out="output_proj"), lambda p: qkv.nn.SelfAttentionV3(E, dropout=p, residual_dropout=0.0)),
    "v4": (
        lambda: Form("query_proj", "key_proj", "value_proj", out="output_proj"),
        lambda p: qkv.nn.SelfAttentionV4(E, dropout=p, residual_dropout=0.0),
    ),
    "self-attention": (lambda: Form("W_Q", "W_K", "W_V", width=5), lambda p: qkv.nn.SelfAttention(E, 5, dropout=p)),
    "single-head": (
        lambda: Form("W_q", "W_k", "W_v", out="W_o", bias=False, causal=True, fill=-torch.inf),
        lambda p: qkv.nn.SingleHeadAttention(E, dropout=p, residual_dropout=0.0),
    ),
    "mha": (
        lambda: Form("q_proj", "k_proj", "v_proj", out="o_proj", heads=3),
        lambda p: qkv.nn.MultiHeadAttention(E, 3, dropout=p, residual_dropout=0.0, empty_row="mean"),
    ),
    "mha of NaN rows": (
        lambda: Form("W_Q", "W_K", "W_V", out="W_O", heads=3, fill=-torch.inf),
        lambda p: qkv.nn.MultiHeadAttention(E, 3, dropout=p, residual_dropout=0.0, empty_row="nan"),
    ),
}  # fmt: skip


def run(module: Form, dtype: torch.dtype, *masked: Tensor | None) -> dict[str, Tensor]:
    """y, weights, dx and the gradients of the parameters, of a loss on y alone."""
    module = copy.deepcopy(module).to(dtype)
    x = numbers(1, B, T, E, dtype=dtype).requires_grad_()
    y, weights = module(x, *masked)
    y.backward(numbers(2, *y.shape, dtype=dtype))
    return {"y": y, "weights": weights, "dx": x.grad} | {"d" + n: p.grad for n, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("p", (0.0, 0.3))
@pytest.mark.parametrize("masked", (False, True))
@pytest.mark.parametrize("name", FORMS)
def test_layers_are_the_forms_by_hand(name: str, masked: bool, p: float) -> None:
    module, layer = FORMS[name][0](), FORMS[name][1](p)
    layer.load_state_dict(module.state_dict())
    keep = factors = None
    if masked and name != "single-head":  # -inf knows no row that may attend nothing
        keep = torch.ones(B, 1, T, T, dtype=torch.bool)
        keep[1, :, :, 6:] = False
        keep[0, :, 4] = False
    if p:
        factors = torch.from_numpy(qkv.dropout_factors((B, module.heads, T, T), p, SEED))
    exact, naive = (run(module, dtype, keep, factors) for dtype in (torch.float64, torch.float32))
    layer.train()
    x, saved = numbers(1, B, T, E, dtype=torch.float32), qkv.nn.Saved()
    y, weights = layer(x, keep=keep, weights="applied", seed=SEED, saved=saved)
    dx = layer.backward(numbers(2, *y.shape, dtype=torch.float32), saved)
    fast = {"y": y, "weights": weights, "dx": dx} | {"d" + n: torch.as_tensor(g) for n, g in layer.grads.items()}
    expect_all(fast, exact, naive)
    back = FORMS[name][0]()
    back.load_state_dict({n: torch.as_tensor(a) for n, a in layer.state_dict().items()})
    assert all(torch.equal(a, b) for a, b in zip(back.parameters(), module.parameters(), strict=True))
