// Steps 6, 9 and 11: a layer of two heads with every shape and number, forward and back. numbers: {tokens, query, ...} and the arrays of
// `qkv explain --json` without their batch: x, q, k, v, joined, out [T, E], scores, weights [H, T, T], attended [H, T, d]; back: dout, dx,
// dq, dk, dv [T, E], dS, dP [H, T, T], dO [H, T, d]
function matrix(rows, title, {labels, chosen, heads, head, share} = {}) {
  const all = rows.flatMap(row => Array.from(row)), whole = all.every(Number.isInteger), isWide = all.some(x => x < 0 || x > 9.99),
    each = rows[0].length / (heads || 1);
  return draw.table(rows.length, rows[0].length, {title, labels, chosen, width: whole ? isWide ? 26 : 23 : isWide ? 40 : 34, height: 21,
    size: whole ? 12.5 : 11.3, label: (i, j) => rows[i][j].toFixed(whole ? 0 : 2).replace("-", "−"), share: (i, j) => share ? rows[i][j] : heads || head !== undefined ? .22 : 0,
    colour: (i, j) => draw.head(head === undefined ? Math.floor(j / each) : head)});
}

const shapeOf = (...sizes) => draw.note(`[${sizes.join(", ")}]`);

function figureFlow(numbers, words, options = {}) {
  const {tokens, query: chosen, scores, weights, attended} = numbers, heads = weights.length, say = name => words("figure.flow." + name);
  const T = tokens.length, E = numbers.x[0].length;
  const ofHeads = (all, name, share, wide) => all.map((rows, head) => matrix(rows, `${name}_{${head}}`, {chosen, head, share})).concat(shapeOf(heads, T, wide));
  return draw.svg("flow", words, draw.stages([
    {panels: [matrix(numbers.x, "x", {labels: tokens, chosen}), shapeOf(T, E)]},
    {link: "W", panels: [matrix(numbers.q, "q", {heads, chosen}), matrix(numbers.k, "k", {heads}), matrix(numbers.v, "v", {heads}),
      shapeOf(heads, T, E / heads)]},
    {link: "q·k\n÷√d", panels: ofHeads(scores, say("scores"), false, T)},
    {link: "softmax", panels: ofHeads(weights, words("figure.bars.weights"), true, T)},
    {link: "× v", panels: ofHeads(attended, say("heads"), false, E / heads)},
    {link: "W_{o}", panels: [matrix(numbers.joined, say("joined"), {heads, chosen}), matrix(numbers.out, say("out"), {chosen}), shapeOf(T, E)]},
  ], options.width || 832), options);
}

function figureBackward(numbers, words, options = {}) {
  const {tokens, dS, dP, dO} = numbers, heads = dS.length, ofHeads = (all, name) => all.map((rows, head) => matrix(rows, `${name}_{${head}}`, {head}));
  return draw.svg("backward", words, draw.stages([
    {panels: [matrix(numbers.dx, "dx", {labels: tokens})]},
    {link: "W", panels: ["dq", "dk", "dv"].map(name => matrix(numbers[name], name, {heads}))},
    {link: "k, q", panels: ofHeads(dS, "dS")},
    {link: "softmax", panels: ofHeads(dP, "dP")},
    {link: "v", panels: ofHeads(dO, "dO")},
    {link: "W_{o}", panels: [matrix(numbers.dout, "dout")]},
  ], options.width || 880, {back: true}), options);
}
