// The state of the page <-> the address's fragment. A fragment is as hostile as any input: what is out of range falls back.
const CHOICES = {tab: ["text", "lines", "why", "does", "picture"], paint: ["weight", "writes"], range: ["max", "unit"], spacing: ["sqrt", "linear"],
  way: ["to", "from"], theme: ["auto", "light", "dark"]};
const FIRST = {view: 0, layer: 0, head: 0, i: -1, j: -1, hold: false, pins: [], region: null, tab: "text", beside: -1, diff: false, kinds: [], sort: "layer", anchor: [],
  paint: "weight", range: "max", spacing: "sqrt", way: "to", theme: "auto", statistic: "entropy"};

/// Where a view opens: the head with the largest share of a kind that says more than "first" or "diffuse"; where all are mixed, the one that
/// comes nearest to such a kind. One query is chosen.
function openingOf(view) {
  const at = {layer: 0, head: 0}, dull = ["first", "diffuse"];
  let best = -1;
  view.layers.forEach((l, layer) => (l.head_info || []).forEach((info, head) => {
    const worth = info.kind === "mixed" ? nearestKind(info, ...dull)?.[1] - 1 : dull.includes(info.kind) ? -1 : info.share;
    if (worth > best) { best = worth; Object.assign(at, {layer, head}); }
  }));
  return {...at, i: (view.layers[at.layer].q_len >> 1) - (view.layers[at.layer].q_len ? 0 : 1)};
}

function formatLink(state, file) {
  const out = new URLSearchParams(), first = {...parseLink(`view=${state.view}`, file), view: parseLink("", file).view};
  for (const [name, value] of Object.entries(state)) {
    if (JSON.stringify(value) !== JSON.stringify(first[name])) out.set(name, name === "region" ? Object.values(value ?? {}).join() : value === true ? 1 : value);
  }
  return out.toString();
}

function parseLink(fragment, file) {
  const state = structuredClone(FIRST), given = new URLSearchParams(`${fragment.replace(/^#/, "")}&${file.start || ""}`);
  const below = (name, end, low = 0) => {
    const n = /^-?\d{1,9}$/.test(given.get(name) || "") ? Number(given.get(name)) : NaN;
    if (n >= low && n < end) state[name] = n;
  };
  const integers = name => (given.get(name) || "").split(",").filter(n => /^\d{1,9}$/.test(n)).map(Number);
  below("view", file.views.length);
  below("beside", file.views.length, -1);
  const {layers} = file.views[state.view];
  Object.assign(state, openingOf(file.views[state.view]));
  below("layer", layers.length);
  const l = layers[state.layer];
  Object.assign(state, {head: Math.min(state.head, l.heads - 1), i: Math.min(state.i, l.q_len - 1)});
  below("head", l.heads);
  below("i", l.q_len, -1);
  below("j", l.kv_len, -1);
  state.pins = [...new Set(integers("pins").filter(n => n < l.q_len))].slice(0, 16);
  const [q0, q1, k0, k1] = integers("region");
  if (q0 < q1 && q1 <= l.q_len && k0 < k1 && k1 <= l.kv_len) state.region = {q0, q1, k0, k1};
  for (const name of ["diff", "hold"]) state[name] = given.get(name) === "1";
  state.anchor = integers("anchor").slice(0, 2);
  state.kinds = (given.get("kinds") || "").split(",").filter(kind => KINDS.includes(kind));
  for (const [name, all] of Object.entries(CHOICES)) if (all.includes(given.get(name))) state[name] = given.get(name);
  for (const name of ["sort", "statistic"]) if (/^[a-z_ ]{1,30}$/.test(given.get(name) || "")) state[name] = given.get(name);
  return state;
}
