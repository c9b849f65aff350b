// Steps 2 and 5: a query and the keys as arrows with their dot products; the output as a mean that stays among the values.
// numbers, of one head: {tokens, query, dim: 2, vdim: 2, q, k, v, scores, weights, out}, arrays as engine.attend has them
function figurePlane(numbers, words, options = {}) {
  const {tokens, query} = numbers, q = draw.rows(numbers.q, 2)[query], k = draw.rows(numbers.k, 2), scores = draw.rows(numbers.scores, tokens.length)[query];
  const plane = draw.plane(218, [q, ...k], {range: options.range, title: words("figure.plane.space")});
  const arrows = k.map((p, j) => plane.vector(p, tokens[j], {colour: draw.head(j), key: `k:${j}`, parts: options.parts})).join("") +
    plane.vector(q, "q", {colour: "mark", thick: 3.5, key: `q:${query}`, parts: options.parts});
  const products = draw.bars(scores, {labels: tokens, width: 200, title: `q(${tokens[query]}) · k`, step: 50});
  const sums = k.map((p, j) => p.map((x, d) => `${draw.number(q[d])}·${draw.number(x)}`).join(" + ") + " = " + draw.number(scores[j]));
  products.body += sums.map((sum, j) => draw.text(44, 30 + j * 50 + 36, sum, {size: 12, colour: "faint"})).join("");
  products.width = Math.max(200, ...sums.map(sum => 44 + 1.15 * draw.measure(sum, 12)));
  const panels = [plane.panel(arrows), products];
  if (options.values !== false) panels.push(meanPanel(numbers, words("figure.plane.values"), options));
  return draw.svg("plane", words, draw.flow(panels, options.width, {gap: 16}), options);
}

/// The values as points, the output within what they enclose, tied to each by a line as thick as its weight.
function meanPanel({tokens, query, v, weights, out}, title, {valueRange, parts} = {}) {
  const points = draw.rows(v, 2), mean = draw.rows(out, 2)[query], w = draw.rows(weights, tokens.length)[query],
    plane = draw.plane(190, points, {range: valueRange, title});
  const at = points.map(plane.at), [x, y] = plane.at(mean);
  return plane.panel((points.length === 3 ? draw.path("M" + at.map(([a, b]) => `${a.toFixed(1)} ${b.toFixed(1)}`).join("L") + "Z",
    {stroke: "line", fill: "soft"}) : "") +
    at.map(([a, b], j) => draw.line(a, b, x, y, {stroke: draw.head(j), thick: Math.max(.8, 9 * w[j]), opacity: .6})).join("") +
    at.map(([a, b], j) => draw.part(`v:${j}`, tokens[j], draw.dot(a, b, 6, {fill: draw.head(j)}) +
      draw.middle(a, b - 11 - 15 * at.slice(0, j).filter(p => p[0] === a && p[1] === b).length, tokens[j],
        {bold: true, colour: draw.head(j)}), {parts})).join("") +
    draw.dot(x, y, 7, {fill: "mark2", stroke: "ground", thick: 2}) +
      draw.text(x + 6, y + 20, draw.pair(mean), {size: 12, bold: true, colour: "mark2"}));
}
