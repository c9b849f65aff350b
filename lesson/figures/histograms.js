// Step 3: why sqrt(d). numbers: {keys, columns: [{dim, scores, unscaled, scaled}]}: products of random q and k [draws, keys] and the weights
// of softmax without and with the scale
function figureHistograms({keys, columns}, words, options = {}) {
  const far = options.far || 3 * Math.sqrt(Math.max(...columns.map(c => c.dim))), bins = 101, width = 210,
    say = (name, values) => words("figure.histograms." + name, values);
  const mean = (all, f) => Array.from(all).reduce((sum, x) => sum + f(x), 0) / all.length;
  const panels = columns.map(({dim, scores, unscaled, scaled}) => {
    const counts = new Array(bins).fill(0), draws = scores.length / keys;
    for (const s of scores) ++counts[Math.min(bins - 1, Math.max(0, Math.floor((s + far) / (2 * far) * bins)))];
    const most = Math.max(...counts), wide = width / bins, centre = width / 2, turn = s => centre + s / far * centre;
    let body = draw.text(0, 13, `q · k, d = ${dim}`, {bold: true}) +
      draw.text(width, 13, say("variance", {variance: draw.number(mean(scores, s => s * s), dim < 10 ? 1 : 0)}), {size: 12, anchor: "end", colour: "faint"});
    counts.forEach((n, i) => { if (n) body += draw.rect(i * wide + .2, 104 - 78 * n / most, wide - .4, 78 * n / most, {fill: "h0"}); });
    body += draw.line(0, 104, width, 104, {stroke: "faint", thick: 1});
    for (const tick of [-100, 0, 100]) body += draw.line(turn(tick), 104, turn(tick), 108, {stroke: "faint", thick: 1}) +
        draw.middle(turn(tick), 121, draw.number(tick), {size: 11, colour: "faint"});
    [["softmax(q · k)", unscaled, "mark"], ["softmax(q · k ÷ √d)", scaled, "h1"]].forEach(([name, weights, fill], r) => {
      const y = 150 + r * 104, each = width / keys, rows = draw.rows(weights, keys), first = rows[0];
      body += draw.text(0, y, name, {bold: true, colour: fill}) + draw.line(0, y + 56, width, y + 56, {stroke: "faint", thick: 1});
      Array.from(first).forEach((w, j) => { body += draw.rect(j * each + 1, y + 56 - 46 * w, each - 2, Math.max(.7, 46 * w), {fill}); });
      const largest = rows.reduce((sum, row) => sum + Math.max(...row), 0) / draws, alive = mean(weights, w => w * (1 - w)) * keys;
      body += draw.text(0, y + 74, say("passes", {largest: draw.number(largest), alive: draw.number(alive)}), {size: 12, colour: "faint"});
    });
    return {width: width + 14, height: 334, body};
  });
  return draw.svg("histograms", words, draw.flow(panels, options.width, {gap: 26}), options);
}
