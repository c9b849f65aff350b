import torch


def turned(x, base):
    """x: (batch, seq, heads, dim); neighbours (0, 1), (2, 3), ... are turned together."""
    angles = torch.outer(torch.arange(x.size(1)), base ** (-torch.arange(0, x.size(-1), 2) / x.size(-1)))
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)[:, None]).flatten(-2)


def rope_attention(q, k, v, base=10000.0):
    """q, k, v: (batch, seq, heads, dim)"""
    q, k = turned(q, base), turned(k, base)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.size(-1) ** 0.5
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
