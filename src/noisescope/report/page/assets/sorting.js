/* The table of all sites: sorted by a heading that is pressed, and only the rows that are wanted. */
"use strict";

noisescope.sorting = (() => {
  const byId = (id) => document.getElementById(id);

  const start = () => {
    const table = byId("sites-table");
    if (!table) return;
    const body = table.tBodies[0];
    const called = [...body.rows]; /* in the order of their calls */
    const names = new Map(called.map((row) => [row, row.cells[0].textContent.toLowerCase()]));

    /* What has no figure is last in both directions; sorting is stable, so equal ones keep the order of their calls. */
    const keyOf = ({ cells }, column) => (cells[column].dataset.key === "" ? null : Number(cells[column].dataset.key));
    const compare = (column, sign) => (one, other) => {
      const [a, b] = [keyOf(one, column), keyOf(other, column)];
      if (a === null || b === null) return (a === null) - (b === null);
      return a === b ? 0 : sign * (a < b ? -1 : 1);
    };

    const heads = [...table.querySelectorAll("th[data-sorts]")];
    const NEXT = { none: "descending", descending: "ascending", ascending: "none" };

    const sortBy = (head) => {
      const turn = NEXT[head.getAttribute("aria-sort") || "none"];
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      if (turn !== "none") head.setAttribute("aria-sort", turn);
      const order = turn === "none" ? called : [...called].sort(compare(head.cellIndex, turn === "ascending" ? 1 : -1));
      body.append(...order);
    };

    heads.forEach((head) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => sortBy(head));
    });

    const filter = () => {
      const wanted = byId("sites-filter").value.trim().toLowerCase();
      const onlyBeyond = byId("sites-beyond").checked;
      called.forEach((row) => {
        row.hidden = !names.get(row).includes(wanted) || (onlyBeyond && !row.classList.contains("beyond"));
      });
      const shown = called.filter((row) => !row.hidden).length;
      byId("sites-count").textContent = shown < called.length ? `${shown} of ${called.length}` : "";
    };
    byId("sites-filter").addEventListener("input", filter);
    byId("sites-beyond").addEventListener("change", filter);
  };

  return { start };
})();
