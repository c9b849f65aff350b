// Induction in two layers: the first knows what came before each token, the second finds the token behind the last time that this one
// stood there. numbers: {tokens, query, key, maps: [weights [T, T] of the first layer's head, of the second's]}; key: whom query attends to
function figureInduction({tokens, query, key, maps}, words, options = {}) {
  const side = Math.min(40, ((options.width || 760) - 40) / tokens.length), say = (name, values) => words("figure.induction." + name, values);
  const x = i => (i + .5) * side, links = [{from: key, to: key - 1, colour: "h0"}, {from: query, to: key, colour: "mark"}];
  const arc = ({from, to, colour}, up) => {
    const [a, b] = [x(from) - 4, x(to) + 4], [mx, my] = [(a + b) / 2, 92 - 2 * up], share = 12 / Math.hypot(mx - b, my - 92);
    return draw.path(`M${a} 92Q${mx} ${my} ${b + share / 2 * (mx - b)} ${92 + share / 2 * (my - 92)}`, {stroke: colour, thick: 2.5}) +
      draw.arrow(b + share * (mx - b), 92 + share * (my - 92), b, 92, {stroke: colour, thick: 2.5});
  };
  const chip = (token, i) => draw.rect(x(i) - side / 2 + 2, 96, side - 4, 28,
    {fill: "soft", rx: 6, stroke: i === query ? "mark" : i === key ? "h2" : undefined, thick: 2}) +
    draw.middle(x(i), 115, draw.token(token), {bold: i === query || i === key});
  const text = {width: tokens.length * side, height: 150, body: tokens.map(chip).join("") + arc(links[0], 22) + arc(links[1], 62) +
    draw.middle(x(query), 144, "→ " + draw.token(tokens[key]), {bold: true, colour: "h2"})};
  const cell = (options.width || 760) < 500 ? 13 : 16, labels = tokens.map(draw.token);
  const shown = maps.map((weights, layer) => {
    const {from, to, colour} = links[layer];
    const map = draw.table(tokens.length, tokens.length, {width: cell, height: cell, labels, tops: labels, title: say("layer", {layer}), colour: () => colour,
      share: (i, j) => weights[i][j], hidden: (i, j) => j > i});
    map.body += draw.rect(map.left + to * cell - 2, map.top + from * cell - 2, cell + 4, cell + 4, {stroke: "ink", thick: 2, rx: 4});
    return draw.stack([map, draw.note(say("does" + layer), {colour})], 6);
  });
  return draw.svg("induction", words, draw.stack([text, draw.flow(shown, options.width, {gap: 50})], 16), options);
}
