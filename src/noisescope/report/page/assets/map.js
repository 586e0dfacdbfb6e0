/* The map: layers across, operators down. Pointing reads a cell, a click or Enter pins a column, Escape unpins. */
"use strict";

noisescope.map = (() => {
  const { data, plain, colour, scale, isDark, axis, frame, label, draw, decades, short } = noisescope;
  const { layers, operators, cells } = data.map;
  const CELL_HEIGHT = 27;
  const NARROWEST = 8;

  const state = { pinned: null, cursor: null };
  const listeners = [];
  const at = new Map(cells.map((cell) => [`${cell.column},${cell.row}`, cell]));
  const cellAt = (column, row) => at.get(`${column},${row}`);

  const logs = cells.map((cell) => cell.log_kl).filter((value) => value !== null);
  const lowest = logs.length ? Math.min(...logs) : -1;
  const highest = logs.length ? Math.max(...logs, lowest + 0.1) : 0;

  const nameOf = (cell) => `${layers[cell.column]} ${operators[cell.row]}`;

  /* What stands, then what it was compared with. */
  const told = (cell) => {
    const lines = [`KL ${cell.kl} nats per token, ${cell.how}`];
    if (cell.how !== "predicted") lines.push(`predicted ${cell.predicted}`);
    if (cell.measured && cell.how !== "measured") lines.push(`measured ${cell.measured}`);
    if (cell.measured) lines.push(cell.disagrees ? "they disagree: the measurement stands" : "they agree");
    return lines;
  };

  const sentence = (cell) => `${nameOf(cell)}: ${told(cell).join("; ")}`;

  const hover = (cell) => [nameOf(cell), ...told(cell)].map(plain).join("<br>");

  const grid = (pick) => operators.map((_, row) => layers.map((_, column) => {
    const cell = cellAt(column, row);
    return cell ? pick(cell) : null;
  }));

  /* A figure of 0 is drawn as the weakest; one that is not finite as the strongest. */
  const strength = (cell) => cell.log_kl ?? (cell.finite ? lowest : highest);

  /* Marks must be seen on weak and on strong cells, in both themes. */
  const markColour = (cell) => {
    const strong = (strength(cell) - lowest) / (highest - lowest) > 0.5;
    return strong !== isDark() ? "#ffffff" : "#000000";
  };

  const over = (places, more) => ({
    type: "scatter",
    x: places.map(({ column }) => column),
    y: places.map(({ row }) => row),
    hoverinfo: "skip",
    ...more,
  });

  const marks = (places, symbol, size, color) => over(places, {
    mode: "markers",
    marker: { symbol, size, color, line: { width: 1.5, color } },
  });

  const checks = (chosen, symbol, size) => marks(chosen, symbol, size, chosen.map(markColour));

  const warnings = (size) => {
    const chosen = cells.filter((cell) => !cell.finite);
    return over(chosen, {
      mode: "text",
      text: chosen.map(() => "!"),
      textfont: { size: 2 * size + 2, weight: 700, color: chosen.map(markColour) },
    });
  };

  /* A place without an operator has a dash, lest it be taken for a cell that hardly matters. */
  const dashes = (size) => {
    const places = operators.flatMap((_, row) => layers.map((_, column) => ({ column, row })));
    return marks(places.filter(({ column, row }) => !cellAt(column, row)), "line-ew-open", size, colour("soft"));
  };

  const bar = (narrow) => ({
    title: { text: "KL, nats per token", side: narrow ? "top" : "right", font: { color: colour("soft"), size: 12 } },
    ...decades(lowest, highest),
    tickfont: { color: colour("soft"), size: 12 },
    thickness: 12,
    outlinewidth: 0,
    len: 1,
    ypad: 0,
    xpad: narrow ? 0 : 14,
    ...(narrow ? { orientation: "h", y: -72 / (CELL_HEIGHT * operators.length), yanchor: "top" } : {}),
  });

  const outline = (column, [first, last], line) => ({
    type: "rect",
    layer: "above",
    fillcolor: "rgba(0,0,0,0)",
    x0: column - 0.5,
    x1: column + 0.5,
    y0: first - 0.5,
    y1: last + 0.5,
    line,
  });

  /* With a rim of paper, to be seen on weak and on strong cells. */
  const rimmed = (column, rows, name, width) => [
    outline(column, rows, { color: colour("paper"), width: width + 3 }),
    outline(column, rows, { color: colour(name), width }),
  ];

  const shapes = () => {
    const { pinned, cursor } = state;
    const column = pinned === null ? [] : rimmed(pinned, [0, operators.length - 1], "accent", 3);
    const cell = cursor ? rimmed(cursor.column, [cursor.row, cursor.row], "ink", 2) : [];
    return [...column, ...cell];
  };

  const isBlock = (name) => /^L\d+$/.test(name);

  const ticks = (room) => {
    const step = [1, 2, 5, 10, 20, 50, 100].find((size) => size * room >= 19) || 200;
    const numbered = (name) => isBlock(name) && Number(name.slice(1)) % step === 0;
    const shown = [...layers.keys()].filter((column) => numbered(layers[column]));
    return { tickvals: shown, ticktext: shown.map((column) => layers[column].slice(1)) };
  };

  /* embed, final_norm and head have long names for one column: they stand on the slant, the last one on top. */
  const ON_TOP = { y: 1, yanchor: "bottom", xshift: 10, textangle: 0 };
  const SLANTED = { y: 0, yanchor: "top", xshift: 6, yshift: -4, textangle: -45 };

  const outerNames = () => layers.flatMap((name, column) => {
    if (isBlock(name)) return [];
    const place = column === layers.length - 1 ? ON_TOP : SLANTED;
    return [label(name, { x: column, yref: "paper", xanchor: "right", ...place })];
  });

  const build = (available) => {
    const narrow = available < 560;
    const left = 14 + 7.2 * Math.max(...operators.map((name) => short(name).length));
    const right = narrow ? 8 : 96;
    const width = Math.max(available, left + right + NARROWEST * layers.length);
    const room = (width - left - right) / layers.length;
    const margin = { l: left, r: right, t: 22, b: narrow ? 132 : 66 };
    const checked = cells.filter((cell) => cell.measured);
    const heat = {
      type: "heatmap",
      x: layers.map((_, column) => column),
      y: operators.map((_, row) => row),
      z: grid(strength),
      hovertext: grid(hover),
      hoverinfo: narrow ? "none" : "text", /* on a phone the line below the map has more room */
      hoverongaps: false,
      colorscale: scale(),
      zmin: lowest,
      zmax: highest,
      xgap: room > 12 ? 2 : 1,
      ygap: 2,
      colorbar: bar(narrow),
    };
    const size = Math.min(8, Math.max(4, room * 0.4));
    const traces = [
      heat,
      checks(checked.filter((cell) => !cell.disagrees), "circle-open", size),
      checks(checked.filter((cell) => cell.disagrees), "x-thin", size),
      warnings(size),
      dashes(size / 2),
    ];
    const layout = frame({
      width,
      height: CELL_HEIGHT * operators.length + margin.t + margin.b,
      margin,
      shapes: shapes(),
      annotations: outerNames(),
      xaxis: axis({ ...ticks(room), range: [-0.5, layers.length - 0.5], showgrid: false, title: "layer" }),
      yaxis: axis({
        tickvals: operators.map((_, row) => row), ticktext: operators.map((name) => plain(short(name))),
        range: [operators.length - 0.5, -0.5], showgrid: false, tickfont: { color: colour("ink"), size: 12 },
      }),
    });
    return { traces, layout };
  };

  const show = (text) => {
    document.getElementById("map-readout").textContent = text;
  };

  const pin = (column) => {
    state.pinned = column;
    Plotly.relayout("map-plot", { shapes: shapes() });
    listeners.forEach((listener) => listener(column));
  };

  const toggle = (column) => pin(state.pinned === column ? null : column);

  /* Where the keys are, or where they begin. */
  const here = () => state.cursor || { column: state.pinned ?? 0, row: 0 };

  const moveCursor = (across, down) => {
    const { column, row } = here();
    const inside = (value, count) => Math.min(Math.max(value, 0), count - 1);
    document.getElementById("map-plot").classList.add("by-key");
    state.cursor = state.cursor
      ? { column: inside(column + across, layers.length), row: inside(row + down, operators.length) }
      : { column, row };
    const cell = cellAt(state.cursor.column, state.cursor.row);
    show(cell ? sentence(cell) : `${nameOf(state.cursor)}: no such operator there`);
    Plotly.relayout("map-plot", { shapes: shapes() });
  };

  /* The pointer, resting somewhere, must not speak while keys are used; once it moves, it is used again. */
  const leaveKeys = () => {
    if (!state.cursor) return;
    state.cursor = null;
    document.getElementById("map-plot").classList.remove("by-key");
    Plotly.relayout("map-plot", { shapes: shapes() });
  };

  const KEYS = {
    ArrowLeft: () => moveCursor(-1, 0),
    ArrowRight: () => moveCursor(1, 0),
    ArrowUp: () => moveCursor(0, -1),
    ArrowDown: () => moveCursor(0, 1),
    Home: () => moveCursor(-layers.length, 0),
    End: () => moveCursor(layers.length, 0),
    Enter: () => toggle(here().column),
    " ": () => toggle(here().column),
  };

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
    const element = draw("map-plot", build);
    element.on("plotly_hover", (event) => {
      const point = event.points.find((found) => found.data.type === "heatmap");
      const cell = point && cellAt(point.x, point.y);
      if (cell && !state.cursor) show(sentence(cell));
    });
    startClicking(element);
    element.addEventListener("keydown", (event) => {
      if (!KEYS[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      KEYS[event.key]();
    });
    element.addEventListener("blur", leaveKeys);
    element.addEventListener("pointermove", (event) => {
      if (event.movementX || event.movementY) leaveKeys(); /* a page that moves below it is no movement */
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && state.pinned !== null) pin(null);
    });
  };

  return { layers, state, pin, onPin: (listener) => listeners.push(listener), start };
})();
