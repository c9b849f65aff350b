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
  if (goal === null) return;
  Object.assign(lab, {running: true, goal, drawn: 0});
  requestAnimationFrame(slice);
}
function slice() {
  if (!lab.running || state.step !== LAB) return void stopTraining();
  labTry(() => {
    const until = performance.now() + SLICE;
    do oneStep(); while (lab.engine.step < lab.goal && performance.now() < until);
    if (lab.engine.step >= lab.goal) return void stopTraining();
    if (performance.now() - lab.drawn >= BETWEEN_DRAWINGS) {
      drawLab();
      lab.drawn = performance.now();
    }
    requestAnimationFrame(slice);
  });
}
function stopTraining() {
  if (!lab.running) return;
  lab.running = false;
  keepMoment();
  drawLab();
}

/// The text of the default run, as lm::default_text() repeats it: its characters' shares give the second baseline.
const DEFAULT_TEXT = "ababababababab abc abc abc xyzxyzxyz";
/// Losses of who knows no more than: how many characters there are; how often each one comes (null where all come alike).
function baselines() {
  const all = Math.log(lab.symbols.length), text = {next: DEFAULT_TEXT, own: lab.own}[state.task];
  if (!text) return [all, null];
  const counts = new Map();
  for (const c of text) counts.set(c, (counts.get(c) || 0) + 1);
  return [all, [...counts.values()].reduce((sum, n) => sum - n * Math.log(n / [...text].length), 0) / [...text].length];
}
function drawLoss() {
  const width = Math.max(280, el("labLoss").clientWidth), height = 200, left = 30, right = 8, top = 12, bottom = 24, [all, often] = baselines(), now = lab.engine.step;
  const most = Math.max(20, lab.losses.length), high = Math.max(all * 1.1, ...lab.losses.slice(0, 3));
  const x = step => left + (width - left - right) * step / most, y = loss => top + (height - top - bottom) * (1 - Math.min(1, loss / high));
  const every = Math.ceil(lab.losses.length / (width - left)), points = [];
  lab.losses.forEach((loss, n) => { if (n % every === 0 || n === lab.losses.length - 1) points.push(`${x(n + 1).toFixed(1)},${y(loss).toFixed(1)}`); });
  const text = (px, py, what, kind = "", anchor = "end") => `<text x="${px}" y="${py}" text-anchor="${anchor}" class="${kind}">${escapeXml(what)}</text>`;
  const base = (loss, what, below) => `<line x1="${left}" x2="${width - right}" y1="${y(loss)}" y2="${y(loss)}" class="base"/>${text(width - right - 2, y(loss) + below, what)}`;
  el("labLoss").innerHTML = `<svg viewBox="0 0 ${width} ${height}" width="${width}" class="plot">` +
    [0, .5, 1, 1.5, 2, 2.5, 3].filter(loss => loss <= high).map(loss => text(left - 6, y(loss) + 4, String(loss))).join("") +
    `<line x1="${left}" x2="${width - right}" y1="${y(0)}" y2="${y(0)}" class="axis"/>` +
    base(all, say("lab.base.all", {n: lab.symbols.length, loss: all.toFixed(2)}), -4) + (often === null ? "" : base(often, say("lab.base.often", {loss: often.toFixed(2)}), 13)) +
    `<polyline points="${points.join(" ")}"/>` + text(left, height - 6, "0", "", "start") + text(width - right, height - 6, String(most)) +
    (now ? `<line x1="${x(now)}" x2="${x(now)}" y1="${top}" y2="${y(0)}" class="now"/><circle cx="${x(now)}" cy="${y(lab.losses[now - 1])}" r="4.5"/>` : "") + "</svg>";
  Object.assign(el("labScrub"), {max: lab.moments.length - 1, value: lab.shown});
  el("labScrub").setAttribute("aria-valuetext", say("lab.moment", {step: now}));
}
