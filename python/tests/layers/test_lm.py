"""qkv.AttentionLM: gives the losses of `qkv train`, resumes, generates, shows its weights, stops at Ctrl-C."""

import copy
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qkv
from qkv.__main__ import TOOL
from qkv.lm import AttentionLM, default_text


@pytest.fixture(scope="module")
def trained() -> AttentionLM:
    model = AttentionLM()
    model.fit(steps=300, progress=False)
    return model


def test_a_trained_models_file_is_loaded_into_another(tmp_path: Path) -> None:
    model = AttentionLM(width=16)
    model.fit(steps=2, progress=False)
    model.save(tmp_path / "m.safetensors")
    other = AttentionLM(width=16, seed=5)
    other.load(tmp_path / "m.safetensors")
    assert all(np.array_equal(x, other.state_dict()[name]) for name, x in model.state_dict().items())
    copied = copy.copy(model)
    copied.fit(steps=3, progress=False)
    assert len(model.losses) == 2 and len(copied.losses) == 5


@pytest.mark.parametrize("stream", [None, io.StringIO(), object()])
def test_training_needs_no_console(monkeypatch: pytest.MonkeyPatch, stream: Any) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    assert len(AttentionLM(width=8).fit(steps=3)) == 3


@pytest.mark.parametrize(
    "options,fit,flags",
    [
        ({}, {}, []),
        ({"heads": 2, "width": 16, "seed": 3}, {"batch": 8, "lr": 1e-2, "seed": 3}, "--heads 2 --dim 16 --seed 3 --batch 8 --lr 0.01"),
        ({"layers": 2, "blocks": True, "dropout": 0.1}, {"schedule": "cosine", "warmup": 5, "clip": 1.0, "weight_decay": 0.1},
         "--layers 2 --blocks --dropout 0.1 --schedule cosine --warmup 5 --clip 1 --weight-decay 0.1"),
        ({"heads": 4, "kv_heads": 2, "positions": "rotary", "context": 24}, {}, "--heads 4 --kv-heads 2 --positions rotary --context 24"),
        ({"positions": "rotary", "rope": {"base": 500000.0, "scaling": "linear", "factor": 2.0}}, {},
         "--positions rotary --rope base=500000,scaling=linear,factor=2"),
        ({"task": "previous"}, {}, "--task previous"),
        ({"task": "masked"}, {}, "--task masked"),
        ({"task": "same"}, {}, "--task same"),
        ({"task": "induction"}, {}, "--task induction"),
        ({"task": "induction", "blocks": False, "positions": "learned", "layers": 1}, {"batch": 4, "lr": 0.01},
         "--task induction --no-blocks --positions learned --layers 1 --batch 4 --lr 0.01"),
    ],
    ids=["default", "heads", "blocks", "grouped-rotary", "rope", "previous", "masked", "same", "induction", "induction-options"],
)  # fmt: skip
def test_the_losses_of_the_tool(options: dict[str, Any], fit: dict[str, Any], flags: Any) -> None:
    if not TOOL.is_file():
        pytest.skip("the tool is not in the package")
    words = flags.split() if isinstance(flags, str) else flags
    done = subprocess.run([TOOL, "train", "--json", "--steps", "30", *words], capture_output=True, text=True, check=True)
    theirs = json.loads(done.stdout)
    model = AttentionLM(**options)
    assert model.fit(steps=30, progress=False, **fit) == theirs["losses"]
    assert model.parameter_count == theirs["parameters"]
    if options.get("task") != "masked":
        sample = theirs["sample"]
        assert np.allclose(
            model.attention_map(sample["text"]).weights.reshape(-1)[: 8 * 8], np.ravel(sample["weights"])[: 8 * 8], atol=1e-6
        )


def test_resumes_where_it_stopped(tmp_path: Path) -> None:
    whole, parts = AttentionLM(), AttentionLM()
    losses = whole.fit(steps=40, progress=False)
    first = parts.fit(steps=15, progress=False)
    parts.save(tmp_path / "m.safetensors")
    again = AttentionLM.from_file(tmp_path / "m.safetensors")
    assert again.steps == 15
    assert first + again.fit(default_text(), steps=40, resume=True, progress=False) == losses
    assert first + parts.fit(steps=40, resume=True, progress=False) == losses == parts.losses
    for name, array in whole.state_dict().items():
        assert np.array_equal(array, again.state_dict()[name]), name


def test_generates(trained: AttentionLM, tmp_path: Path) -> None:
    text = trained.generate("ab", 100, seed=3)
    assert len(text) == 100 and set(text) <= set(trained.vocabulary)
    assert trained.generate("ab", 100, seed=3) == text != trained.generate("ab", 100, seed=4)
    greedy = trained.generate("xyzxy", 20, temperature=0)
    assert greedy == trained.generate("xyzxy", 20, greedy=True, seed=9)
    assert trained.vocabulary[trained.logits("xyzxy")[-1].argmax()] == greedy[0]
    trained.save(tmp_path / "m.safetensors")
    assert AttentionLM.from_file(tmp_path / "m.safetensors").generate("ab", 100, seed=3) == text
    with pytest.raises(ValueError, match="q"):
        trained.generate("q", 5)
    with pytest.raises(ValueError):
        trained.generate("", 5)


def test_attention_map(trained: AttentionLM) -> None:
    weights = trained.attention_map("abababab")
    assert weights.shape == (1, 8, 8) and weights.tokens == list("abababab") and len(weights) == 1
    assert np.allclose(np.asarray(weights).sum(-1), 1, atol=1e-6)
    assert not np.triu(weights[0], 1).any()
    share = trained.shares("abababab")[0]
    assert share["self"]["mean"] == pytest.approx(np.diag(weights[0])[1:].mean(), abs=1e-6)
    assert share["previous"]["mean"] == pytest.approx(np.diag(weights[0], -1).mean(), abs=1e-6)
    deep = AttentionLM(layers=2, heads=2)
    assert deep.attention_map("abc").shape == (2, 2, 3, 3)
    assert deep.attention_map("abc", layer=1).shape == (2, 3, 3)
    with pytest.raises(ValueError, match="16"):
        trained.attention_map("a" * 17)


def test_heads_that_are_cut() -> None:
    model = AttentionLM(layers=2, heads=2, seed=3)
    whole, cut = model.logits("abcabc"), model.logits("abcabc", cut=[(0, 1)])
    state = model.state_dict()
    zeroed = AttentionLM(layers=2, heads=2)
    name = next(name for name in state if name.startswith("attn.0.") and "o" in name.split(".")[2].lower())
    zeroed.load_state_dict({**state, name: state[name] * (np.arange(32) < 16)})
    assert np.array_equal(cut, zeroed.logits("abcabc")) and not np.array_equal(cut, whole)
    assert model.generate("ab", 40, cut=[(0, 1)]) == zeroed.generate("ab", 40) != model.generate("ab", 40)
    assert np.array_equal(model.attention_map("abc", cut={(0, 1)}).weights, zeroed.attention_map("abc").weights)
    with pytest.raises(ValueError, match=r"2 layers of 2 heads.*head 2 of layer 0"):
        model.logits("abc", cut=[(0, 2)])
    with pytest.raises(ValueError, match="head 0 of layer 5"):
        model.generate("abc", cut=[(5, 0)])
    for call, kind, words in (
        (lambda: model.generate("abc", cut=(0, 0)), TypeError, r"\[AttentionLM.generate\] cut must hold pairs \(layer, head\): got \(0, 0\)"),
        (lambda: model.generate(["a"]), TypeError, "prompt must be a str: got list"),
        (lambda: model.logits(["a"]), TypeError, r"\[AttentionLM.logits\] text must be a str: got list"),
        (lambda: model.attention_map("abc", layer=2), qkv.OptionError, r"layer must lie in 0\.\.1: got 2"),
    ):
        with pytest.raises(kind, match=words):
            call()


def test_another_text_and_vocabulary() -> None:
    model = AttentionLM("to be or not to be, that is the question. " * 5, context=8, width=16)
    assert len(model.fit(steps=5, progress=False)) == 5
    model = AttentionLM(vocab="abc")
    assert model.vocabulary == "abc" and model.config["vocab_size"] == 3
    with pytest.raises(ValueError, match="text"):
        model.fit(steps=1)
    with pytest.raises(ValueError, match="z"):
        model.fit("z" * 50, steps=1)
    assert len(model.fit("abcab" * 20, steps=2, progress=False)) == 2


def test_errors() -> None:
    for make, words in (
        (lambda: AttentionLM(width=30, heads=4), "30"),
        (lambda: AttentionLM(task="write"), "previous"),
        (lambda: AttentionLM(positions="none"), "rotary"),
        (lambda: AttentionLM(rope={"base": 500.0}), "positions"),
        (lambda: AttentionLM(positions="rotary", rope={"base": -1.0}), "base"),
        (lambda: AttentionLM("ab").fit(progress=False), "longer"),
        (lambda: AttentionLM().fit(schedule="linear"), "cosine"),
        (lambda: AttentionLM().fit(steps=-1), "steps"),
    ):
        with pytest.raises(ValueError, match=words):
            make()


def test_other_threads_run_while_it_learns() -> None:
    """The interpreter's lock is free during steps: a thread that sleeps 1 ms at a time gets on."""
    model, ticks, going = AttentionLM(width=64, context=64), [0], [True]

    def tick() -> None:
        while going[0]:
            time.sleep(0.001)
            ticks[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.monotonic()
    model.fit(steps=40, progress=False)
    seconds, passed = time.monotonic() - start, ticks[0]
    going[0] = False
    thread.join()
    assert passed >= min(20, 100 * seconds)  # slices are 50 ms: with the lock held there would be 20 a second at most


def test_no_loading_meanwhile() -> None:
    model = AttentionLM()
    model._training.acquire()
    with pytest.raises(RuntimeError, match="trained"):
        model.load_state_dict(model.state_dict())
    with pytest.raises(RuntimeError, match="already"):
        model.fit()


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_control_c() -> None:
    program = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)   # a shell's background jobs begin with it ignored
import qkv
model = qkv.AttentionLM()
print("go", flush=True)
try:
    model.fit(steps=10**9, progress=False)
except KeyboardInterrupt:
    print(model.steps > 0 and model.steps == len(model.losses), flush=True)
    try:
        model.generate("ab", 10**9)
    except KeyboardInterrupt:
        print("twice")
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        watchdog = threading.Timer(30, running.kill)  # a child that does not stop would be waited for
        watchdog.start()
        assert running.stdout.readline() == "go\n"
        time.sleep(0.5)
        running.send_signal(signal.SIGINT)
        assert running.stdout.readline() == "True\n"
        time.sleep(0.3)
        running.send_signal(signal.SIGINT)
        assert running.stdout.readline() == "twice\n"
        assert running.wait() == 0
        watchdog.cancel()


@pytest.mark.parametrize("terminal", (False, True))
def test_progress_goes_to_standard_error(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most ten lines; on a terminal tqdm's bar where it is installed, which disappears."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    bar = terminal and importlib.util.find_spec("tqdm") is not None
    AttentionLM().fit(steps=20)
    shown = capsys.readouterr()
    assert shown.out == "" and "step 20  loss" in shown.err and shown.err.endswith(" s\n")
    assert 1 <= shown.err.count("step ") <= (1 if bar else 10) and ("%|" in shown.err) == bar
    AttentionLM().fit(steps=20, progress=False)
    assert capsys.readouterr().err == ""
