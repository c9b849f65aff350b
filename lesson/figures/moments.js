// Step 12: a model learns to look. numbers: {losses, tokens, moments: [{step, weights [T, T]}]}, one loss for each step
function figureMoments({losses, tokens, moments}, words, options = {}) {
  const width = Math.min(options.width || 760, 760) - 40, side = 13, labels = tokens.map(draw.token);
  const {x, y, height, body} = draw.losses(losses, {width, high: 92, bend: .5, title: words("figure.moments.loss")});
  const dots = moments.map(({step}, i) => draw.dot(x(step), y(losses[Math.max(0, step - 1)]), 5, {fill: "mark", stroke: "ground", thick: 1.5}) +
    (i && x(step) - x(moments[i - 1].step) < 24 ? "" : draw.middle(x(step), height - 3, step, {size: 11, colour: "faint"}))).join("");
  const maps = moments.map(({step, weights}, i) => {
    const map = draw.table(tokens.length, tokens.length, {width: side, height: side, title: words("figure.moments.step", {step}), labels, tops: labels,
      share: (r, c) => weights[r][c], hidden: (r, c) => c > r});
    return {...map, body: draw.part(`moment:${i}`, words("figure.moments.step", {step}), map.body, options)};
  });
  return draw.svg("moments", words, draw.stack([{width, height, body: body + dots}, draw.flow(maps, width, {gap: 14}),
    draw.note(words("figure.moments.text", {text: tokens.join("")}))], 12), options);
}
