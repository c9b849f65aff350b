import numpy as np


def cross_entropy(logits, targets, ignore_index=-100):
    """Returns (loss, dlogits)."""
    keep = targets != ignore_index
    logs = logits - logits.max(1, keepdims=True)
    logs = logs - np.log(np.exp(logs).sum(1, keepdims=True))
    rows = np.nonzero(keep)[0]
    slope = np.exp(logs)
    slope[rows, targets[rows]] -= 1
    slope[~keep] = 0
    return -logs[rows, targets[rows]].sum() / keep.sum(), slope / keep.sum()
