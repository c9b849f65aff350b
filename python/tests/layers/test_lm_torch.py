"""The toy language model against the same model in PyTorch: a hundred losses of Adam from one start on the same batches, through `qkv train`; the
loss and every gradient of models with blocks."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qkv
from qkv.__main__ import TOOL

torch = pytest.importorskip("torch")

from support_torch import expect_all, numbers
from torch import Tensor
from torch.nn.functional import cross_entropy, gelu, layer_norm


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, kv_heads: int) -> Tensor:
    """Causal, [B, T, H D]."""
    q, k, v = (x.unflatten(-1, (n, -1)).transpose(1, 2) for x, n in ((q, heads), (k, kv_heads), (v, kv_heads)))
    k, v = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return (scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)


def plain(p: dict[str, Tensor], ids: Tensor) -> Tensor:
    """logits = head(attention(tok[id] + pos[i]))."""
    x = p["tok.weight"][ids] + p["pos.weight"][: ids.shape[1]]
    q, k, v = (x @ p[f"attn.W_{n}.weight"].T for n in "qkv")
    return attend(q, k, v, 1, 1) @ p["attn.W_o.weight"].T @ p["head.weight"].T + p["head.bias"]


def rotated(x: Tensor, heads: int) -> Tensor:
    """Llama's pairs (i, i + D / 2) of each head turned by their position, as complex numbers."""
    x = x.unflatten(-1, (heads, -1))
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[1])[:, None, None] * 1e4 ** (-torch.arange(half).double() / half)
    turned = torch.complex(*x.double().chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], -1).to(x.dtype).flatten(2)


def blocks(p: dict[str, Tensor], ids: Tensor, heads: int, kv_heads: int, rotary: bool) -> Tensor:
    """nanoGPT's residual blocks, norms before attention and MLP."""
    h = p["transformer.wte.weight"][ids]
    if not rotary:
        h = h + p["transformer.wpe.weight"][: ids.shape[1]]
    width = h.shape[-1] // heads * kv_heads

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ p[name + ".weight"].T + p[name + ".bias"]

    def norm(x: Tensor, name: str) -> Tensor:
        return layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"], 1e-5)

    for at in ("transformer.h.0.", "transformer.h.1."):
        q, k, v = linear(norm(h, at + "ln_1"), at + "attn.c_attn").split([h.shape[-1], width, width], -1)
        if rotary:
            q, k = rotated(q, heads), rotated(k, kv_heads)
        h = h + linear(attend(q, k, v, heads, kv_heads), at + "attn.c_proj")
        h = h + linear(gelu(linear(norm(h, at + "ln_2"), at + "mlp.c_fc")), at + "mlp.c_proj")
    return norm(h, "transformer.ln_f") @ p.get("lm_head.weight", p["transformer.wte.weight"]).T


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


@pytest.mark.skipif(not TOOL.is_file(), reason="the tool is not in the package")
def test_a_hundred_losses_are_pytorchs(tmp_path: Path) -> None:
    model = qkv.AttentionLM(seed=5)
    model.save(tmp_path / "init.safetensors")
    leaves = {name: torch.tensor(x).requires_grad_() for name, x in model.state_dict().items()}
    ids = torch.tensor([model.vocabulary.index(letter) for letter in qkv.lm.default_text()])
    starts = torch.randint(len(ids) - 17, (100, 32), generator=torch.Generator().manual_seed(1))
    batches = ids[starts[..., None] + torch.arange(17)]
    np.save(tmp_path / "batches.npy", batches.numpy().astype(np.uint8))
    words = ["train", "--json", "--steps", "100", "--tokens", "0", "--init", "init.safetensors", "--batches", "batches.npy"]
    done = subprocess.run([TOOL, *words], capture_output=True, text=True, check=True, cwd=tmp_path)
    adam, theirs = torch.optim.Adam(leaves.values(), lr=3e-3), []
    for batch in batches:
        adam.zero_grad()
        loss = loss_of(plain(leaves, batch[:, :-1]), batch[:, 1:])
        loss.backward()
        adam.step()
        theirs.append(loss.item())
    np.testing.assert_allclose(json.loads(done.stdout)["losses"], theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rotary,heads,kv_heads,tied", [(False, 2, 2, False), (True, 4, 2, False), (False, 2, 1, True)])
def test_blocks(rotary: bool, heads: int, kv_heads: int, tied: bool) -> None:
    """A text of one window: every sequence of the batch is that one. A file without a head has that of the embedding; its gradient is both's."""
    text, options = "abcadbefgc", {"positions": "rotary" if rotary else "learned", "heads": heads, "kv_heads": kv_heads}
    model = qkv.AttentionLM(text, context=8, width=16, layers=2, blocks=True, **options)
    state = {name: numbers(40 + n, *x.shape) / 2 + name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight"))
             for n, (name, x) in enumerate(model.state_dict().items())}  # fmt: skip
    if tied:
        del state["lm_head.weight"]
    model.load_state_dict({name: x.float() for name, x in state.items()})
    ids = torch.tensor([[model.vocabulary.index(letter) for letter in text[:9]]])
    theirs: list[dict[str, Any]] = []
    for dtype in (torch.float64, torch.float32):
        leaves = {name: x.to(dtype, copy=True).requires_grad_() for name, x in state.items()}
        logits = blocks(leaves, ids[:, :-1], heads, kv_heads, rotary)
        loss = loss_of(logits, ids[:, 1:])
        loss.backward()
        theirs.append({"logits": logits[0], "loss": loss.reshape(1)} | {name: x.grad for name, x in leaves.items()})
    ours = {"logits": model.logits(text[:8])}
    ours["loss"] = np.array(model.fit(steps=1, batch=2, progress=False))
    grads = model.grads
    if tied:
        grads["transformer.wte.weight"] = grads["transformer.wte.weight"] + grads.pop("lm_head.weight")
    expect_all(ours | grads, *theirs)
