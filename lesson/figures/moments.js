// Step 12: a model learns to look. numbers: {losses, tokens, moments: [{step, weights [T, T]}]}, one loss for each step
function figureMoments({losses, tokens, moments}, words, options = {}) {
  const width = Math.min(options.width || 760, 760) - 40, side = 13, most = Math.max(...losses), high = 92;
  const x = step => 34 + (width - 44) * (step / losses.length) ** .5, y = loss => 26 + high * (1 - loss / most);
  const labels = tokens.map(draw.token), curve = losses.map((loss, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(loss).toFixed(1)}`).join(""),
    at = step => [x(step), y(losses[Math.min(step, losses.length - 1)])];
  let body = draw.text(0, 13, words("figure.moments.loss"), {bold: true});
  for (const loss of [0, 1, 2]) if (loss <= most) body += draw.line(34, y(loss), width - 10, y(loss), {stroke: "line", thick: 1}) +
      draw.text(26, y(loss) + 4, loss, {size: 11, anchor: "end", colour: "faint"});
  body += draw.path(curve, {stroke: "mark2", thick: 2}) + moments.map(({step}, i) => draw.dot(...at(step), 5, {fill: "mark", stroke: "ground", thick: 1.5}) +
    (i && x(step) - x(moments[i - 1].step) < 24 ? "" : draw.middle(x(step), 26 + high + 17, step, {size: 11, colour: "faint"}))).join("");
  const maps = moments.map(({step, weights}, i) => {
    const map = draw.table(tokens.length, tokens.length, {width: side, height: side, title: words("figure.moments.step", {step}), labels, tops: labels,
      share: (r, c) => weights[r][c], hidden: (r, c) => c > r});
    return {...map, body: draw.part(`moment:${i}`, words("figure.moments.step", {step}), map.body, options)};
  });
  return draw.svg("moments", words, draw.stack([{width, height: high + 46, body}, draw.flow(maps, width, {gap: 14}),
    draw.note(words("figure.moments.text", {text: tokens.join("")}))], 12), options);
}
