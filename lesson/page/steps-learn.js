// Steps 11 and 12: the way back, and a model that learns on an engine of its own.
/// The loss of who knows a repeated text by heart and sees a window of it: the mean over the window's characters of what the next one may be.
function leastLoss(text, context) {
  const all = [...text.repeat(3)], P = text.length;
  let sum = 0;
  for (let n = 1; n <= context; ++n) {
    const count = {}, seen = Array.from({length: P}, (_, at) => all.slice(at, at + n).join("")), whole = seen.map((s, at) => s + all[at + n]);
    for (const s of [...seen, ...whole]) count[s] = (count[s] || 0) + 1;
    whole.forEach((s, at) => { sum -= Math.log(count[s] / count[seen[at]]) / P / context; });
  }
  return sum;
}
const learnSteps = {
  backward: {
    start: () => ({...headStage(), loss: "0"}), move: moveArrow,
    controls(stage, c) {
      c.choice(() => say("step.loss"), () => ["0", "1", "both"].map(name => [name, say("step.loss." + name)]), () => stage.loss,
        name => { stage.loss = name; });
      queryControls(stage, c);
    },
    numbers: stage => headNumbers(stage, {dout: Float32Array.of(0, 0, 0, 0, stage.loss === "1" ? 0 : 1, stage.loss === "0" ? 0 : 1)}),
    draw(stage, width) { return figureGradient(this.numbers(stage), say, {width, parts: true, range: [-3, 3]}); },
    said(stage) { const {ds, dq} = this.numbers(stage); return say("step.said.ds", {list: listed(TOKENS, rowOf(ds, 2, 3)), dq: pair(rowOf(dq, 2, 2))}); },
  },
  learn: {
    start: () => ({task: "next", losses: [], moments: [], toy: null, runs: null}),
    controls(stage, c) {
      c.choice(() => say("lab.task"), () => ["next", "previous"].map(name => [name, say("lab.task." + name)]), () => stage.task,
        task => { Object.assign(stage, this.start(), {task}); });
      c.button(() => say(stage.runs ? "lab.stop" : "lab.train"), () => {
        if (stage.losses.length >= 800) Object.assign(stage, this.start(), {task: stage.task});
        stage.runs = stage.runs ? null : {};
        if (stage.runs) this.run(stage);
      });
      c.button(() => say("step.panel"), () => change({step: LAB, task: stage.task, heads: 1, layers: 1, rate: FIRST.rate, seed: 0}));
    },
    /// Steps for 12 milliseconds at a time, until 800; the map is kept at a few moments.
    async run(stage) {
      const text = "abcabc", kept = [0, 50, 100, 200, 400, 800], {losses, moments, runs} = stage, toy = await (stage.toy ||= loadEngine(engineBytes));
      const map = () => draw.rows(toy.trace(text, {}).layers[0].weights, text.length);
      const keep = () => { if (kept.includes(losses.length)) moments.push({step: losses.length, weights: map()}); };
      if (stage.runs === runs && !losses.length) { toy.start({task: stage.task}); keep(); }
      const slice = () => {
        if (state.step !== STEPS) stage.runs = null;
        if (stage.runs !== runs) return;
        const until = performance.now() + 12;
        do { losses.push(toy.steps(1)); keep(); } while (losses.length < 800 && performance.now() < until);
        if (losses.length >= 800) stage.runs = null;
        stage.redraw();
        setTimeout(slice, 0);
      };
      slice();
    },
    draw: ({losses, moments}, width) => losses.length ? figureMoments({losses, tokens: [..."abcabc"], moments}, say, {width}) : "",
    said({losses, moments, task}) {
      const {step} = moments.at(-1) || {step: 0};
      const floor = task === "next" ? draw.number(leastLoss(DEFAULT_TEXT, 16), 3) : 0;
      return step ? say("step.said.loss", {step, floor, loss: draw.number(losses[step - 1], 3)}) : "";
    },
  },
};
