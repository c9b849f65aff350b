"""Attribution, cuts and patches against TransformerLens, where it is installed: its definitions are what the field's papers use."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("support_transformers")
pytest.importorskip("transformer_lens", reason="TransformerLens is not installed: test_heads_write.py has its definitions by hand")
import qkv
from explored_models import tokenizer_of
from support_transformers import model_of, tf, torch
from transformer_lens import patching
from transformer_lens.model_bridge import TransformerBridge

IDS = torch.tensor([[1, 17, 40, 9, 17, 40, 22, 5, 17, 40, 9, 33]])
OTHER = torch.tensor([[1, 18, 41, 9, 30, 12, 22, 5, 8, 40, 51, 33]])


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def both(request: Any, tmp_path_factory: Any) -> tuple[Any, Any]:
    folder = Path(tmp_path_factory.mktemp("lens"))
    tokenizer_of([*map(str, range(61))], unk_token="0", bos_token="1", eos_token="2", pad_token="0").save_pretrained(folder)
    model_of(request.param, scale=0.3).save_pretrained(folder)
    known = tf.AutoTokenizer.from_pretrained(folder)
    lens = TransformerBridge.boot_transformers(str(folder), hf_model=model_of(request.param, scale=0.3), tokenizer=known)
    lens.enable_compatibility_mode(fold_value_biases=False)  # what a head adds keeps its values' bias
    lens.set_use_attn_result(True)
    return lens, model_of(request.param, scale=0.3)


def test_direct_attribution(both: Any) -> None:
    lens, model = both
    with torch.no_grad():
        _, cache = lens.run_with_cache(IDS)
        parts = cache.apply_ln_to_stack(cache.stack_head_results(layer=-1), layer=-1)[:, 0]  # [layers heads, T, d]
        logits = parts @ lens.W_U
        logits = logits - logits.mean(-1, keepdim=True)
    one = qkv.explore(model, IDS, behaviour=False)
    for n, layer in enumerate(one.captures.layers):
        own = logits[4 * n : 4 * n + 4]
        pushed = torch.from_numpy(layer.writes.push[0])
        assert abs(own.gather(-1, pushed) - layer.writes.push_by[0]).max() <= 1e-5 * own.abs().max()
        assert abs(own[:, range(11), IDS[0, 1:]] - layer.writes.next_token[0, :, :-1]).max() <= 1e-5 * own.abs().max()


def test_zero_ablation(both: Any) -> None:
    lens, model = both
    one = qkv.explore(model, IDS, behaviour=False)
    every = one.every()["cut loss"]
    for layer in range(2):
        for head in range(4):

            def cut(z: Any, hook: Any, head: int = head) -> Any:
                z = z.clone()
                z[:, :, head] = 0
                return z

            with torch.no_grad():
                logits = lens.run_with_hooks(IDS, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", cut)])
            loss = torch.nn.functional.cross_entropy(logits[0, :-1], IDS[0, 1:]).item()
            assert abs(one.cut([(layer, head)])["cut"]["loss"] - loss) <= 1e-5 * loss
            assert abs(one.said.loss + every[layer][head] - loss) <= 1e-5 * loss


def test_patching(both: Any) -> None:
    """get_act_patch_attn_head_out_all_pos: a head's z at every position from another prompt."""
    lens, model = both
    with torch.no_grad():
        _, cache = lens.run_with_cache(OTHER)
        theirs = patching.get_act_patch_attn_head_out_all_pos(
            lens, IDS, cache, lambda logits: torch.nn.functional.cross_entropy(logits[0, :-1], IDS[0, 1:])
        )
    one = qkv.explore(model, IDS, behaviour=False)
    for layer in range(2):
        for head in range(4):
            ours = one.cut([(layer, head)], "patch", other=OTHER)["cut"]["loss"]
            assert abs(ours - theirs[layer, head].item()) <= 1e-5 * ours
