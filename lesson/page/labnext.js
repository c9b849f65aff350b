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
  el("labLegend").innerHTML = `<i class="key whole"></i> ${escapeXml(say("lab.whole"))}` + (less ? ` <i class="key less"></i> ${escapeXml(labLess())}` : "");
  const bar = (p, kind) => `<span class="bar1"><i class="${kind}" style="width:${(100 * p).toFixed(1)}%"></i><span>${share(p)}</span></span>`;
  const box = el("labBars"), key = lab.symbols.join("");
  if (box.dataset.key !== key) {
    box.dataset.key = key;
    box.replaceChildren(...lab.symbols.map(c => make("button", {onclick: () => appendCharacter(c)})), make("div"));
  }
  const most = n => Math.max(whole[n], less?.[n] || 0), likely = new Set([...lab.symbols.keys()].sort((a, b) => most(b) - most(a)).slice(0, MOST_BARS));
  const fill = (one, name, p, q) => { one.innerHTML = `<b>${escapeXml(name)}</b><span>${bar(p, "whole")}${less ? bar(q, "less") : ""}</span>`; };
  const others = row => Math.max(0, 1 - [...likely].reduce((sum, n) => sum + row[n], 0));
  lab.symbols.forEach((c, n) => {
    box.children[n].hidden = !likely.has(n);
    if (likely.has(n)) fill(box.children[n], label(c), whole[n], less?.[n]);
  });
  box.lastChild.hidden = V <= MOST_BARS;
  if (V > MOST_BARS) fill(box.lastChild, say("lab.others", {n: V - MOST_BARS}), others(whole), less && others(less));
  el("labMore").hidden = lab.running || !isNext || lab.isSwitched;
  if (!el("labMore").hidden) el("labMore").textContent = say("lab.more", {text: label(lab.engine.generate(lab.prompt, 24, {temperature: lab.heat, seed: state.seed, cut: labCuts()}), 80)});
}
function appendCharacter(c) {
  lab.prompt = [...lab.prompt, c].slice(-labConfig().context).join("");
  Object.assign(lab, {query: -1, typed: null});
  el("labPrompt").value = lab.prompt;
  drawLab();
}

/// What the task asks at position i; null: nothing.
function targetAt(ids, i) {
  const before = ids.lastIndexOf(ids[i], i - 1);
  if (state.task === "same") return i > 0 && before >= 0 ? before % lab.symbols.length : null;
  if (state.task === "previous") return ids[Math.max(0, i - 1)];
  return i + 1 < ids.length ? ids[i + 1] : null;
}
/// Mean loss over the positions from `first` on.
function lossFrom(trace, first) {
  const ids = [...lab.prompt].map(c => lab.symbols.indexOf(c)), V = lab.symbols.length, all = [];
  for (let i = first; i < ids.length; ++i) if (targetAt(ids, i) !== null) all.push(-Math.log(trace.next[i * V + targetAt(ids, i)]));
  return all.length ? all.reduce((a, b) => a + b, 0) / all.length : NaN;
}
function drawLosses() {
  const induces = state.task === "induction", tokens = [...lab.prompt], first = induces ? Math.max(0, tokens.findIndex((c, i) => tokens.indexOf(c) < i)) : 0, number = trace => lossFrom(trace, first).toFixed(2);
  el("labLosses").textContent = lab.running ? "" : say(induces ? "lab.losses.repeated" : "lab.losses", {loss: number(lab.whole)}) + (lab.isCut ? " " + say("lab.losses.less", {what: labLess().replace(/^./, c => c.toUpperCase()), loss: number(lab.now)}) : "");
}

/// Mean weight of a head on the character before; of induction on what came behind the same character earlier.
function shareOf(pattern, [l, h]) {
  const tokens = [...lab.prompt], T = tokens.length, {weights} = partOf(lab.whole.layers[l], h, T), rows = [];
  for (let i = 1; i < T; ++i) {
    const keys = pattern === "previous" ? [i - 1] : tokens.flatMap((c, j) => j > 0 && j <= i && tokens[j - 1] === tokens[i] ? [j] : []);
    if (keys.length) rows.push(keys.reduce((sum, j) => sum + weights[i * T + j], 0));
  }
  return rows.length ? rows.reduce((a, b) => a + b, 0) / rows.length : 0;
}
function drawGuess() {
  const heads = lab.whole.layers.flatMap((_, l) => Array.from({length: state.heads}, (_, h) => [l, h])), box = el("labGuess");
  if (heads.length < 2 || lab.engine.step === 0 || lab.running) return void box.replaceChildren();
  box.replaceChildren(...(state.task === "induction" ? ["previous", "induction"] : ["previous"]).map(pattern => {
    const row = make("div", {className: "bar", role: "group"}), question = say("lab.guess." + pattern), shares = heads.map(pair => shareOf(pattern, pair)), best = shares.indexOf(Math.max(...shares));
    row.setAttribute("aria-label", question);
    row.append(make("span", {textContent: question}), ...heads.map(([l, h], n) => {
      const b = make("button", {textContent: `${l}:${h}`, onclick: () => { lab.guess[pattern] = n; drawGuess(); box.querySelectorAll("button")[n]?.focus(); }});
      b.setAttribute("aria-label", headName(l, h));
      b.setAttribute("aria-pressed", lab.guess[pattern] === n);
      return b;
    }));
    if (pattern in lab.guess) row.append(make("strong", {textContent: say(lab.guess[pattern] === best ? "lab.guess.right" : "lab.guess.wrong",
      {name: headName(...heads[best]), share: share(shares[best]), yours: share(shares[lab.guess[pattern]])})}));
    return row;
  }));
}
