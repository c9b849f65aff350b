// What the lab's model says after the chosen character, whole and cut; its losses; and the question which head does what.

const MOST_BARS = 12, share = p => (100 * p).toFixed(1) + " %";
/// The shares of a row at a temperature: p^(1/t), divided by their sum.
function heated(row, temperature) {
  const warm = Array.from(row, p => p ** (1 / temperature)), sum = warm.reduce((a, b) => a + b, 0);
  return warm.map(p => p / sum);
}
function drawNext() {
  const V = lab.symbols.length, of = trace => heated(trace.next.subarray(lab.row * V, (lab.row + 1) * V), lab.heat);
  const whole = of(lab.whole), less = lab.isCut ? of(lab.now) : null, isNext = !["previous", "same"].includes(state.task);
  el("labNextName").textContent = say(isNext ? "lab.next" : "lab.says." + state.task, {token: label([...lab.prompt][lab.row]), first: lab.symbols[0]});
  el("labHeatIs").textContent = lab.heat.toFixed(1);
  const most = n => Math.max(whole[n], less?.[n] || 0), all = [...lab.symbols.keys()], shown = new Set(all.sort((a, b) => most(b) - most(a)).slice(0, MOST_BARS));
  const rest = row => Math.max(0, 1 - [...shown].reduce((sum, n) => sum + row[n], 0)), box = el("labBars"), held = box.querySelector(":focus")?.textContent;
  const button = c => make("button", {textContent: label(c), onclick: () => appendCharacter(c)}), both = of => [of(whole), ...less ? [of(less)] : []];
  const rows = lab.symbols.flatMap((c, n) => shown.has(n) ? [[button(c), ...both(row => row[n])]] : []);
  if (V > MOST_BARS) rows.push([make("span", {textContent: say("lab.others", {n: V - MOST_BARS})}), ...both(rest)]);
  box.replaceChildren();
  drawBars(box, "", [say("lab.whole"), ...less ? [labLess()] : []], rows, share, 1);
  [...box.querySelectorAll("button")].find(b => b.textContent === held)?.focus();
  el("labMore").hidden = lab.running || !isNext || lab.isSwitched;
  if (!el("labMore").hidden) el("labMore").textContent = say("lab.more", {text: label(lab.engine.generate(lab.prompt, 24, {temperature: lab.heat, seed: state.seed, cut: labCuts()}), 80)});
}
function appendCharacter(c) {
  lab.prompt = [...lab.prompt, c].slice(-labConfig().context).join("");
  Object.assign(lab, {query: -1, typed: null});
  el("labPrompt").value = lab.prompt;
  drawLab();
}

function drawLosses() {
  const number = trace => trace.loss.toFixed(2), words = state.task === "induction" ? "lab.losses.repeated" : "lab.losses";
  const none = lab.running || Number.isNaN(lab.whole.loss);
  el("labLosses").textContent = none ? "" : say(words, {loss: number(lab.whole)}) + (lab.isCut ? " " + say("lab.losses.less", {what: labLess().replace(/^./, c => c.toUpperCase()), loss: number(lab.now)}) : "");
}

/// The mean weight of a head on the character before; of induction on what came behind the same character earlier.
const shareOf = (pattern, [l, h]) => lab.whole.layers[l].shares[2 * h + (pattern === "induction")];
function drawGuess() {
  const heads = lab.whole.layers.flatMap((_, l) => Array.from({length: state.heads}, (_, h) => [l, h])), box = el("labGuess");
  if (heads.length < 2 || lab.engine.step === 0 || lab.running) return void box.replaceChildren();
  box.replaceChildren(...(state.task === "induction" ? ["previous", "induction"] : ["previous"]).flatMap((pattern, at) => {
    const question = say("lab.guess." + pattern), row = make("div", {className: "bar", role: "group", ariaLabel: question});
    const shares = heads.map(pair => shareOf(pattern, pair)), most = Math.max(...shares), best = shares.indexOf(most);
    if (!(most > 0)) return [];  // nothing of the prompt to look at
    row.append(make("span", {textContent: question}), ...heads.map(([l, h], n) => {
      const onclick = () => { lab.guess[pattern] = n; drawGuess(); box.children[at]?.querySelectorAll("button")[n]?.focus(); };
      return make("button", {textContent: `${l}:${h}`, ariaLabel: headName(l, h), ariaPressed: lab.guess[pattern] === n, onclick});
    }));
    if (pattern in lab.guess) row.append(make("strong", {textContent: say(lab.guess[pattern] === best ? "lab.guess.right" : "lab.guess.wrong",
      {name: headName(...heads[best]), share: share(most), yours: share(shares[lab.guess[pattern]])})}));
    return row;
  }));
}
