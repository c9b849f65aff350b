"""Right layers in PyTorch, each a row of habits: what people call sizes and layers, and how they spell each step.

A row is "task | sizes | layers | steps": `sizes` is the constructor's signature, its first name the width; `layers` are four or
three names, or one (merged) and the output's; `steps` are keys of the tables below, in any order. A key that is not given is the first
of its table. The state dict's names of all articles and of the usual libraries are here.
"""

import re

from mistakes import Program

SCORES = {
    "root": "q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))",
    "matmul": "torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(k.shape[-1])",
    "power": "q @ k.mT * q.size(-1) ** -0.5",
    "queries": "(q * k.shape[-1] ** -0.5) @ k.transpose(-2, -1)",
    "bmm": "torch.bmm(q, k.transpose(1, 2)) / q.size(-1) ** 0.5",
    "einsum": 'torch.einsum("...id,...jd->...ij", q, k) / k.size(-1) ** 0.5',
    "float": "(q.float() @ k.float().mT) * q.size(-1) ** -0.5",
}
MASK = {
    "-inf": 'scores.masked_fill(mask == 0, float("-inf"))',
    "-1e20": 'scores.masked_fill(mask == 0, float("-1e20"))',
    "-1e9": "scores.masked_fill(~mask.bool(), -1e9)",
    "least": "scores.masked_fill(mask.logical_not(), torch.finfo(scores.dtype).min)",
    "where": "torch.where(mask.bool(), scores, torch.tensor(-1e20, dtype=scores.dtype))",
    "added": "scores + (1.0 - mask.to(scores.dtype)) * -1e9",
    "repeated": "scores.masked_fill(mask.expand_as(scores) == 0, -1e20)",
}
CAUSAL = {
    "triu": 'scores.masked_fill(torch.triu(torch.ones_like(scores), diagonal=1).bool(), float("-inf"))',
    "buffer": 'scores.masked_fill(self.past[: x.size(-2), : x.size(-2)] == 0, float("-inf"))',
    "compare": "scores.masked_fill(torch.arange(x.size(1)) > torch.arange(x.size(1))[:, None], -1e30)",
}
WEIGHTS = {
    "softmax": "torch.softmax(scores, dim=-1)",
    "method": "scores.softmax(-1)",
    "functional": "F.softmax(scores, dim=-1)",
    "module": "nn.Softmax(dim=-1)(scores)",
    "single": "F.softmax(scores, dim=-1, dtype=torch.float32).type_as(v)",
}
SPLIT = {
    "view": "view(*x.shape[:2], self.heads, -1).transpose(1, 2)",
    "permute": "view(x.size(0), x.size(1), self.heads, y.size(-1) // self.heads).permute(0, 2, 1, 3)",
    "unflatten": "unflatten(-1, (self.heads, -1)).transpose(1, 2)",
}
MERGE = {
    "reshape": "out.transpose(1, 2).reshape(x.shape)",
    "contiguous": "out.transpose(1, 2).contiguous().view(x.size(0), x.size(1), -1)",
    "flatten": "out.transpose(1, 2).flatten(2)",
    "cat": "torch.cat(out.unbind(1), dim=-1)",
}
CUT = {"chunk": "chunk(3, dim=-1)", "split": "split(x.size(-1), dim=-1)", "unbind": "unflatten(-1, (3, -1)).unbind(-2)"}
RESULT = {"plain": "return out", "pair": "return out, weights", "dict": 'return {"out": out, "weights": weights}'}
DROPPED = {"kept": "", "dropped": "weights", "dropped-twice": "weights out", "dropped-after": "out"}
OTHER = {"bare": "no biases", "prints": "prints its weights", "unmasked": "takes no mask"}

ROWS = """
v1   | hidden_dim: int = 728     | query_proj key_proj value_proj            | matmul
v1   | embed_size                | queries keys values                       | einsum method
v1   | d_model                   | w_q w_k w_v                               | queries functional
v2   | hidden_dim                | proj                                      | matmul split
v2   | dim                       | in_proj                                   | power unbind
v3   | dim                       | proj output_proj                          | root split unmasked
v3   | hidden_dim, dropout_rate=0.1 | proj output_proj                       | root split -1e20 dropped
v3   | n_embd, dropout=0.1       | c_attn c_proj                             | power chunk -inf dropped pair
v3   | d_model                   | Wqkv out_proj                             | einsum unbind where dict
v4   | dim                       | query_proj key_proj value_proj output_proj | root -1e20 dropped prints
v4   | embed_dim, dropout=0.1    | q_proj k_proj v_proj out_proj             | matmul -inf functional dropped pair
v4   | d_model                   | linear_q linear_k linear_v linear_out     | queries least
self-attention | embed_dim, d_k  | W_Q W_K W_V                               | matmul functional
self-attention | embed_dim, head_dim | q k v                                 | bmm bare
single-head | dim, causal=True   | W_q W_k W_v W_o                           | root triu functional bare
single-head | n_embd             | query key value proj                      | power buffer method bare
single-head | width              | wq wk wv wo                               | queries compare bare pair
single-head | features           | key query value                           | power buffer functional bare
mha  | hidden_dim, nums_head     | q_proj k_proj v_proj o_proj               | root permute repeated dropped contiguous
mha  | embed_dim, head_num       | W_Q W_K W_V W_O                           | matmul view functional contiguous unmasked
mha  | embed_dim, num_heads, dropout=0.1 | q_proj k_proj v_proj out_proj     | matmul view -inf functional dropped contiguous pair
mha  | d_model, n_heads          | to_q to_k to_v to_out                     | einsum least unflatten flatten
mha  | n_embd, n_head            | c_attn c_proj                             | power chunk -inf method contiguous
mha  | dim, num_heads=8          | qkv proj                                  | queries chunk -1e9 permute
mha  | hidden_size, num_attention_heads, *, dropout=0.0 | query key value dense | root added permute module dropped pair
mha  | *, d_model, n_heads       | w_q w_k w_v w_o                           | queries where view method dict
mha  | embed_dim, num_heads      | in_proj out_proj                          | float split single -inf cat
mha  | d_model, h                | w_qs w_ks w_vs fc                         | power -1e9 method flatten
mha  | embed_size, heads         | values keys queries fc_out                | einsum -1e20 unflatten flatten
mha  | dim, num_heads=8, drop=0.25 | qkv proj                                | queries chunk unmasked dropped-twice
mha  | hidden_size, num_attention_heads | query key value                    | root unmasked
causal-mha | n_embd, n_head            | c_attn c_proj                         | power buffer chunk functional contiguous dropped-twice
mha  | d_model, n_heads, drop=0.25 | wq wk wv wo                            | power -inf flatten dropped-after
causal-mha | d_model, n_heads          | wq wk wv wo                           | queries compare flatten bare
"""
CONVENTIONS = {"dropped-twice": "dropout-on-output-too", "dropped-after": "dropout-on-output"}


def layer(row):
    """(the class of a row, ids of the convention that the judge names)"""
    task, sizes, layers, steps = (part.strip() for part in row.split("|"))
    names, steps = layers.split(), steps.split()
    tables = {"scores": SCORES, "mask": MASK, "causal": CAUSAL, "weights": WEIGHTS, "split": SPLIT, "merge": MERGE, "cut": CUT,
              "result": RESULT, "dropped": DROPPED}  # fmt: skip
    unknown = [step for step in steps if step not in OTHER and not any(step in table for table in tables.values())]
    if unknown:
        raise ValueError(f"no such step: {unknown}")
    how = {name: next((table[step] for step in steps if step in table), next(iter(table.values()))) for name, table in tables.items()}
    arguments = [part.split("=")[0].split(":")[0].strip() for part in sizes.split(",") if part.strip() != "*"]
    width, inner = arguments[0], arguments[task == "self-attention"]
    bias = ", bias=False" if "bare" in steps else ""
    heads, masked, causal = task.endswith("mha"), task in ("v3", "v4", "mha") and "unmasked" not in steps, task in ("single-head", "causal-mha")
    merged, out = len(names) < 3, names[-1] if len(names) in (2, 4) else None
    body = [f"def __init__(self, {sizes}):", "    super().__init__()"]
    body += [f"    self.heads = {arguments[1]}"] if heads else []
    if merged:
        body += [f"    self.{names[0]} = nn.Linear({width}, 3 * {width}{bias})"]
    else:
        body += [f"    self.{name} = nn.Linear({width}, {inner}{bias})" for name in names[:3]]
    body += [f"    self.{out} = nn.Linear({width}, {width}{bias})"] if out else []
    rate = arguments[-1] if len(arguments) > 1 + heads and not causal else 0.1
    body += [f"    self.drop = nn.Dropout({rate})"] if how["dropped"] else []
    body += ['    self.register_buffer("past", torch.tril(torch.ones(256, 256)))'] if "buffer" in steps else []
    body += ["", f"def forward(self, x{', mask=None' if masked else ''}):"]
    if merged:
        body += [f"    q, k, v = self.{names[0]}(x).{how['cut']}"]
    else:
        order = sorted(names[:3], key=lambda name: next(i for i, letter in enumerate("qkv") if letter in name.lower().replace("key", "k")))
        body += ["    q, k, v = " + ", ".join(f"self.{name}(x)" for name in order)]
    body += [f"    q, k, v = (y.{how['split']} for y in (q, k, v))"] if heads else []
    body += [f"    scores = {how['scores']}"]
    body += ["    if mask is not None:", f"        scores = {how['mask']}"] if masked else []
    body += ["    if self.causal:", f"        scores = {how['causal']}"] if "causal" in arguments else []
    body += [f"    scores = {how['causal']}"] if causal and "causal" not in arguments else []
    if "causal" in arguments:
        body.insert(2, "    self.causal = causal")
    body += [f"    weights = {how['weights']}"]
    body += ["    print(weights.shape)"] if "prints" in steps else []
    body += ["    weights = self.drop(weights)"] if "weights" in how["dropped"] else []
    body += ["    out = weights @ v"]
    body += [f"    out = {how['merge']}"] if heads else []
    body += [f"    out = self.{out}(out)"] if out else []
    body += ["    out = self.drop(out)"] if "out" in how["dropped"] else []
    body += [f"    {how['result']}"]
    names_of = {"x": {"hidden_dim": "X", "hidden_size": "hidden_states"}.get(width, "x"), "mask": "mask" if heads else "attention_mask"}
    body = [re.sub(r"\b(x|mask)\b", lambda match: names_of[match[1]], line) for line in body]
    imports = "import math\n\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn"
    head = f'"""{row.strip()}"""\n\n{imports}\n\n\nclass Layer(nn.Module):\n'
    needs_output = task in ("v3", "v4", "single-head", "mha") and not out
    conventions = ["without-output-projection"] if needs_output else [CONVENTIONS[step] for step in steps if step in CONVENTIONS]
    return head + "\n".join(f"    {line}" if line else "" for line in body) + "\n", tuple(conventions)


def programs():
    for number, row in enumerate(filter(None, ROWS.split("\n")), 1):
        text, ids = layer(row)
        yield Program(f"habits:{number}", row.split("|")[0].strip(), "torch", ids, text)
