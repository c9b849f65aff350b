// Step 9: a row of weights, and what dropout makes of it. numbers: {tokens, p, weights, dropped}, each [T]
function figureDropout({tokens, p, weights, dropped}, words, options = {}) {
  const sum = of => words("figure.bars.sum", {sum: draw.number(of.reduce((all, w) => all + w, 0), 3)}), high = Math.max(1, ...dropped), width = 250;
  const panels = [draw.bars(weights, {labels: tokens, width, digits: 3, high, title: words("figure.bars.weights"), note: sum(weights)}),
    draw.bars(dropped, {labels: tokens, width, digits: 3, high, title: words("figure.dropout.after", {p: draw.number(p)}), note: sum(dropped)})];
  return draw.svg("dropout", words, draw.flow(panels, options.width, {gap: 40}), options);
}
