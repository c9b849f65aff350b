"""Linear attention gone wrong: its feature map, its normaliser, its order."""

import torch
import torch.nn.functional as F


def linear_attention(q, k, v, causal=False):
    """Nobody divides by the sum of the weights."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    if causal:
        state = torch.cumsum(torch.einsum("bhtd,bhte->bhtde", k, v), dim=2)
        return torch.einsum("bhtd,bhtde->bhte", q, state)
    return q @ (k.transpose(-2, -1) @ v)


def weigh(q, k, v, causal, normaliser=None):
    """out_i = sum_j q_i.k_j v_j / sum_j q_i.n_j"""
    n = k if normaliser is None else normaliser
    if causal:
        state = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(2)
        return torch.einsum("bhtd,bhtde->bhte", q, state) / (q * n.cumsum(2)).sum(-1, keepdim=True)
    return q @ (k.mT @ v) / (q @ n.sum(-2).unsqueeze(-1))


def positive(x):
    return F.elu(x) + 1


def linear_without_division(q, k, v, causal=False):
    weights = positive(q) @ positive(k).mT
    if causal:
        weights = weights.tril()
    return weights @ v


def linear_without_map(q, k, v, causal=False):
    return weigh(q, k, v, causal)


def linear_maps_values(q, k, v, causal=False):
    return weigh(positive(q), positive(k), positive(v), causal)


def linear_never_causal(q, k, v, causal=False):
    return weigh(positive(q), positive(k), v, False)


def linear_normalised_by_queries(q, k, v, causal=False):
    return weigh(positive(q), positive(k), v, causal, normaliser=positive(q))


def linear_elu(q, k, v, causal=False):
    return weigh(F.elu(q), F.elu(k), v, causal)


def linear_relu(q, k, v, causal=False):
    return weigh(F.relu(q), F.relu(k), v, causal)


def linear_over_length(q, k, v, causal=False):
    weights = positive(q) @ positive(k).mT
    if causal:
        weights = weights.tril()
    return weights @ v / k.size(2)


def linear_columns(q, k, v, causal=False):
    """Each column of the weights sums to one."""
    weights = positive(q) @ positive(k).mT
    if causal:
        weights = weights.tril()
    return weights / weights.sum(dim=-2, keepdim=True) @ v


def linear_sum_of_all(q, k, v, causal=False):
    q, k = positive(q), positive(k)
    weights = q @ k.mT
    total = weights.sum(dim=-1, keepdim=True)
    return (weights.tril() if causal else weights) @ v / total


def linear_keys_mapped(q, k, v, causal=False):
    return weigh(q, positive(k), v, causal)


def linear_queries_mapped(q, k, v, causal=False):
    return weigh(positive(q), k, v, causal)


def linear_plus_two(q, k, v, causal=False):
    return weigh(F.elu(q) + 2, F.elu(k) + 2, v, causal)


def linear_exp(q, k, v, causal=False):
    return weigh(q.exp(), k.exp(), v, causal)


def linear_mapped_twice(q, k, v, causal=False):
    """elu(y) + 1 of a positive y is y + 1: elu(x) + 2 in all."""
    return weigh(positive(positive(q)), positive(positive(k)), v, causal)


def linear_softmax_of_features(q, k, v, causal=False):
    return weigh(q.softmax(dim=-1), k.softmax(dim=-1), v, causal)


def linear_scaled_queries(q, k, v, causal=False):
    return weigh(positive(q / q.size(-1) ** 0.5), positive(k), v, causal)


def linear_of_softmax(q, k, v, causal=False):
    hidden = torch.ones(q.size(2), k.size(2), dtype=torch.bool).triu(1) if causal else torch.zeros((), dtype=torch.bool)
    return (q @ k.mT / q.size(-1) ** 0.5).masked_fill(hidden, float("-inf")).softmax(-1) @ v


def linear_always_causal(q, k, v, causal=False):
    weights = (positive(q) @ positive(k).mT).tril(k.size(2) - q.size(2))
    return weights @ v / weights.sum(dim=-1, keepdim=True)


EXPECTED = {
    "linear_attention": "linear-not-normalised",
    "linear_without_division": "linear-not-normalised",
    "linear_without_map": "linear-no-feature-map",
    "linear_maps_values": "linear-map-on-values",
    "linear_never_causal": "linear-causal-ignored",
    "linear_normalised_by_queries": "linear-normaliser-of-query",
    "linear_elu": "linear-elu-without-one",
    "linear_relu": "linear-relu-map",
    "linear_over_length": "linear-divided-by-length",
    "linear_columns": "linear-normalised-over-queries",
    "linear_sum_of_all": "linear-normaliser-not-causal",
    "linear_keys_mapped": "linear-query-not-mapped",
    "linear_queries_mapped": "linear-key-not-mapped",
    "linear_plus_two": "linear-elu-two",
    "linear_exp": "linear-exp-map",
    "linear_mapped_twice": "linear-elu-two",
    "linear_softmax_of_features": "linear-softmax-map",
    "linear_scaled_queries": "linear-scaled",
    "linear_of_softmax": "linear-softmax-instead",
    "linear_always_causal": "linear-causal-unasked",
}
TASK = {name: "linear" for name in EXPECTED}
