// Why this weight: the products per dimension of one query and one key, and every step from their sum to the weight.
function drawWhy(panel, {head, texts, view, layer, number}) {
  const say = text => panel.append(make("p", {className: "note", textContent: text}));
  const kept = (layerOf(view, layer).exact || []).map(h => headNumber(view, layer, h)).join(", "), said = kept ? ` In this layer it holds those of head ${kept}.` : "";
  if (head.kind !== "exact") {
    return say(`This needs q, k and lse of the head, which this file does not hold: python -m qkv explore with --exact ${layer}:${number} stores them.${said}`);
  }
  if (state.i < 0 || state.j < 0) return say("Choose a query and a key: click a cell of the map, or a token and then another under \u201cwho attends to it\u201d.");
  const {i, j} = state, f = layerOf(view, layer).formula;
  if (i >= head.Tq || j >= head.Tk) return say(`This view has ${head.Tq} queries and ${head.Tk} keys: no such pair.`);
  const w = head.why(i, j);
  panel.append(make("h3", {textContent: `query ${i} ${label(texts.query(i), 24)}, key ${j} ${label(texts.key(j), 24)}`}));
  const table = panel.appendChild(make("table")), line = (name, value, note) => {
    const r = table.insertRow();
    r.insertCell().textContent = name;
    r.insertCell().textContent = value;
    r.insertCell().textContent = note || "";
  };
  line("scale q\u00b7k", short(w.scaled), `scale ${short(f.scale)}, the sum of ${w.products.length} products`);
  if (f.softcap) line("after the soft cap", short(w.capped), `${short(f.softcap)} tanh(x / ${short(f.softcap)})`);
  if (w.bias) line("bias by position", short(w.bias));
  line("lse of the query", short(w.lse), "log of the sum over all keys that it may see");
  line("weight", percent(w.weight), w.sees ? `exp(${short(w.capped + w.bias)} \u2212 ${short(w.lse)})` : "this key is hidden from this query");
  const n = w.products.length, wide = Math.max(4, Math.min(28, 760 / n)), top = Math.max(...w.products.map(p => Math.abs(p) || 0), 1e-30), half = 70;
  const svg = svgElement("svg", {viewBox: `0 0 ${n * wide + 8} ${2 * half + 16}`, width: n * wide + 8, height: 2 * half + 16, class: "bars", role: "img", "aria-label": "products per dimension"});
  w.products.forEach((p, d) => {
    const tall = (Math.min(Math.abs(p), top) || 0) / top * half, y = p > 0 ? half + 8 - tall : half + 8;
    const bar = svgElement("rect", {x: 4 + d * wide, y, width: wide - 1, height: Math.max(.5, tall), fill: rgb(difference(p > 0 ? 1 : -1, 1))});
    bar.append(svgElement("title", {}, `dimension ${d}: ${short(p)}`));
    svg.append(bar);
  });
  const best = largest(w.products.map(Math.abs), 5).map(d => `${d}: ${short(w.products[d])}`).join(", ");
  panel.append(svg, make("p", {className: "note", textContent: `One bar per dimension: scale \u00d7 q \u00d7 k, orange for and blue against. Largest: ${best}.`}));
}
