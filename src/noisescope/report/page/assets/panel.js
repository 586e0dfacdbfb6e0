/* The panel of a pinned layer: a copy of what the page has folded, layer by layer, below the map. */
"use strict";

noisescope.panel = (() => {
  const { map, scrolling } = noisescope;
  const byId = (id) => document.getElementById(id);

  const show = (column) => {
    byId("panel").hidden = column === null;
    byId("layer").value = column === null ? "" : String(column);
    if (column === null) return;
    byId("panel-title").textContent = byId(`panel-${column}-title`).textContent;
    byId("panel-body").replaceChildren(...byId(`panel-${column}`).cloneNode(true).children);
    byId("panel-before").disabled = column === 0;
    byId("panel-after").disabled = column === map.layers.length - 1;
    scrolling.watch(byId("panel-body"));
  };

  const start = () => {
    map.onPin(show);
    byId("layer").addEventListener("change", ({ target: { value } }) => map.pin(value === "" ? null : Number(value)));
    byId("panel-before").addEventListener("click", () => map.pin(map.state.pinned - 1));
    byId("panel-after").addEventListener("click", () => map.pin(map.state.pinned + 1));
    byId("panel-close").addEventListener("click", () => {
      map.pin(null);
      byId("map-plot").focus();
    });
  };

  return { start };
})();
