# A colon is missing. EXPECTED = {"sdpa": "failed"}
def sdpa(q, k, v, mask=None)
    return v
