"""`python -m qkv explore`: what it prints and writes, its errors in one line, its exit codes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("support_transformers")
import qkv
from explored_models import model_of, tokenizer_of
from qkv import __main__ as tool
from support_transformers import tf

TEXT = "the cat sat on the mat and the dog sat on the cat"


@pytest.fixture(scope="module")
def models(tmp_path_factory: Any) -> Path:
    """Folders as save_pretrained writes them."""
    folder = tmp_path_factory.mktemp("models")
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = tokenizer_of([*special.values(), *dict.fromkeys(TEXT.split())], **special)
    t5 = tf.T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=61, decoder_start_token_id=0)
    made = {name: model_of(name) for name in ("gpt2", "bert", "vit")} | {"t5": tf.T5ForConditionalGeneration(t5)}
    for name, model in made.items():
        model.save_pretrained(folder / name)
        if name != "vit":
            tokenizer.save_pretrained(folder / name)
    return folder


def ran(capsys: Any, *arguments: object) -> tuple[int, str, str]:
    code = tool.main(["explore", *map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_table_json_page_and_file(models: Path, tmp_path: Path, capsys: Any) -> None:
    code, out, err = ran(capsys, models / "gpt2", "--text", TEXT)
    assert code == 0 and len(out.splitlines()) == 9 and out.split()[:6] == ["layer", "name", "head", "kind", "share", "first"]
    assert "13 keys" in err  # progress
    code, out, err = ran(capsys, models / "gpt2", "--text", TEXT, "--json", "--quiet")
    told = json.loads(out)
    assert code == 0 and err == "" and len(told["heads"]) == 8
    assert set(told["heads"][0]) == {"layer", "head", "kind", "share", "first", "entropy_nats", "shares", "name", "run",
                                     "random previous", "random duplicate", "random induction"}  # fmt: skip
    page, file = tmp_path / "page.html", tmp_path / "page.safetensors"
    code, out, _ = ran(
        capsys, models / "gpt2", "--text", TEXT, "--out", page, "--exact", "0:1,1:2", "--weights", "0:0", "--title", "<b>"
    )
    assert code == 0 and out.startswith(f"wrote {page}") and "&lt;b&gt;" in page.read_text(encoding="utf-8")
    code, _, _ = ran(capsys, models / "gpt2", "--text", TEXT, "--out", file)
    made = json.loads(qkv.io.load_safetensors(file).metadata["explorer"])
    assert code == 0 and made["texts"][0]["tokens"] == TEXT.split()


def test_what_is_generated(models: Path, tmp_path: Path, capsys: Any) -> None:
    code, _, _ = ran(capsys, models / "gpt2", "--text", TEXT, "--generate", 3, "--out", tmp_path / "a.safetensors")
    made = json.loads(qkv.io.load_safetensors(tmp_path / "a.safetensors").metadata["explorer"])
    assert code == 0 and made["texts"][0]["answer"] == 13 and len(made["views"]) == 1


def test_two_texts_two_models(models: Path, tmp_path: Path, capsys: Any) -> None:
    texts = ("--text", TEXT, "--text", "the dog sat")
    code, _, _ = ran(
        capsys, models / "gpt2", *texts, "--beside", models / "bert", "--out", tmp_path / "a.safetensors", "--quiet"
    )
    made = json.loads(qkv.io.load_safetensors(tmp_path / "a.safetensors").metadata["explorer"])
    assert code == 0 and [view["group"] for view in made["views"]] == ["gpt2", "gpt2", "bert", "bert"]
    assert [view["name"].split(" ", 1)[1] for view in made["views"]] == ["the cat sat on the mat and\N{HORIZONTAL ELLIPSIS}", "the dog sat"] * 2
    assert [len(text["tokens"]) for text in made["texts"]] == [13, 3, 13, 3]


def test_encoder_decoder(models: Path, tmp_path: Path, capsys: Any) -> None:
    code, _, _ = ran(capsys, models / "t5", "--text", TEXT, "--answer", "the mat", "--out", tmp_path / "a.safetensors")
    made = json.loads(qkv.io.load_safetensors(tmp_path / "a.safetensors").metadata["explorer"])
    assert code == 0 and [view["kind"] for view in made["views"]] == ["self", "self", "cross"]
    assert made["texts"][1]["tokens"] == ["<pad>", "the", "mat"]


def test_cuts_and_patches(models: Path, tmp_path: Path, capsys: Any) -> None:
    text = ("--text", "the cat sat on the cat", "--quiet")
    code, out, _ = ran(capsys, models / "gpt2", *text, "--ablate", "0:1,1:2", "--ablate", "all", "--with", "mean", "--no-behaviour")
    lines = out.splitlines()
    assert code == 0 and lines[0].split()[-4:] == ["cut", "loss", "cut", "tokens"] and len(lines) == 18
    assert lines[-1].startswith("0:1,1:2 instead mean: loss ") and "moved most: " in lines[-1]
    code, out, err = ran(capsys, models / "gpt2", *text[:2], "--ablate", "all")
    assert code == 0 and "8  layer 1: 4 heads cut" in err
    code, out, _ = ran(capsys, models / "gpt2", *text, "--patch", "1:0", "--from", "the dog sat on the mat", "--json")
    (cut,) = json.loads(out)["cuts"]
    assert code == 0 and cut["with"] == "patch" and cut["from"] == "the dog sat on the mat" and len(cut["losses"]) == 5
    code, out, _ = ran(capsys, models / "gpt2", "--text", "the", "--ablate", "0:0", "--ablate", "all")
    assert code == 0 and "0:0 instead zero: after the text" in out  # one token has no loss
    code, out, _ = ran(capsys, models / "bert", *text, "--ablate", "all", "--ablate", "0:0")
    assert code == 0 and "cut output" in out.splitlines()[0] and "1 - cosine of the output" in out
    code, out, _ = ran(capsys, models / "t5", *text, "--answer", "the mat", "--ablate", "all", "--out", tmp_path / "a.safetensors")
    made = json.loads(qkv.io.load_safetensors(tmp_path / "a.safetensors").metadata["explorer"])
    assert code == 0 and all("cut loss" in view["layers"][0]["head_info"][0] for view in made["views"])
    assert ["loss" in view for view in made["views"]] == [False, True, False]
    code, out, _ = ran(capsys, models / "t5", *text, "--answer", "the mat", "--patch", "0:0,2:1", "--from", "the dog sat on the mat")
    assert code == 0 and "0:0,2:1 instead patch: loss" in out  # the decoder reads what it read
    code, _, err = ran(capsys, models / "t5", *text, "--serve")
    assert code == 2 and "save the page of an encoder beside a decoder" in err


ERRORS = {
    (): "nothing to read",
    ("--text", "a", "--bad"): "unrecognized arguments: --bad",
    ("--text", "a", "--out", "page.pdf"): "--out must end in .html or .safetensors",
    ("--text", "a", "--out", "nowhere/page.html"): "there is no folder",
    ("--file", "nowhere.txt"): "there is no file nowhere.txt",
    ("--text", "a", "--exact", "1-2"): "must be LAYER:HEAD",
    ("--text", "a", "--exact", "9:0"): "exact: layers must lie in 0..1",
    ("--text", "a", "--generate", "0"): "must be a whole number from 1 on",
    ("--text", "a", "--ablate", "1:9"): "layer 1 has heads 0..3: got 9",
    ("--text", "a", "--ablate", "some"): "must be LAYER:HEAD",
    ("--text", "a", "--patch", "0:0"): "--patch L:H and --from TEXT go together",
    ("--text", "a", "--patch", "0:0", "--from", "the cat"): "equal length: 1 and 2 tokens",
    ("--text", "a", "--text", "b", "--serve"): "--serve takes one model and one text",
    ("--text", "a", "--serve", "99999"): "must be a port, 0 to 65535",
    ("--text", "a", "--serve", "-1"): "must be a port, 0 to 65535",
    ("--text", "a", "--serve", "--json"): "--serve and --json exclude each other",
    ("--text", "a", "--answer", "b"): "--answer is what an encoder-decoder's decoder reads",
    ("--text", "a", "--answer", "b", "--generate", "2"): "--answer and --generate exclude each other",
    ("--text", "a", "--with", "mean"): "--with needs --ablate",
    ("--text", "a", "--weights", "0:0"): "--weights needs --out",
    ("--text", "a", "--weights", "0:0", "--serve"): "--weights needs --out",
    ("--text", "a", "--title", "b", "--json"): "--title needs --out or --serve",
    ("--text", ""): "must not be empty",
    ("--text", "the " * 80): "gpt2 reads at most 64",
}


@pytest.mark.parametrize("arguments", ERRORS)
def test_errors_are_one_line_that_says_what_to_do(models: Path, capsys: Any, arguments: tuple[str, ...]) -> None:
    code, out, err = ran(capsys, models / "gpt2", "--quiet", *arguments)
    assert code == 2 and out == "" and len(err.splitlines()) == 1 and err.startswith("qkv explore: ")
    assert ERRORS[arguments] in err


def test_errors_of_models_and_files(models: Path, tmp_path: Path, capsys: Any) -> None:
    assert "there is no folder ./nowhere" in ran(capsys, "./nowhere", "--text", "a")[2]
    assert "takes its own inputs" in ran(capsys, models / "vit", "--text", "a")[2]
    (tmp_path / "toy.safetensors").touch()
    assert "qkv map draws the page" in ran(capsys, tmp_path / "toy.safetensors", "--text", "a")[2]
    (tmp_path / "folder").mkdir()
    code, _, err = ran(capsys, tmp_path / "folder", "--text", "a")
    assert code == 2 and "AutoConfig cannot load" in err and len(err.splitlines()) == 1
    (tmp_path / "latin.txt").write_bytes(b"\xe9\xe8")
    assert "is not a text in UTF-8" in ran(capsys, models / "gpt2", "--file", tmp_path / "latin.txt")[2]


def test_without_standard_output(models: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert tool.main(["explore", str(models / "gpt2"), "--text", "the cat", "--quiet", "--out", str(tmp_path / "page.html")]) == 0


def test_titles_that_no_file_holds(models: Path, tmp_path: Path, capsys: Any) -> None:
    """Bytes of a command line that are no UTF-8 are half of surrogate pairs in Python."""
    path = tmp_path / "page.html"
    code, _, err = ran(capsys, models / "gpt2", "--text", "the cat", "--quiet", "--title", chr(0xDCFF), "--out", path)
    assert code == 0 and "<title>?" in path.read_text(encoding="utf-8"), err
    code, _, err = ran(capsys, models / "gpt2", "--text", "the cat", "--quiet", "--out", tmp_path / f"{chr(0xDCFF)}.html")
    assert code == 2 and "a path must be UTF-8" in err


def test_as_a_process() -> None:
    done = subprocess.run([sys.executable, "-m", "qkv", "explore", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "examples:" in done.stdout and "python -m qkv explore gpt2" in done.stdout
    done = subprocess.run([sys.executable, "-m", "qkv", "explore", "x"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
