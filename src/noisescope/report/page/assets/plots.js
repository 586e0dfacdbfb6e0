/* What the plots share: the data, the colours of the theme, and drawing again when theme, width or paper change. */
"use strict";

const noisescope = (() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const probe = document.body.appendChild(document.createElement("span"));
  probe.hidden = true;

  /* Perceptually uniform and safe for the colour-blind (magma); strong means fragile on paper and on a dark screen. */
  const MAGMA = [
    "#000004", "#180f3d", "#440f76", "#721f81", "#9e2f7f", "#cd4071", "#f1605d", "#fd9668", "#feca8d", "#fcfdbf",
  ];
  const PRINTED_WIDTH = 660;

  const plots = [];
  let printing = false;

  const short = (name) => (name.length > 24 ? `${name.slice(0, 23)}…` : name);

  /* Plotly reads a few tags and entities in its labels; names are to be read as they are. */
  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };

  const isDark = () => !printing && document.documentElement.dataset.shown === "dark";

  /* Without the end that is like the paper: the weakest cell, too, must be seen to be there. */
  const scale = () => {
    const stops = isDark() ? MAGMA.slice(3) : MAGMA.slice(0, -2).reverse();
    return stops.map((stop, at) => [at / (stops.length - 1), stop]);
  };

  const axis = (more) => ({
    fixedrange: true,
    zeroline: false,
    gridcolor: colour("grid"),
    linecolor: colour("soft"),
    tickcolor: colour("rule"),
    tickfont: { color: colour("soft"), size: 12 },
    ...more,
    title: { text: more.title || "", font: { color: colour("soft"), size: 12 }, standoff: 8 },
  });

  /* Ticks of a logarithmic scale, written as the figures are: 0.001, not a power. */
  const decades = (lowest, highest) => {
    const step = highest - lowest > 1.2 ? 1 : 0.25;
    const first = Math.ceil(lowest / step - 1e-9);
    const count = Math.max(Math.floor(highest / step + 1e-9) - first + 1, 0);
    const tickvals = Array.from({ length: count }, (_, at) => (first + at) * step);
    const written = (log) => (log < -4.5 ? `1e${Math.round(log)}` : String(Number((10 ** log).toPrecision(2))));
    return { tickvals, ticktext: tickvals.map(written) };
  };

  const frame = (more) => ({
    autosize: false,
    dragmode: false,
    showlegend: false,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 56, r: 12, t: 12, b: 44 },
    font: { family: getComputedStyle(document.body).fontFamily, color: colour("ink"), size: 12 },
    hoverlabel: {
      bgcolor: colour("sheet"),
      bordercolor: colour("soft"),
      align: "left",
      font: { color: colour("ink"), size: 13, family: getComputedStyle(document.body).fontFamily },
    },
    ...more,
  });

  /* --- pieces of plots --- */

  const dots = (more) => ({ type: "scatter", mode: "markers", hoverinfo: "text", cliponaxis: false, ...more });

  const reach = (from, to) => (from === null || to === null ? 0 : Math.max(to - from, 0));

  const whiskers = (ends) => ({
    type: "data",
    symmetric: false,
    array: ends.map(([value, , high]) => reach(value, high)),
    arrayminus: ends.map(([value, low]) => reach(low, value)),
    thickness: 1.25,
    width: 0,
    color: colour("soft"),
  });

  /* What has no figure, at the edge of the plot, on an axis of its own from 0 to 1. */
  const crosses = (more) => dots({ marker: { size: 9, symbol: "x", color: colour("ink") }, ...more });

  const edgeAxis = (more) => ({ range: [0, 1], fixedrange: true, visible: false, ...more });

  const line = (more) => ({
    type: "line",
    layer: "below",
    line: { color: colour("soft"), width: 1, dash: "dot" },
    ...more,
  });

  const label = (name, more) => ({
    text: plain(short(name)),
    showarrow: false,
    font: { color: colour("soft"), size: 12 },
    ...more,
  });

  /* --- drawing --- */

  const CONFIG = { displayModeBar: false, displaylogo: false, doubleClick: false, scrollZoom: false, showTips: false };

  const isHalf = (element) => element.parentElement.classList.contains("pair");

  const width = (element) => {
    if (printing) return isHalf(element) ? PRINTED_WIDTH / 2 - 20 : PRINTED_WIDTH;
    return Math.floor(element.parentElement.clientWidth && element.getBoundingClientRect().width) || 320;
  };

  const drawOne = ({ element, build }) => {
    const { traces, layout } = build(width(element));
    return Plotly.react(element, traces, layout, CONFIG);
  };

  /* `build` gets the width there is and gives traces and layout; it is asked again whenever that changes. */
  const draw = (id, build) => {
    const element = document.getElementById(id);
    if (!element) return null;
    element.hidden = false;
    plots.push({ element, build });
    drawOne(plots[plots.length - 1]);
    return element;
  };

  const redraw = () => plots.forEach(drawOne);

  const setPrinting = (value) => {
    printing = value;
    redraw();
  };

  return {
    data, short, plain, colour, scale, isDark, axis, frame, decades, dots, whiskers, crosses, edgeAxis, line, label,
    draw, redraw, setPrinting,
  };
})();
