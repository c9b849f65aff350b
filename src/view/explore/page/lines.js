// Lines between two columns of tokens; the widest is the largest weight shown. Of long texts: the chosen query's surroundings and the keys
// that it attends to most; without a choice the heaviest lines of all, and of very long texts the same positions on both sides.
const NEAR = 18, BEST = 20, ALL = 64, HEAVIEST = 60, LINE_HEIGHT = matchMedia("(pointer: coarse)").matches ? 24 : 19;

/// Positions to show: all of a short text; otherwise those near `centre` and the `best`; pure.
function chosenPositions(count, centre, best, near = NEAR) {
  if (count <= ALL) return Array.from({length: count}, (_, n) => n);
  const out = new Set(best);
  for (let n = Math.max(0, centre - near); n <= Math.min(count - 1, centre + near); ++n) out.add(n);
  return [...out].sort((a, b) => a - b);
}

/// The largest weights of all, of equal ones the first, the rest as 0: {queries, keys, rows}; pure.
function heaviestOf(head, most) {
  const all = Array.from({length: head.Tq}, (_, q) => head.row(q)), known = all.flatMap(row => [...row]).map(Math.abs).filter(w => w > 0);
  const sorted = Float32Array.from(known).sort(), least = sorted.at(-most) ?? 0, rows = new Map();
  let equal = most - sorted.reduce((count, w) => count + (w > least), 0);
  const drawn = w => Math.abs(w) > least || Math.abs(w) === least && w !== 0 && equal-- > 0;
  all.forEach((row, q) => {
    const kept = row.map(w => drawn(w) ? w : 0);
    if (kept.some(w => w !== 0)) rows.set(q, kept);
  });
  return {queries: [...rows.keys()], keys: Array.from({length: head.Tk}, (_, j) => j).filter(j => [...rows.values()].some(row => row[j])), rows};
}
/// The drawn part of a side: {queries, keys} in order, the rows of those queries that have lines, and the largest weight.
function linesOf({head}) {
  const i = state.i < head.Tq ? state.i : -1, pins = state.pins.filter(n => n < head.Tq), isLong = head.Tk > ALL;
  const topOf = (rows, keys) => Math.max(1e-30, ...[...rows.values()].map(row => keys.reduce((most, j) => Math.max(most, Math.abs(row[j]) || 0), 0)));
  if (i < 0 && !pins.length && (isLong || head.Tq > ALL) && head.Tq * head.Tk <= 2 ** 20) {
    const part = heaviestOf(head, HEAVIEST);
    return {i, ...part, top: topOf(part.rows, part.keys), said: ` Of all weights the ${HEAVIEST} largest are drawn.`};
  }
  const best = i < 0 ? [] : largest(head.row(i).map(Math.abs), BEST).filter(j => head.weight(i, j) !== 0);
  const queries = chosenPositions(head.Tq, Math.max(0, i), pins), about = isLong ? best[0] ?? 0 : 0;
  const keys = i < 0 ? chosenPositions(head.Tk, 0, pins.filter(n => n < head.Tk)) : chosenPositions(head.Tk, about, best, 6);
  const from = i < 0 && !pins.length ? queries : [...new Set([...pins, ...(i < 0 ? [] : [i])])], rows = new Map(from.map(q => [q, head.row(q)]));
  return {i, queries, keys, rows, top: topOf(rows, keys),
    said: queries.length < head.Tq || keys.length < head.Tk ? ` Of ${head.Tq} queries and ${head.Tk} keys, ${queries.length} and ${keys.length} are drawn.` : ""};
}

function drawLines(panel, side, sides) {
  const {head, texts} = side;
  if (head.kind === "map") return void panel.append(make("p", {className: "note", textContent: "This head is stored by blocks only: lines between tokens need its weights, or its q, k and lse."}));
  const {i, queries, keys, rows, top: own, said} = linesOf(side), alike = sides.filter(other => other.of === side.of && other.head.kind !== "map");
  const top = Math.max(own, ...alike.map(other => linesOf(other).top));  // one scale for what is compared
  const height = Math.max(queries.length, keys.length) * LINE_HEIGHT + 30, y = n => 34 + n * LINE_HEIGHT, row_of_key = new Map(keys.map((j, n) => [j, n]));
  const [width, room, most] = sides.length > 1 || panel.clientWidth < 600 ? [400, 124, 15] : [640, 200, 22], right = width - room;
  const svg = svgElement("svg", {viewBox: `0 0 ${width} ${height}`, width, height, class: "lines", role: "img", "aria-label": "lines from queries to the keys that they attend to"});
  svg.append(svgElement("text", {x: room, y: 14, "text-anchor": "end", class: "head"}, "queries"), svgElement("text", {x: right, y: 14, class: "head"}, "keys"));
  queries.forEach((q, n) => {
    const weights = rows.get(q);
    if (!weights) return;
    for (const j of keys) {
      const share = Math.abs(weights[j]) / top;
      if (!(share > .01)) continue;
      const ends = {x1: room + 6, y1: y(n) - 4, x2: right - 6, y2: y(row_of_key.get(j)) - 4};
      const ink = side.of === difference ? {style: `stroke:${rgb(difference(Math.sign(weights[j]), 1))}`} : {};
      svg.append(svgElement("line", {...ends, ...ink, "stroke-width": (.6 + 5 * share).toFixed(2), "stroke-opacity": (.15 + .85 * share).toFixed(3)}));
    }
  });
  const word = (n, x, anchor, name, isQuery, at) => {
    const chosen = isQuery ? n === i || state.pins.includes(n) : n === state.j;
    const t = svgElement("text", {x, y: y(at), "text-anchor": anchor, class: chosen ? "chosen" : "", "data-n": n}, label(name, most) + (head.Tk > ALL ? `  ${n}` : ""));
    t.onclick = () => chooseToken(isQuery ? {i: n} : {j: n}, holdCell);
    t.onpointerenter = e => { if (e.pointerType === "mouse" && isQuery && !held() && state.i !== n && head.Tq <= ALL) chooseToken({i: n}); };
    svg.append(t);
  };
  queries.forEach((n, at) => word(n, room, "end", texts.query(n), true, at));
  keys.forEach((n, at) => word(n, right, "start", texts.key(n), false, at));
  const hint = said + (i < 0 ? " Point at a query to see its lines alone." : "");
  panel.append(svg, make("p", {className: "note", textContent: `A line as wide as can be is ${amount(top)}; what is below a hundredth of it is left out.${hint}`}));
}
function svgElement(tag, attributes, text) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  if (text !== undefined) e.textContent = text;
  return e;
}
