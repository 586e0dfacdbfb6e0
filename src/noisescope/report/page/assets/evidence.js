/* The evidence: the largest error of every operator of every layer, in units of what rounding allows. */
"use strict";

noisescope.evidence = (() => {
  const { data, colour, isDark } = noisescope;
  const { layers, operators, cells } = data.evidence;

  /* Green as far as rounding goes, from orange on what it does not explain; strong is dark on paper, bright on black. */
  const PAPER = { within: ["#d3ebdc", "#7fbf9b"], beyond: ["#f2a65a", "#d1462f", "#6d1030"] };
  const SCREEN = { within: ["#17442a", "#2f7d53"], beyond: ["#b35a1c", "#ff7f57", "#ffe6a8"] };

  const grid = noisescope.grid({
    plot: "evidence-plot",
    readout: "evidence-readout",
    layers,
    operators,
    cells,
    told: (cell) => cell.told,
    cellHeight: 22, /* whatever a model computes has a row, and paper is short */
    outlines: (rimmed) => cells
      .filter((cell) => cell.suspect)
      .flatMap(({ column, row }) => rimmed(column, [row, row], "alarm", 3)),
  });

  const coloured = cells.filter((cell) => cell.state === "ratio" || cell.state === "infinite");
  const logs = coloured.map((cell) => cell.log).filter((log) => log !== null);
  const lowest = Math.max(Math.min(-1, ...logs), -3);
  const highest = Math.max(1, ...logs);

  const scale = () => {
    const { within, beyond } = isDark() ? SCREEN : PAPER;
    const bound = -lowest / (highest - lowest);
    const stops = (colours, from, to) => colours.map((stop, at) => [from + (to - from) * at / (colours.length - 1), stop]);
    return [...stops(within, 0, bound), ...stops(beyond, bound, 1)];
  };

  /* Few enough to be read, and the bound itself among them. */
  const ticks = (narrow) => {
    const step = Math.ceil((highest - lowest) / 6);
    const tickvals = [];
    for (let log = Math.ceil(lowest / step) * step; log <= highest; log += step) tickvals.push(log);
    const written = (log) => (Math.abs(log) > 3 ? `1e${log}` : String(Number((10 ** log).toPrecision(1))));
    const named = (log) => (log === 0 && !narrow ? "1, the bound" : written(log));
    return { tickvals, ticktext: tickvals.map(named), tickangle: 0 };
  };

  const strength = (cell) => {
    if (cell.state === "infinite") return highest;
    return cell.log === null ? null : cell.log;
  };

  const byRatio = (measured) => grid.heat(measured, {
    z: grid.filled(strength),
    colorscale: scale(),
    zmin: lowest,
    zmax: highest,
    showscale: coloured.length > 0,
    colorbar: grid.bar("error / rounding bound", ticks(measured.narrow), measured.narrow),
  });

  /* What has no ratio to colour: the same bits, or nobody knows. */
  const plainly = (measured) => grid.heat(measured, {
    z: grid.filled((cell) => (coloured.includes(cell) ? null : Number(cell.state !== "same"))),
    colorscale: [[0, colour("low-tint")], [1, colour("other-tint")]],
    zmin: 0,
    zmax: 1,
    showscale: false,
  });

  const SIGNS = { same: ["=", "low"], unknown: ["?", "ink"], infinite: ["!", "paper"] };

  const signs = ({ room, size }) => Object.entries(SIGNS).map(([state, [sign, name]]) => {
    const chosen = cells.filter((cell) => cell.state === state && (state !== "same" || room > 14));
    return grid.over(chosen, {
      mode: "text",
      text: chosen.map(() => sign),
      textfont: { size: state === "same" ? 11 : 2 * size + 2, color: colour(name), weight: state === "same" ? 400 : 700 },
    });
  });

  const build = (available) => {
    const measured = grid.measure(available, coloured.length > 0);
    const traces = [byRatio(measured), plainly(measured), ...signs(measured)];
    return { traces, layout: grid.layout(measured) };
  };

  return { start: () => cells.length && grid.start(build) };
})();
