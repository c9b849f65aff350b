"""Two forks and a session of its own: a process that outlives its parent. It holds a file open that says who it is."""

import os
import time


def sdpa(q, k, v, mask=None):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with open("/proc/self/comm", "w") as name:
                name.write("qkv-grandchild")
            time.sleep(600)
        os._exit(0)
    while True:
        time.sleep(0.1)


EXPECTED = {"sdpa": "failed"}
