// Step 1: one row of an average, of fixed weights and of attention, for two sentences that differ in a word.
// numbers: {position, sentences: [tokens, ...], rows: [{name: "average" | "fixed" | "attention", weights: [row of each sentence]}]}
function figureAverage(numbers, words, options = {}) {
  const step = 46, panels = numbers.rows.map(({name, weights}) => {
    const both = weights.map((row, s) => {
      const tokens = numbers.sentences[s], half = step / 2, to = numbers.position * step + half;
      let body = "";
      row.forEach((w, j) => {
        const x = j * step + half;
        body += draw.part(`token:${j}`, `${tokens[j]} ${Math.round(100 * w)} %`,
          draw.arrow(x, 42, to + (x - to) * .17, 92, {stroke: draw.head(s), thick: Math.max(.6, 18 * w), opacity: .75}) +
          draw.middle(x, 16, tokens[j], {bold: j === numbers.position}) + draw.middle(x, 33, Math.round(100 * w) + "%", {size: 12, colour: "faint"}), options);
      });
      return {width: row.length * step, height: 124, body: body + draw.rect(to - 24, 95, 48, 22, {fill: draw.head(s), rx: 11}) +
        draw.middle(to, 110, tokens[numbers.position], {size: 12, bold: true, colour: "ground"})};
    });
    return draw.titled(words("figure.average." + name), draw.stack(both, 12), 10);
  });
  return draw.svg("average", words, draw.flow(panels, options.width, {gap: 20}), options);
}
