"""Finds, builds and calls one spelling of the corpus: which task it is, what its arguments and parameters mean. Not: what is
right (textbook.py), the comparison (beside.py).
"""

import importlib.util
import inspect
import re
from pathlib import Path

import numpy as np
import textbook

HERE = Path(__file__).resolve().parent
EMBED, HEADS, KV_HEADS, VOCABULARY, CONTEXT = 40, 4, 2, 11, 8
WIDTH = EMBED // HEADS
FUNCTIONS = {"single-head": "single_head", "self-attention": "self_attention"}
SIZES = {  # usual names of constructor arguments
    "embed": "embed_dim dim d_model hidden_dim hidden_size n_embd embed_size model_dim width channels 隐藏维度 维度",
    "heads": "num_heads heads n_heads nums_head head_num n_head h 头数 num_attention_heads",
    "kv": "num_kv_heads n_kv_heads kv_heads num_key_value_heads",
    "d_k": "d_k",
    "p": "p dropout dropout_rate dropout_p drop 丢弃率",
    "vocabulary": "vocab_size",
    "context": "context_len",
}
TAKES = {
    "x": "x X inputs hidden_states query_input tokens_in 输入",
    "mask": "mask attention_mask attn_mask 掩码",
    "memory": "memory context encoder_output",
    "num_heads": "num_heads n_heads heads h nums_head head_num 头数",
    "num_kv_heads": "num_kv_heads n_kv_heads kv_heads",
    "block_size": "block_size block tile",
    "q": "q Q query queries 查询",
    "k": "k K key keys 键",
    "v": "v V value values 值",
    "dout": "dout d_out grad_out grad_output",
}
ROLES = {
    "q": r"(^|[._])(to_|w_?|linear_)?q($|[._])|quer|查询",
    "k": r"(^|[._])(to_|w_?|linear_)?k($|[._])|key|键",
    "v": r"(^|[._])(to_|w_?|linear_)?v($|[._])|val|值",
}


NAMES = {  # names that say their task
    "mha": "mha",
    "sdpa": "sdpa",
    "gqa": "gqa",
    "cross_attention": "cross",
    "self_attention": "self-attention",
    "flash": "flash",
    "causal_attention": "causal",
    "linear_attention": "linear",
    "attention_backward": "backward",
    "cached_attention": "cache",
    "rope": "rope",
    "dropout_attention": "dropout",
    "train_step": "lm",
    "single_head": "single-head",
    "ToyLM": "lm",
    "SingleHeadAttention": "single-head",
    "SelfAttention": "self-attention",
}


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def name_among(table, name):
    return next((key for key, names in table.items() if name == key or name in names.split()), None)


def task_of(module, name, path):
    """TASK of the file; otherwise the name, otherwise the arguments."""
    task = getattr(module, "TASK", {}).get(name)
    if task:
        return task
    thing = getattr(module, name)
    if name in NAMES:
        return NAMES[name]
    if re.search(r"[vV][1-4]$", name):  # v1, SelfAttentionV1
        return name[-2:].lower()
    if inspect.isclass(thing):
        sizes = {name_among(SIZES, parameter) for parameter in inspect.signature(thing.__init__).parameters}
        if "heads" in sizes:
            return "mha"
    raise SystemExit(f"{path}: no task for {name}")


class Problem:
    """Inputs and parameters of one task, with all sizes different."""

    def __init__(self, task, seed, mask=None):
        random = np.random.default_rng(seed)
        self.task, self.values = task, {}
        batch, length, memory = 2, 7, 9

        def normal(*shape, scale=1.0):
            return random.normal(size=shape) * scale

        if task in ("sdpa", "causal", "flash", "linear", "backward", "dropout", "rope"):
            keys = length if task in ("rope", "linear", "backward") or mask == "square" else memory
            shape = batch, 3, length, WIDTH
            # A backward and a mask laid across need as many queries as keys.
            self.values = {"q": normal(*shape), "k": normal(batch, 3, keys, WIDTH), "v": normal(batch, 3, keys, WIDTH)}
            if task == "backward":
                self.values["dout"] = normal(*shape)
            if task == "rope":
                self.values |= {"positions": np.arange(3, 3 + length), "x": normal(*shape)}
            if task == "flash":
                self.values["block_size"] = 4
            if task == "dropout":
                self.values |= {"p": 0.3, "training": False}
        elif task == "lm":
            self.values = {name: normal(*shape, scale=0.7) for name, shape in
                           {"embed": (VOCABULARY, 6), "position": (CONTEXT, 6), "W_q": (6, 6), "W_k": (6, 6), "W_v": (6, 6),
                            "head": (6, VOCABULARY), "head_bias": (VOCABULARY,)}.items()}  # fmt: skip
            self.tokens = random.integers(0, VOCABULARY, (batch, 6))
        else:
            inner = 14 if task == "self-attention" else EMBED
            kv = KV_HEADS * WIDTH if task == "gqa" else inner
            self.values = {"x": normal(batch, length, EMBED)}
            if task == "cross":
                self.values["memory"] = normal(batch, memory, EMBED)
            if task in ("v2", "v3"):
                self.values |= {"W_qkv": normal(EMBED, 3 * EMBED, scale=0.3), "b_qkv": normal(3 * EMBED)}
            else:
                for letter, width in (("q", inner), ("k", kv), ("v", kv)):
                    self.values |= {f"W_{letter}": normal(EMBED, width, scale=0.3), f"b_{letter}": normal(width)}
            if task not in ("v1", "v2", "self-attention"):
                self.values |= {"W_o": normal(EMBED, EMBED, scale=0.3), "b_o": normal(EMBED)}
            self.values |= {"num_heads": HEADS, "num_kv_heads": KV_HEADS}
        if mask:
            keys = memory if task in ("cross",) or (task == "sdpa" and mask != "square") else length
            keep = np.ones((batch, length, keys), dtype=bool)
            keep[0, :, keys - 2 :] = False
            keep[1, :, : keys - 4] &= random.random((length, keys - 4)) < 0.6
            self.values["mask"] = keep if task in ("v3", "v4") else keep[:, None]

    def right(self, function=None, **more):
        function = function or getattr(textbook, FUNCTIONS.get(self.task, self.task))
        wanted = inspect.signature(function).parameters
        return function(**{name: value for name, value in (self.values | more).items() if name in wanted})


def lm_key(name):
    """The toy model's parameter by its name."""
    if "head" in name:
        return "head_bias" if "bias" in name else "head"
    if "pos" in name:
        return "position"
    return "embed" if "tok" in name else "W_" + re.search(r"[qkv](?=$|\.|_proj)", name)[0]


def module_parameters(module, values):
    """Fills a PyTorch module with the contract's parameters, by name and size."""
    import torch

    for name, parameter in module.named_parameters():
        lower = name.lower()
        if "embed" in values:
            key = lm_key(lower)
            wanted = values[key].T if "W_" in key or key == "head" else values[key]
        else:
            letter = "b" if re.search(r"bias|(^|\.)b_", lower) else "W"
            whole = values.get(f"{letter}_qkv")
            if whole is None:
                whole = np.concatenate([values[f"{letter}_{n}"] for n in "qkv"], axis=-1)
            role = next((r for r, pattern in ROLES.items() if re.search(pattern, lower)), "o")
            if max(parameter.shape) == 3 * EMBED:
                wanted = whole if parameter.shape[0] == EMBED else whole.T
            elif role == "o":
                wanted = values[f"{letter}_o"].T
            else:
                own = values.get(f"{letter}_{role}")
                wanted = (np.split(whole, 3, axis=-1)["qkv".index(role)] if own is None else own).T
            head = re.search(r"\.(\d+)\.", name)  # one small layer a head
            if head and parameter.shape[0] == WIDTH:
                wanted = wanted[int(head[1]) * WIDTH :][:WIDTH]
        parameter.data = torch.tensor(np.ascontiguousarray(wanted), dtype=parameter.dtype)


def of_result(result, back):
    """out, whatever it is wrapped in."""
    if isinstance(result, dict):
        result = next(result[key] for key in ("out", "output", "输出") if key in result)
    if isinstance(result, tuple):
        result = result[0]
    return back(result)


def call(thing, values, problem, torch):
    """The thing's answer: a list of arrays."""

    def to(value):
        if not isinstance(value, np.ndarray):
            return value
        return torch.tensor(value) if torch else value.copy()

    def back(value):
        return np.asarray(value.detach() if torch and torch.is_tensor(value) else value, dtype=float)

    task = problem.task
    if task == "lm":
        return train(thing, problem, torch, back)
    module = inspect.isclass(thing)
    if module:
        sizes = {"embed": EMBED, "heads": HEADS, "kv": KV_HEADS, "d_k": 14, "p": 0.3 if task == "dropout" else 0.0}
        arguments = {name: sizes[key] for name in inspect.signature(thing.__init__).parameters
                     if (key := name_among(SIZES, name))}  # fmt: skip
        made = thing(**arguments).double().eval()
        made.train(bool(values.get("training")))
        module_parameters(made, values)
        function, names = made, list(inspect.signature(made.forward).parameters)
    else:
        function, names = thing, list(inspect.signature(thing).parameters)
        values = dict(values)
    if task == "cache":
        state, outs, at = None, [], 0
        for step in (3, 1, 2, 1):
            given = {name: to(match(name, values)) for name in names if match(name, values) is not None}
            given[next(n for n in names if name_among(TAKES, n) == "x")] = to(values["x"][:, at : at + step])
            cache_name = next((n for n in names if n in ("cache", "past")), None)
            result = function(**given, **({cache_name: state} if cache_name else {}))
            out, state = result if isinstance(result, tuple) else (result, None)
            outs.append(back(out))
            at += step
        return [np.concatenate(outs, axis=1)]
    given = {name: to(match(name, values)) for name in names if match(name, values) is not None}
    result = function(**given)
    if task == "backward":
        return [back(part) for part in (result.values() if isinstance(result, dict) else result)]
    out = [of_result(result, back)]
    if task not in ("rope",) and module and any(True for _ in made.parameters()):
        out += gradients(made, function, given, torch, back)
    if not values.get("training"):
        out.append(of_result(function(**given), back))
    return out


def match(name, values):
    """The contract's value for an argument's name."""
    plain = name_among(TAKES, name) or name
    if plain in values:
        return values[plain]
    short = re.sub(r"[_]", "", name.lower())
    for key in values:
        if re.sub(r"[_]", "", key.lower()) == short:
            return values[key]
    letter = re.fullmatch(r"(w|b|weight|bias)(q|k|v|o|qkv|query|key|value|out)", short)
    if letter:
        return values.get(f"{'W' if letter[1][0] == 'w' else 'b'}_{letter[2] if letter[2] == 'qkv' else letter[2][0]}")
    return None


def gradients(made, function, given, torch, back):
    """Sums of squares of all gradients, by parameter in order, and of x."""
    given = dict(given)
    x = next(iter(given))
    given[x] = given[x].clone().requires_grad_(True)
    result = function(**given)
    result = result[0] if isinstance(result, tuple) else next(iter(result.values())) if isinstance(result, dict) else result
    weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view(result.shape)
    if not (result * weights).requires_grad:
        return [np.zeros(1)]
    made.zero_grad()
    (result * weights).sum().backward()
    return [back(given[x].grad) if given[x].grad is not None else np.zeros(1)]


def train(thing, problem, torch, back):
    """Losses of three steps and the embedding after them."""
    losses = []
    params = {name: value.copy() for name, value in problem.values.items()}
    if not torch:
        for _ in range(3):
            loss, params = thing(params, problem.tokens, 0.4)
            losses.append(loss)
        return [np.array(losses), params["embed"], params["W_q"], params["position"]]
    model = thing(VOCABULARY, CONTEXT, 6).double()
    module_parameters(model, problem.values)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    step = thing.forward.__globals__["train_step"]
    for _ in range(3):
        losses.append(float(step(model, optimizer, torch.tensor(problem.tokens))))
    table = {name: back(value) for name, value in model.named_parameters()}
    embed, position, query = (next(v for n, v in table.items() if part in n.lower()) for part in ("tok", "pos", "q"))
    return [np.array(losses), embed, query.T, position]
