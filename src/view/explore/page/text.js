// Tokens as running text: point at one, and the others are lit by what it attends to, or by who attends to it.
const SHOWN = 1500;  // spans at once: more would make pointing slow

const textOf = (v, side) => file.texts[file.views[v][side]];
/// The names of a layer's positions.
function namesOf(v, l) {
  const view = file.views[v], layer = view.layers[l], q = file.texts[view.queries], k = file.texts[view.keys], q0 = layer.q_first || 0, k0 = layer.kv_first || 0;
  const name = (t, n) => t.tokens ? t.tokens[n] : imageName(t, n);
  return {query: i => name(q, i + q0), key: j => name(k, j + k0),
    queryAnswer: q.answer == null ? null : q.answer - q0, keyAnswer: k.answer == null ? null : k.answer - k0,
    isNumbered: !k.tokens && !k.image, isShared: view.queries === view.keys && layer.q_len === layer.kv_len && q0 === k0};
}
function imageName(t, n) {
  const {start, height, width} = t.image || {}, at = n - start;
  return at >= 0 && at < height * width ? `${Math.floor(at / width)},${at % width}` : t.image ? `token ${n}` : String(n);
}

/// The light of the tokens: {values, lit: "keys" | "queries", caption}.
function lightOf(head) {
  const what = isNorm() ? "weight \u00d7 norm" : "weights", rows = [...new Set([...state.pins, ...(state.i >= 0 ? [state.i] : [])])].filter(i => i < head.Tq);
  if (state.way === "from") {
    const j = state.j >= 0 ? state.j : state.i;
    return j >= 0 && j < head.Tk ? {values: head.column(j), lit: "queries", caption: `${what} of all queries on key ${j}`} : null;
  }
  if (!rows.length) return null;
  const values = new Float32Array(head.Tk);
  for (const i of rows) head.row(i).forEach((w, j) => { values[j] += w / rows.length; });
  return {values, lit: "keys", caption: rows.length > 1 ? `mean of ${rows.length} queries` : `${what} of query ${rows[0]}`};
}

/// Spans are made once and lit again: one that was replaced under the pointer could not be clicked.
let strips = [], stripsOf = "", drawnAt = {i: -1, j: -1};
function drawText(panel, sides) {
  // A choice elsewhere turns to its page, of the queries or of the keys; turning pages keeps the choice.
  const away = strips.filter(({which, isQuery, spans}) => {
    const side = isQuery ? "i" : "j";
    return which === 0 && state[side] !== drawnAt[side] && state[side] >= 0 && !spans.has(state[side]);
  });
  for (const {title} of away) pages.delete(title);
  drawnAt = {i: state.i, j: state.j};
  const centre = away.length ? `${state.i},${state.j}` : stripsOf.split("/")[2] ?? "", shown = sides.map(side => [side.view, side.layer, side.name].join());
  const key = [state.view, state.layer, centre, ...shown, ...pages.values()].join("/");
  if (key !== stripsOf || !panel.contains(strips[0]?.box)) {
    panel.replaceChildren();
    strips = [];
    stripsOf = key;
    const row = panel.appendChild(make("div", {className: sides.length > 1 ? "row halves" : ""}));
    sides.forEach(({head: h, texts: names, name}, which) => {
      const part = row.appendChild(make("div")), title = sides.length > 1 ? `${name}: ` : "";
      if (names.isShared) makeStrip(part, which, title + "text", h.Tk, names.key, names.keyAnswer, true, true);
      else {
        makeStrip(part, which, title + "queries", h.Tq, names.query, names.queryAnswer, true, false);
        makeStrip(part, which, title + "keys", h.Tk, names.key, names.keyAnswer, false, true);
      }
    });
    panel.append(make("p", {className: "note", id: "lit"}));
  }
  const lights = sides.map(side => lightOf(side.head)), topOf = of => Math.max(1e-30, ...lights.map((lit, n) => lit && sides[n].of === of ? largestOf(lit.values.map(Math.abs)) : 0));
  const tops = new Map([[colour, isUnit() ? 1 : topOf(colour)], [difference, topOf(difference)]]);
  for (const {which, spans, isQuery, isKey} of strips) {
    const lit = lights[which], {of} = sides[which], values = lit && (lit.lit === "keys" ? isKey : isQuery) ? lit.values : null;
    for (const [n, s] of spans) {
      const c = values && values[n] !== 0 && of(values[n], tops.get(of));
      s.style.background = c ? rgb(c) : "";
      s.style.color = c ? inkOn(c) : "";
      s.title = `position ${n}` + (values ? ", " + amount(values[n]) : "");
      s.classList.toggle("from", isQuery && n === state.i);
      s.classList.toggle("pinned", isQuery && state.pins.includes(n));
      s.classList.toggle("to", isKey && n === state.j);
    }
  }
  const by = sides[0].head.kind === "map" ? ", by blocks" : "";
  el("lit").textContent = (lights[0] ? lights[0].caption + by + ". " : "Point at a token. ") + "A click holds it, another lets go; a pinned token stays; arrow keys move by one.";
}
function makeStrip(panel, which, title, count, name, answer, isQuery, isKey) {
  panel.append(make("h3", {textContent: title}));
  const centre = isQuery && state.i >= 0 ? state.i : Math.max(0, state.j);
  const wanted = pages.has(title) ? pages.get(title) : Math.floor(centre - SHOWN / 2);
  const start = count <= SHOWN ? 0 : Math.max(0, Math.min(count - SHOWN, wanted)), end = Math.min(count, start + SHOWN);
  if (count > SHOWN) {
    const turn = by => () => { pages.set(title, Math.max(0, Math.min(count - SHOWN, start + by))); drawPanel(); };
    const bar = panel.appendChild(make("div", {className: "bar"}));
    bar.append(make("button", {textContent: "earlier", onclick: turn(-SHOWN), disabled: start === 0}),
      make("span", {className: "note", textContent: `positions ${start} to ${end - 1} of ${count}`}),
      make("button", {textContent: "later", onclick: turn(SHOWN), disabled: end === count}));
  }
  const box = panel.appendChild(make("div", {className: "tokens"})), spans = new Map();
  for (let n = start; n < end; ++n) {
    const s = box.appendChild(make("span", {textContent: visible(name(n), 200)}));
    s.dataset.n = n;
    if (answer != null && n >= answer) s.classList.add("answer");
    spans.set(n, s);
  }
  const at = n => isQuery && (state.way === "to" || !isKey) ? {i: n} : {j: n, ...(isQuery ? {i: n} : {})};
  box.onclick = e => { if (e.target.dataset.n) chooseToken(at(Number(e.target.dataset.n)), holdCell); };
  box.onpointerover = e => { if (e.target.dataset.n && !held() && e.pointerType === "mouse") chooseToken(at(Number(e.target.dataset.n))); };
  strips.push({which, title, box, spans, isQuery, isKey});
}
const pages = new Map();
/// A choice that is made in any of the views: what the first one has no position for changes nothing.
function chooseToken(to, choose = where => change(where, "light")) {
  const {q_len, kv_len} = layerOf(state.view, state.layer);
  if ((to.i ?? 0) < q_len && (to.j ?? 0) < kv_len) choose(to);
}
/// Pointing changes nothing while a cell is held or a token is pinned: clicks do.
const held = () => state.hold || state.pins.length > 0;

function drawPins(head, texts) {
  renew(el("pins"), ...state.pins.map(i => {
    const row = head.row(i), best = largest(row, 3), line = make("div", {className: "pinned-row"});
    const attended = " attends to " + best.map(j => `${label(texts.key(j), 16)} (${j}) ${amount(row[j])}`).join(", ");
    const onclick = () => { change({pins: state.pins.filter(n => n !== i)}); if (!state.pins.length) el("pin").focus(); };
    line.append(make("button", {textContent: "\u00d7", ariaLabel: `unpin query ${i}`, onclick}),
      make("b", {textContent: `${i} ${label(texts.query(i), 24)}`}), make("span", {textContent: head.kind === "map" ? " by blocks only" : attended}));
    return line;
  }));
}
/// The positions whose token holds the sought text; pure but for its arguments.
const findTokens = (count, name, sought) => Array.from({length: sought ? count : 0}, (_, n) => n).filter(n => name(n).toLowerCase().includes(sought.toLowerCase()));
