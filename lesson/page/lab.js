// The lab: a model that learns to attend, while the page shows every head of it.

function drawLab(box) {
  box.replaceChildren(make("h2", {textContent: say("lab.title")}));
  showCommand("");
}
