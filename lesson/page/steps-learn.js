// Steps 11 and 12: the way back, and a model that learns on an engine of its own.
const learnSteps = {
  backward: {
    start: () => ({...headStage(), loss: "0"}), move: moveArrow,
    controls(stage, c) {
      c.choice(() => say("step.loss"), () => ["0", "1", "both"].map(name => [name, say("step.loss." + name)]), () => stage.loss,
        name => { stage.loss = name; });
      queryControls(stage, c);
    },
    numbers: stage => headNumbers(stage, {dout: Float32Array.of(0, 0, 0, 0, stage.loss === "1" ? 0 : 1, stage.loss === "0" ? 0 : 1)}),
    draw(stage, width) {
      const layer = layerBackward(engine, stage, Float32Array.of(0, 0, 0, 0, 0, 0, 0, 0, stage.loss === "1" ? 0 : 1, stage.loss === "0" ? 0 : 1, 0, 0));
      return figureGradient(this.numbers(stage), say, {width, parts: true, range: [-3, 3]}) + figureBackward(layer, say, {width});
    },
    said(stage) { const {ds, dq} = this.numbers(stage); return say("step.said.ds", {list: listed(TOKENS, rowOf(ds, 2, 3)), dq: pair(rowOf(dq, 2, 2))}); },
  },
  learn: {
    open: true, start: () => ({task: "next", losses: [], moments: [], toy: null, runs: null}),
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
    /// Until step 800; the map is kept at a few moments.
    async run(stage) {
      const text = "abcabc", kept = [0, 50, 100, 200, 400, 800], {losses, moments, runs} = stage, toy = await (stage.toy ||= loadEngine(engineBytes));
      const map = () => draw.rows(toy.trace(text, {}).layers[0].weights, text.length), goes = () => stage.runs === runs && state.step === STEPS;
      const keep = () => { if (kept.includes(losses.length)) moments.push({step: losses.length, weights: map()}); };
      if (goes() && !losses.length) {
        toy.start({task: stage.task});
        stage.floor = stage.task === "next" ? total(Array.from({length: 16}, (_, n) => toy.knownLoss(n + 1))) / 16 : 0;
        keep();
      }
      inSlices(() => {
        if (goes()) { losses.push(toy.steps(1)); keep(); }
        return goes() && losses.length < 800;
      }, more => {
        if (!more && stage.runs === runs) stage.runs = null;
        stage.redraw();
      });
    },
    draw: ({losses, moments}, width) => losses.length ? figureMoments({losses, tokens: [..."abcabc"], moments}, say, {width}) : "",
    said({losses, moments, floor}) {
      const {step} = moments.at(-1) || {step: 0};
      return step ? say("step.said.loss", {step, floor: draw.number(floor, 3), loss: draw.number(losses[step - 1], 3)}) : "";
    },
  },
};
