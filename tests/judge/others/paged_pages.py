import numpy as np


def paged_attention(query, k_pool, v_pool, block_tables, context_lens):
    batch, dim = query.shape
    page_size = k_pool.shape[1]
    result = np.zeros_like(query)
    for b in range(batch):
        top, weight, acc = -np.inf, 0.0, np.zeros(dim)
        left = context_lens[b]
        for page in block_tables[b]:
            if left <= 0:
                break
            used = min(left, page_size)
            s = k_pool[page, :used] @ query[b] / np.sqrt(dim)
            new = max(top, s.max())
            p, old = np.exp(s - new), np.exp(top - new)
            weight = weight * old + p.sum()
            acc = acc * old + p @ v_pool[page, :used]
            top, left = new, left - used
        result[b] = acc / weight
    return result
