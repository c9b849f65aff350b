"""qkv among threads and processes: one pool, the interpreter's lock released, fork, multiprocessing, DataLoader workers,
PyTorch's OpenMP beside it. Behaviour only; what it costs is measured in docs/dev/performance.md.
"""

import multiprocessing
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import qkv
from support import problem

LIMIT = 60.0  # seconds after which something hangs


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = qkv.num_threads()
    yield
    qkv.set_num_threads(before)


def gradients(seed: int) -> bytes:
    """Bits of out, dq, dk, dv of a problem that is large enough for every thread to get work."""
    q, k, v = problem(seed, 2, 4, 200, 200, 32)
    out, lse = qkv.attention(q, k, v, causal=True, return_lse=True)
    made = qkv.attention_backward(np.ones_like(out), q, k, v, out, lse, causal=True)
    return b"".join(x.tobytes() for x in (out, made.dq, made.dk, made.dv))


def in_child(body: Callable[[], bytes]) -> bytes:
    """The result of body in a child of fork; fails instead of hanging."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            with os.fdopen(writing, "wb") as stream:
                stream.write(body())
        finally:
            os._exit(0)
    os.close(writing)
    received = b""
    end = time.monotonic() + LIMIT
    while select.select([reading], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(reading, 1 << 20)
        if not part:
            os.waitpid(child, 0)
            os.close(reading)
            return received
        received += part
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reading)
    pytest.fail("the child hangs")


def test_any_number_of_threads_gives_the_same_bits() -> None:
    results = []
    for n in (1, 2, 3, 8):
        qkv.set_num_threads(n)
        assert qkv.num_threads() == n
        results.append(gradients(1))
    assert len(set(results)) == 1
    with pytest.raises(ValueError, match="at least 1"):
        qkv.set_num_threads(0)


def test_every_instruction_set_of_this_cpu_may_be_set() -> None:
    best = qkv.isa()
    q, k, v = problem(8, 1, 2, 70, 70, 16)
    results = []
    for name in qkv.supported_isas():
        qkv.set_isa(name)
        assert qkv.isa() == name
        results.append(qkv.attention(q, k, v, causal=True))
    qkv.set_isa(best)
    assert all(np.allclose(x, results[0], atol=1e-5) for x in results)


def test_callers_at_once_get_the_same_bits() -> None:
    want = [gradients(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(gradients, list(range(4)) * 4)) == want * 4


def test_threads_may_be_changed_while_others_compute() -> None:
    want = gradients(1)
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(gradients, 1) for _ in range(12)]
        for n in range(20):
            qkv.set_num_threads(1 + n % 3)
        assert all(one.result() == want for one in running)


def test_the_interpreters_lock_is_released() -> None:
    q, k, v = problem(1, 1, 8, 2048, 2048, 64)
    started = threading.Event()

    def compute() -> None:
        started.set()
        qkv.attention(q, k, v)

    thread = threading.Thread(target=compute)
    thread.start()
    started.wait()
    turns = 0
    while thread.is_alive():
        turns += 1
        time.sleep(0.0005)
    assert turns > 5


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_fork_after_a_call(threads: int) -> None:
    qkv.set_num_threads(threads)
    want = gradients(1)
    assert in_child(lambda: gradients(1)) == want
    assert gradients(1) == want  # the parent goes on
    assert in_child(lambda: in_child(lambda: gradients(1))) == want  # a child of a child


def test_a_child_may_set_its_own_threads() -> None:
    want = gradients(1)

    def body() -> bytes:
        qkv.set_num_threads(3)
        return gradients(1)

    assert in_child(body) == want


def test_fork_while_other_threads_compute() -> None:
    want = gradients(1)
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            gradients(2)

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            assert in_child(lambda: gradients(1)) == want
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(method: str) -> None:
    want = [gradients(seed) for seed in (1, 2, 3)]
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map_async(gradients, [1, 2, 3]).get(LIMIT) == want


class _Attended:
    """A data set whose items are computed by attention."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, n: int) -> np.ndarray:
        q, k, v = problem(n, 1, 2, 100, 100, 16)
        return qkv.attention(q, k, v)


def test_data_loader_workers() -> None:
    torch = pytest.importorskip("torch")
    want = np.stack([_Attended()[n] for n in range(6)])
    for persistent in (False, True):
        loader = torch.utils.data.DataLoader(
            _Attended(), batch_size=2, num_workers=2, timeout=LIMIT, persistent_workers=persistent
        )
        for _ in range(2):
            np.testing.assert_array_equal(torch.cat(list(loader)).numpy(), want)


def test_beside_torchs_threads() -> None:
    torch = pytest.importorskip("torch")
    want, x = gradients(1), torch.linspace(0, 1, 300_000)
    want_sum = torch.exp(x)
    for _ in range(10):
        assert gradients(1) == want
        assert torch.equal(torch.exp(x), want_sum)


def test_a_daemon_thread_that_computes_at_the_end_does_not_abort() -> None:
    script = """
import threading, time, numpy as np, qkv
q = np.zeros((1, 8, 300, 64), "f4")
def busy():
    while True: qkv.attention(q, q, q)
threading.Thread(target=busy, daemon=True).start(); time.sleep(0.2)
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 0, done.stderr


def test_no_second_openmp_is_linked() -> None:
    ldd = shutil.which("ldd")
    if ldd is None:
        pytest.skip("needs ldd")
    folder = pathlib.Path(qkv.__file__).parent
    files = [path for path in folder.glob("*.so*") if re.match(r"_core|_jax|libqkv\.", path.name)]
    assert len(files) >= 3
    for path in files:
        linked = subprocess.run([ldd, str(path)], capture_output=True, text=True, check=True).stdout
        assert not re.search(r"gomp|libomp|iomp|OpenCL|dnnl", linked), f"{path.name}: {linked}"


def test_no_executable_stack() -> None:
    """Loading a library that asks for one makes every thread's stack executable, or fails (glibc 2.41)."""
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("needs readelf")
    libraries = list(pathlib.Path(qkv.__file__).parent.glob("*.so*"))
    assert len(libraries) >= 2
    for path in libraries:
        headers = subprocess.run([readelf, "-lW", str(path)], capture_output=True, text=True, check=True).stdout
        stack = [line for line in headers.splitlines() if "GNU_STACK" in line]
        assert len(stack) == 1 and "RWE" not in stack[0], f"{path.name}: {stack}"


def test_size() -> None:
    """Of a wheel, unpacked: attention alone under 5 MiB, all at most 15 MB."""
    folder = pathlib.Path(qkv.__file__).parent
    attention = [path for path in folder.glob("*.so") if re.match(r"_core|libqkv\.", path.name)]
    if any(b".symtab" in path.read_bytes() for path in attention):
        pytest.skip("not stripped, as a wheel is")
    assert len(attention) == 2 and sum(path.stat().st_size for path in attention) < 5 * 2**20
    everything = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in everything) <= 15e6


def test_importing_qkv_starts_no_thread_and_imports_no_framework() -> None:
    script = (
        "import sys, os, qkv; "
        "print(len(os.listdir('/proc/self/task')), [m for m in ('torch', 'jax', 'transformers', 'matplotlib') if m in sys.modules])"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # NumPy's own
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "1 []"


def test_judgements_of_several_threads_leave_standard_output_where_it_was() -> None:
    def sdpa(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        print("dropped")
        return v

    before = sys.stdout, sys.stderr, np.random.get_state()[2]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: qkv.judge(sdpa, task="sdpa").verdict, range(6)))
    assert len(set(found)) == 1 and (sys.stdout, sys.stderr, np.random.get_state()[2]) == before
