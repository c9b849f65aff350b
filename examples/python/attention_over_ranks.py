"""A sequence cut over the ranks of torch.distributed: each holds its own rows, and gets the rows of out that one machine would compute, bit
for bit. Two ranks here:  torchrun --nproc-per-node 2 examples/python/attention_over_ranks.py   (without torchrun: one)
"""

import os

import qkv
import qkv.torch
import torch
import torch.distributed as dist

if "RANK" in os.environ:
    dist.init_process_group("gloo")
else:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

# The whole problem, the same on every rank to compare with; in earnest each rank would load its own rows alone.
length = 1000
torch.manual_seed(0)
q, k, v = (torch.randn(1, heads, length, 32) for heads in (8, 2, 2))
documents = qkv.Mask.documents([0, 30, 700, length]) & qkv.Mask.causal()
whole = qkv.attention(q, k, v, mask=documents)

# Zig-zag gives every rank early and late rows: under a causal mask the same work.
positions = qkv.torch.sequence_positions(length, layout="zig-zag")
own = [x[:, :, positions].requires_grad_() for x in (q, k, v)]
out = qkv.torch.parallel_attention(*own, method="ulysses", layout="zig-zag", mask=documents)
out.sum().backward()  # gradients of this rank's rows

print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {len(positions)} rows")
assert torch.equal(out, whole[:, :, positions])
dist.destroy_process_group()
