// Beside the map: what the head is, the chosen pair, a number per query, and how exact it all is.
function drawFacts(head) {
  const {view, layer, head: h} = state, info = infoOf(view, layer, h), l = layerOf(view, layer), on = (name, what) => Number.isFinite(info[name]) && `${percent(info[name])} ${what}`;
  const facts = [info.kind && kindOf(info), on("first", "on the first keys"), info.sink > 0 && on("sink", "into the sink"), !info.kind && on("self", "on itself"),
    !info.kind && on("previous", "on the token before"), Number.isFinite(info.entropy) && `entropy ${short(info.entropy)} nats`, `${l.q_len} queries, ${l.kv_len} keys`,
    l.kv_heads !== l.heads && `${l.heads / l.kv_heads} heads share these keys`];
  el("name").textContent = nameOf(view, layer, h);
  el("facts").textContent = facts.filter(Boolean).join(" \u00b7 ");
}

function drawPair(head, texts) {
  const box = el("pair"), {i, j} = state, add = (tag, text) => box.appendChild(make(tag, {textContent: text}));
  box.replaceChildren();
  if (i < 0) return void add("p", "Point at the map or at a token; a click holds it.").classList.add("note");
  add("div", `query ${i} `).append(make("b", {textContent: label(texts.query(i), 40)}));
  if (j >= 0) {
    add("div", `key ${j} `).append(make("b", {textContent: label(texts.key(j), 40)}));
    add("div", amount(head.weight(i, j))).className = "value";
    if (isNorm()) add("p", "weight \u00d7 norm of v W_o: what the head writes of this key").classList.add("note");
    else if (head.kind === "map") add("p", "share of this block of queries in this block of keys").classList.add("note");
  }
  const row = head.row(i);
  if (head.kind !== "map") {
    const list = box.appendChild(make("ol"));
    for (const n of largest(row, 5).filter(at => row[at] > 0)) {
      list.appendChild(make("li", {textContent: `${amount(row[n])}  on ${n}  `})).append(make("b", {textContent: label(texts.key(n), 24)}));
    }
    if (!isNorm() && texts.keyAnswer != null && texts.keyAnswer < head.Tk) {
      let prompt = 0, answer = 0;
      row.forEach((w, n) => { if (n < texts.keyAnswer) prompt += w; else answer += w; });
      add("p", `${percent(prompt)} on the prompt, ${percent(answer)} on the answer${texts.queryAnswer != null && i >= texts.queryAnswer ? "; this query is part of the answer" : ""}`);
    }
    if (!isNorm() && head.sinkShare) add("p", `${percent(head.sinkShare(i))} into the sink`);
    const sum = row.reduce((a, b) => a + b, 0) + (head.sinkShare ? head.sinkShare(i) : 0);
    if (head.kind === "exact" && !isNorm()) add("p", `the row sums to ${sum.toFixed(6)}${head.sinkShare ? " with its sink" : ""}`).className = "note";
  }
}

const legend = () => limitsOf(state.view, state.layer) ? "Grey: keys that the mask hides." : isZeroGrey ? "Grey: exactly 0, such as a masked key." : "";
function drawScale(top) {
  const width = 220, g = sized(el("scale"), width + 24, 34), shares = Array.from({length: width}, (_, x) => (x / (width - 1)) ** (state.spacing === "sqrt" ? 2 : 1));
  g.imageSmoothingEnabled = false;
  g.drawImage(cellsImage(shares.map(s => Math.max(1e-30, s) * top), 1, width, top), 8, 0, width, 12);
  g.fillStyle = css("--faint");
  g.font = "11px system-ui, sans-serif";
  g.textBaseline = "top";
  for (const s of [0, .25, 1]) {
    g.textAlign = s === 0 ? "left" : s === 1 ? "right" : "center";
    g.fillText(amount(s * top), 8 + scaled(s) * (width - 1), 17);
  }
}

/// Statistics that are shares of a row.
const ROW_SHARES = ["first", "largest", "mass", "previous", "self", "sink"];
/// From where to where numbers along the text are drawn, 0 among them; of entropies, which hardly move, from the least on, with ln n, that of n equal weights; pure.
function axisOf(values, name, keys) {
  const known = [...values].filter(Number.isFinite), least = known.reduce((a, b) => Math.min(a, b), 0), top = known.reduce((a, b) => Math.max(a, b), 0) || (least < 0 ? 0 : 1);
  if (name !== "entropy") return {low: least, top, even: 0};
  const low = known.reduce((a, b) => Math.min(a, b), top), even = Math.log(keys);
  return {low: low < top ? low : 0, top: even < 1.5 * top ? Math.max(top, even) : top, even};
}
/// A statistic of the file along the queries, and the mass of the keys.
async function drawRows(turn) {
  const at = `${state.view}/${state.layer}/`, names = [...elements.keys()].filter(n => n.startsWith(at + "rows/")).map(n => n.slice(at.length + 5)).sort();
  const all = [...names.map(n => [n, n + " per query"]), ...(has(at + "mass") ? [["mass", "mass per key"]] : [])], canvas = el("rows");
  el("statistic").hidden = canvas.hidden = el("rowName").hidden = !all.length;
  if (!all.length) return;
  const chosen = all.some(([n]) => n === state.statistic) ? state.statistic : all[0][0];
  fillSelect(el("statistic"), all, chosen);
  el("rowName").textContent = "along the text";
  const tensor = await load(chosen === "mass" ? at + "mass" : at + "rows/" + chosen);
  if (turn !== rendering) return;
  const n = tensor.sizes[1], values = tensor.data.subarray(state.head * n, (state.head + 1) * n), g = sized(canvas, 236, 70);
  const {low, top, even} = axisOf(values, chosen, layerOf(state.view, state.layer).kv_len);
  const y = x => 54 - 50 * (x - low) / (top - low || 1), write = ROW_SHARES.includes(chosen) ? percent : short, zero = Math.max(low, 0);
  g.fillStyle = css("--mark");
  for (let x = 0; x < 228; ++x) {
    const from = Math.floor(x * n / 228), to = Math.max(from + 1, Math.floor((x + 1) * n / 228));
    let most = zero, least = zero;
    for (let m = from; m < to; ++m) if (Number.isFinite(values[m])) most = Math.max(most, values[m]), least = Math.min(least, values[m]);
    g.fillRect(4 + x, y(most), 1, y(least) - y(most) + .5);
  }
  g.fillStyle = css("--faint");
  if (even && even <= top) g.fillRect(4, y(even), 228, 1);
  g.font = "11px system-ui, sans-serif";
  g.fillText(`${write(low)} to ${write(top)}${even ? `; all keys alike: ${short(even)}` : ""}`, 4, 67);
  const most = values.reduce((a, x) => Number.isFinite(x) && !(x <= a) ? x : a, NaN);
  canvas.setAttribute("aria-label", `${chosen} from the first to the last position, at most ${write(most)}`);
}

/// How exact what is shown is, and where it comes from.
function drawAbout() {
  const l = layerOf(state.view, state.layer), e = l.errors || {}, f = l.formula, lines = [...(file.notes || []).map(String)];
  if (f?.refused) lines.push(`No exact weights in this layer: ${f.refused}`);
  if (l.exact?.length && !f.refused) {
    const parts = [`scale ${short(f.scale)}`];
    if (f.softcap) parts.push(`soft cap ${short(f.softcap)}`);
    for (const name of ["intervals", "alibi", "relative", "bias", "sinks"]) if (has(`${state.view}/${state.layer}/${name}`)) parts.push(name);
    const at = `${state.view}/${state.layer}/q`, how = elements.get(at).dataset.dtype;
    lines.push(`Exact heads: ${l.exact.map(h => headNumber(state.view, state.layer, h)).join(", ")}; weight = exp(score \u2212 lse) with ${parts.join(", ")}; q and k are stored as ${how}` +
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
