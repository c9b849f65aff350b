"""The tiled online softmax gone wrong: what is carried from block to block, what the last block is."""

import math

import torch


def flash(q, k, v, block_size, causal=False):
    """The running sum is not brought to the new maximum."""
    B, H, Tq, d = q.shape
    Tk = k.shape[2]
    out = torch.zeros_like(q)
    row_max = torch.full((B, H, Tq, 1), float("-inf"), dtype=q.dtype)
    row_sum = torch.zeros((B, H, Tq, 1), dtype=q.dtype)
    rows = torch.arange(Tq)[:, None] + Tk - Tq
    for start in range(0, Tk, block_size):
        kj, vj = k[:, :, start : start + block_size], v[:, :, start : start + block_size]
        s = q @ kj.transpose(-2, -1) / math.sqrt(d)
        if causal:
            columns = torch.arange(start, start + kj.shape[2])[None, :]
            s = s.masked_fill(columns > rows, -1e30)
        new_max = torch.maximum(row_max, s.amax(dim=-1, keepdim=True))
        p = torch.exp(s - new_max)
        alpha = torch.exp(row_max - new_max)
        row_sum = row_sum + p.sum(dim=-1, keepdim=True)
        out = out * alpha + p @ vj
        row_max = new_max
    return out / row_sum


class Tiles:
    """Right; what follows changes a step. Called as a function of its own below."""

    def blocks(self, keys, size):
        return [(start, min(start + size, keys)) for start in range(0, keys, size)]

    def hidden(self, start, end, queries, keys):
        return torch.arange(start, end)[None, :] > torch.arange(queries)[:, None] + keys - queries

    def new_max(self, m, block):
        return torch.maximum(m, block)

    def carry(self, m, new):
        return new

    def sum(self, total, alpha, p):
        return total * alpha + p.sum(-1, keepdim=True)

    def add(self, acc, alpha, p, v, total):
        return acc * alpha + p @ v

    def end(self, acc, total):
        return acc / total

    def __call__(self, q, k, v, size, causal):
        acc = torch.zeros(*q.shape[:-1], v.size(-1), dtype=q.dtype)
        m = torch.full((*q.shape[:-1], 1), -math.inf, dtype=q.dtype)
        total = torch.zeros_like(m)
        for start, end in self.blocks(k.size(-2), size):
            s = q @ k[..., start:end, :].mT * q.size(-1) ** -0.5
            if causal:
                s = s.masked_fill(self.hidden(start, end, q.size(-2), k.size(-2)), -1e30)
            new = self.new_max(m, s.amax(-1, keepdim=True))
            p, alpha = torch.exp(s - new), torch.exp(m - new)
            total = self.sum(total, alpha, p)
            acc = self.add(acc, alpha, p, v[..., start:end, :], total)
            m = self.carry(m, new)
        return self.end(acc, total)


class SumLeft(Tiles):
    def sum(self, total, alpha, p):
        return total + p.sum(-1, keepdim=True)


class OutputLeft(Tiles):
    def add(self, acc, alpha, p, v, total):
        return acc + p @ v


class MaximumLeft(Tiles):
    """m = new is missing: alpha is exp(-inf - new) = 0 in each block."""

    def carry(self, m, new):
        return m


class Undivided(Tiles):
    def end(self, acc, total):
        return acc


class DividedInside(Tiles):
    def add(self, acc, alpha, p, v, total):
        return (acc * alpha + p @ v) / total

    def end(self, acc, total):
        return acc


class WholeBlocksOnly(Tiles):
    """Keys behind the last whole block are left out; fewer keys than one block are one block."""

    def blocks(self, keys, size):
        return [(i * size, (i + 1) * size) for i in range(keys // size)] or [(0, keys)]


class OneBlock(Tiles):
    def blocks(self, keys, size):
        return super().blocks(keys, size)[:1]


class MaskOfEachBlock(Tiles):
    """Columns counted from the block's first key."""

    def hidden(self, start, end, queries, keys):
        return torch.arange(end - start)[None, :] > torch.arange(queries)[:, None] + keys - queries


class TilesUnscaled(Tiles):
    def __call__(self, q, k, v, size, causal):
        return super().__call__(q * q.size(-1) ** 0.5, k, v, size, causal)


def flash_sum_left(q, k, v, block_size, causal=False):
    return SumLeft()(q, k, v, block_size, causal)


def flash_output_left(q, k, v, block_size, causal=False):
    return OutputLeft()(q, k, v, block_size, causal)


def flash_maximum_left(q, k, v, block_size):
    return MaximumLeft()(q, k, v, block_size, False)


def flash_undivided(q, k, v, block_size, causal=False):
    return Undivided()(q, k, v, block_size, causal)


def flash_divided_inside(q, k, v, block_size, causal=False):
    return DividedInside()(q, k, v, block_size, causal)


def flash_whole_blocks_only(q, k, v, block_size, causal=False):
    return WholeBlocksOnly()(q, k, v, block_size, causal)


def flash_one_block(q, k, v, block_size, causal=False):
    return OneBlock()(q, k, v, block_size, causal)


def flash_mask_of_each_block(q, k, v, block_size, causal=False):
    return MaskOfEachBlock()(q, k, v, block_size, causal)


def flash_unscaled(q, k, v, block_size, causal=False):
    return TilesUnscaled()(q, k, v, block_size, causal)


class OwnMaximumOnly(Tiles):
    """Each tile under its own maximum; nothing is rescaled."""

    def new_max(self, m, block):
        return block

    def sum(self, total, alpha, p):
        return total + p.sum(-1, keepdim=True)

    def add(self, acc, alpha, p, v, total):
        return acc + p @ v


class RescaledTwice(Tiles):
    def sum(self, total, alpha, p):
        return total * alpha**2 + p.sum(-1, keepdim=True)

    def add(self, acc, alpha, p, v, total):
        return acc * alpha * alpha + p @ v


class NewTileRescaled(Tiles):
    """alpha on the wrong summand; the first tile, whose alpha is 0, is taken as it is."""

    def factor(self, alpha):
        return torch.where(alpha == 0, torch.ones_like(alpha), alpha)

    def sum(self, total, alpha, p):
        return total + self.factor(alpha) * p.sum(-1, keepdim=True)

    def add(self, acc, alpha, p, v, total):
        return acc + self.factor(alpha) * (p @ v)


class DividedTwice(Tiles):
    def end(self, acc, total):
        return acc / total / total


class LastTileOnly(Tiles):
    """= where += is meant."""

    def sum(self, total, alpha, p):
        return p.sum(-1, keepdim=True)

    def add(self, acc, alpha, p, v, total):
        return p @ v


class SharedKeys(Tiles):
    """The next tile begins with the key that ended the last one."""

    def blocks(self, keys, size):
        return [(max(start - 1, 0), min(start + size, keys)) for start in range(0, keys, size)]


class WholeTilesHidden(Tiles):
    """A tile is skipped when all of it is in the future; inside one nothing is hidden."""

    def hidden(self, start, end, queries, keys):
        rows = torch.arange(queries)[:, None] + keys - queries
        return (start > rows).expand(queries, end - start)


class DiagonalTileMissing(Tiles):
    """A tile counts only when its last key is in the past; a row that sees nothing gives NaN."""

    def hidden(self, start, end, queries, keys):
        rows = torch.arange(queries)[:, None] + keys - queries
        return (end - 1 > rows).expand(queries, end - start)


def flash_own_maximum(q, k, v, block_size):
    return OwnMaximumOnly()(q, k, v, block_size, False)


def flash_rescaled_twice(q, k, v, block_size, causal=False):
    return RescaledTwice()(q, k, v, block_size, causal)


def flash_new_tile_rescaled(q, k, v, block_size):
    return NewTileRescaled()(q, k, v, block_size, False)


def flash_divided_twice(q, k, v, block_size, causal=False):
    return DividedTwice()(q, k, v, block_size, causal)


def flash_last_tile_only(q, k, v, block_size):
    return LastTileOnly()(q, k, v, block_size, False)


def flash_shared_keys(q, k, v, block_size, causal=False):
    return SharedKeys()(q, k, v, block_size, causal)


def flash_whole_tiles_hidden(q, k, v, block_size, causal=False):
    return WholeTilesHidden()(q, k, v, block_size, causal)


def flash_diagonal_tile_missing(q, k, v, block_size, causal=False):
    return DiagonalTileMissing()(q, k, v, block_size, causal)


def flash_sum_of_softmaxes(q, k, v, block_size):
    """A softmax for each tile; outputs are added."""
    tiles = zip(k.split(block_size, dim=2), v.split(block_size, dim=2))
    return sum(torch.softmax(q @ kj.mT / math.sqrt(q.size(-1)), dim=-1) @ vj for kj, vj in tiles)


def flash_mean_of_softmaxes(q, k, v, block_size):
    tiles = zip(k.split(block_size, dim=2), v.split(block_size, dim=2))
    outs = [torch.softmax(q @ kj.mT / math.sqrt(q.size(-1)), dim=-1) @ vj for kj, vj in tiles]
    return torch.stack(outs).mean(dim=0)


def flash_divided_by_maximum(q, k, v, block_size):
    """m for l in the last line."""
    acc, m = torch.zeros_like(q), torch.full_like(q[..., :1], float("-inf"))
    for kj, vj in zip(k.split(block_size, dim=2), v.split(block_size, dim=2)):
        s = q @ kj.mT / math.sqrt(q.size(-1))
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        acc = acc * torch.exp(m - new) + torch.exp(s - new) @ vj
        m = new
    return acc / m


def flash_padded(q, k, v, block_size):
    """Keys and values are filled up with zeros to whole tiles; the zeros are keys too."""
    rest = -k.size(2) % block_size
    k, v = (torch.nn.functional.pad(y, (0, 0, 0, rest)) for y in (k, v))
    return Tiles()(q, k, v, block_size, False)


def flash_zero_maximum(q, k, v, block_size):
    out, total, largest = torch.zeros_like(q), torch.zeros_like(q[..., :1]), torch.zeros_like(q[..., :1])
    for keys, values in zip(k.split(block_size, dim=2), v.split(block_size, dim=2)):
        scores = q @ keys.transpose(-1, -2) * q.size(-1) ** -0.5
        now = torch.maximum(largest, scores.amax(-1, keepdim=True))
        e, back = (scores - now).exp(), (largest - now).exp()
        out, total, largest = out * back + e @ values, total * back + e.sum(-1, keepdim=True), now
    return out / total


EXPECTED = {
    "flash_zero_maximum": "flash-maximum-from-zero",
    "flash": "flash-sum-not-rescaled",
    "flash_sum_left": "flash-sum-not-rescaled",
    "flash_output_left": "flash-output-not-rescaled",
    "flash_maximum_left": "flash-last-block-only",
    "flash_undivided": "flash-not-divided",
    "flash_divided_inside": "flash-divided-per-block",
    "flash_whole_blocks_only": "flash-last-block-short",
    "flash_one_block": "flash-first-block-only",
    "flash_mask_of_each_block": "flash-causal-per-block",
    "flash_unscaled": "no-scale",
    "flash_own_maximum": "flash-maximum-not-carried",
    "flash_rescaled_twice": "flash-factor-squared",
    "flash_new_tile_rescaled": "flash-new-tile-rescaled",
    "flash_divided_twice": "flash-divided-twice",
    "flash_last_tile_only": "flash-last-block-only",
    "flash_shared_keys": "flash-blocks-overlap",
    "flash_whole_tiles_hidden": "flash-causal-by-block",
    "flash_diagonal_tile_missing": "flash-diagonal-block-missing",
    "flash_sum_of_softmaxes": "flash-blocks-added",
    "flash_mean_of_softmaxes": "flash-blocks-averaged",
    "flash_divided_by_maximum": "flash-divided-by-maximum",
    "flash_padded": "flash-last-block-padded",
}
TASK = {name: "flash" for name in EXPECTED}
