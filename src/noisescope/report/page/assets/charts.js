/* Operators ranked, and predicted against measured: dots with whiskers. */
"use strict";

noisescope.charts = (() => {
  const { data, plain, colour, axis, frame, dots, whiskers, crosses, edgeAxis, line, decades, short, draw } = noisescope;

  const drawable = (value) => value !== null && value > 0;

  /* A logarithmic axis around all of these, with ticks at its decades. */
  const logarithmic = (ends) => {
    const values = ends.flat().filter(drawable).map(Math.log10);
    if (!values.length) return { showticklabels: false };
    const range = [Math.min(...values) - 0.15, Math.max(...values) + 0.15];
    const { tickvals, ticktext } = decades(...range);
    return { type: "log", range, tickvals: tickvals.map((log) => 10 ** log), ticktext };
  };

  const fromZero = (ends) => ({
    zeroline: true,
    zerolinecolor: colour("soft"),
    showticklabels: ends.some(([value]) => value !== null),
  });

  /* --- operators --- */

  const LOST = {
    title: "accuracy lost, %",
    pick: (row) => row.lost,
    told: (row) => `accuracy lost ${row.lost_text}`,
    missing: (row) => row.failed,
    scale: fromZero,
  };

  const KL = {
    title: "KL, nats per token",
    pick: (row) => row.kl,
    told: (row) => `KL ${row.kl_text} nats`,
    missing: (row) => row.failed || (row.kl[0] === null && `KL ${row.kl_text}`),
    scale: logarithmic,
  };

  const names = (rows) => ({
    tickvals: rows.map((_, at) => at),
    ticktext: rows.map((row) => plain(short(row.name))),
    tickfont: { color: colour("ink"), size: 12 },
    range: [rows.length - 0.4, -0.6],
    showgrid: false,
  });

  const ranked = ({ title, pick, told, missing, scale }) => (width) => {
    const rows = data.operators;
    const without = [...rows.keys()].filter((at) => missing(rows[at]));
    const longest = Math.max(4, ...rows.map((row) => short(row.name).length));
    return {
      traces: [dots({
        x: rows.map((row) => pick(row)[0]),
        y: rows.map((_, at) => at),
        error_x: whiskers(rows.map(pick)),
        hovertext: rows.map((row) => (row.failed ? [] : [row.name, told(row), row.severity]).map(plain).join("<br>")),
        marker: { size: 8, color: colour("accent") },
      }), crosses({
        x: without.map(() => 0.97),
        y: without,
        xaxis: "x2",
        hovertext: without.map((at) => [rows[at].name, missing(rows[at])].map(plain).join("<br>")),
      })],
      layout: frame({
        width,
        height: 60 + 25 * rows.length,
        margin: { l: 14 + 7.2 * longest, r: 14, t: 8, b: 46 },
        xaxis: axis({ title, ...scale(rows.map(pick)) }),
        xaxis2: edgeAxis({ overlaying: "x" }),
        yaxis: axis(names(rows)),
      }),
    };
  };

  /* --- predicted against measured --- */

  const pairs = data.agreement.filter((pair) => drawable(pair.predicted[0]) && drawable(pair.measured[0]));

  const agreement = (width) => {
    const both = logarithmic(pairs.flatMap((pair) => [pair.predicted, pair.measured]));
    const [low, high] = both.range.map((value) => 10 ** value);
    const size = Math.min(width, 380);
    return {
      traces: [dots({
        x: pairs.map((pair) => pair.predicted[0]),
        y: pairs.map((pair) => pair.measured[0]),
        error_x: whiskers(pairs.map((pair) => pair.predicted)),
        error_y: whiskers(pairs.map((pair) => pair.measured)),
        hovertext: pairs.map((pair) => [pair.name, ...pair.told].map(plain).join("<br>")),
        marker: {
          size: 7,
          symbol: pairs.map((pair) => (pair.disagrees ? "x" : "circle")),
          color: pairs.map((pair) => colour(pair.disagrees ? "alarm" : "accent")),
          line: { width: 0 },
        },
      })],
      layout: frame({
        width: size,
        height: size,
        margin: { l: 60, r: 14, t: 12, b: 48 },
        shapes: [line({ xref: "x", yref: "y", x0: low, y0: low, x1: high, y1: high })],
        xaxis: axis({ title: "predicted KL, nats", ...both }),
        yaxis: axis({ title: "measured KL, nats", ...both }),
      }),
    };
  };

  const start = () => {
    const { operators } = data;
    if (operators.some((row) => row.failed || row.lost[0] !== null)) draw("operators-lost-plot", ranked(LOST));
    if (operators.length) draw("operators-kl-plot", ranked(KL));
    if (pairs.length) draw("agreement-plot", agreement);
  };

  return { start };
})();
