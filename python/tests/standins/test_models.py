"""Models of transformers with state spaces, which take the stand-ins by themselves when their files are imported: logits and gradients
against their own code in float64, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

SCRIPT = """
import sys, torch
if sys.argv[1] == "stand-ins":
    import qkv.standins
    qkv.standins.install("mamba_ssm", "causal_conv1d", quiet=True)
import transformers as tf
tf.logging.set_verbosity_error()
sizes = dict(vocab_size=61, hidden_size=32, num_hidden_layers=2)
mamba2 = dict(num_heads=4, head_dim=16, state_size=8, n_groups=2, chunk_size=8)
hybrid = dict(intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
blocks = dict(mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=2, mamba_chunk_size=8)
configs = [
    tf.MambaConfig(**sizes, state_size=8), tf.Mamba2Config(**sizes, **mamba2),
    tf.FalconH1Config(**sizes, **hybrid, **blocks, mamba_d_ssm=64),
    tf.BambaConfig(**sizes, **hybrid, **blocks, attn_layer_indices=[1]),
    tf.Zamba2Config(**sizes, **hybrid, layers_block_type=["mamba", "hybrid"], n_mamba_heads=4, mamba_headdim=16, mamba_ngroups=2, mamba_d_state=8),
    tf.JambaConfig(**sizes, **hybrid, mamba_d_state=8, attn_layer_period=2, attn_layer_offset=1, num_experts=2, num_experts_per_tok=1),
]
found = []
for config in configs:
    torch.manual_seed(0)
    model = tf.AutoModelForCausalLM.from_config(config, attn_implementation="eager").train()
    if config.model_type == "jamba":
        model.set_experts_implementation("eager")  # the others know no float64
    model.to(torch.float64 if sys.argv[1] == "exact" else torch.float32)
    torch.manual_seed(1)
    ids = torch.randint(3, 61, (2, 19))
    with torch.profiler.profile() as calls:
        out = model(ids, use_cache=False).logits
    assert any(call.key.startswith("qkv::") for call in calls.key_averages()) == (sys.argv[1] == "stand-ins"), config.model_type
    (out * torch.linspace(-1, 1, 61)).sum().backward()
    found.append([out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
torch.save(found, sys.argv[2])
"""


def test_models_are_their_own_code(tmp_path: Path) -> None:
    results = []
    for way in ("exact", "own", "stand-ins"):
        done = subprocess.run([sys.executable, "-c", SCRIPT, way, tmp_path / way], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        results.append(torch.load(tmp_path / way))
    for exact, own, fast in zip(*results):
        size = max(float(x.abs().max()) for x in exact[1:])
        for n, (e, o, f) in enumerate(zip(exact, own, fast)):
            error, theirs = (float((x.double() - e).abs().max()) for x in (f, o))
            assert error <= 3 * theirs + 8 * 2**-23 * (size if n else float(e.abs().max())), n
