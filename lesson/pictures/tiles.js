// Attention in tiles, as a film: what is carried from one to the next. numbers: {tokens, tile, query, frames: [{m, l, out}]}: maximum, sum
// and output of a query over the keys up to each frame's last
function figureTiles({tokens, tile, query, frames}, words, options = {}) {
  const side = 15, whole = tokens * side, rowOf = Math.floor(query / tile), numbers = Math.round(tile * tile + tile * (2 + frames[0].out.length));
  const stages = frames.map(({m, l, out}, f) => {
    let body = draw.text(0, 13, words("figure.tiles.frame", {frame: f + 1}), {bold: true}) + draw.rect(0, 24, whole, whole, {fill: "soft"});
    for (let j = 0; j < tokens / tile; ++j) body += draw.rect(j * tile * side, 24 + rowOf * tile * side, tile * side, tile * side,
      {fill: j === f ? "mark" : j < f ? "h0" : "none", opacity: j === f ? 1 : .25, stroke: "ground"});
    for (let i = 1; i < tokens / tile; ++i) body += draw.line(0, 24 + i * tile * side, whole, 24 + i * tile * side, {stroke: "ground", thick: 1}) +
      draw.line(i * tile * side, 24, i * tile * side, 24 + whole, {stroke: "ground", thick: 1});
    const {pair} = draw, isLast = f + 1 === frames.length;
    [["m", draw.number(m)], ["l", draw.number(l)], ["O", pair(out.map(x => x * l))], ...isLast ? [["O ÷ l", pair(out)]] : []].forEach(([name, value], i) => {
      body += draw.text(0, 44 + whole + i * 18, name, {bold: true, colour: "mark2"}) + draw.text(i === 3 ? 44 : 18, 44 + whole + i * 18, value);
    });
    return {link: f ? "× " + draw.number(Math.exp(frames[f - 1].m - m)) : "", panels: [{width: whole, height: 104 + whole, body}]};
  });
  const memory = draw.bars([tokens * tokens, numbers], {labels: ["T × T", words("figure.tiles.held")], title: words("figure.tiles.memory"),
    width: Math.min(620, options.width || 620), colours: ["h0", "mark"]});
  return draw.svg("tiles", words, draw.stack([draw.stages(stages, options.width), draw.note(words("figure.tiles.factor")), memory], 16), options);
}
