"""Hybrid models of transformers, which take the stand-ins by themselves when their files are imported: logits and gradients against their
own code in float64."""

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from support_hybrid import MODELS, model_of, run
from support_torch import everything_in, expect_all

IDS = torch.randint(3, 61, (2, 19), generator=torch.Generator().manual_seed(1))
SCRIPT = f"""
import sys, torch
import qkv.standins
qkv.standins.install("mamba_ssm", "causal_conv1d", "fla", quiet=True)
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from support_hybrid import MODELS, model_of, run
found = {{}}
for name in MODELS:
    model = model_of(name).train()
    with torch.profiler.profile() as calls:
        found[name] = run(model, torch.tensor({IDS.tolist()}))
    assert any(call.key.startswith("qkv::") for call in calls.key_averages()), name
torch.save(found, sys.argv[1])
"""


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, torch.Tensor]]:
    """Of a process that has the stand-ins before the models."""
    path = tmp_path_factory.mktemp("models") / "found"
    done = subprocess.run([sys.executable, "-c", SCRIPT, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.load(path)


@pytest.mark.parametrize("name", MODELS)
def test_models_are_their_own_code(name: str, fast: dict[str, dict[str, torch.Tensor]]) -> None:
    naive = run(model_of(name).train(), IDS)
    with everything_in(torch.float64):
        exact = run(model_of(name, torch.float64).train(), IDS)
    expect_all(fast[name], exact, naive, what=name)
