// Rotary positions as clocks: q and k turn with their positions, the angle between them stays. numbers: {frequency, q, k, pairs: [[m, n], ...]}
function figureClocks({frequency, q, k, pairs}, words, options = {}) {
  const turned = ([x, y], by) => [x * Math.cos(by) - y * Math.sin(by), x * Math.sin(by) + y * Math.cos(by)], r = 62;
  const panels = pairs.map(([m, n]) => {
    const a = turned(q, m * frequency), b = turned(k, n * frequency);
    const hand = ([x, y], name, colour) => draw.arrow(0, 0, x * r, -y * r, {stroke: colour, thick: 3}) +
      draw.middle(x * (r + 14), -y * (r + 14) + 4, name, {bold: true, colour, halo: true});
    let ticks = draw.dot(0, 0, r, {fill: "none", stroke: "line", thick: 1.2});
    for (let p = 0; p * frequency < 6.28; ++p) ticks += draw.line(...turned([r - 4, 0], -p * frequency), ...turned([r, 0], -p * frequency),
        {stroke: "faint", thick: 1});
    const product = a[0] * b[0] + a[1] * b[1], say = (name, values) => words("figure.clocks." + name, values);
    return {width: 168, height: 206, body: draw.middle(84, 13, say("positions", {q: m, k: n}), {bold: true}) +
      draw.moved(84, 106, ticks + hand(b, "k", "h0") + hand(a, "q", "mark")) +
      draw.middle(84, 200, `q · k = ${draw.number(product)}`, {size: 12, colour: "faint"})};
  });
  return draw.svg("clocks", words, draw.flow(panels, options.width, {gap: 18}), options);
}
