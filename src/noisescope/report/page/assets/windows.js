/* Windows of layers: accuracy lost (or KL, where accuracy says nothing) above, amplification below. */
"use strict";

noisescope.windows = (() => {
  const { data, plain, colour, axis, frame, dots, whiskers, crosses, edgeAxis, line, label, draw } = noisescope;
  const rows = data.windows;
  const ends = rows.flatMap((row) => row.ends).filter((end) => end !== null);
  const known = rows.some((row) => row.lost[0] !== null);
  const amplified = rows.filter((row) => row.amplification[0] !== null);
  const groups = data.groups.filter(({ ends }) => ends[0] !== null && ends[1] !== null);
  const lossOf = (row) => (known ? row.lost : row.kl);
  const shown = rows.filter((row) => lossOf(row)[0] !== null);
  const missing = rows.filter((row) => lossOf(row)[0] === null);

  /* Where the name of an avalanche point or an interval would make the plot wider than the model, it must not. */
  const range = () => (ends.length ? { range: [Math.min(...ends) - 0.5, Math.max(...ends) + 0.5] } : {});

  const told = (row) => {
    if (row.failed) return [row.name, row.failed].map(plain).join("<br>");
    const lost = known ? [`accuracy lost ${row.lost_text}`] : [];
    const remark = row.avalanche ? ["avalanche point"] : [];
    return [row.name, ...lost, `KL ${row.kl_text} nats`, row.severity, ...remark].map(plain).join("<br>");
  };

  const losses = () => dots({
    x: shown.map((row) => row.middle),
    y: shown.map((row) => lossOf(row)[0]),
    error_y: whiskers(shown.map(lossOf)),
    hovertext: shown.map(told),
    marker: {
      size: shown.map((row) => (row.avalanche ? 12 : 7)),
      symbol: shown.map((row) => (row.avalanche ? "diamond" : "circle")),
      color: shown.map((row) => colour(row.avalanche ? "alarm" : "accent")),
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

  const gaps = () => crosses({
    x: missing.map((row) => row.middle),
    y: missing.map(() => 0.96),
    yaxis: "y3",
    hovertext: missing.map(told),
  });

  /* On the side on which there is room. */
  const avalancheNames = () => shown.filter((row) => row.avalanche).map((row) => {
    const late = row.middle > (Math.min(...ends) + Math.max(...ends)) / 2;
    return label(row.name, {
      x: row.middle,
      y: lossOf(row)[0],
      xanchor: late ? "right" : "left",
      xshift: late ? -10 : 10,
      font: { color: colour("alarm"), size: 13 },
    });
  });

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
    const domain = [two ? 0.42 : 0, 1];
    return {
      xaxis: axis({ title: "middle layer of the window", anchor: two ? "y2" : "y", showgrid: false, dtick, ...range() }),
      yaxis: axis({
        title: loss, domain, zeroline: known, zerolinecolor: colour("soft"), showticklabels: shown.length > 0,
      }),
      ...(two ? { yaxis2: axis({ title: "amplification", domain: [0, 0.3], rangemode: "tozero", nticks: 4 }) } : {}),
      yaxis3: edgeAxis({ overlaying: "y" }),
    };
  };

  const build = (width) => ({
    traces: [losses(), ...(amplified.length ? [amplifications()] : []), gaps()],
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
