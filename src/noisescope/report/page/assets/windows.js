/* Windows of layers: accuracy lost (or KL, where accuracy says nothing) above, amplification below. */
"use strict";

noisescope.windows = (() => {
  const { data, plain, colour, axis, frame, dots, whiskers, line, label, draw } = noisescope;
  const rows = data.windows;
  const known = rows.some((row) => row.lost[0] !== null);
  const amplified = rows.filter((row) => row.amplification[0] !== null);
  const groups = data.groups.filter(({ ends }) => ends[0] !== null && ends[1] !== null);
  const lossOf = (row) => (known ? row.lost : row.kl);

  const told = (row) => {
    const lost = known ? [`accuracy lost ${row.lost_text}`] : [];
    const remark = row.avalanche ? ["avalanche point"] : [];
    return [row.name, ...lost, `KL ${row.kl_text} nats`, row.severity, ...remark].map(plain).join("<br>");
  };

  const losses = () => dots({
    x: rows.map((row) => row.middle),
    y: rows.map((row) => lossOf(row)[0]),
    error_y: whiskers(rows.map(lossOf)),
    hovertext: rows.map(told),
    marker: {
      size: rows.map((row) => (row.avalanche ? 12 : 7)),
      symbol: rows.map((row) => (row.avalanche ? "diamond" : "circle")),
      color: rows.map((row) => colour(row.avalanche ? "alarm" : "accent")),
      opacity: 1,
      line: { width: 0 },
    },
  });

  const amplifications = () => dots({
    x: amplified.map((row) => row.middle),
    y: amplified.map((row) => row.amplification[0]),
    yaxis: "y2",
    error_y: whiskers(amplified.map((row) => row.amplification)),
    hovertext: amplified.map((row) => [row.name, `amplification ${row.amplification_text}`].map(plain).join("<br>")),
    marker: { size: 6, symbol: "square", color: colour("soft") },
  });

  const avalancheNames = () => rows.filter((row) => row.avalanche).map((row) => label(row.name, {
    x: row.middle,
    y: lossOf(row)[0],
    xanchor: "left",
    xshift: 10,
    font: { color: colour("alarm"), size: 13 },
  }));

  const groupNames = () => groups.map(({ name, ends }) => label(name, {
    x: (ends[0] + ends[1]) / 2,
    y: 1,
    yref: "paper",
    yanchor: "bottom",
  }));

  const groupBorders = () => groups.slice(1).map(({ ends }) => {
    const x = ends[0] - 0.5;
    return line({ x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color: colour("rule"), width: 1 } });
  });

  const evenLine = () => line({ xref: "paper", x0: 0, x1: 1, yref: "y2", y0: 1, y1: 1 });

  const axes = () => {
    const two = amplified.length > 0;
    const dtick = rows.length > 20 ? 5 : rows.length > 8 ? 2 : 1;
    const loss = known ? "accuracy lost, %" : "KL, nats per token";
    return {
      xaxis: axis({ title: "middle layer of the window", anchor: two ? "y2" : "y", showgrid: false, dtick }),
      yaxis: axis({ title: loss, domain: [two ? 0.42 : 0, 1], zeroline: known, zerolinecolor: colour("soft") }),
      ...(two ? { yaxis2: axis({ title: "amplification", domain: [0, 0.3], rangemode: "tozero", nticks: 4 }) } : {}),
    };
  };

  const build = (width) => ({
    traces: amplified.length ? [losses(), amplifications()] : [losses()],
    layout: frame({
      width,
      height: 380,
      margin: { l: 56, r: 12, t: 22, b: 44 },
      annotations: [...avalancheNames(), ...groupNames()],
      shapes: [...groupBorders(), ...(amplified.length ? [evenLine()] : [])],
      ...axes(),
    }),
  });

  return { start: () => rows.length && draw("windows-plot", build) };
})();
