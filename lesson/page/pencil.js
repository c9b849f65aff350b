// What a reader computed by hand: right where each is less than 0.01 away, a known mistake, or not yet.
const numberTyped = text => {
  const plain = text.trim().replace(/[\u2212\u2013]/g, "-").replace(",", "."), [, above, below] = plain.match(/^(-?\d+)\/(\d+)$/) || [];
  return above ? above / below : /^[-+]?(\d+\.?\d*|\.\d+)$/.test(plain) ? Number(plain) : NaN;
};
/// How far what was typed is from a mistake's numbers. Who computes from two digits is up to HINT_NEAR away; large numbers are rounded more.
const hintFar = (typed, of) => Math.max(...of.map((x, i) => Math.abs(x - typed[i]) / Math.max(1, Math.abs(x)))), HINT_NEAR = .025;

/// {verdict: "right" | "hint" | "some" | "missing", say, right: how many are}
function judgeNumbers(typed, pencil, numbers) {
  const wanted = numbers[pencil.answer], right = typed.filter((x, i) => Math.abs(x - wanted[i]) < 10 ** -pencil.digits).length;
  if (typed.some(Number.isNaN)) return {verdict: "missing", right};
  if (right === wanted.length) return {verdict: "right", right};
  const far = pencil.hints.map(({value}) => hintFar(typed, numbers[value])), least = Math.min(...far), hint = pencil.hints[far.indexOf(least)];
  return least < HINT_NEAR ? {verdict: "hint", say: hint.say, right} : {verdict: "some", right};
}

/// The form of a step; `stage.typed` and `stage.checked` outlive a change of the language. `solved`: called when all is right.
function drawPencil({pencil}, stage, solved) {
  const wanted = exampleOf[pencil.answer], all = wanted.length, form = make("form", {className: "pencil", noValidate: true}),
    verdict = make("p", {className: "verdict", role: "status"});
  const cells = wanted.map((_, n) => {
    const label = make("label"), ariaLabel = (all === 3 ? TOKENS[n] + ", " : "") + say("step.cell", {n: n + 1, all});
    const input = make("input", {type: "text", inputMode: "decimal", autocomplete: "off", value: stage.typed[n] || "", ariaLabel});
    input.oninput = () => { stage.typed[n] = input.value; stage.checked = false; show(); };
    label.append(make("span", {textContent: all === 3 ? TOKENS[n] : all === 1 ? "" : n + 1}), input);
    return {label, input};
  });
  function show() {
    const {verdict: kind, say: hint, right} = judgeNumbers(cells.map(cell => numberTyped(cell.input.value)), pencil, exampleOf),
      isHint = stage.checked && kind === "hint";
    verdict.dataset.verdict = stage.checked ? kind : "";
    verdict.textContent = !stage.checked ? "" : isHint ? hint : say("step." + kind, {right, all});
    if (stage.checked && kind === "right") solved();
  }
  form.onsubmit = event => { event.preventDefault(); stage.checked = true; show(); };
  const answer = make("details"), row = make("div", {className: "cells"});
  answer.append(make("summary", {textContent: say("step.answer")}), make("p", {className: "mono", textContent: wanted.map(x => numberText(x, 3)).join("   ")}));
  row.append(...cells.map(cell => cell.label), make("button", {className: "main", textContent: say("step.check")}));
  form.append(make("h3", {textContent: say("step.pencil")}), withCode("p", pencil.ask), row, verdict, answer);
  show();
  return form;
}
