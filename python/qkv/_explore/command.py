"""`python -m qkv explore`: arguments, errors in one line, what is printed and written."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from .. import _html
from . import models
from .captures import Captures
from .file import Run, finite
from .loading import Refused

_EXAMPLE = """\
examples:
  python -m qkv explore gpt2 --text "When Mary and John went to the store, John gave a drink to" --out page.html
  python -m qkv explore ./qwen --file book.txt --exact 12:3,12:4 --out page.html     # these heads' every weight, at any length
  python -m qkv explore gpt2 --text "a b c a b c" --ablate 5:1,6:9 --ablate all   # these two cut, and each head alone
  python -m qkv explore ./bert --text "one text" --text "another" --json             # kinds of heads, two texts

kinds of heads: previous, self, duplicate, induction, local, diffuse, first, mixed; docs/explore.md says when a head is called so
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(f"{message}; see: {self.prog} --help")


def _pairs(text: str) -> list[tuple[int, int]]:
    try:
        return [(int(layer), int(head)) for layer, head in (pair.split(":") for pair in text.split(","))]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be LAYER:HEAD,LAYER:HEAD,... such as 12:3,12:4: got {text!r}") from None


def _heads(text: str) -> Any:
    return text if text == "all" else _pairs(text)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on: got {text!r}")
    return int(text)


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be a port, 0 to 65535 (0: any that is free): got {text!r}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m qkv explore", epilog=_EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        description="Runs a model once, and shows what every head attends to: a table, JSON, or one page that needs no network.",
    )  # fmt: skip
    add = parser.add_argument
    add("model", metavar="MODEL", help="a folder or name that transformers loads")
    source = parser.add_argument_group("what it reads")
    source.add_argument("--text", action="append", default=[], help="may be repeated: texts side by side")
    source.add_argument("--file", action="append", default=[], help="a text file (UTF-8); may be repeated")
    source.add_argument("--beside", metavar="MODEL", help="a second model on the same input")
    source.add_argument("--answer", help="what an encoder-decoder's decoder reads; otherwise it is generated")
    source.add_argument("--generate", metavar="N", type=_count, help="generate so many tokens (greedy), and capture them too")
    shown = parser.add_argument_group("what is captured")
    shown.add_argument("--exact", metavar="L:H,..", type=_pairs, default=[], help="heads whose q, k and lse the page carries")
    shown.add_argument(
        "--weights", metavar="L:H,..", type=_pairs, help="heads whose every weight is stored (default: all, to 512 tokens)"
    )
    shown.add_argument("--first", metavar="N", type=_count, help="how many first keys are set apart (default 1)")
    cut = parser.add_argument_group("what the model says without heads")
    cut.add_argument("--ablate", metavar="L:H,..", type=_heads, action="append", default=[], help="cut these heads together; all: each alone")
    cut.add_argument("--with", dest="instead", choices=("zero", "mean"), help="what they write instead (zero)")
    cut.add_argument("--patch", metavar="L:H,..", type=_pairs, help="they write what they write on another text, --from")
    cut.add_argument("--from", dest="source", metavar="TEXT", help="the text of --patch, of as many tokens")
    cut.add_argument(
        "--behaviour", action=argparse.BooleanOptionalAction, help="heads on random tokens that repeat (decoders: yes); asked for: successor heads"
    )
    add("--serve", metavar="PORT", nargs="?", type=_port, const=0, help="serve the page to this machine, and compute more on demand")
    add("--out", metavar="FILE", help="page.html, or the page's file, .safetensors (docs/explorer-file.md)")
    add("--json", action="store_true", help="per layer and head: kind, share, mass on the first keys, entropy in nats")
    add("--title", help="above the page")
    add("--quiet", action="store_true", help="no progress on standard error")
    return parser


def _checked(options: Any) -> None:
    if not options.text and not options.file:
        raise Refused('nothing to read: give --text "..." or --file F')
    if bool(options.patch) != (options.source is not None):
        raise Refused("--patch L:H and --from TEXT go together")
    if options.serve is not None and (options.beside or len(options.text) + len(options.file) != 1):
        raise Refused("--serve takes one model and one text: the page reads more")
    if options.serve is not None and options.json:
        raise Refused("--serve and --json exclude each other")
    if options.answer is not None and options.generate:
        raise Refused("--answer and --generate exclude each other: the decoder reads the one or writes the other")
    if options.instead and not options.ablate:
        raise Refused("--with needs --ablate: what these heads write instead")
    if options.weights and not options.out:
        raise Refused("--weights needs --out: they are stored in the page")
    if options.title is not None and not options.out and options.serve is None:
        raise Refused("--title needs --out or --serve: it stands above the page")
    if options.out and Path(options.out).suffix not in (".html", ".safetensors"):
        raise Refused(f"--out must end in .html or .safetensors: got {options.out}")
    if options.out and not Path(options.out).absolute().parent.is_dir():
        raise Refused(f"--out: there is no folder {Path(options.out).absolute().parent}")
    for path in options.file:
        if not Path(path).is_file():
            raise Refused(f"there is no file {path}")


def _table(captures: Captures) -> str:
    runs = captures.runs
    titles, several = ("layer", "name", "head", "kind", "share", "first", "entropy"), len(runs) > 1
    numbers = list(dict.fromkeys(name for run in runs for name in run.numbers))
    rows = []
    for row in captures.kinds():
        shares = (None if row[name] is None else f"{row[name]:.2f}" for name in ("share", "first"))
        more = (_number(runs[row["run"]], name, row) for name in numbers)
        rows.append([*([row["run"]] if several else []), *(row[name] for name in titles[:4]), *shares, row["entropy_nats"], *more])
    return "\n".join([_html.lines((("run",) if several else ()) + titles + tuple(numbers), rows), *filter(None, map(_of_cut, runs))])


def _number(run: Run, name: str, row: dict[str, Any]) -> float | None:
    found = run.numbers.get(name, {}).get(row["layer"])
    return None if found is None else round(float(found[row["head"]]), 4)


def _of_cut(run: Run) -> str:
    """One line that says what a cut changed."""
    if run.cut is None:
        return ""
    cut, before = run.cut, run.of.said if run.of else {}
    heads = ",".join(f"{layer}:{head}" for layer, head in cut["heads"])
    words = [f"{heads} instead {cut['with']}:"]
    if run.said.get("loss") is not None:
        words.append(f"loss {before['loss']:.4f} -> {run.said['loss']:.4f}, {cut['tokens']:.0%} of the next tokens change,")
    if run.said:
        words.append(f"after the text {before['next'][0]['token']!r} -> {run.said['next'][0]['token']!r};")
    elif "output" in cut:
        words.append(f"1 - cosine of the output {cut['output']:.4f};")
    words.append("moved most: " + " ".join(f"{layer}:{head}" for layer, head, _ in cut["others"][:5]) if cut["others"] else "no other head moved")
    return " ".join(words)


def _json(captures: Captures, models: Sequence[str]) -> str:
    rows = [
        {key: round(value, 6) if isinstance(value, float) else value for key, value in row.items() if key != "shares"}
        | {"shares": {name: round(share, 6) for name, share in row["shares"].items()}}
        | {name: _number(captures.runs[row["run"]], name, row) for name in captures.runs[row["run"]].numbers}
        for row in captures.kinds()
    ]
    notes = [note for run in captures.runs for note in run.notes]
    cuts = [{"run": n, **run.cut, **run.said} for n, run in enumerate(captures.runs) if run.cut is not None]
    return json.dumps(finite({"models": list(models), "heads": rows, "notes": notes, **({"cuts": cuts} if cuts else {})}), allow_nan=False)


def _run(arguments: Sequence[str]) -> None:
    options = _parser().parse_args(arguments)
    _checked(options)
    models_given = [options.model, *([options.beside] if options.beside else [])]
    made = models.explored(options, models_given)
    captures = models.captures_of(made, models_given)
    if options.out:
        captures.save(options.out, title=options.title, weights=options.weights)
    if options.json:
        print(_json(captures, models_given))
    elif options.out:
        print(f"wrote {options.out}  {Path(options.out).stat().st_size / 1e6:.1f} MB")
    elif options.serve is None:
        print(_table(captures))
    if options.serve is not None:
        made[0].captures.title = options.title or made[0].captures.title
        made[0].serve(options.serve)


def main(arguments: Sequence[str]) -> int:
    """0: done, 1: the work failed, 2: wrong usage or input."""
    try:
        _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except Refused as refused:
        return _said(str(refused), 2)
    except (ImportError, ValueError, TypeError, NotImplementedError) as error:  # what the library says of its arguments
        return _said(str(error), 2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OSError, RuntimeError, MemoryError) as error:
        return _said(str(error) or type(error).__name__, 1)
    except KeyboardInterrupt:
        return _said("stopped", 130)
    return 0


def _said(message: str, code: int) -> int:
    line = " ".join(message.split())
    print(f"qkv explore: {line if len(line) <= 600 else line[:600] + ' ...'}", file=sys.stderr)
    return code
