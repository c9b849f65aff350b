// Checks the JSON of a file (docs/explorer-file.md): one sentence for what is not.
const FORMULA = ["scale", "softcap", "offset", "empty", "refused"];
const KINDS = ["previous", "self", "first", "duplicate", "induction", "local", "diffuse", "mixed"];

function demand(holds, sentence) { if (!holds) throw new Error(sentence); }
const isCount = n => Number.isInteger(n) && n >= 0;
const isText = x => typeof x === "string", checkName = (x, at) => demand(x.name == null || isText(x.name), `${at}: name must be a string`);
const isFinite_ = x => typeof x === "number" && Number.isFinite(x);

function checkText(t, n) {
  const at = `text ${n}`;
  demand(t && typeof t === "object", `${at} must be an object`);
  demand(!t.tokens || Array.isArray(t.tokens) && t.tokens.every(isText), `${at}: tokens must be strings`);
  t.length = t.tokens ? t.tokens.length : t.length;
  demand(isCount(t.length), `${at}: without tokens it needs a length`);
  demand(t.answer == null || isCount(t.answer) && t.answer <= t.length, `${at}: answer must be a position`);
  if (t.image) {
    const {start, height, width} = t.image;
    demand(isCount(start) && isCount(height) && isCount(width) && start + height * width <= t.length, `${at}: its image must lie inside it`);
  }
}

function checkFormula(f, at) {
  if (!f) return;
  for (const name of Object.keys(f)) demand(FORMULA.includes(name), `${at}: formula holds "${name}", which this page cannot compute`);
  if (f.refused) return;
  demand(isFinite_(f.scale), `${at}: formula needs a finite scale`);
  demand(f.softcap == null || isFinite_(f.softcap) && f.softcap >= 0, `${at}: softcap must be 0 or more`);
  demand(f.offset == null || Number.isInteger(f.offset), `${at}: offset must be an integer`);
  demand(f.empty == null || f.empty === "zero" || f.empty === "mean", `${at}: empty must be zero or mean`);
}

/// shape(name): the sizes of a tensor of this layer, or null.
function checkLayer(l, at, shape) {
  for (const name of ["heads", "kv_heads", "q_len", "kv_len"]) demand(isCount(l[name]), `${at}: ${name} must be a number`);
  demand(l.heads > 0 && l.kv_heads > 0 && l.heads % l.kv_heads === 0, `${at}: heads must be a multiple of kv_heads`);
  for (const name of ["q_first", "kv_first"]) demand(l[name] == null || isCount(l[name]), `${at}: ${name} must be a position`);
  checkName(l, at);
  demand(l.number == null || isCount(l.number), `${at}: number must be a number`);
  demand(l.head_numbers == null || Array.isArray(l.head_numbers) && l.head_numbers.length === l.heads && l.head_numbers.every(isCount), `${at}: head_numbers must have one number per head`);
  demand(l.head_names == null || Array.isArray(l.head_names) && l.head_names.length === l.heads && l.head_names.every(isText), `${at}: head_names must have one string per head`);
  checkFormula(l.formula, at);
  const wanted = {norms: [l.heads, l.kv_len], push: [l.heads], push_by: [l.heads], ov: [l.heads], map: [l.heads], mass: [l.heads], sinks: [l.heads], alibi: [l.heads], relative: [l.heads]};
  const list = (name, below) => {
    const given = l[name];
    demand(given == null || Array.isArray(given) && given.every(h => isCount(h) && h < below), `${at}: ${name} must list heads below ${below}`);
    return given ? given.length : 0;
  };
  const exact = list("exact", l.heads), kv = list("exact_kv", l.kv_heads);
  const weights = l.weights ? list("weights", l.heads) : l.heads;
  Object.assign(wanted, {weights: [weights, l.q_len, l.kv_len], intervals: [l.q_len, 2], q: [exact, l.q_len],
    k: [kv, l.kv_len], lse: [exact, l.q_len], bias: [shape("bias")?.[0] === 1 ? 1 : exact, l.q_len, l.kv_len],
    map_peak: [l.heads], mass_peak: [l.heads], weights_peak: [weights]});
  for (const [name, sizes] of Object.entries(wanted)) {
    const got = shape(name);
    demand(!got || sizes.every((n, a) => got[a] === n), `${at}: ${name} must begin with sizes ${sizes}: got ${got}`);
  }
  demand(!shape("relative") || shape("relative")[1] % 2 === 1, `${at}: relative must have 2 R + 1 columns`);
  if (exact) {
    for (const name of ["q", "k", "lse"]) demand(shape(name), `${at}: exact heads need ${name}`);
    demand(l.formula, `${at}: exact heads need a formula`);
    demand(shape("q")[2] === shape("k")[2], `${at}: q and k must have one width`);
    for (const h of l.exact) demand(l.exact_kv?.includes(Math.floor(h * l.kv_heads / l.heads)), `${at}: exact_kv lacks the key head of head ${h}`);
  }
  demand(!l.head_info || Array.isArray(l.head_info) && l.head_info.length === l.heads && l.head_info.every(info => info && typeof info === "object"), `${at}: head_info must have one object per head`);
  for (const info of l.head_info || []) demand(info.kind == null || KINDS.includes(info.kind), `${at}: kind must be one of ${KINDS.join(", ")}`);
}

/// What a model answered, whole or without some heads.
function checkAnswer(view, at, views) {
  demand(!view.next || Array.isArray(view.next) && view.next.every(x => x && typeof x.token === "string"), `${at}: next must list tokens`);
  if (!view.cut) return;
  const {of, heads, others = []} = view.cut, isHead = ([l, h]) => isCount(l) && isCount(h) && h < view.layers[l]?.heads;
  demand(views[of] && !views[of].cut, `${at}: cut must be of a whole view`);
  demand([heads, others].every(list => Array.isArray(list) && list.every(x => Array.isArray(x) && isHead(x))), `${at}: cut must list heads`);
}

function checkFile(file, shapeOf) {
  demand(Array.isArray(file.texts) && Array.isArray(file.views) && file.views.length > 0, "the file needs texts and at least one view");
  demand(file.words == null || Array.isArray(file.words) && file.words.every(isText), "words must be strings");
  demand(file.notes == null || Array.isArray(file.notes), "notes must be a list");
  demand(file.live == null || Array.isArray(file.live.names), "live needs a list of names");
  file.texts.forEach(checkText);
  file.views.forEach((view, v) => {
    for (const side of ["queries", "keys"]) demand(file.texts[view[side]], `view ${v}: ${side} must be the number of a text`);
    checkName(view, `view ${v}`);
    demand(Array.isArray(view.layers) && view.layers.length > 0, `view ${v} needs layers`);
    checkAnswer(view, `view ${v}`, file.views);
    view.layers.forEach((l, n) => {
      checkLayer(l, `view ${v}, layer ${n}`, name => shapeOf(`${v}/${n}/${name}`));
      demand(l.q_len + (l.q_first || 0) <= file.texts[view.queries].length, `view ${v}, layer ${n}: q_len must lie within its text`);
      demand(l.kv_len + (l.kv_first || 0) <= file.texts[view.keys].length, `view ${v}, layer ${n}: kv_len must lie within its text`);
    });
  });
  return file;
}
