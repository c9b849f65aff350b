"""qkv's dropout in NumPy: Philox 4x32-10 (Salmon et al. 2011) and the rule of include/qkv/attention.h on top of it.

Not fast: whole arrays, for golden files. `weight_factors` is the dropout of attention weights, `output_factors` that of a
layer's output (include/qkv/nn/dropout.h).
"""

import numpy as np

LOW = np.uint64(0xFFFFFFFF)
WORD = np.uint64(32)
OUTPUT_KEY = 0x9E3779B97F4A7C15  # xor with the seed, so that one seed serves weights and output without repeating numbers


def philox4x32(counter, seed):
    """counter: four integer arrays that broadcast -> the four words, as uint64 arrays below 2^32."""
    c0, c1, c2, c3 = (np.asarray(c, dtype=np.uint64) & LOW for c in counter)
    key0, key1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        product0 = np.uint64(0xD2511F53) * c0
        product1 = np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = ((product1 >> WORD) ^ c1 ^ np.uint64(key0), product1 & LOW,
                          (product0 >> WORD) ^ c3 ^ np.uint64(key1), product0 & LOW)
        key0 = (key0 + 0x9E3779B9) & 0xFFFFFFFF
        key1 = (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def check_known_answers():
    """The three published vectors of Random123's kat_vectors."""
    ones = 0xFFFFFFFF
    known = [
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ones,) * 4, ones << 32 | ones, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), 0x299F31D0 << 32 | 0xA4093822,
         (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ]
    for counter, seed, words in known:
        got = tuple(int(word) for word in philox4x32(counter, seed))
        if got != words:
            raise AssertionError(f"philox4x32{counter}: got {got}, expected {words}")


def _factors(rows, columns, sequences, p, seed):
    """[S, rows, columns]: 0 or 65536 / (65536 - t), t = round(p * 65536)."""
    threshold = int(np.floor(p * 65536 + 0.5))
    if threshold == 65536:
        return np.zeros((sequences, rows, columns))
    row = np.arange(rows)[None, :, None]
    column = np.arange(columns)[None, None, :]
    sequence = np.arange(sequences)[:, None, None]
    words = np.stack(np.broadcast_arrays(*philox4x32((row, column // 8, sequence, 0), seed)))
    half = np.broadcast_to(column % 8, words.shape[1:])
    word = np.take_along_axis(words, (half // 2)[None], axis=0)[0]
    bits = (word >> (16 * (half % 2)).astype(np.uint64)) & np.uint64(0xFFFF)
    return np.where(bits < threshold, 0.0, 65536.0 / (65536 - threshold))


def weight_factors(batch, heads, q_len, kv_len, p, seed):
    """[B, H, Tq, Tk]; counter (i, j / 8, b * H + h, 0), key j reads 16-bit half j % 8, low half of word 0 first."""
    return _factors(q_len, kv_len, batch * heads, p, seed).reshape(batch, heads, q_len, kv_len)


def output_factors(batch, length, width, p, seed):
    """[B, T, E]; counter (t, e / 8, b, 0), feature e reads half e % 8; key = seed ^ 0x9E3779B97F4A7C15."""
    return _factors(length, width, batch, p, seed ^ OUTPUT_KEY)
