// Step 11: one row on its way back, from dp over ds to dq beside the query. numbers as engine.attend has them with dout, of one head of width 2
function figureGradient(numbers, words, options = {}) {
  const {tokens, query} = numbers, row = name => draw.rows(numbers[name], tokens.length)[query], q = draw.rows(numbers.q, 2)[query],
    dq = draw.rows(numbers.dq, 2)[query], labels = tokens, width = 190;
  const dp = row("dp"), mean = row("weights").reduce((sum, w, j) => sum + w * dp[j], 0),
    plane = draw.plane(218, [q], {range: options.range, title: words("figure.gradient.plane")});
  const arrows = draw.rows(numbers.k, 2).map((p, j) => plane.vector(p, tokens[j], {colour: draw.head(j), key: `k:${j}`, parts: options.parts})).join("") +
    plane.vector(q, "q", {colour: "mark", thick: 3.5, key: `q:${query}`, parts: options.parts}) + plane.vector(q.map((x, d) => x + dq[d]), "dq",
      {colour: "mark2", thick: 3.5, from: q});
  const panels = [draw.bars(dp, {labels, width, title: "dp", note: words("figure.gradient.mean", {mean: draw.number(mean)})}),
    draw.bars(row("ds"), {labels, width, digits: 3, title: "ds", note: words("figure.bars.sum",
      {sum: draw.number(+row("ds").reduce((sum, x) => sum + x, 0).toFixed(3) + 0)})}), plane.panel(arrows)];
  return draw.svg("gradient", words, draw.flow(panels, options.width, {gap: 30}), options);
}
