// Sets the TeX of update rules with KaTeX. A formula on a line of its own is a div: in it fractions
// in fractions are as large as others.
for (const element of document.querySelectorAll(".gx-tex")) {
  const displayMode = element.tagName === "DIV";
  katex.render(element.textContent, element, {
    displayMode,
    macros: displayMode ? { "\\frac": "\\dfrac" } : {},
    throwOnError: false,
  });
}
