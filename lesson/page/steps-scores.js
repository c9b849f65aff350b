// Steps 1 to 5, from the average to the weighted sum: what each starts with, its controls, its figure, and what is said of it.
const numberText = (x, digits = 2) => draw.number(Math.abs(x - Math.round(x)) < 1e-5 ? Math.round(x) : x, digits);
const listed = (tokens, numbers) => tokens.map((token, j) => `${token} ${numberText(numbers[j])}`).join(", ");
const pair = numbers => `(${Array.from(numbers, x => numberText(x)).join(", ")})`;
const rowOf = (numbers, i, width) => Array.from(numbers.slice(i * width, (i + 1) * width));

/// Head 0 of the example; `blue` asks. Its numbers can be changed.
const headStage = () => ({query: 2, ...Object.fromEntries(["q", "k", "v"].map(name => [name, TOKENS.flatMap(token => exampleOf[`${name}.${token}`])]))});
function headNumbers({query, q, k, v}, more) {
  const head = {q: Float32Array.from(q), k: Float32Array.from(k), v: Float32Array.from(v)};
  return {tokens: TOKENS, query, dim: 2, vdim: 2, scale: 1 / Math.sqrt(2), ...head, ...attendHead(engine, head, more)};
}
function queryControls(stage, c) {
  const at = d => 2 * stage.query + d;
  for (const d of [0, 1]) c.number(() => say("step.q", {token: TOKENS[stage.query], n: d}), () => stage.q[at(d)], x => { stage.q[at(d)] = x; });
}
/// Moves an arrow of the plane: k of any token, q of the one that asks; in quarters, within the plane.
function moveArrow(stage, name, to) {
  const [of, token] = name.split(":"), all = stage[of];
  if (!all || of === "v") return false;
  const next = to([all[2 * token], all[2 * token + 1]]).map(x => Math.min(3, Math.max(-3, Math.round(4 * x) / 4)));
  all.splice(2 * token, 2, ...next);
  return true;
}
const saidWeights = ({tokens, query, weights}) => say("step.said.weights", {token: tokens[query], list: listed(tokens, rowOf(weights, query, tokens.length))});

/// Random q and k of variance 1: rows of 4096 numbers, made once; of the first d of each the products.
const randomRows = {queries: 48, keys: 24, all: null};
function randomProducts(dim) {
  const {queries, keys} = randomRows;
  randomRows.all ||= draw.normal((queries + keys) * 4096);
  const first = (from, count) => Float32Array.from({length: count * dim}, (_, n) => randomRows.all[(from + Math.floor(n / dim)) * 4096 + n % dim]),
    q = first(0, queries), k = first(queries, keys);
  const with_ = scale => engine.attend({heads: 1, queries, keys, dim, vdim: 1, q, k, v: new Float32Array(keys), scale, causal: false}), unscaled = with_(1);
  return {dim, scores: unscaled.scores, unscaled: unscaled.weights, scaled: with_(1 / Math.sqrt(dim)).weights};
}

const scoreSteps = {
  average: {
    rule: true, open: true,
    start: () => ({sentences: ["I like the blue sky", "I like the red sky"], position: 3}),
    controls(stage, c) {
      for (const n of [0, 1]) c.sentence(() => say("step.sentence." + n), () => stage.sentences[n], text => { stage.sentences[n] = text; });
      c.choice(() => say("step.asks"), () => tokensOf(stage.sentences[0], 6).map((token, n) => [n, token]), () => this.numbers(stage).position,
        n => { stage.position = Number(n); });
    },
    numbers({sentences, position}) {
      const both = sentences.map(text => tokensOf(text, 6)), at = Math.min(position, ...both.map(tokens => tokens.length - 1));
      const fixed = tokens => tokens.map((_, j) => [1, 2, 1, 2, 4, 2][j]), shares = numbers => numbers.map(x => x / total(numbers));
      const attention = tokens => rowOf(layerOf(tokens, both.flat()).ofHeads.weights, at, tokens.length);
      return {position: at, sentences: both, rows: [["average", tokens => shares(tokens.map(() => 1))], ["fixed", tokens => shares(fixed(tokens))],
        ["attention", attention]]
        .map(([name, weigh]) => ({name, weights: both.map(weigh)}))};
    },
    draw(stage, width) { return figureAverage(this.numbers(stage), say, {width}); },
    said(stage) {
      const {position, sentences, rows} = this.numbers(stage);
      return sentences.map((tokens, n) => say("step.said.weights", {token: tokens[position], list: listed(tokens, rows[2].weights[n])})).join(" ");
    },
  },
  dot: {
    start: headStage, controls: queryControls, move: moveArrow,
    draw: (stage, width) => figurePlane(headNumbers(stage), say, {width, values: false, parts: true, range: [-3, 3]}),
    said(stage) { return say("step.said.scores", {token: TOKENS[2], list: listed(TOKENS, rowOf(headNumbers(stage).scores, 2, 3))}); },
  },
  scale: {
    open: true, start: () => ({power: 6}),
    controls(stage, c) { c.slider(() => `d = ${2 ** stage.power}`, () => stage.power, x => { stage.power = x; }, {min: 0, max: 12, step: 1}); },
    draw: ({power}, width) => figureHistograms({keys: randomRows.keys, columns: (width > 700 ? [2, power, 12] : [power]).map(n => randomProducts(2 ** n))},
      say, {width, far: 200}),
    said({power}) {
      const {dim, unscaled, scaled} = randomProducts(2 ** power), {keys, queries} = randomRows;
      const largest = weights => draw.number(total(Array.from({length: queries}, (_, i) => Math.max(...rowOf(weights, i, keys)))) / queries);
      return say("step.said.scale", {dim, root: draw.number(Math.sqrt(dim)), without: largest(unscaled), scaled: largest(scaled)});
    },
  },
  softmax: {
    start: headStage, controls: queryControls,
    draw: (stage, width) => figureBars(headNumbers(stage), say, {width}),
    said: stage => saidWeights(headNumbers(stage)),
  },
  mix: {
    start: () => ({...headStage(), zero: false, same: false}), move: moveArrow,
    controls(stage, c) {
      queryControls(stage, c);
      c.check(() => say("step.zero"), () => stage.zero, on => { stage.zero = on; });
      c.check(() => say("step.same"), () => stage.same, on => { stage.same = on; });
    },
    numbers: stage => headNumbers({...stage, v: stage.v.map(x => stage.zero ? 0 : x), k: stage.same ? stage.k.map((_, n) => stage.k[n % 2]) : stage.k}),
    draw(stage, width) {
      const numbers = this.numbers(stage), options = {width, parts: true, range: [-3, 3], valueRange: [0, 3.5]};
      return figurePlane(numbers, say, options) + figureMixture(numbers, say, {...options, parts: false});
    },
    said(stage) {
      const numbers = this.numbers(stage);
      return `${saidWeights(numbers)} ${say("step.said.out", {token: TOKENS[2], out: pair(rowOf(numbers.out, 2, 2))})}`;
    },
  },
};
