// Beside the map: what the head is, the chosen pair, a number per query, and how exact it all is.
function drawFacts(head) {
  const {view, layer, head: h} = state, info = infoOf(view, layer, h), l = layerOf(view, layer), facts = [];
  if (info.kind) facts.push(info.kind + (Number.isFinite(info.share) ? ` with ${percent(info.share)}` : ""));
  if (Number.isFinite(info.first)) facts.push(`${percent(info.first)} on the first keys`);
  if (Number.isFinite(info.sink) && info.sink > 0) facts.push(`${percent(info.sink)} into the sink`);
  for (const [name, what] of [["self", "itself"], ["previous", "the token before"]]) if (!info.kind && Number.isFinite(info[name])) facts.push(`${percent(info[name])} on ${what}`);
  if (Number.isFinite(info.entropy)) facts.push(`entropy ${short(info.entropy)} nats`);
  facts.push(`${l.q_len} queries, ${l.kv_len} keys`);
  if (l.kv_heads !== l.heads) facts.push(`${l.heads / l.kv_heads} heads share these keys`);
  el("name").textContent = nameOf(view, layer, h);
  el("facts").textContent = facts.join(" \u00b7 ");
}

function drawPair(head, texts) {
  const box = el("pair"), {i, j} = state, add = (tag, text) => box.appendChild(make(tag, {textContent: text}));
  box.replaceChildren();
  if (i < 0) return void add("p", "Point at the map or at a token.").classList.add("note");
  add("div", `query ${i} `).append(make("b", {textContent: label(texts.query(i), 40)}));
  if (j >= 0) {
    add("div", `key ${j} `).append(make("b", {textContent: label(texts.key(j), 40)}));
    add("div", percent(head.weight(i, j))).className = "value";
    if (head.kind === "map") add("p", "share of this block of queries in this block of keys").classList.add("note");
  }
  const row = head.row(i);
  if (head.kind !== "map") {
    const list = box.appendChild(make("ol"));
    for (const n of largest(row, 5).filter(at => row[at] > 0)) {
      list.appendChild(make("li", {textContent: `${percent(row[n])}  on ${n}  `})).append(make("b", {textContent: label(texts.key(n), 24)}));
    }
    if (texts.keyAnswer != null && texts.keyAnswer < head.Tk) {
      let prompt = 0, answer = 0;
      row.forEach((w, n) => { if (n < texts.keyAnswer) prompt += w; else answer += w; });
      add("p", `${percent(prompt)} on the prompt, ${percent(answer)} on the answer${texts.queryAnswer != null && i >= texts.queryAnswer ? "; this query is part of the answer" : ""}`);
    }
    if (head.sinkShare) add("p", `${percent(head.sinkShare(i))} into the sink`);
    const sum = row.reduce((a, b) => a + b, 0) + (head.sinkShare ? head.sinkShare(i) : 0);
    if (head.kind === "exact") add("p", `the row sums to ${sum.toFixed(6)}${head.sinkShare ? " with its sink" : ""}`).className = "note";
  }
}

function drawScale(top) {
  const width = 220, g = sized(el("scale"), width + 24, 34);
  for (let x = 0; x < width; ++x) {
    const s = x / (width - 1);
    g.fillStyle = rgb(colour(Math.max(1e-30, state.spacing === "sqrt" ? s * s : s) * top, top));
    g.fillRect(x + 8, 0, 1, 12);
  }
  g.fillStyle = css("--faint");
  g.font = "11px system-ui, sans-serif";
  g.textBaseline = "top";
  for (const s of [0, .25, 1]) {
    g.textAlign = s === 0 ? "left" : s === 1 ? "right" : "center";
    g.fillText(percent(s * top), 8 + scaled(s) * (width - 1), 17);
  }
}

/// A statistic of the file along the queries, and the mass of the keys.
async function drawRows(turn) {
  const at = `${state.view}/${state.layer}/`, names = [...elements.keys()].filter(n => n.startsWith(at + "rows/")).map(n => n.slice(at.length + 5)).sort();
  const all = [...names.map(n => [n, n + " per query"]), ...(has(at + "mass") ? [["mass", "mass per key"]] : [])], canvas = el("rows");
  el("statistic").hidden = canvas.hidden = el("rowName").hidden = !all.length;
  if (!all.length) return;
  const chosen = all.some(([n]) => n === state.statistic) ? state.statistic : all[0][0];
  fillSelect("statistic", all, chosen);
  el("rowName").textContent = "along the text";
  const tensor = await load(chosen === "mass" ? at + "mass" : at + "rows/" + chosen);
  if (turn !== rendering) return;
  const n = tensor.sizes[1], values = tensor.data.subarray(state.head * n, (state.head + 1) * n), g = sized(canvas, 236, 70), top = largestOf(values) || 1;
  g.fillStyle = css("--mark");
  for (let x = 0; x < 228; ++x) {
    const from = Math.floor(x * n / 228), to = Math.max(from + 1, Math.floor((x + 1) * n / 228));
    let most = 0;
    for (let m = from; m < to; ++m) most = Math.max(most, values[m] || 0);
    g.fillRect(4 + x, 54 - 50 * most / top, 1, 50 * most / top + .5);
  }
  g.fillStyle = css("--faint");
  g.font = "11px system-ui, sans-serif";
  g.fillText(`0 to ${chosen === "mass" || top <= 1 && chosen !== "entropy" && chosen !== "distance" ? percent(top) : short(top)}`, 4, 67);
  canvas.setAttribute("aria-label", `${chosen} from the first to the last position, at most ${short(top)}`);
}

/// How exact what is shown is, and where it comes from.
function drawAbout() {
  const l = layerOf(state.view, state.layer), e = l.errors || {}, f = l.formula, lines = [...(file.notes || []).map(String)];
  if (f?.refused) lines.push(`No exact weights in this layer: ${f.refused}`);
  if (l.exact && !f.refused) {
    const parts = [`scale ${short(f.scale)}`];
    if (f.softcap) parts.push(`soft cap ${short(f.softcap)}`);
    for (const name of ["intervals", "alibi", "relative", "bias", "sinks"]) if (has(`${state.view}/${state.layer}/${name}`)) parts.push(name);
    const at = `${state.view}/${state.layer}/q`, how = elements.get(at).dataset.dtype;
    lines.push(`Exact heads: ${l.exact.join(", ")}; weight = exp(score \u2212 lse) with ${parts.join(", ")}; q and k are stored as ${how}` +
      `${Number.isFinite(e.exact) ? `, largest relative error of a weight ${e.exact.toPrecision(2)}` : ", as they were given"}.`);
  }
  for (const name of ["weights", "map"]) {
    const stored = elements.get(`${state.view}/${state.layer}/${name}`), what = name === "map" ? "maps by blocks" : "weights";
    if (stored) lines.push(`The ${what} are stored as ${stored.dataset.dtype}${Number.isFinite(e[name]) ? `, largest error of a weight ${e[name].toPrecision(2)}` : ""}.`);
  }
  lines.push("Attention says where numbers came from, not why the model answered as it did.",
    "Keys: arrows move by head and layer, or by token inside the text and the map; + and \u2212 zoom, p pins, / searches.");
  el("about").replaceChildren(...lines.map(textContent => make("p", {className: "note", textContent})));
}
