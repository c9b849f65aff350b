"""Rotary positions gone wrong."""

import math

import torch


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def angles_of(x, positions, base):
    inverse = base ** (-torch.arange(0, x.size(-1), 2, dtype=torch.float64) / x.size(-1))
    return positions.to(torch.float64)[:, None] * inverse


def turn(x, angles):
    twice = torch.cat((angles, angles), dim=-1)
    return (x * twice.cos() + rotate_half(x) * twice.sin()).to(x.dtype)


def rope_from_one(x, positions, base=10000.0):
    return turn(x, angles_of(x, positions + 1, base))


def rope_first_is_one(x, positions, base=10000.0):
    """Adjacent pairs, positions from 1."""
    half = torch.arange(x.size(-1) // 2, dtype=x.dtype)
    theta = (positions.to(x.dtype) + 1).unsqueeze(-1) * base ** (-2 * half / x.size(-1))
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * theta.cos() - odd * theta.sin(), even * theta.sin() + odd * theta.cos()), dim=-1).flatten(-2)


def rope_base_of_its_own(x, positions, base=10000.0):
    return turn(x, angles_of(x, positions, 500.0))


def rope_exponent_too_small(x, positions, base=10000.0):
    """i / d, where 2 i / d is right."""
    d = x.size(-1)
    inverse = 1.0 / base ** (torch.arange(d // 2) / d)
    return turn(x, positions[:, None] * inverse)


def rope_backwards(x, positions, base=10000.0):
    angles = angles_of(x, positions, base)
    cos, sin = angles.cos(), angles.sin()
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos + b * sin, b * cos - a * sin), dim=-1)


def rope_pairs_mixed(x, positions, base=10000.0):
    """Angles laid out for adjacent pairs, features turned as halves."""
    angles = angles_of(x, positions, base).repeat_interleave(2, dim=-1)
    return x * angles.cos() + rotate_half(x) * angles.sin()


def rope_one_speed(x, positions, base=10000.0):
    """Every pair turns as fast as the first."""
    return turn(x, positions.to(torch.float64)[:, None].expand(-1, x.size(-1) // 2))


def attend(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(q.size(-1)), dim=-1) @ v


def rope_attention_values_too(q, k, v, positions, base=10000.0):
    angles = angles_of(q, positions, base)
    return attend(turn(q, angles), turn(k, angles), turn(v, angles))


def rope_attention_queries_only(q, k, v, positions, base=10000.0):
    return attend(turn(q, angles_of(q, positions, base)), k, v)


def rope_attention_keys_only(q, k, v, positions, base=10000.0):
    return attend(q, turn(k, angles_of(k, positions, base)), v)


def rope_attention_unscaled(q, k, v, positions, base=10000.0):
    angles = angles_of(q, positions, base)
    return torch.softmax(turn(q, angles) @ turn(k, angles).mT, dim=-1) @ v


def rope_doubled_twos(x, positions, base=10000.0):
    inverse = base ** (-2 * torch.arange(0, x.size(-1), 2, dtype=x.dtype) / x.size(-1))
    return turn(x, positions[:, None] * inverse)


def rope_sign_of_exponent(x, positions, base=10000.0):
    return turn(x, positions[:, None] * base ** (torch.arange(0, x.size(-1), 2, dtype=x.dtype) / x.size(-1)))


def rope_one_frequency_late(x, positions, base=10000.0):
    return turn(x, positions[:, None] * base ** (-torch.arange(2, x.size(-1) + 1, 2, dtype=x.dtype) / x.size(-1)))


def rope_flipped_frequencies(x, positions, base=10000.0):
    return turn(x, angles_of(x, positions, base).flip(-1))


def rope_half_without_minus(x, positions, base=10000.0):
    twice = angles_of(x, positions, base).repeat(1, 2)
    return x * twice.cos() + torch.roll(x, x.size(-1) // 2, dims=-1) * twice.sin()


def rope_exchanged_functions(x, positions, base=10000.0):
    twice = angles_of(x, positions, base).repeat(1, 2)
    cos, sin = twice.sin(), twice.cos()
    return x * cos + rotate_half(x) * sin


def rope_of_cosines(x, positions, base=10000.0):
    return x * angles_of(x, positions, base).repeat(1, 2).cos()


def rope_as_embedding(x, positions, base=10000.0):
    angles = angles_of(x, positions, base)
    return x + torch.cat([angles.sin(), angles.cos()], dim=-1)


def rope_from_zero(x, positions, base=10000.0):
    return turn(x, angles_of(x, torch.arange(x.size(-2)), base))


def rope_attention_plain(q, k, v, positions, base=10000.0):
    return attend(q, k, v)


def rope_attention_two_turns(q, k, v, positions, base=10000.0):
    once = angles_of(q, positions, base)
    q, k = turn(q, once), turn(k, once)
    return attend(turn(q, once), turn(k, once), v)


def rope_along_heads(x, positions, base=10000.0):
    """size(1) is the number of heads here."""
    return turn(x, angles_of(x, torch.arange(x.size(1)), base).unsqueeze(1))


EXPECTED = {
    "rope_from_one": "rope-positions-from-one",
    "rope_first_is_one": "rope-positions-from-one",
    "rope_base_of_its_own": "rope-wrong-base",
    "rope_exponent_too_small": "rope-exponent-halved",
    "rope_backwards": "rope-direction-reversed",
    "rope_pairs_mixed": "rope-pairs-mixed",
    "rope_one_speed": "rope-same-angle",
    "rope_attention_values_too": "rope-value-turned",
    "rope_attention_queries_only": "rope-query-only",
    "rope_attention_keys_only": "rope-key-only",
    "rope_attention_unscaled": "no-scale",
    "rope_doubled_twos": "rope-exponent-doubled",
    "rope_sign_of_exponent": "rope-exponent-sign",
    "rope_one_frequency_late": "rope-exponents-from-two",
    "rope_flipped_frequencies": "rope-angles-reversed",
    "rope_half_without_minus": "rope-sign-missing",
    "rope_exchanged_functions": "rope-sine-cosine-exchanged",
    "rope_of_cosines": "rope-cosine-only",
    "rope_as_embedding": "rope-added",
    "rope_from_zero": "rope-positions-not-used",
    "rope_attention_plain": "rope-not-used",
    "rope_attention_two_turns": "rope-turned-twice",
    "rope_along_heads": "rope-positions-per-head",
}
TASK = {name: "rope" for name in EXPECTED}
