// The state of the page <-> the address's fragment. A fragment is as hostile as any input: what is out of range falls back.
const STEPS = 12, LAB = "lab", LANGUAGES = ["en", "zh"], TASKS = ["next", "previous", "same", "own", "induction"];
const FIRST = {step: 1, lang: "en", theme: "auto", spacing: "sqrt", task: "previous", heads: 1, layers: 1, rate: 0.003, seed: 0};

/// The language of a person who chose none: the browser's first that the page has.
const languageOf = wanted => wanted.map(l => l.slice(0, 2).toLowerCase()).find(l => LANGUAGES.includes(l)) || "en";

function parseAddress(fragment, wanted) {
  const given = new URLSearchParams(fragment.replace(/^#/, "").replace(/^step-/, "step=")), out = {...FIRST, lang: languageOf(wanted)};
  const between = (name, low, high, form = /^\d{1,9}$/) => {
    const text = given.get(name) || "", n = form.test(text) ? Number(text) : NaN;
    if (n >= low && n <= high) out[name] = n;
  };
  between("step", 1, STEPS);
  if (given.get("step") === LAB) out.step = LAB;
  for (const [name, all] of Object.entries({lang: LANGUAGES, theme: ["auto", "light", "dark"], task: TASKS})) if (all.includes(given.get(name))) out[name] = given.get(name);
  between("heads", 1, 4);
  between("layers", 1, 2);
  between("seed", 0, 999999999);
  between("rate", 1e-5, 1, /^\d?\.?\d{1,6}(e-\d)?$/);
  return out;
}
/// The language always stands in the address, so that a link keeps it; the rest where it is not the first.
function formatAddress(of) {
  const out = new URLSearchParams();
  for (const name of Object.keys(FIRST)) if (name === "lang" || of[name] !== FIRST[name]) out.set(name, of[name]);
  return out.toString();
}
