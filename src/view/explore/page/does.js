// What a head does: what it writes, which tokens it makes likelier, and what the model answers without it.
const DONE = ["writes", "next token", "copies", "cut loss", "cut tokens", "cut output", "random previous", "random duplicate", "random induction", "successor"];
const SHARES = ["cut tokens", "random previous", "random duplicate", "random induction", "successor"];

/// Tokens of the last or first numbers of a row, as words of the file with what stands beside them: [[word, number]]; pure.
function wordsAt(tensor, numbers, head, row, from, count) {
  const [, n, m] = tensor.sizes, at = (head * n + row) * m;
  return Array.from({length: count}, (_, c) => [file.words?.[tensor.data[at + from + c]] ?? "?", numbers ? numbers.data[at + from + c] : null]);
}

const signed = x => (x > 0 ? "+" : x < 0 ? "\u2212" : "") + short(Math.abs(x));

/// A head by its own numbers, as view v calls it.
function nameAt(v, [l, h]) {
  const at = headAt(v, l, h);
  return at ? nameOf(...at) : `layer ${l}, head ${h}`;
}
function showHead(...numbers) {
  const [view, layer, head] = headAt(state.view, ...numbers) || [];
  if (view !== undefined) change({view, layer, head});
}
/// before, after: {loss, losses, next}; cut: as in a view, but with the own numbers of its heads; names: the text's tokens; v: of the view that is cut.
function drawCut(panel, before, after, cut, names, v) {
  const say = textContent => panel.append(make("p", {textContent})), heads = cut.heads || [];
  const how = {zero: "nothing in its stead", mean: "its mean in its stead", patch: `its output on \u201c${visible(String(cut.from ?? ""), 60)}\u201d in its stead`}[cut.with] || "";
  panel.append(make("h3", {textContent: `without ${heads.map(head => nameAt(v, head)).join("; ")}${how ? `: ${how}` : ""}`}));
  if (Number.isFinite(before?.loss) && Number.isFinite(after?.loss)) say(`loss ${short(before.loss)} \u2192 ${short(after.loss)} nats per token, ${signed(after.loss - before.loss)}`);
  if (Number.isFinite(cut.tokens)) say(`${percent(cut.tokens)} of the positions answer with another token`);
  if (Number.isFinite(cut.output)) say(`1 \u2212 cosine of the output: ${short(cut.output)}`);
  if (before?.losses && before.losses.length === after?.losses?.length) {
    const rise = after.losses.map((x, n) => x - before.losses[n]), top = Math.max(1e-30, ...rise.map(x => Math.abs(x) || 0)), box = make("div", {className: "tokens"});
    panel.append(make("h3", {textContent: `loss of each token: orange where it rises, at most ${short(top)} nats`}), box);
    for (let n = 0; n <= rise.length; ++n) {
      const s = box.appendChild(make("span", {textContent: visible(names(n), 40)})), x = n ? rise[n - 1] : 0, c = difference(x, top);
      if (n) s.title = `position ${n}: ${short(before.losses[n - 1])} \u2192 ${short(after.losses[n - 1])}`;
      if (x) { s.style.background = rgb(c); s.style.color = inkOn(c); }
    }
  }
  if (before?.next && after?.next) {
    const then = new Map(after.next.map(({token, p}) => [token, p])), first = new Map(before.next.map(({token, p}) => [token, p]));
    const rows = [...new Set([...first.keys(), ...then.keys()])].slice(0, 12).map(token => [token, first.get(token) ?? null, then.get(token) ?? null]);
    drawBars(panel, "what comes next", ["whole", "cut"], rows, percent);
  }
  if (cut.others?.length) {
    const bar = make("div", {className: "bar chips"});
    panel.append(make("h3", {textContent: "heads that now attend elsewhere, by how much of their weight moved"}), bar);
    for (const [l, h, x] of cut.others.slice(0, 12)) {
      bar.append(make("button", {textContent: `${l}.${h} ${percent(x)}`, title: nameAt(v, [l, h]), onclick: () => showHead(l, h)}));
    }
  }
}

async function drawDoes(panel, {texts, view: v, layer: l, number: h}, sides) {
  const view = file.views[v], layer = layerOf(v, l), info = infoOf(v, l, h), at = `${v}/${l}/`, known = DONE.filter(name => Number.isFinite(info[name]));
  const above = panel.childElementCount, first = panel.appendChild(make("div", {className: "row"}));
  if (known.length) {
    const table = first.appendChild(make("div")).appendChild(make("table"));
    for (const name of known) {
      const all = infosOf(view).map(other => other[name]).filter(Number.isFinite);
      const said = SHARES.includes(name) ? percent(info[name]) : signed(info[name]).replace(/^\+/, name === "writes" ? "" : "+");
      addRow(table, [WORDS[name] || name, said, `${1 + all.filter(x => x > info[name]).length} of ${all.length}`]);
    }
  }
  const [push, by, ov] = await Promise.all(["push", "push_by", "ov"].map(name => load(at + name)));
  const row = push ? state.i - (layer.q_len - push.sizes[1]) : -1, key = ov ? (state.j >= 0 ? state.j : state.i) - (layer.kv_len - ov.sizes[1]) : -1;
  if (row >= 0 && state.i < layer.q_len) {
    const m = push.sizes[2] / 2;
    [["raises", 0], ["lowers", m]].forEach(([what, from]) => {
      drawBars(first.appendChild(make("div")), `${what} after \u201c${label(texts.query(state.i), 16)}\u201d (${state.i})`, ["logit"], wordsAt(push, by, h, row, from, m), signed);
    });
  } else if (push) panel.append(make("p", {className: "note", textContent: `Choose a query of the last ${push.sizes[1]} to see which tokens the head makes likelier behind it.`}));
  if (key >= 0 && key < ov.sizes[1]) {
    const list = wordsAt(ov, null, h, key, 0, ov.sizes[2]).map(([word]) => label(word, 16)).join(", ");
    panel.append(make("p", {textContent: `Attending to \u201c${label(texts.key(key + layer.kv_len - ov.sizes[1]), 16)}\u201d raises most: ${list}`}));
  }
  const names = n => textOf(v, "queries").tokens?.[n] ?? String(n);
  const cuts = view.cut ? [[v, view]] : file.views.map((w, n) => [n, w]).filter(([n, w]) => w.cut?.of === v && !sides.some(side => side.view === n));
  const owned = (n, list = []) => list.map(([l, h, ...more]) => [...ownNumbers(n, l, h), ...more]);
  for (const [n, w] of cuts) drawCut(panel, file.views[w.cut.of], w, {...w.cut, heads: owned(n, w.cut.heads), others: owned(n, w.cut.others)}, names, n);
  if (!cuts.length && view.next) drawBars(panel, "what comes next", ["share"], view.next.map(({token, p}) => [token, p]), percent);
  if (![...panel.children].slice(above).some(part => part.textContent)) {
    const textContent = "This file says neither what its heads write nor what the model answers without them: python -m qkv explore with --ablate all stores it.";
    panel.append(make("p", {className: "note", textContent}));
  }
}
