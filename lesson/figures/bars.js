// Steps 3 and 4: a row of scores on its way to weights. numbers, of one head: {tokens, query, scores, scaled, weights, dim, scale}
function figureBars(numbers, words, options = {}) {
  const {tokens, query, dim} = numbers, row = name => draw.rows(numbers[name], tokens.length)[query], weights = row("weights"), most = Math.max(...weights),
    scaled = row("scaled");
  const shares = weights.map(w => w / most), width = 164, labels = tokens;
  const high = Math.max(...row("scores"), ...scaled, 1), low = Math.min(...row("scores"), ...scaled.filter(Number.isFinite), 0), key = "score";
  const panels = [draw.bars(row("scores"), {labels, width, title: "q · k", high, low, key, parts: options.parts}),
    draw.bars(scaled, {labels, width, title: `÷ √${dim} = ${draw.number(Math.sqrt(dim))}`, high, low}),
    draw.bars(shares, {labels, width, title: "exp(s − max s)", digits: 3, high: 1, note: words("figure.bars.sum", {sum: draw.number(1 / most, 3)})}),
    draw.bars(weights, {labels, width, title: words("figure.bars.weights"), digits: 3, high: 1, note: words("figure.bars.sum", {sum: 1})})];
  return draw.svg("bars", words, draw.flow(panels, options.width, {gap: 22}), options);
}
