// Step 5: the output of a query, as parts of the values put one behind the other. numbers as in plane.js
function figureMixture(numbers, words, options = {}) {
  const {tokens, query} = numbers, v = draw.rows(numbers.v, 2), out = draw.rows(numbers.out, 2)[query], w = draw.rows(numbers.weights, tokens.length)[query];
  const {pair} = draw, plane = draw.plane(230, [...v, out], {range: options.valueRange, title: words("figure.mixture.path")});
  let at = [0, 0], path = "";
  v.forEach((p, j) => {
    const next = at.map((x, d) => x + w[j] * p[d]);
    path += plane.vector(p, p.some(x => x) ? tokens[j] : "", {colour: draw.head(j), thick: 1.2, dash: "3 4", key: `v:${j}`, parts: options.parts}) +
      plane.vector(next, "", {colour: draw.head(j), thick: 3.5, from: at});
    at = next;
  });
  const [x, y] = plane.at(out);
  path += draw.dot(x, y, 6, {fill: "mark2", stroke: "ground", thick: 2}) + draw.text(x + 6, y + 20, pair(out), {size: 12, bold: true, colour: "mark2"});
  const line = (i, cells) => cells.map(([at, s, style]) => draw.text(at, 18 + 32 * i, s, style)).join("");
  const sum = v.map((p, j) => line(j, [[0, draw.number(w[j], 3), {colour: draw.head(j), bold: true}],
    [48, `× v(${tokens[j]}) = ${draw.number(w[j], 3)} × ${pair(p)}`], [226, pair(p.map(x => w[j] * x))]])).join("") +
    draw.line(0, 32 * v.length - 2, 310, 32 * v.length - 2, {stroke: "line"}) +
      line(v.length, [[0, words("figure.mixture.sum"), {bold: true, colour: "mark2"}], [226, pair(out), {bold: true, colour: "mark2"}]]);
  const equation = draw.titled(words("figure.mixture.parts", {token: tokens[query]}), {width: 312, height: 30 + 32 * v.length, body: sum});
  return draw.svg("mixture", words, draw.flow([plane.panel(path), equation], options.width, {gap: 30}), options);
}
