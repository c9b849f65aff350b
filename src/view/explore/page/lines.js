// Lines between two columns of tokens; the widest is the largest weight shown. Of long texts: the chosen query's surroundings, and the keys that it looks at most.
const NEAR = 18, BEST = 20, LINE_HEIGHT = 19;

/// Positions to show: all of a short text; otherwise those near `centre` and the `best`; pure.
function chosenPositions(count, centre, best, near = NEAR) {
  if (count <= 3 * NEAR) return Array.from({length: count}, (_, n) => n);
  const out = new Set(best);
  for (let n = Math.max(0, centre - near); n <= Math.min(count - 1, centre + near); ++n) out.add(n);
  return [...out].sort((a, b) => a - b);
}

function drawLines(panel, head, texts) {
  if (head.kind === "map") return void panel.append(make("p", {className: "note", textContent: "This head is stored by blocks only: lines between tokens need its weights, or its q, k and lse."}));
  const i = state.i, row = i >= 0 ? head.row(i) : null, best = row ? largest(row, BEST) : [];
  const queries = chosenPositions(head.Tq, Math.max(0, i), state.pins), keys = chosenPositions(head.Tk, head.Tk > 3 * NEAR ? best[0] ?? 0 : 0, best.filter(j => row[j] > 0), 6);
  const height = Math.max(queries.length, keys.length) * LINE_HEIGHT + 30, y = n => 34 + n * LINE_HEIGHT;
  const svg = svgElement("svg", {viewBox: `0 0 640 ${height}`, width: 640, height, class: "lines", role: "img", "aria-label": "lines from queries to the keys that they look at"});
  const from = i >= 0 && !state.pins.length ? [i] : state.pins.length ? [...new Set([...state.pins, ...(i >= 0 ? [i] : [])])] : queries;
  const place = new Map(keys.map((j, n) => [j, n])), rows = new Map(queries.filter(q => from.includes(q)).map(q => [q, head.row(q)]));
  const top = Math.max(1e-30, ...[...rows.values()].map(weights => keys.reduce((most, j) => Math.max(most, weights[j] || 0), 0)));
  svg.append(svgElement("text", {x: 200, y: 14, "text-anchor": "end", class: "head"}, "queries"), svgElement("text", {x: 440, y: 14, class: "head"}, "keys"));
  queries.forEach((q, n) => {
    const weights = rows.get(q);
    if (!weights) return;
    for (const j of keys) {
      const share = weights[j] / top;
      if (!(share > .01)) continue;
      const ends = {x1: 206, y1: y(n) - 4, x2: 434, y2: y(place.get(j)) - 4};
      svg.append(svgElement("line", {...ends, "stroke-width": (.6 + 5 * share).toFixed(2), "stroke-opacity": (.15 + .85 * share).toFixed(3)}));
    }
  });
  const word = (n, x, anchor, name, isQuery, at) => {
    const chosen = isQuery ? n === i || state.pins.includes(n) : n === state.j;
    const t = svgElement("text", {x, y: y(at), "text-anchor": anchor, class: chosen ? "chosen" : "", "data-n": n}, label(name, 22) + (head.Tk > 3 * NEAR ? `  ${n}` : ""));
    t.onclick = () => change(isQuery ? {i: n} : {j: n}, "light");
    t.onmouseenter = () => { if (isQuery && !held() && state.i !== n && head.Tq <= 3 * NEAR) change({i: n}, "light"); };
    svg.append(t);
  };
  queries.forEach((n, at) => word(n, 200, "end", texts.query(n), true, at));
  keys.forEach((n, at) => word(n, 440, "start", texts.key(n), false, at));
  const hint = i < 0 ? " Point at a query to see its lines alone." : "";
  panel.append(svg, make("p", {className: "note", textContent: `The widest line is ${percent(top)}; what is below a hundredth of it is left out.${hint}`}));
}
function svgElement(tag, attributes, text) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  if (text !== undefined) e.textContent = text;
  return e;
}
