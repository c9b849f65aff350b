"""Modules on qkv's attention in training as PyTorch does it: DistributedDataParallel in one and in two processes, copies, pickles,
saved state."""

import copy
import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import qkv
import qkv.torch as qt
import torch.nn.functional as F
from support_torch import join, numbers, ranks_of
from torch import Tensor, nn

BATCH, LENGTH, WIDTH = 4, 6, 8


class Layer(nn.Module):
    """Attention of every kind that has a public function, and objects of qkv beside the parameters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.attention = qt.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
        self.mask = qkv.Mask.causal() & qkv.Mask.sliding(4)
        self.blocks = qkv.Mask.blocks(qkv.BlockMap.from_mask(qkv.Mask.window(3, 3), LENGTH, LENGTH, q_block=2, kv_block=2))
        self.bias = qkv.PositionBias.alibi(2)
        self.cap = qt.SoftCap(3.0)
        self.cache = qkv.KVCache(num_kv_heads=2, head_dim=4, capacity=8)
        self.cache.append(*(np.ones((1, 2, 3, 4), np.float32) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        with qt.enable():
            x = self.encoder(x)
        heads = x.unflatten(-1, (2, -1))
        tokens, cu = heads.flatten(0, 1), torch.arange(len(x) + 1) * x.shape[1]
        packed = qt.varlen_attn(tokens, tokens, tokens, cu, cu, x.shape[1], x.shape[1], window_size=(-1, 0))
        q = heads.transpose(1, 2)
        x = (
            x
            + packed.view(x.shape)
            + qt.flex_attention(q, q, q, [self.cap, self.bias], self.mask | self.blocks).mean(1).repeat(1, 1, 2)
        )
        return F.layer_norm(x, (WIDTH,))


def batch() -> Tensor:
    return numbers(1, BATCH, LENGTH, WIDTH, dtype=torch.float32)


def loss_of(out: Tensor) -> Tensor:
    return (out * numbers(2, BATCH, LENGTH, WIDTH, dtype=torch.float32)[: len(out)]).sum() / len(out)


def train(rank: int, world: int, folder: Path) -> None:
    join(rank, world, folder / "store")
    model = nn.parallel.DistributedDataParallel(Layer())
    part = batch().chunk(world)[rank]
    out = model(part)
    (out * numbers(2, BATCH, LENGTH, WIDTH, dtype=torch.float32).chunk(world)[rank]).sum().div(len(part)).backward()
    if rank == 0:
        torch.save({name: p.grad for name, p in model.module.named_parameters()}, folder / "gradients.pt")
    torch.distributed.barrier()
    os._exit(0)  # PyTorch's own end, destroy_process_group and then its threads, waits for itself now and then


@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without torch.distributed")
@pytest.mark.parametrize("world", (1, 2))
def test_distributed_data_parallel(world: int, tmp_path: Path) -> None:
    """Gradients of processes that share the batch: those of one process with all of it."""
    model = Layer()
    loss_of(model(batch())).backward()
    with ranks_of(world, train, world, tmp_path) as processes:
        for process in processes:
            process.join(120)
            assert process.exitcode == 0
    gradients, expected = torch.load(tmp_path / "gradients.pt"), {name: p.grad for name, p in model.named_parameters()}
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        size = max(1.0, float(expected[name].abs().max()))
        assert abs(gradient - expected[name]).max() <= 64 * np.finfo(np.float32).eps * size, name


def by_torch(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "way", (copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), by_torch), ids=("copy", "pickle", "save")
)
def test_copies_of_a_module(way: Any) -> None:
    module = Layer()
    back = way(module)
    assert torch.equal(back(batch()), module(batch()))
    assert repr(back.cache) == repr(module.cache) and np.array_equal(back.cache.read(0)[0], module.cache.read(0)[0])
    loss_of(back(batch())).backward()
    assert all(p.grad is None for p in module.parameters())


def test_other_objects() -> None:
    table = numbers(1, 9, 2, dtype=torch.float32).requires_grad_()
    q = numbers(2, 1, 2, 5, 4, dtype=torch.float32)
    for way in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        relative = way(qt.Relative(table))
        assert torch.equal(qt.flex_attention(q, q, q, relative), qt.flex_attention(q, q, q, qt.Relative(table)))
        assert relative.table.requires_grad and way(qt.SoftCap(2.0)) == qt.SoftCap(2.0) and way(qt.AuxRequest(True)).lse


def test_backward_has_what_rounding_took_from_lse() -> None:
    """Without it a peaked row is computed forward again in backward; the bits are the same."""
    q, k, v, dout = (numbers(n, 1, 2, 64, 16, dtype=torch.float32) for n in range(4))
    out, lse = qkv.attention(q, k, v, scale=6.0, return_lse=True)
    expected = qkv.attention_backward(dout, q, k, v, out, lse, scale=6.0)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    for function in (qt.scaled_dot_product_attention, qt.flex_attention):
        result = function(*leaves, scale=6.0)
        saved = result.grad_fn.saved_tensors
        assert saved[-1].abs().max() > 0 and torch.equal(saved[-2], lse)
        assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(result, leaves, dout), expected))
    compiled = torch.compile(lambda *x: qt.scaled_dot_product_attention(*x, scale=6.0), fullgraph=True, backend="aot_eager")
    assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(compiled(*leaves), leaves, dout), expected))
