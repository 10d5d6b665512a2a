// Tables that are sorted by the column whose title is chosen: first the greatest, or from A to Z.
(function () {
  "use strict";

  function value(row, column) {
    const text = row.cells[column].textContent.trim();
    const number = parseFloat(text.replace(/,/g, ""));
    return Number.isNaN(number) ? text : number;
  }

  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return b - a;
    if (typeof a === typeof b) return a.localeCompare(b);
    // What is not a number, such as a dash, is last.
    return typeof a === "number" ? -1 : 1;
  }

  function sort(table, head, column) {
    const body = table.tBodies[0];
    const rows = Array.from(body.rows).map((row) => [value(row, column), row]);
    const first = rows.some(([x]) => typeof x === "number") ? "descending" : "ascending";
    const again = head.getAttribute("aria-sort") === first;
    rows.sort(([a], [b]) => (again && typeof a === typeof b ? compare(b, a) : compare(a, b)));
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    const second = first === "descending" ? "ascending" : "descending";
    head.setAttribute("aria-sort", again ? second : first);
    for (const [, row] of rows) body.appendChild(row);
  }

  for (const table of document.querySelectorAll(".gx-sorted table")) {
    Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sort(table, head, column));
      head.append(button);
    });
  }
})();
