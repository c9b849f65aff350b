"""Runs every spelling of the corpus beside the textbook, without the judge: a wrong one must differ, a right one must not.

    python tests/judge/beside.py [--filter TEXT] [--seed N]

A spelling that does what its name does not say would prove nothing about the judge; so all spellings of one mistake in one task
are also compared with one another (note: a mistake with a number of its own, or of two readings, may differ).
"""

import argparse
import inspect
import itertools
import sys
import warnings

import numpy as np
import textbook
from spelling import EMBED, HEADS, HERE, TAKES, Problem, call, load, name_among, task_of


def right_of(problem, name):
    task = problem.task
    if task == "lm":
        params, losses = {n: v.copy() for n, v in problem.values.items()}, []
        for _ in range(3):
            loss, params = textbook.train_step(params, problem.tokens, 0.4)
            losses.append(loss)
        return [[np.array(losses), params["embed"], params["W_q"], params["position"]]]
    if task == "rope":
        function = textbook.rope_attention if "attention" in name else textbook.rope
        return [[problem.right(function, halves=halves)] for halves in (False, True)]
    if task == "backward":
        return [list(problem.right(textbook.layer_backward if "layer" in name else None))]
    return [[problem.right()]]


def cut(thing, task, seed, torch):
    """How many parameters have no gradient, or x has none: a forward alone does not show it."""
    problem = Problem(task, seed)
    made = thing(EMBED, HEADS).double()
    x = torch.tensor(problem.values["x"], requires_grad=True)
    made(x).square().sum().backward()
    return sum(p.grad is None for p in made.parameters()) + (x.grad is None)


def dropout(side, thing, seed, torch, convention):
    """Evaluation must be exact; in training, mean and deviation of many calls must be those of dropout on the weights."""
    problem = Problem("dropout", seed)
    q, k, v = (problem.values[name] for name in "qkv")
    weights = textbook.softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))
    p, evaluation = problem.values["p"], call(thing, problem.values, problem, torch)[0]
    draws = np.array([call(thing, problem.values | {"training": True}, problem, torch)[0] for _ in range(200)])
    wanted = np.sqrt(p / (1 - p) * weights**2 @ v**2)  # independent kept weights
    # All features of a value are dropped at once.
    together = np.sqrt(p / (1 - p) * (weights**2 @ v.sum(axis=-1, keepdims=True) ** 2)[..., 0])
    worst = max(differs([evaluation], [weights @ v]), np.abs(draws.mean(axis=0) - weights @ v).mean() / wanted.mean() - 0.12,
                np.abs(draws.std(axis=0) - wanted).mean() / wanted.mean() - 0.12,
                np.abs(draws.sum(axis=-1).std(axis=0) - together).mean() / together.mean() - 0.12)  # fmt: skip
    # Sequences and heads that are alike must not lose the same weights.
    alike = {name: np.broadcast_to(problem.values[name][:1, :1], problem.values[name].shape).copy() for name in "qkv"}
    drawn = call(thing, problem.values | alike | {"training": True}, problem, torch)[0]
    again = call(thing, problem.values | alike | {"training": True}, problem, torch)[0]
    if (drawn[0] == drawn[1]).all() or (drawn[:, 0] == drawn[:, 1]).all() or (drawn == again).all():
        worst = max(worst, 1.0)
    if (side == "right" and not convention) != (worst < 1e-6):
        return f"dropout differs by {worst:.3g}"
    return None


def differs(a, b):
    """The largest difference of two answers; infinite where one has more parts or another shape."""
    worst = 0.0
    for one, other in zip(a, b):
        if one.shape != other.shape:
            return np.inf
        if (np.isnan(one) != np.isnan(other)).any():
            return np.inf
        known = np.isfinite(one) & np.isfinite(other)
        worst = max(worst, float(np.abs(one - other)[known].max(initial=0.0)))
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--filter", default="")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    np.seterr(all="ignore")
    misses, groups, counts = [], {}, {"wrong": 0, "right": 0}
    for side, path in [(s, p) for s in ("wrong", "right") for p in sorted((HERE / s).rglob("*.py"))]:
        if options.filter not in str(path):
            continue
        torch = __import__("torch") if "torch" in path.parts else None
        module = load(path)
        names = list(module.EXPECTED) if side == "wrong" else list(module.RIGHT)
        for name in names:
            task = task_of(module, name, path)
            counts[side] += 1
            here = f"{path.relative_to(HERE)}:{name} ({task})"
            thing = getattr(module, name)
            try:
                verdict = judge(side, thing, name, task, options.seed, torch, module, groups, here)
            except Exception as error:  # noqa: BLE001: whatever a spelling raises is a miss
                verdict = f"raised {type(error).__name__}: {error}"
            if verdict:
                misses.append(f"{here}: {verdict}")
    for line in misses:
        print(line)
    for (task, identity), members in sorted(groups.items()):
        for (a, one), (b, other) in itertools.combinations(members, 2):
            if differs(one, other) > 1e-9:
                print(f"note: {identity} in {task}: {a} and {b} differ")
    print(f"{counts['wrong']} wrong, {counts['right']} right; {len(misses)} misses")
    sys.exit(1 if misses else 0)


def judge(side, thing, name, task, seed, torch, module, groups, here):
    """None, or what is wrong with the spelling."""
    convention = getattr(module, "CONVENTION", {}).get(name)
    identity = getattr(module, "EXPECTED", {}).get(name)
    if task == "dropout":
        return dropout(side, thing, seed, torch, convention)
    worst, answers = 0.0, []
    signature = inspect.signature(thing.forward if inspect.isclass(thing) else thing)
    for mask, causal in itertools.product((None, "square"), (False, True)):
        if mask and not any(name_among(TAKES, n) == "mask" for n in signature.parameters):
            continue
        if causal and task not in ("flash", "linear", "backward"):
            continue
        if causal and "causal" not in signature.parameters:
            continue
        problem = Problem(task, seed, mask or ("square" if task == "sdpa" and "mask" not in signature.parameters else None))
        if "layer" in name:
            problem.values = {n: v for n, v in Problem("v4", seed).values.items() if n in ("x", "W_q", "W_k", "W_v", "W_o")}
            problem.values["dout"] = np.cos(np.arange(problem.values["x"].size)).reshape(problem.values["x"].shape)
        values = dict(problem.values)
        values.pop("mask", None) if not mask else None
        problem.values = values
        if causal:
            values["causal"] = True
        answer = call(thing, values, problem, torch)
        compared = answer if task in ("backward", "lm") else answer[:1]
        best = min(differs(compared, right) for right in right_of(problem, name))
        if len(answer) > 1 and task not in ("backward", "lm") and not convention:
            best = max(best, differs(answer[:1], answer[-1:]))  # the second call
        worst = max(worst, best)
        answers += answer if task in ("backward", "lm") else answer[:1]
        if identity in ("no-max-subtraction", "mask-after-softmax-renormalised") and (mask or identity[0] == "n"):
            values |= {name: values[name] * 3000 for name in ("q", "x") if name in values}
            worst = max(worst, differs(call(thing, values, problem, torch)[:1], right_of(problem, name)[0]))
    if side == "right":
        return f"differs by {worst:.3g}" if worst > 1e-5 and not convention else None
    if "detached" in str(identity):
        worst = cut(thing, task, seed, torch)
    if worst > 1e-6:
        first = identity if isinstance(identity, str) else identity[0]
        groups.setdefault((task, first), []).append((here.split("/", 1)[1], answers))
        return None
    return f"does not differ: {worst:.3g}"


if __name__ == "__main__":
    main()
