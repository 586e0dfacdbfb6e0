/* Cells, layers across and operators down: how they are laid out and marked. Pointing reads a cell, and so do arrow keys.

   `told` gives the lines about a cell; `keys` says what further keys do, `outlines` what is marked all the time. */
"use strict";

noisescope.grid = (given) => {
  const { plain, colour, axis, frame, label, draw, short } = noisescope;
  const { plot, readout, layers, operators, cells, told, cellHeight = 27, keys = {}, outlines = () => [] } = given;
  const NARROWEST = 8;
  const byId = (id) => document.getElementById(id);

  let cursor = null;
  const at = new Map(cells.map((cell) => [`${cell.column},${cell.row}`, cell]));
  const cellAt = (column, row) => at.get(`${column},${row}`);

  const nameOf = ({ column, row }) => `${layers[column]} ${operators[row]}`;
  const sentence = (cell) => `${nameOf(cell)}: ${told(cell).join("; ")}`;
  const hover = (cell) => [nameOf(cell), ...told(cell)].map(plain).join("<br>");

  /* --- pieces --- */

  const filled = (pick) => operators.map((_, row) => layers.map((_, column) => {
    const cell = cellAt(column, row);
    return cell ? pick(cell) : null;
  }));

  const heat = ({ room, narrow }, more) => ({
    type: "heatmap",
    x: layers.map((_, column) => column),
    y: operators.map((_, row) => row),
    hovertext: filled(hover),
    hoverinfo: narrow ? "none" : "text", /* on a phone the line below has more room */
    hoverongaps: false,
    xgap: room > 12 ? 2 : 1,
    ygap: 2,
    ...more,
  });

  const bar = (title, ticks, narrow) => ({
    title: { text: title, side: narrow ? "top" : "right", font: { color: colour("soft"), size: 12 } },
    ...ticks,
    tickfont: { color: colour("soft"), size: 12 },
    thickness: 12,
    outlinewidth: 0,
    len: 1,
    ypad: 0,
    xpad: narrow ? 0 : 14,
    ...(narrow ? { orientation: "h", y: -72 / (cellHeight * operators.length), yanchor: "top" } : {}),
  });

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

  /* A place without an operator has a dash, lest it be taken for a cell that hardly matters. */
  const dashes = (size) => {
    const places = operators.flatMap((_, row) => layers.map((_, column) => ({ column, row })));
    return marks(places.filter(({ column, row }) => !cellAt(column, row)), "line-ew-open", size, colour("soft"));
  };

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

  const shapes = () => [
    ...outlines(rimmed),
    ...(cursor ? rimmed(cursor.column, [cursor.row, cursor.row], "ink", 2) : []),
  ];

  /* --- layout --- */

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

  /* How wide all of it is, and a cell of it; the bar of colours, if there is one, stands beside or, on a phone, below. */
  const measure = (available, withBar = true) => {
    const narrow = available < 560;
    const left = 14 + 7.2 * Math.max(...operators.map((name) => short(name).length));
    const right = narrow || !withBar ? 8 : 96;
    const width = Math.max(available, left + right + NARROWEST * layers.length);
    const room = (width - left - right) / layers.length;
    const margin = { l: left, r: right, t: 22, b: narrow && withBar ? 132 : 66 };
    return { narrow, width, room, margin, size: Math.min(8, Math.max(4, room * 0.4)) };
  };

  const layout = ({ width, room, margin }) => frame({
    width,
    height: cellHeight * operators.length + margin.t + margin.b,
    margin,
    shapes: shapes(),
    annotations: outerNames(),
    xaxis: axis({ ...ticks(room), range: [-0.5, layers.length - 0.5], showgrid: false, title: "layer" }),
    yaxis: axis({
      tickvals: operators.map((_, row) => row), ticktext: operators.map((name) => plain(short(name))),
      range: [operators.length - 0.5, -0.5], showgrid: false, tickfont: { color: colour("ink"), size: 12 },
    }),
  });

  /* --- reading --- */

  const show = (text) => {
    byId(readout).textContent = text;
  };

  const remark = () => Plotly.relayout(plot, { shapes: shapes() });

  /* Where the keys are; null where they are not used. */
  const here = () => cursor;

  const moveCursor = (across, down, start) => {
    const inside = (value, count) => Math.min(Math.max(value, 0), count - 1);
    byId(plot).classList.add("by-key");
    cursor = cursor
      ? { column: inside(cursor.column + across, layers.length), row: inside(cursor.row + down, operators.length) }
      : { column: start, row: 0 };
    const cell = cellAt(cursor.column, cursor.row);
    show(cell ? sentence(cell) : `${nameOf(cursor)}: no such operator there`);
    remark();
  };

  /* The pointer, resting somewhere, must not speak while keys are used; once it moves, it is used again. */
  const leaveKeys = () => {
    if (!cursor) return;
    cursor = null;
    byId(plot).classList.remove("by-key");
    remark();
  };

  const MOVES = {
    ArrowLeft: [-1, 0],
    ArrowRight: [1, 0],
    ArrowUp: [0, -1],
    ArrowDown: [0, 1],
    Home: [-layers.length, 0],
    End: [layers.length, 0],
  };

  const onKey = (event, first) => {
    const known = MOVES[event.key] || keys[event.key];
    if (!known || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    if (MOVES[event.key]) moveCursor(...MOVES[event.key], first());
    else keys[event.key]();
  };

  /* `first` is the column where keys begin. */
  const start = (build, first = () => 0) => {
    const element = draw(plot, build);
    element.on("plotly_hover", (event) => {
      const point = event.points.find((found) => found.data.type === "heatmap");
      const cell = point && cellAt(point.x, point.y);
      if (cell && !cursor) show(sentence(cell));
    });
    element.addEventListener("keydown", (event) => onKey(event, first));
    element.addEventListener("blur", leaveKeys);
    element.addEventListener("pointermove", (event) => {
      if (event.movementX || event.movementY) leaveKeys(); /* a page that moves below it is no movement */
    });
    return element;
  };

  return { filled, heat, bar, over, marks, dashes, measure, layout, remark, here, start };
};
