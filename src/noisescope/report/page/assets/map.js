/* The map: layers across, operators down. Pointing reads a cell, a click or Enter pins a column, Escape unpins. */
"use strict";

noisescope.map = (() => {
  const { data, plain, colour, scale, isDark, axis, frame, draw, decades } = noisescope;
  const { layers, operators, cells } = data.map;
  const CELL_HEIGHT = 27;
  const NARROWEST = 8;

  const state = { pinned: null, cursor: null };
  const listeners = [];
  const at = new Map(cells.map((cell) => [`${cell.column},${cell.row}`, cell]));
  const short = (name) => (name.length > 24 ? `${name.slice(0, 23)}…` : name);
  const cellAt = (column, row) => at.get(`${column},${row}`);

  const logs = cells.map((cell) => cell.log_kl).filter((value) => value !== null);
  const lowest = logs.length ? Math.min(...logs) : -1;
  const highest = logs.length ? Math.max(...logs, lowest + 0.1) : 0;

  const sentence = (cell) => {
    const parts = [`${layers[cell.column]} ${operators[cell.row]}: KL ${cell.kl} nats per token, ${cell.how}`];
    if (cell.measured) parts.push(`predicted ${cell.predicted}, measured ${cell.measured}${cell.disagrees ? ", they disagree" : ""}`);
    return parts.join("; ");
  };

  const hover = (cell) => {
    const lines = [`${layers[cell.column]} ${operators[cell.row]}`, `KL ${cell.kl} nats`, cell.how];
    if (cell.measured) {
      lines.push(`predicted ${cell.predicted}`, `measured ${cell.measured}`);
      lines.push(cell.disagrees ? "they disagree: the measurement stands" : "they agree");
    } else if (cell.how === "carried") {
      lines.push(`predicted ${cell.predicted}`);
    }
    return lines.map(plain).join("<br>");
  };

  const grid = (pick) => operators.map((_, row) => layers.map((_, column) => {
    const cell = cellAt(column, row);
    return cell ? pick(cell) : null;
  }));

  /* A figure of 0 is drawn as the weakest; one that is not finite as the strongest. */
  const strength = (cell) => (cell.log_kl !== null ? cell.log_kl : cell.kl.startsWith("0") ? lowest : highest);

  /* Marks must be seen on weak and on strong cells, in both themes. */
  const markColour = (cell) => {
    const strong = (strength(cell) - lowest) / (highest - lowest) > 0.5;
    return strong !== isDark() ? "#ffffff" : "#000000";
  };

  const marks = (chosen, symbol, size) => ({
    type: "scatter",
    mode: "markers",
    x: chosen.map((cell) => cell.column),
    y: chosen.map((cell) => cell.row),
    marker: { symbol, size, color: chosen.map(markColour), line: { width: 1.5, color: chosen.map(markColour) } },
    hoverinfo: "skip",
  });

  const bar = (narrow) => ({
    title: { text: "KL, nats per token", side: narrow ? "top" : "right", font: { color: colour("soft"), size: 12 } },
    ...decades(lowest, highest),
    tickfont: { color: colour("soft"), size: 12 },
    thickness: 12,
    outlinewidth: 0,
    ...(narrow ? { orientation: "h", y: -72 / (CELL_HEIGHT * operators.length), yanchor: "top", len: 1, xpad: 0, ypad: 0 } : { len: 1, lenmode: "fraction", xpad: 14, ypad: 0 }),
  });

  const outline = (x0, x1, y0, y1, line) => ({ type: "rect", xref: "x", yref: "y", x0, x1, y0, y1, line, layer: "above", fillcolor: "rgba(0,0,0,0)" });

  const shapes = () => {
    const found = [];
    const { pinned, cursor } = state;
    if (pinned !== null) {
      found.push(outline(pinned - 0.5, pinned + 0.5, -0.5, operators.length - 0.5, { color: colour("accent"), width: 3 }));
    }
    if (cursor) {
      found.push(outline(cursor.column - 0.5, cursor.column + 0.5, cursor.row - 0.5, cursor.row + 0.5, { color: colour("ink"), width: 2 }));
    }
    return found;
  };

  const isBlock = (name) => /^L\d+$/.test(name);

  const ticks = (room) => {
    const step = [1, 2, 5, 10, 20, 50, 100].find((size) => size * room >= 19) || 200;
    const shown = layers.map((_, column) => column).filter((column) => isBlock(layers[column]) && Number(layers[column].slice(1)) % step === 0);
    return { tickvals: shown, ticktext: shown.map((column) => layers[column].slice(1)) };
  };

  /* embed, final_norm and head have long names for one column: they stand on the slant, the last one on top. */
  const outerNames = () => layers.flatMap((name, column) => {
    if (isBlock(name)) return [];
    const above = column === layers.length - 1;
    const place = above ? { y: 1, yanchor: "bottom", xshift: 10, textangle: 0 } : { y: 0, yanchor: "top", xshift: 6, yshift: -4, textangle: -45 };
    return [{ x: column, xref: "x", yref: "paper", xanchor: "right", text: plain(short(name)), showarrow: false, font: { color: colour("soft"), size: 12 }, ...place }];
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
      hoverinfo: "text",
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
      marks(checked.filter((cell) => !cell.disagrees), "circle-open", size),
      marks(checked.filter((cell) => cell.disagrees), "x-thin", size),
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

  const moveCursor = (across, down) => {
    const { column, row } = state.cursor || { column: state.pinned ?? 0, row: 0 };
    const inside = (value, count) => Math.min(Math.max(value, 0), count - 1);
    state.cursor = state.cursor ? { column: inside(column + across, layers.length), row: inside(row + down, operators.length) } : { column, row };
    const cell = cellAt(state.cursor.column, state.cursor.row);
    show(cell ? sentence(cell) : `${layers[state.cursor.column]} ${operators[state.cursor.row]}: no such operator there`);
    Plotly.relayout("map-plot", { shapes: shapes() });
  };

  const KEYS = {
    ArrowLeft: () => moveCursor(-1, 0),
    ArrowRight: () => moveCursor(1, 0),
    ArrowUp: () => moveCursor(0, -1),
    ArrowDown: () => moveCursor(0, 1),
    Home: () => moveCursor(-layers.length, 0),
    End: () => moveCursor(layers.length, 0),
    Enter: () => toggle(state.cursor ? state.cursor.column : 0),
    " ": () => toggle(state.cursor ? state.cursor.column : 0),
  };

  const start = () => {
    const element = draw("map-plot", build);
    element.on("plotly_hover", (event) => {
      const point = event.points.find((found) => found.data.type === "heatmap");
      const cell = point && cellAt(point.x, point.y);
      if (cell) show(sentence(cell));
    });
    element.on("plotly_click", (event) => toggle(event.points[0].x));
    element.addEventListener("keydown", (event) => {
      if (!KEYS[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      KEYS[event.key]();
    });
    element.addEventListener("blur", () => {
      state.cursor = null;
      Plotly.relayout("map-plot", { shapes: shapes() });
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && state.pinned !== null) pin(null);
    });
  };

  return { layers, state, pin, onPin: (listener) => listeners.push(listener), start };
})();
