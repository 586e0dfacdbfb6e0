/* Dots with whiskers: windows with amplification, operators, predicted against measured. */
"use strict";

noisescope.charts = (() => {
  const { data, plain, colour, axis, frame, decades, draw } = noisescope;

  const whiskers = (ends) => ({
    type: "data",
    symmetric: false,
    array: ends.map(([value, , high]) => (high === null || value === null ? 0 : Math.max(high - value, 0))),
    arrayminus: ends.map(([value, low]) => (low === null || value === null ? 0 : Math.max(value - low, 0))),
    thickness: 1.25,
    width: 0,
    color: colour("soft"),
  });

  const dots = (more) => ({ type: "scatter", mode: "markers", hoverinfo: "text", cliponaxis: false, ...more });

  const line = (more) => ({ type: "line", line: { color: colour("soft"), width: 1, dash: "dot" }, layer: "below", ...more });

  const drawable = (value) => value !== null && value > 0;

  /* A logarithmic axis around all of these, with ticks at its decades. */
  const logarithmic = (ends) => {
    const values = ends.flat().filter(drawable).map(Math.log10);
    const range = values.length ? [Math.min(...values) - 0.15, Math.max(...values) + 0.15] : [-1, 0];
    const { tickvals, ticktext } = decades(...range);
    return { type: "log", range, tickvals: tickvals.map((log) => 10 ** log), ticktext };
  };

  /* --- windows --- */

  const windows = (available) => {
    const rows = data.windows;
    const known = rows.some((row) => row.lost[0] !== null);
    const ends = rows.map((row) => (known ? row.lost : row.kl));
    const amplified = rows.filter((row) => row.amplification[0] !== null);
    const x = rows.map((row) => row.middle);
    const text = rows.map((row) => [row.name, known ? `accuracy lost ${row.lost_text}` : "", `KL ${row.kl_text} nats`, row.severity, row.avalanche ? "avalanche point" : ""].filter(Boolean).map(plain).join("<br>"));
    const traces = [
      dots({
        x, y: ends.map(([value]) => value), error_y: whiskers(ends), hovertext: text,
        marker: {
          size: rows.map((row) => (row.avalanche ? 12 : 7)),
          symbol: rows.map((row) => (row.avalanche ? "diamond" : "circle")),
          color: rows.map((row) => colour(row.avalanche ? "alarm" : "accent")),
          opacity: 1,
          line: { width: 0 },
        },
      }),
      dots({
        x: amplified.map((row) => row.middle), y: amplified.map((row) => row.amplification[0]), yaxis: "y2",
        error_y: whiskers(amplified.map((row) => row.amplification)),
        hovertext: amplified.map((row) => [row.name, `amplification ${row.amplification_text}`].map(plain).join("<br>")),
        marker: { size: 6, symbol: "square", color: colour("soft") },
      }),
    ];
    const named = rows.filter((row) => row.avalanche).map((row) => ({
      x: row.middle, y: known ? row.lost[0] : row.kl[0], text: plain(row.name), showarrow: false, xanchor: "left", xshift: 10, font: { color: colour("alarm"), size: 13 },
    }));
    const begins = data.groups.filter(({ ends }) => ends[0] !== null && ends[1] !== null);
    const labels = begins.map(({ name, ends }) => ({
      x: (ends[0] + ends[1]) / 2, y: 1, yref: "paper", yanchor: "bottom", text: plain(name), showarrow: false, font: { color: colour("soft"), size: 12 },
    }));
    const borders = begins.slice(1).map(({ ends }) => line({ x0: ends[0] - 0.5, x1: ends[0] - 0.5, yref: "paper", y0: 0, y1: 1, line: { color: colour("rule"), width: 1 } }));
    const even = amplified.length ? [line({ xref: "paper", x0: 0, x1: 1, yref: "y2", y0: 1, y1: 1 })] : [];
    const lower = amplified.length ? [0, 0.3] : [0, 0];
    const layout = frame({
      width: available,
      height: 380,
      margin: { l: 56, r: 12, t: 22, b: 44 },
      annotations: [...named, ...labels],
      shapes: [...borders, ...even],
      xaxis: axis({ title: "middle layer of the window", anchor: amplified.length ? "y2" : "y", showgrid: false, dtick: rows.length > 20 ? 5 : rows.length > 8 ? 2 : 1 }),
      yaxis: axis({ title: known ? "accuracy lost, %" : "KL, nats per token", domain: [lower[1] ? 0.42 : 0, 1], zeroline: known, zerolinecolor: colour("soft") }),
      yaxis2: axis({ title: "amplification", domain: lower, rangemode: "tozero", nticks: 4 }),
    });
    if (!amplified.length) delete layout.yaxis2;
    return { traces: amplified.length ? traces : traces.slice(0, 1), layout };
  };

  /* --- operators --- */

  const ranked = (pick, words, options) => (available) => {
    const rows = data.operators.filter((row) => pick(row)[0] !== null && (!options.log || drawable(pick(row)[0])));
    const short = (name) => plain(name.length > 20 ? `${name.slice(0, 19)}…` : name);
    const traces = [dots({
      x: rows.map((row) => pick(row)[0]), y: rows.map((_, at) => at), error_x: whiskers(rows.map(pick)),
      hovertext: rows.map((row) => [row.name, words(row), row.severity].map(plain).join("<br>")),
      marker: { size: 8, color: colour("accent") },
    })];
    const layout = frame({
      width: available,
      height: 60 + 25 * Math.max(rows.length, 1),
      margin: { l: 14 + 7.2 * Math.max(4, ...rows.map((row) => Math.min(row.name.length, 20))), r: 14, t: 8, b: 46 },
      xaxis: axis({ title: options.title, ...(options.log ? logarithmic(rows.map(pick)) : { zeroline: true, zerolinecolor: colour("soft") }) }),
      yaxis: axis({ tickvals: rows.map((_, at) => at), ticktext: rows.map((row) => short(row.name)), range: [rows.length - 0.4, -0.6], showgrid: false, tickfont: { color: colour("ink"), size: 12 } }),
    });
    return { traces, layout };
  };

  /* --- predicted against measured --- */

  const agreement = (available) => {
    const pairs = data.agreement.filter((pair) => drawable(pair.predicted[0]) && drawable(pair.measured[0]));
    const both = logarithmic(pairs.flatMap((pair) => [pair.predicted, pair.measured]));
    const ends = both.range.map((value) => 10 ** value);
    const size = Math.min(available, 380);
    return {
      traces: [dots({
        x: pairs.map((pair) => pair.predicted[0]), y: pairs.map((pair) => pair.measured[0]),
        error_x: whiskers(pairs.map((pair) => pair.predicted)), error_y: whiskers(pairs.map((pair) => pair.measured)),
        hovertext: pairs.map((pair) => [pair.name, ...pair.text.split(", measured ").map((part, at) => (at ? `measured ${part}` : part))].map(plain).join("<br>")),
        marker: { size: 7, line: { width: 0 }, color: pairs.map((pair) => colour(pair.disagrees ? "alarm" : "accent")), symbol: pairs.map((pair) => (pair.disagrees ? "x" : "circle")) },
      })],
      layout: frame({
        width: size,
        height: size,
        margin: { l: 60, r: 14, t: 12, b: 48 },
        shapes: [line({ xref: "x", yref: "y", x0: ends[0], y0: ends[0], x1: ends[1], y1: ends[1] })],
        xaxis: axis({ title: "predicted KL, nats", ...both }),
        yaxis: axis({ title: "measured KL, nats", ...both }),
      }),
    };
  };

  const start = () => {
    if (data.windows.length) draw("windows-plot", windows);
    if (data.operators.some((row) => row.lost[0] !== null)) draw("operators-lost-plot", ranked((row) => row.lost, (row) => `accuracy lost ${row.lost_text}`, { title: "accuracy lost, %" }));
    if (data.operators.length) draw("operators-kl-plot", ranked((row) => row.kl, (row) => `KL ${row.kl_text} nats`, { title: "KL, nats per token", log: true }));
    if (data.agreement.length) draw("agreement-plot", agreement);
  };

  return { start };
})();
