// The filters of the gallery: a card is shown if it fits all of them.
(function () {
  "use strict";
  const form = document.querySelector(".gx-filters");
  if (!form) return;
  const cards = Array.from(document.querySelectorAll(".gx-card"));
  const output = form.querySelector("output");

  function fits(card, name, value) {
    if (name === "text") return card.dataset.name.toLowerCase().includes(value.trim().toLowerCase());
    if (value === "*") return true;
    const held = card.dataset[name];
    if (name !== "needs") return held === value;
    // A card without pictures does not say what it needs.
    return value ? held.split("|").includes(value) : held === "" && card.dataset.looks !== "";
  }

  function show() {
    const wanted = Array.from(new FormData(form).entries());
    let shown = 0;
    for (const card of cards) {
      card.hidden = !wanted.every(([name, value]) => fits(card, name, value));
      if (!card.hidden) shown += 1;
    }
    output.textContent = shown + " of " + cards.length;
    const query = new URLSearchParams(wanted.filter(([, value]) => value && value !== "*"));
    history.replaceState(null, "", query.size ? "?" + query : location.pathname);
  }

  for (const [name, value] of new URLSearchParams(location.search)) {
    if (form.elements[name]) form.elements[name].value = value;
  }
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  show();
})();
