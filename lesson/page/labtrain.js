// Training in slices, and the moments that are kept of it: pulling the scrubber back shows the model as it was.
const MOST_MOMENTS = 40, SLICE = 12, BETWEEN_DRAWINGS = 100;

/// One step more than the moment that is shown; what came after that moment is forgotten, and would come again to the bit.
function oneStep() {
  const e = lab.engine, at = lab.moments[lab.shown];
  if (lab.losses.length > e.step) {
    lab.losses.length = e.step;
    for (const later of lab.moments.splice(lab.shown + 1)) e.forget(later.id);
  }
  lab.losses.push(e.steps(1));
  if (e.step - at.step >= lab.every) keepMoment();
}
/// Keeps the model as it is now. Of too many moments every second goes, and they are kept half as often from then on.
function keepMoment() {
  const e = lab.engine;
  if (lab.moments.at(-1)?.step === e.step) return;
  if (lab.moments.length === MOST_MOMENTS) {
    lab.every *= 2;
    lab.moments = lab.moments.filter(({id}, n) => n % 2 === 0 || e.forget(id));
  }
  lab.moments.push({step: e.step, id: e.save()});
  lab.shown = lab.moments.length - 1;
}
function showMoment(n) {
  lab.shown = Math.max(0, Math.min(lab.moments.length - 1, n));
  lab.engine.restore(lab.moments[lab.shown].id);
  drawLab();
}

/// Up to the step that is asked for.
function train() {
  const goal = labGoal();
  if (goal === null || goal <= lab.engine.step) return;
  Object.assign(lab, {running: true, drawn: 0});
  inSlices(() => {
    if (lab.running && state.step === LAB) labTry(oneStep);
    return lab.running && state.step === LAB && lab.engine.step < goal;
  }, goes => {
    if (!goes) stopTraining();
    else if (performance.now() - lab.drawn >= BETWEEN_DRAWINGS) { drawLab(); lab.drawn = performance.now(); }
  });
}
/// Calls `step` for 12 milliseconds at a time until it gives false, and after each slice `shown`, whether it goes on.
function inSlices(step, shown) {
  const until = performance.now() + SLICE;
  let goes = true;
  while (goes && performance.now() < until) goes = step();
  shown(goes);
  if (goes) requestAnimationFrame(() => inSlices(step, shown));
}
function stopTraining() {
  if (!lab.running) return;
  lab.running = false;
  keepMoment();
  drawLab();
}

/// What a text repeats.
const unitOf = text => text.slice(0, (text + text).indexOf(text, 1));
function drawLoss() {
  // Losses of who knows no more than how many characters there are; how often each one comes (of letters all come alike).
  const all = Math.log(lab.symbols.length), often = ["next", "own"].includes(state.task) ? lab.engine.knownLoss(0) : null;
  const width = Math.max(280, el("labLoss").clientWidth), now = lab.engine.step;
  const curve = draw.losses(lab.losses, {width, high: 164, top: Math.max(all * 1.1, ...lab.losses.slice(0, 3)), steps: Math.max(20, lab.losses.length)});
  const base = (loss, what, below) => draw.line(curve.left, curve.y(loss), width - 10, curve.y(loss), {stroke: "faint", thick: 1, dash: "2 4"}) +
    draw.text(width - 12, curve.y(loss) + below, what, {size: 12, anchor: "end", colour: "faint"});
  const end = draw.text(width - 10, curve.height - 2, Math.max(20, lab.losses.length), {size: 11, anchor: "end", colour: "faint"});
  el("labLoss").innerHTML = draw.tag("svg", {viewBox: `0 0 ${width} ${curve.height}`, width, "font-size": 13}, curve.body + end +
    base(all, say("lab.base.all", {n: lab.symbols.length, loss: all.toFixed(2)}), -4) + (often === null ? "" : base(often, say("lab.base.often", {loss: often.toFixed(2)}), 13)) +
    (now ? draw.line(curve.x(now), 12, curve.x(now), curve.y(0), {stroke: "mark", opacity: .5}) + draw.dot(curve.x(now), curve.y(lab.losses[now - 1]), 4.5, {fill: "mark"}) : ""));
  Object.assign(el("labScrub"), {max: lab.moments.length - 1, value: lab.shown});
  el("labScrub").setAttribute("aria-valuetext", say("lab.moment", {step: now}));
}
