// Controls of a step, each with a label that is read and seen; they change the step's stage, and `changed` draws what follows.
function controlsOf(changed) {
  const all = [];
  /// `show` brings an input up to the stage, `read` changes the stage; false: what stands there is no value yet.
  const add = (label, input, show, read) => {
    const node = make("label", {className: "control"}), name = node.appendChild(make("span"));
    node.append(input);
    input.addEventListener("input", () => { if (read() !== false) changed(); });
    all.push({node, show() {
      name.textContent = label();
      if (input !== document.activeElement || input.type === "range") show();
    }});
  };
  return {
    all,
    number(label, get, set) {
      const input = make("input", {type: "number", min: -3, max: 3, step: .25});
      const fits = () => Math.abs(input.valueAsNumber) <= 3;
      add(label, input, () => { input.value = get(); }, () => fits() && set(input.valueAsNumber));
      input.addEventListener("change", () => {
        if (!fits()) set(Math.min(3, Math.max(-3, input.valueAsNumber || get())));
        input.value = get();
        changed();
      });
    },
    slider(label, get, set, range) {
      const input = make("input", {type: "range", ...range});
      add(label, input, () => { input.value = get(); input.setAttribute("aria-valuetext", label()); }, () => set(input.valueAsNumber));
    },
    check(label, get, set) {
      const input = make("input", {type: "checkbox"});
      add(label, input, () => { input.checked = get(); }, () => set(input.checked));
    },
    /// options: () -> [[value, text], ...]
    choice(label, options, get, set) {
      const input = make("select");
      add(label, input, () => fillSelect(input, options(), get()), () => set(input.value));
    },
    sentence(label, get, set) {
      const input = make("input", {type: "text", maxLength: 60, autocomplete: "off", spellcheck: false, className: "sentence"});
      add(label, input, () => { input.value = get(); }, () => input.value.trim() !== "" && set(input.value));
    },
    button(label, act) {
      const node = make("button", {type: "button"});
      node.onclick = () => { act(); changed(); };
      all.push({node, show: () => { node.textContent = label(); }});
    },
  };
}

/// Tokens of a typed sentence: at most `most`, parted by blanks, each cut to what a figure has room for.
const tokensOf = (text, most) => text.trim().split(/\s+/).slice(0, most).map(token => {
  const cut = [...visible(token, 8)];
  while (draw.measure(cut.join("")) > 46) cut.pop();
  return cut.join("");
});
/// Numbers of tokens, by the rule that step.rule states: for head 0 a query that no other token of `all` has (15 are enough for two
/// sentences), for no head 0; the example's tokens have the example's.
function embedded(tokens, all = tokens) {
  const known = new Map(TOKENS.map((token, t) => [token, EXAMPLE.x.slice(4 * t, 4 * t + 4)]));
  for (const token of all.filter(token => !known.has(token))) {
    const taken = [...known.values()].map(([x, y]) => x + 4 * y);
    let h = [...token].reduce((sum, c) => (31 * sum + c.codePointAt(0)) % 65521, 9);
    while (taken.includes(1 + h % 15)) ++h;
    known.set(token, [1 + h % 15, 1 + Math.floor(h / 15) % 15].flatMap(n => [n % 4, Math.floor(n / 4)]));
  }
  return tokens.flatMap(token => known.get(token));
}
/// A layer of two heads on a sentence: x, q, k, v, joined, out [T, 4]; ofHeads: what the engine gives for both heads.
function layerOf(tokens, beside) {
  const x = Float32Array.from(embedded(tokens, beside)), all = projections(engine, x), T = tokens.length;
  const heads = rows => Float32Array.of(...headOf(rows, 0), ...headOf(rows, 1)), [q, k, v] = [all.q, all.k, all.v].map(heads);
  const ofHeads = engine.attend({heads: 2, queries: T, keys: T, dim: 2, vdim: 2, q, k, v, scale: 1 / Math.sqrt(2), causal: false});
  const joined = joinedHeads(ofHeads.out);
  return {tokens, x, ...all, joined, out: projected(engine, joined, EXAMPLE.W_o), ofHeads};
}
