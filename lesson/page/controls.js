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
      add(label, input, () => { input.value = get(); }, () => input.value !== "" && input.checkValidity() && set(input.valueAsNumber));
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
      const input = make("select"), option = ([value, text]) => make("option", {value, textContent: text});
      add(label, input, () => { input.replaceChildren(...options().map(option)); input.value = get(); }, () => set(input.value));
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
/// Numbers of a token, by the rule that step.rule states; the example's tokens have the example's.
function embedded(token) {
  if (TOKENS.includes(token)) return EXAMPLE.x.slice(4 * TOKENS.indexOf(token), 4 * TOKENS.indexOf(token) + 4);
  const h = [...token].reduce((sum, c) => (31 * sum + c.codePointAt(0)) % 65521, 9);
  return [1, 3, 9, 27].map(by => Math.floor(h / by) % 3);
}
/// A layer of two heads on a sentence: x, q, k, v, joined, out [T, 4]; ofHeads: what the engine gives for both heads.
function layerOf(tokens) {
  const x = Float32Array.from(tokens.flatMap(embedded)), all = projections(engine, x), T = tokens.length;
  const heads = rows => Float32Array.of(...headOf(rows, 0), ...headOf(rows, 1)), [q, k, v] = [all.q, all.k, all.v].map(heads);
  const ofHeads = engine.attend({heads: 2, queries: T, keys: T, dim: 2, vdim: 2, q, k, v, scale: 1 / Math.sqrt(2), causal: false});
  const joined = Float32Array.from({length: 4 * T}, (_, n) => ofHeads.out[(n >> 1 & 1) * 2 * T + 2 * (n >> 2) + (n & 1)]);
  return {tokens, x, ...all, joined, out: projected(engine, joined, EXAMPLE.W_o), ofHeads};
}
