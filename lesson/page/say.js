// The words of the page: every sentence that it shows comes from lesson/text, in the language of the state.

/// The text of a key, with {name} replaced by values.name. A key that a language lacks is shown as it is written.
function say(key, values = {}) {
  const text = WORDS[state.lang][key];
  return text === undefined ? key : text.replace(/\{(\w+)\}/g, (whole, name) => name in values ? String(values[name]) : whole);
}
/// The twelve steps of the lesson in the language of the state.
const stepsOf = () => WORDS[state.lang].steps || [];

/// Fills what page.html marks with data-say.
function sayAll(root) {
  for (const one of root.querySelectorAll("[data-say]")) one.textContent = say(one.dataset.say);
}
