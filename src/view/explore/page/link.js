// The state of the page <-> the address's fragment. A fragment is as hostile as any input: what is out of range falls back.
const TABS = ["text", "lines", "why", "does", "picture"];
const FIRST = {view: 0, layer: 0, head: 0, i: -1, j: -1, hold: false, pins: [], region: null, tab: "text", beside: -1, diff: false, kinds: [], sort: "layer", anchor: [],
  paint: "weight", range: "max", spacing: "sqrt", way: "to", theme: "auto", statistic: "entropy"};

/// Where a view opens: the head with the largest share of a kind that says more than "first" or "diffuse", one query chosen.
function openingOf(view) {
  const at = {layer: 0, head: 0};
  let best = 0;
  view.layers.forEach((l, layer) => (l.head_info || []).forEach((info, head) => {
    if (info.share > best && !["first", "diffuse"].includes(info.kind)) { best = info.share; Object.assign(at, {layer, head}); }
  }));
  return {...at, i: (view.layers[at.layer].q_len >> 1) - (view.layers[at.layer].q_len ? 0 : 1)};
}

function formatLink(state, file) {
  const parts = [], put = (name, value) => parts.push(name + "=" + encodeURIComponent(value)), first = {...parseLink(`view=${state.view}`, file), view: 0};
  for (const [name, value] of Object.entries(state)) {
    if (JSON.stringify(value) === JSON.stringify(first[name])) continue;
    if (name === "region") put(name, [value.q0, value.q1, value.k0, value.k1].join(","));
    else put(name, Array.isArray(value) ? value.join(",") : value === true ? 1 : value);
  }
  return parts.join("&");
}

function parseLink(fragment, file) {
  const state = structuredClone(FIRST), given = new Map();
  for (const part of [...String(file.start || "").split("&"), ...fragment.replace(/^#/, "").split("&")]) {
    const at = part.indexOf("=");
    if (at < 1) continue;
    try { given.set(part.slice(0, at), decodeURIComponent(part.slice(at + 1))); } catch { /* a broken escape: as if it were not there */ }
  }
  const below = (name, end, low = 0) => {
    const n = /^-?\d{1,9}$/.test(given.get(name) || "") ? Number(given.get(name)) : NaN;
    if (n >= low && n < end) state[name] = n;
  };
  const oneOf = (name, all) => { if (all.includes(given.get(name))) state[name] = given.get(name); };
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
  oneOf("tab", TABS);
  oneOf("paint", ["weight", "writes"]);
  oneOf("range", ["max", "unit"]);
  oneOf("spacing", ["sqrt", "linear"]);
  oneOf("way", ["to", "from"]);
  oneOf("theme", ["auto", "light", "dark"]);
  for (const name of ["sort", "statistic"]) if (/^[a-z_ ]{1,30}$/.test(given.get(name) || "")) state[name] = given.get(name);
  return state;
}
