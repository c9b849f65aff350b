// Steps 6 to 10: where q, k, v come from, masks, dropout, heads.

/// A mask on the example's head: what is kept, and the weights, where hidden scores become -inf or, wrongly, 0.
function maskedNumbers({mask, fill, empty}) {
  const causal = mask === "causal" || mask === "both", padding = mask === "padding" || mask === "both";
  const keep = [0, 1, 2].map(i => [0, 1, 2].map(j => Number((!causal || j <= i) && (!padding || j < 2) && !(empty && i === 1)))), flat = keep.flat(),
    plain = headNumbers(headStage());
  const done = headNumbers(headStage(), fill ? {bias: plain.scaled.map((s, n) => flat[n] ? 0 : -s)} : {hidden: Uint8Array.from(flat, kept => 1 - kept)});
  return {name: mask, keep, tokens: TOKENS, weights: [0, 1, 2].map(i => rowOf(done.weights, i, 3))};
}
const saidRow = (token, row) => say("step.said.row", {token, list: listed(TOKENS, row), sum: numberText(total(row))});
const maskStep = (mask, token) => ({
  start: () => ({mask, fill: false, empty: false}),
  controls(stage, c) {
    c.choice(() => say("step.mask"), () => ["none", "causal", "padding", "both"].map(name => [name, say("figure.masks." + name)]), () => stage.mask,
      name => { stage.mask = name; });
    c.check(() => say("step.empty", {token: TOKENS[1]}), () => stage.empty, on => { stage.empty = on; });
    c.check(() => say("step.fill"), () => stage.fill, on => { stage.fill = on; });
  },
  draw: (stage, width) => figureMasks({panels: [{...maskedNumbers({mask: "none"})}, maskedNumbers(stage)]}, say, {width}),
  said(stage) {
    const {weights, keep} = maskedNumbers(stage), row = stage.empty ? 1 : token, leaks = weights.flat().filter((w, n) => w > 0 && !keep.flat()[n]).length;
    return saidRow(TOKENS[row], weights[row]) + (leaks ? " " + say("step.said.leaks", {leaks}) : "");
  },
});
const sentenceControl = (stage, c) => c.sentence(() => say("step.sentence"), () => stage.text, text => { stage.text = text; });

const layerSteps = {
  project: {
    rule: true,
    start: () => ({text: TOKENS.join(" "), query: 2}),
    controls(stage, c) {
      sentenceControl(stage, c);
      c.choice(() => say("step.asks"), () => tokensOf(stage.text, 4).map((token, n) => [n, token]), () => this.query(stage), n => { stage.query = Number(n); });
    },
    query: stage => Math.min(stage.query, tokensOf(stage.text, 4).length - 1),
    draw(stage, width) {
      const layer = layerOf(tokensOf(stage.text, 4)), T = layer.tokens.length, {scaled, weights, out} = layer.ofHeads, rows = name => draw.rows(layer[name], 4);
      const ofHeads = (all, each) => [0, 1].map(h => draw.rows(all.slice(h * T * each, (h + 1) * T * each), each)),
        named = Object.fromEntries(["x", "q", "k", "v", "joined", "out"].map(name => [name, rows(name)]));
      return figureFlow({tokens: layer.tokens, query: this.query(stage), ...named, scores: ofHeads(scaled, T), weights: ofHeads(weights, T),
        attended: ofHeads(out, 2)}, say, {width});
    },
    said(stage) {
      const layer = layerOf(tokensOf(stage.text, 4)), n = this.query(stage), row = name => pair(rowOf(layer[name], n, 4));
      return say("step.said.rows", {token: layer.tokens[n], x: row("x"), q: row("q"), k: row("k"), v: row("v")});
    },
  },
  causal: maskStep("causal", 1),
  padding: maskStep("padding", 0),
  dropout: {
    start: () => ({dropped: [false, false, true], p: .1}),
    controls(stage, c) {
      TOKENS.forEach((token, j) => c.check(() => say("step.drop", {token}), () => stage.dropped[j], on => { stage.dropped[j] = on; }));
      c.slider(() => `p = ${draw.number(stage.p)}`, () => stage.p, x => { stage.p = x; }, {min: 0, max: .9, step: .05});
    },
    numbers: ({dropped, p}) => ({tokens: TOKENS, p, weights: exampleOf["weights.blue"],
      dropped: exampleOf["weights.blue"].map((w, j) => dropped[j] ? 0 : w / (1 - p))}),
    draw(stage, width) { return figureDropout(this.numbers(stage), say, {width}); },
    said(stage) { return saidRow(TOKENS[2], this.numbers(stage).dropped); },
  },
  heads: {
    rule: true,
    start: () => ({text: TOKENS.join(" "), heads: 2}),
    controls(stage, c) {
      sentenceControl(stage, c);
      c.choice(() => say("lab.heads"), () => [1, 2, 4].map(n => [n, n]), () => stage.heads, n => { stage.heads = Number(n); });
    },
    numbers({text, heads}) {
      const tokens = tokensOf(text, 5), T = tokens.length, d = 4 / heads,
        cut = at => Array.from({length: heads}, (_, h) => Array.from({length: T}, (_, i) => Array.from({length: d}, (_, j) => at(h, i, j))));
      const viewed = (h, i, j) => (h * T + i) * d + j;
      return {tokens, heads, q: layerOf(tokens).q, right: {token: cut((h, i) => i), feature: cut((h, i, j) => h * d + j)},
        wrong: {token: cut((h, i, j) => Math.floor(viewed(h, i, j) / 4)), feature: cut((h, i, j) => viewed(h, i, j) % 4)}};
    },
    draw(stage, width) { return figureSplit(this.numbers(stage), say, {width}); },
    said(stage) {
      const {tokens, right, wrong} = this.numbers(stage), flat = of => of.flat(2),
        moved = flat(right.token).filter((t, n) => t !== flat(wrong.token)[n] || flat(right.feature)[n] !== flat(wrong.feature)[n]);
      return say("step.said.moved", {moved: moved.length, all: 4 * tokens.length});
    },
  },
};
