"""Heads cut and patched: against models whose projection has these rows zeroed, or is given other numbers by hand."""

import json
from typing import Any

import numpy as np
import pytest

pytest.importorskip("support_transformers")
import qkv
import qkv.transformers
from qkv._explore.behaviour import on_random_tokens, on_words_in_order
from qkv._explore.captures import Captures
from support_transformers import DECODERS, EXPLORED, MODELS, MORE, inputs_of, model_of, tf, torch
from test_heads_write import projections

NAMES = [name for name in {**MODELS, **EXPLORED} if name not in ("t5", "whisper")]


def one_of(name: str, length: int = 11) -> Any:
    """The first of its sequences."""
    return qkv.explore(model_of(name), {key: x[:1] for key, x in inputs_of(name, length=length).items()}, behaviour=False)


def with_rows(model: Any, layer: int, head: int, to: Any = None) -> None:
    """By hand: head's part of what a projection reads becomes 0, or `to` [T | 1, width]."""
    module = projections(model)[layer]

    def change(_: Any, args: Any) -> Any:
        x = args[0].clone()
        width = x.shape[-1] // 4
        x[..., head * width : (head + 1) * width] = 0 if to is None else to
        return (x, *args[1:])

    module.register_forward_pre_hook(change)


def output_of(model: Any, inputs: Any) -> Any:
    with torch.no_grad():
        return model(**inputs)[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_cut_is_a_zero_before_the_projection(name: str) -> None:
    one = one_of(name)
    inputs = {key: x[:1] for key, x in inputs_of(name).items()}
    before = output_of(model_of(name), inputs)
    every = one.every()
    for layer, head in ((0, 1), (1, 3)):
        by_hand = model_of(name)
        with_rows(by_hand, layer, head)
        after, made = output_of(by_hand, inputs), one.cut([(layer, head)])
        if name in DECODERS or "cut loss" in every:
            loss = torch.nn.functional.cross_entropy(after[0, :-1].double(), inputs["input_ids"][0, 1:]).item()
            assert made["cut"]["loss"] == pytest.approx(loss, rel=1e-5)
            assert every["cut loss"][layer][head] == pytest.approx(loss - one.said.loss, abs=1e-5 * loss)
            assert every["cut tokens"][layer][head] == made["cut"]["tokens"] == (after.argmax(-1) != before.argmax(-1)).double().mean().item()
            assert made["cut"]["next"][0]["token"] == str(after[0, -1].argmax().item())
        else:
            moved = 1 - torch.cosine_similarity(before.double(), after.double(), -1).mean().item()
            assert every["cut output"][layer][head] == pytest.approx(moved, rel=1e-3, abs=1e-7)
        assert all(index > layer for index, _, _ in made["cut"]["others"])  # what lies below reads nothing of it


@pytest.mark.parametrize("name", [*list(MORE)[:8], "t5", "whisper"])
def test_blocks_below_a_cut_give_what_they_gave(name: str) -> None:
    """Also of encoders beside decoders, and of ALBERT, whose one block runs twice."""
    one = one_of(name)
    assert one.cuts._reuses
    made = one.every()
    one.cuts._reuses = False
    for number, layers in one.cuts.every().items():
        for index, values in layers.items():
            assert abs(values - made[number][index]).max() < 1e-5 and values.max() > 1e-4


def test_means_and_patches() -> None:
    one, other = one_of("gpt2"), inputs_of("gpt2")["input_ids"][1:]
    gave: list[Any] = []
    model = model_of("gpt2")
    projections(model)[1].register_forward_pre_hook(lambda _, args: gave.append(args[0][0, :, 16:24]))
    for ids in (one.inputs["input_ids"], other):
        output_of(model, {"input_ids": ids})
    for instead, to, more in (("mean", gave[0].mean(0, keepdim=True), {}), ("patch", gave[1], {"other": other})):
        by_hand = model_of("gpt2")
        with_rows(by_hand, 1, 2, to)
        logits = output_of(by_hand, one.inputs)
        loss = torch.nn.functional.cross_entropy(logits[0, :-1], one.inputs["input_ids"][0, 1:]).item()
        assert one.cut([(1, 2)], instead, **more)["cut"]["loss"] == pytest.approx(loss, rel=1e-5)
    several = one.cut([(0, 0), (1, 1)])["cut"]["loss"]
    assert len({several, one.cut([(0, 0)])["cut"]["loss"], one.cut([(1, 1)])["cut"]["loss"]}) == 3


@pytest.mark.parametrize(("name", "change"), (
    ("gpt2", lambda one: torch.cat([one["input_ids"]] * 2)), ("vit", lambda one: {"pixel_values": one["pixel_values"].repeat(2, 1, 1, 1)}),
    ("t5", lambda one: one | {"decoder_input_ids": one["decoder_input_ids"][:, :-1]}),
))  # fmt: skip
def test_a_patch_of_other_sizes_is_refused(name: str, change: Any) -> None:
    """It would not be put in, and the answer be that of the whole model."""
    one = one_of(name)
    with pytest.raises(ValueError, match="a patch needs one text of equal length: layer . has"):
        one.cut([(0, 0)], "patch", other=change(one.inputs))


@pytest.mark.parametrize("where", ["attn.c_attn", "attn.c_proj"])
def test_a_model_that_gives_nan_is_shown(where: str) -> None:
    model = model_of("gpt2")
    model.transformer.h[0].get_submodule(where).weight.data[0, 0] = float("nan")
    one = qkv.explore(model, inputs_of("gpt2", length=11)["input_ids"][:1], behaviour=False)
    assert np.isnan(one.captures.layers[0].writes.sizes).any() and one.captures.layers[0].writes.push is None
    assert "<html" in one.captures.html()


def test_packed_texts_stay_apart_in_all_that_is_said() -> None:
    """Beside a cache transformers lets them mix, which cuts have not."""
    ids, positions = inputs_of("llama", length=11)["input_ids"][:1], torch.tensor([[*range(4), *range(7)]])
    one = qkv.explore(model_of("llama"), {"input_ids": ids, "position_ids": positions}, behaviour=False)
    assert not one.captures.map(0, 0)[4:, :4].any()
    rises = one.every()["cut loss"]
    for layer, head in ((0, 1), (1, 2)):
        assert rises[layer][head] == pytest.approx(one.cut([(layer, head)])["cut"]["loss"] - one.said.loss, abs=1e-4)


@pytest.mark.parametrize("how", ["optimize", "autocast"])
def test_what_heads_write_is_said_of_models_made_faster(how: str) -> None:
    expected, model = one_of("llama").captures, model_of("llama")
    inputs = {key: x[:1] for key, x in inputs_of("llama", length=11).items()}
    with torch.autocast("cpu", enabled=how == "autocast"):
        made = qkv.explore(qkv.transformers.optimize(model) if how == "optimize" else model, inputs, behaviour=False).captures
    for layer, other in zip(made.layers, expected.layers):
        assert layer.writes.push.shape == other.writes.push.shape
        assert abs(layer.writes.norms - other.writes.norms).max() < (1e-4 if how == "optimize" else 0.1) * other.writes.norms.max()


def test_modules_keep_a_forward_of_their_own() -> None:
    """As accelerate gives them, and every() computes with it."""
    model, own = model_of("gpt2"), {}
    block = model.transformer.h[0]
    for module, factor in ((block, None), (block.attn.c_attn, 1.5), (block.mlp.act, 1.5)):
        own[module] = module.forward = lambda *x, was=module.forward, by=factor, **options: was(*x, **options) if by is None else by * was(*x)
    one = qkv.explore(model, inputs_of("gpt2", length=11)["input_ids"][:1], behaviour=False)
    every = one.every()["cut loss"]
    assert all(vars(module).get("forward") is forward for module, forward in own.items())
    for layer, head in ((0, 1), (1, 2)):
        assert every[layer][head] == pytest.approx(one.cut([(layer, head)])["cut"]["loss"] - one.said.loss, abs=1e-4)


def test_what_is_generated_is_greedy_whatever_the_model_says() -> None:
    one = one_of("gpt2")
    greedy = one.generate(6)
    one.model.generation_config.num_beams = 3
    try:
        assert one.generate(6) == greedy
        assert one.generate(6, [(0, 1)]) == one_of("gpt2").generate(6, [(0, 1)])
    finally:
        one.model.generation_config.num_beams = 1


def test_what_is_generated_without_a_head() -> None:
    one = one_of("gpt2")
    by_hand = model_of("gpt2")
    with_rows(by_hand, 0, 1)
    expected = by_hand.generate(one.inputs["input_ids"], max_new_tokens=8, do_sample=False)[0, 11:].tolist()
    assert one.generate(8, [(0, 1)]) == expected != one.generate(8)
    assert not any(module._forward_pre_hooks for module in one.model.modules())  # nothing stays behind


def test_the_file_holds_it(tmp_path: Any) -> None:
    one = one_of("llama")
    one.every()
    one.cut([(0, 3)])
    one.save(tmp_path / "page.html")
    one.save(tmp_path / "page.safetensors")
    file = qkv.io.load_safetensors(tmp_path / "page.safetensors")
    made = json.loads(file.metadata["explorer"])
    whole, cut = made["views"]
    assert cut["cut"]["of"] == 0 and cut["cut"]["heads"] == [[0, 3]] and cut["cut"]["with"] == "zero" and cut["name"].endswith("cut 0:3")
    assert whole["loss"] == one.said.loss != cut["loss"] and len(whole["losses"]) == 10 and len(cut["next"]) == 10
    info = whole["layers"][1]["head_info"][2]
    assert {"writes", "next token", "copies", "cut loss", "cut tokens"} <= info.keys()
    assert file["0/1/norms"].shape == (4, 11) and file["0/1/push"].shape == file["0/1/push_by"].shape == (4, 11, 10)
    words = [made["words"][int(n)] for n in np.asarray(file["0/1/push"])[2, 5]]
    assert words == [str(n) for n in one.captures.layers[1].writes.push[0, 2, 5]]


def test_a_cut_keeps_the_answer_and_the_exact_heads(tmp_path: Any) -> None:
    inputs = {key: x[:1] for key, x in inputs_of("llama", length=11).items()}
    one = qkv.explore(model_of("llama"), inputs, behaviour=False, generate={"max_new_tokens": 4}, exact=[(1, 2)])
    one.cut([(0, 1)])
    whole, cut = one.captures.runs
    assert cut.answer == whole.answer is not None
    assert [layer.exact and layer.exact.heads for layer in cut.layers] == [layer.exact and layer.exact.heads for layer in whole.layers]
    one.whole.name = "llama"
    again = one.read(None)
    assert again.whole.answer == whole.answer and again.whole.layers[1].exact.heads == (2,) and again.whole.name == "llama"


class Names:
    """Tokens by number, and a text of them."""

    def __init__(self, between: str = " ") -> None:
        self.between = between

    def __call__(self, number: int) -> str:
        return str(number)

    def text(self, numbers: list[int]) -> str:
        return self.between.join(map(str, numbers))


def test_views_can_be_told_apart() -> None:
    def names(made: Any) -> list[str]:
        return [view["name"].removeprefix("transformer.h").strip() for view in made._made()[0]["views"]]

    one, two = one_of("gpt2"), one_of("gpt2")
    other = inputs_of("gpt2", length=11)["input_ids"][1:]
    for instead, more in (("zero", {}), ("mean", {}), ("patch", {"other": other}), ("zero", {})):
        one.cut([(1, 0)], instead, **more)
    cuts = ["cut 1:0", "cut 1:0 (mean)", "patch 1:0 from other inputs", "cut 1:0 (2)"]
    assert names(one.captures) == ["", *cuts]
    texts = one.captures._made()[0]["texts"]
    assert [text["name"] for text in texts] == ["text", *cuts]
    two.cut([(1, 0)])
    runs = one.captures.runs[:2] + two.captures.runs
    assert names(Captures(runs)) == ["text 0", "text 0, cut 1:0", "text 1", "text 1, cut 1:0"]
    found = names(Captures(runs, names=Names()))
    same = found[0]
    assert same.endswith("\N{HORIZONTAL ELLIPSIS}") and found == [same, f"{same}, cut 1:0", f"{same} (2)", f"{same} (2), cut 1:0"]
    (glued, *_) = names(Captures(runs, names=Names("")))
    assert len(glued) > 10 and same.startswith(glued[:2])  # a text without blanks, as Chinese is
    both = qkv.transformers.capture_attention(model_of("gpt2"), inputs_of("gpt2", length=11))
    assert names(Captures([*both.runs, *qkv.transformers.capture_attention(model_of("gpt2"), inputs_of("gpt2")).runs])) == [
        f"text {n} sequence {b}" for n in range(2) for b in range(2)
    ]


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Any) -> None:
    resource = pytest.importorskip("resource")
    one, path = one_of("gpt2"), tmp_path / "page.html"
    one.save(path)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(OSError, match="page.html"):
            one.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def four_layers() -> Any:
    torch.manual_seed(0)
    config = tf.GPT2Config(n_embd=32, n_layer=4, n_head=4, vocab_size=61, n_positions=64, initializer_range=0.3)
    return tf.GPT2LMHeadModel(config).eval()


def test_chosen_layers_keep_their_numbers(tmp_path: Any) -> None:
    """A cut reads the same layers; what moved is compared with itself, and the file says which layers they are."""
    model, ids = four_layers(), inputs_of("gpt2", length=11)["input_ids"][:1]
    one, every = (qkv.explore(model, ids, behaviour=False, **options) for options in ({"layers": [2, 3]}, {}))
    assert one.cut([(3, 0)])["cut"]["others"] == []  # nothing lies behind the last layer
    moved = every.cut([(1, 2)])["cut"]["others"]
    assert one.cut([(1, 2)])["cut"]["others"] == [row for row in moved if row[0] > 1] != []
    one.save(tmp_path / "page.safetensors")
    whole, last, _ = json.loads(qkv.io.load_safetensors(tmp_path / "page.safetensors").metadata["explorer"])["views"]
    assert [layer["number"] for layer in whole["layers"]] == [layer["number"] for layer in last["layers"]] == [2, 3]
    assert last["cut"]["heads"] == [[1, 0]]
    with pytest.raises(ValueError, match=r"save the page of layers \[2, 3\]"):
        one.serve()
    assert qkv.explore(model, ids, behaviour=False, layers=[1, 0], heads=[3]).cut([(0, 3)])["cut"]["others"][0][:2] == (1, 3)
    every.save(tmp_path / "page.safetensors")
    assert '"number"' not in qkv.io.load_safetensors(tmp_path / "page.safetensors").metadata["explorer"]


def test_layers_of_a_decoder_beside_its_encoder_are_numbered_as_calls(tmp_path: Any) -> None:
    one = one_of("t5")
    one.save(tmp_path / "page.safetensors")
    views = json.loads(qkv.io.load_safetensors(tmp_path / "page.safetensors").metadata["explorer"])["views"]
    assert [[layer.get("number") for layer in view["layers"]] for view in views] == [[None, None], [2, 4], [3, 5]]


def test_random_tokens_that_repeat() -> None:
    """The mean weights of eager attention on the tokens that it read."""
    model, read = model_of("llama"), []
    model.register_forward_pre_hook(lambda _, __, options: read.append(options["input_ids"]), with_kwargs=True)
    made = on_random_tokens(model)
    ids = read[0]
    assert ids.shape == (4, 129) and (ids[:, 1:65] == ids[:, 65:]).all() and not {0, 1, 2} & set(ids[:, 1:].flatten().tolist())
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(input_ids=ids, output_attentions=True).attentions
    queries = range(65, 129)
    for layer in range(2):
        w = weights[layer]
        for name, back in (("previous", 1), ("duplicate", 64), ("induction", 63)):
            rows = range(1, 129) if name == "previous" else queries
            mean = torch.stack([w[:, :, i, i - back] for i in rows], -1).mean((0, -1))
            assert abs(made[f"random {name}"][layer] - mean.numpy()).max() < 1e-5


class Words:
    """A tokenizer that knows some words; `of` is their first number."""

    bos_token_id = 1

    def __init__(self, words: str, of: int = 10) -> None:
        self.known = {word: of + n for n, word in enumerate(words.split())}

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [self.known[text.strip()]] if text.strip() in self.known else [2, 3]


def test_a_head_that_writes_the_next_word_is_a_successor_head() -> None:
    model, words = model_of("llama"), Words("one two three four five six seven eight nine ten")
    with torch.no_grad():
        for layer in model.model.layers:  # the stream stays the embedding
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        attention = model.model.layers[1].self_attn
        rows = torch.tensor(list(words.known.values()))
        x = model.model.layers[1].input_layernorm(model.model.embed_tokens.weight[rows[:-1]])  # [9, d]
        n = min(len(x), attention.head_dim)
        attention.v_proj.weight[:n] = torch.linalg.pinv(x[:n].T.double()).float()  # of head 0: which word it is
        attention.o_proj.weight[:, :n] = model.lm_head.weight[rows[1 : n + 1]].T
    said = on_words_in_order(model, words)["successor"]
    assert said[1][0] > 0.8 * n / 9 and (said[1][2:] < 0.5).all() and (said[0] < 0.5).all()
    assert on_words_in_order(model, Words("one two three")) == {}


def test_errors() -> None:
    one = one_of("gpt2")
    with pytest.raises(ValueError, match="layer 1 has heads 0..3: got 4"):
        one.cut([(1, 4)])
    with pytest.raises(ValueError, match="layer 2: no projection"):
        one.cut([(2, 0)])
    with pytest.raises(ValueError, match='"zero", "mean" or "patch"'):
        one.cut([(0, 0)], "one")
    with pytest.raises(ValueError, match="a patch needs another text"):
        one.cut([(0, 0)], "patch")
    for heads in ([(0.9, 1)], (0, 1), "0:1"):
        with pytest.raises(TypeError, match=r"heads must hold pairs \(layer, head\)"):
            one.cut(heads)
    with pytest.raises(ValueError, match="there is no folder"):
        qkv.explore("./nowhere", "a text")
    with pytest.raises(ValueError, match="equal length: 11 and 3 tokens"):
        one.cut([(0, 0)], "patch", other=torch.tensor([[4, 5, 6]]))
    for call in (lambda: one.cut([(0, 0)], "patch", other="a text"), lambda: one.read("a text")):
        with pytest.raises(ValueError, match="a text needs a tokenizer, and the model came without one"):
            call()
    several = qkv.explore(model_of("gpt2"), inputs_of("gpt2"), behaviour=False)
    for call in (lambda: several.cut([(0, 0)]), several.every, lambda: several.generate(2)):
        with pytest.raises(ValueError, match="one text at a time"):
            call()
    with pytest.raises(ValueError, match="one text without padding"):
        ids = inputs_of("gpt2")["input_ids"][:1]
        qkv.explore(model_of("gpt2"), {"input_ids": ids, "attention_mask": torch.arange(ids.shape[1])[None] > 1}, behaviour=False)
    with pytest.raises(ValueError, match="needs tokenizer="):
        qkv.explore(model_of("gpt2"), "a text")
    with pytest.raises(ValueError, match="generates nothing"):
        one_of("bert").generate(3)
