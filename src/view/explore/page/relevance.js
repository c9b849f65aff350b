// Relevance beside the weights, and rollout, where the file has them; each with a sentence that says what it is and what not.
const SENTENCES = {
  relevance: "Relevance: each weight times the derivative of the target's logit with respect to it, where the product is positive. " +
    "It says which weights the logit would follow if they changed a little; it does not say what caused the answer.",
  rollout: "Rollout: the mean weights of all layers multiplied, with the residual path added to each. " +
    "It follows where numbers could flow; it ignores values, layers between and signs.",
};
async function drawRelevance(panel, {head, texts, view: v, layer, number}) {
  const view = file.views[v], at = `${v}/${layer}/relevance`, turn = el("panel").dataset.turn;
  const draw = (tensor, n, title, sentence) => {
    const [R, C] = tensor.sizes.slice(-2), cells = tensor.data.subarray(n * R * C, (n + 1) * R * C);
    const figure = make("figure"), canvas = make("canvas"), caption = make("figcaption", {textContent: title});
    figure.append(caption, canvas);
    caption.textContent += `, 0 to ${percent(largestOf(cells))}`;
    canvas.place = drawCells(canvas, {cells, height: R, width: C}, wholeRegion(head), largestOf(cells), colour, texts, Math.min(400, panel.clientWidth - 8));
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", title);
    row.append(figure);
    if (sentence) panel.append(make("p", {className: "note", textContent: sentence}));
  };
  const relevance = await load(at), rollout = await load(`${v}/rollout`), row = make("div", {className: "row"});
  if (el("panel").dataset.turn !== turn) return;
  panel.append(row);
  if (!relevance && !rollout && !view.rollout?.refused) return void row.append(make("p", {className: "note", textContent: "The file holds no relevance and no rollout of this view."}));
  if (relevance) {
    const [R, C] = relevance.sizes.slice(-2), what = view.relevance || {}, blocks = head.kind === "exact" ? head.map : head.R ? head : null;
    draw(blocks ? {sizes: [blocks.R, blocks.C], data: blocks.map} : {sizes: [R, C], data: pooled(head, R, C)}, 0, "weights of this head");
    const shared = relevance.sizes[0] === 1;
    draw(relevance, shared ? 0 : number, (shared ? "relevance, all heads" : "relevance of this head") + (what.target ? ` for ${label(String(what.target), 24)}` : ""), SENTENCES.relevance);
  }
  if (rollout) draw(rollout, 0, "rollout over the layers", SENTENCES.rollout);
  if (view.rollout?.refused) panel.append(make("p", {className: "note", textContent: `No rollout: ${view.rollout.refused}`}));
}
