/* The map: how far noise at an operator of a layer moves the output. A click or Enter pins a column, Escape unpins. */
"use strict";

noisescope.map = (() => {
  const { data, scale, isDark, decades } = noisescope;
  const { layers, operators, cells } = data.map;

  const state = { pinned: null };
  const listeners = [];

  const logs = cells.map((cell) => cell.log_kl).filter((value) => value !== null);
  const lowest = logs.length ? Math.min(...logs) : -1;
  const highest = logs.length ? Math.max(...logs, lowest + 0.1) : 0;

  /* What stands, then what it was compared with. */
  const told = (cell) => {
    const lines = [`KL ${cell.kl} nats per token, ${cell.how}`];
    if (cell.how !== "predicted") lines.push(`predicted ${cell.predicted}`);
    if (cell.measured && cell.how !== "measured") lines.push(`measured ${cell.measured}`);
    if (cell.measured) lines.push(cell.disagrees ? "they disagree: the measurement stands" : "they agree");
    return lines;
  };

  const toggleHere = () => toggle((grid.here() || { column: state.pinned ?? 0 }).column);

  const grid = noisescope.grid({
    plot: "map-plot",
    readout: "map-readout",
    layers,
    operators,
    cells,
    told,
    keys: { Enter: toggleHere, " ": toggleHere },
    outlines: (rimmed) => (state.pinned === null ? [] : rimmed(state.pinned, [0, operators.length - 1], "accent", 3)),
  });

  /* A figure of 0 is drawn as the weakest; one that is not finite as the strongest. */
  const strength = (cell) => cell.log_kl ?? (cell.finite ? lowest : highest);

  /* Marks must be seen on weak and on strong cells, in both themes. */
  const markColour = (cell) => {
    const strong = (strength(cell) - lowest) / (highest - lowest) > 0.5;
    return strong !== isDark() ? "#ffffff" : "#000000";
  };

  const checks = (chosen, symbol, size) => grid.marks(chosen, symbol, size, chosen.map(markColour));

  const warnings = (size) => {
    const chosen = cells.filter((cell) => !cell.finite);
    return grid.over(chosen, {
      mode: "text",
      text: chosen.map(() => "!"),
      textfont: { size: 2 * size + 2, weight: 700, color: chosen.map(markColour) },
    });
  };

  const build = (available) => {
    const measured = grid.measure(available);
    const { narrow, size } = measured;
    const checked = cells.filter((cell) => cell.measured);
    const traces = [
      grid.heat(measured, {
        z: grid.filled(strength),
        colorscale: scale(),
        zmin: lowest,
        zmax: highest,
        colorbar: grid.bar("KL, nats per token", decades(lowest, highest), narrow),
      }),
      checks(checked.filter((cell) => !cell.disagrees), "circle-open", size),
      checks(checked.filter((cell) => cell.disagrees), "x-thin", size),
      warnings(size),
      grid.dashes(size / 2),
    ];
    return { traces, layout: grid.layout(measured) };
  };

  /* --- pinning --- */

  const pin = (column) => {
    state.pinned = column;
    grid.remark();
    listeners.forEach((listener) => listener(column));
  };

  const toggle = (column) => pin(state.pinned === column ? null : column);

  const columnAt = (element, event) => {
    const { xaxis, yaxis } = element._fullLayout;
    const box = element.getBoundingClientRect();
    const column = Math.round(xaxis.p2c(event.clientX - box.left - xaxis._offset));
    const below = event.clientY - box.top - yaxis._offset;
    return below >= 0 && below <= yaxis._length && column >= 0 && column < layers.length ? column : null;
  };

  /* Plotly's own click needs its hover to have come first and takes two quick ones for another gesture. */
  const startClicking = (element) => {
    let down = null;
    element.addEventListener("pointerdown", (event) => {
      down = event.isPrimary && event.button === 0 ? event : null;
    });
    addEventListener("pointerup", (event) => {
      const still = down && Math.hypot(event.clientX - down.clientX, event.clientY - down.clientY) < 6;
      down = null;
      const column = still ? columnAt(element, event) : null;
      if (column !== null) toggle(column);
    });
  };

  const start = () => {
    startClicking(grid.start(build, () => state.pinned ?? 0));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && state.pinned !== null) pin(null);
    });
  };

  return { layers, state, pin, onPin: (listener) => listeners.push(listener), start };
})();
