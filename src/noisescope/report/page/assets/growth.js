/* The error through depth: sites across in the order of their calls, grouped by layers; their relative error up.

   The axis is of logarithms. Below it are rows for what has no error, above it one for what has no figure. */
"use strict";

noisescope.growth = (() => {
  const { data, plain, colour, axis, frame, dots, label, decades, short, draw } = noisescope;
  const pictures = data.growth;
  const byId = (id) => document.getElementById(id);

  const state = { picture: 0, zoom: null, cursor: null };
  const picture = () => pictures[state.picture];

  /* --- up --- */

  const ROW = 0.055; /* of the height of the errors, each row at an edge */

  const isAt = (edge) => (site) => site.state === edge || site.own?.state === edge;
  const [isAtBottom, isAtTop] = [isAt("none"), isAt("unknown")];

  const heights = ({ sites }) => {
    const logs = sites
      .flatMap((site) => [site.log, site.floor, site.tolerance, site.own?.log ?? null])
      .filter((log) => log !== null);
    const low = logs.length ? Math.floor(Math.min(...logs) - 0.05) : -8;
    const high = logs.length ? Math.max(Math.ceil(Math.max(...logs) + 0.05), low + 2) : 0;
    const row = ROW * (high - low);
    const [below, above] = [sites.some(isAtBottom) ? 2.8 : 0, sites.some(isAtTop) ? 1.8 : 0];
    const edges = { none: low - row, ownNone: low - 2 * row, unknown: high + row };
    return { low, high, ...edges, bottom: low - below * row, top: high + above * row };
  };

  const heightOf = ({ state: drawn, log }, { none, unknown }) => ({ error: log, none, unknown })[drawn];

  /* --- across --- */

  const range = () => {
    const { layers, sites } = picture();
    if (state.zoom === null) return [-1 - sites.length * 0.004, sites.length + sites.length * 0.004];
    const { first, last } = layers[state.zoom];
    return [first - 0.7, last + 0.7];
  };

  const middle = ({ first, last }) => (first + last) / 2;

  /* The number of a layer where there is room for it; in a layer, the names of its sites. */
  const ticks = (perSite) => {
    const { layers, sites } = picture();
    if (state.zoom !== null) {
      const { first, last } = layers[state.zoom];
      const inside = sites.slice(first, last + 1);
      const names = inside.map(({ name }) => plain(short(name)));
      return { tickvals: inside.map((_, at) => first + at), ticktext: names, tickangle: -45 };
    }
    const blocks = layers.filter(({ block }) => block);
    const room = blocks.length ? perSite * Math.min(...blocks.map(({ first, last }) => last - first + 1)) : 1;
    const step = [1, 2, 5, 10, 20, 50, 100].find((size) => size * room >= 21) || 200;
    const shown = blocks.filter((layer) => Number(layer.label.slice(1)) % step === 0);
    return { tickvals: shown.map(middle), ticktext: shown.map((layer) => layer.label.slice(1)), tickangle: 0 };
  };

  /* embed, final_norm and head are a site or two wide: neighbours share a name, in the line of the title. */
  const outerNames = () => {
    if (state.zoom !== null) return [];
    const { layers, sites } = picture();
    const merged = [];
    layers.forEach((layer, at) => {
      if (layer.block) return;
      const before = merged[merged.length - 1];
      if (before?.at !== at - 1) merged.push({ ...layer, at });
      else Object.assign(before, { at, last: layer.last, label: `${before.label}, ${layer.label}` });
    });
    const anchor = ({ first, last }) => (first === 0 ? "left" : last === sites.length - 1 ? "right" : "center");
    return merged.map((layer) => {
      const xanchor = anchor(layer);
      const x = { left: layer.first, right: layer.last, center: middle(layer) }[xanchor];
      const xshift = { left: -4, right: 4, center: 0 }[xanchor];
      return label(layer.label, { x, xanchor, xshift, yref: "paper", y: 0, yanchor: "top", yshift: -22 });
    });
  };

  /* Every other layer on a shade, so that one can see where each begins. */
  const shades = ({ bottom, top }) => picture().layers
    .filter((_, at) => at % 2 === 1)
    .map(({ first, last }) => ({
      type: "rect", layer: "below", x0: first - 0.5, x1: last + 0.5, y0: bottom, y1: top,
      line: { width: 0 }, fillcolor: colour("grid"), opacity: 0.55,
    }));

  /* --- series --- */

  const series = (more) => ({ type: "scatter", hoverinfo: "skip", cliponaxis: true, ...more });

  const stepped = (pick, more) => {
    const { sites } = picture();
    const known = [...sites.keys()].filter((at) => pick(sites[at]) !== null);
    const ends = known.length ? [known[0] - 0.5, ...known, known[known.length - 1] + 0.5] : [];
    const values = known.map((at) => pick(sites[at]));
    return series({
      mode: "lines",
      x: ends,
      y: known.length ? [values[0], ...values, values[values.length - 1]] : [],
      ...more,
      line: { shape: "hvh", width: 1, color: colour("bound"), ...more.line },
    });
  };

  const tolerated = ({ low }) => [
    stepped((site) => (site.tolerance === null ? null : low), { line: { width: 0 } }),
    stepped((site) => site.tolerance, { fill: "tonexty", fillcolor: colour("tolerated") }),
    stepped((site) => site.floor, { line: { dash: "2px,2px" } }),
  ];

  /* What leaves each layer, joined: the way that an error takes. In a layer, every site is on it. */
  const leaving = (up) => {
    const { layers, sites } = picture();
    const way = state.zoom === null ? layers.map(({ last }) => last) : [...sites.keys()];
    const known = way.filter((at) => sites[at].state !== "unknown");
    return series({
      mode: "lines",
      x: known,
      y: known.map((at) => heightOf(sites[at], up)),
      line: { color: colour("ink"), width: 1.4 },
      opacity: 0.75,
    });
  };

  const markers = (chosen, up, marker) => series({
    mode: "markers",
    x: chosen,
    y: chosen.map((at) => heightOf(picture().sites[at], up)),
    marker: { line: { width: 0 }, ...marker },
  });

  const places = (wanted) => [...picture().sites.keys()].filter((at) => wanted(picture().sites[at]));

  const stroke = (name) => ({ symbol: "line-ns", size: 7, line: { width: 1, color: colour(name) } });

  const errors = (up, size) => {
    const drawn = (site) => site.state === "error";
    return [
      markers(places((site) => site.state === "none"), up, stroke("within")),
      markers(places((site) => drawn(site) && !site.beyond), up, { size, color: colour("within") }),
      markers(places((site) => drawn(site) && site.beyond), up, { size, color: colour("alarm") }),
      markers(places((site) => site.state === "unknown"), up, { size: 8, symbol: "x", color: colour("alarm") }),
    ];
  };

  const own = (up, size) => {
    const { sites } = picture();
    const edge = { none: up.ownNone, unknown: up.unknown };
    const some = (wanted, marker) => {
      const chosen = places((site) => site.own?.state === wanted);
      return series({ mode: "markers", x: chosen, y: chosen.map((at) => heightOf(sites[at].own, edge)), marker });
    };
    const line = { width: size < 5 ? 0.9 : 1.2, color: colour("own") };
    return [
      some("none", stroke("own")),
      some("error", { symbol: "diamond-open", size: size < 5 ? size : size + 1.5, color: colour("own"), line }),
      some("unknown", { symbol: "x-open", size: 9, color: colour("own"), line }),
    ];
  };

  /* Reads a site wherever in its column the pointer is. */
  const hover = (up, narrow) => {
    const { sites } = picture();
    return dots({
      x: [...sites.keys()],
      y: sites.map((site) => heightOf(site, up)),
      marker: { size: 12, opacity: 0 },
      hovertext: sites.map((site) => [site.place, ...site.told].map(plain).join("<br>")),
      hoverinfo: narrow ? "none" : "text", /* on a phone the line below has more room */
      cliponaxis: true,
    });
  };

  /* --- sources and the cursor --- */

  const upright = (x, line, from = 0) => ({ type: "line", x0: x, x1: x, yref: "paper", y0: from, y1: 1, line });

  /* A line from top to bottom for each of a few; of many, for the first, and a stroke below the names of the others. */
  const FEW = 8;

  const sourceLines = () => {
    const { sources } = picture();
    const isShort = (order) => sources.length > FEW && order > 0;
    return sources.map((at, order) => (isShort(order)
      ? upright(at, { color: colour("alarm"), width: 1 }, 0.97)
      : upright(at, { color: colour("alarm"), width: 1, dash: "4px,3px" })));
  };

  const layerOf = (at) => picture().layers.findIndex(({ first, last }) => first <= at && at <= last);

  /* Named where names have room beside each other. */
  const sourceNames = (perSite) => {
    const { layers, sources, sites } = picture();
    let free = -Infinity;
    const [from, to] = range();
    return sources.filter((at) => from <= at && at <= to).flatMap((at) => {
      const text = state.zoom === null ? layers[layerOf(at)].label : sites[at].name;
      const wide = (7.5 * short(text).length + 12) / perSite;
      const late = at + wide > to;
      if (at < free || (late && at - wide < free)) return [];
      free = at + wide;
      return [label(text, {
        x: at, yref: "paper", y: 1, yanchor: "bottom", xanchor: late ? "right" : "left", xshift: late ? 3 : -3,
        font: { color: colour("alarm"), size: 12.5, weight: 600 },
      })];
    });
  };

  const cursorLine = () => (state.cursor === null ? [] : [upright(state.cursor, { color: colour("ink"), width: 1.5 })]);

  const shapes = (up) => [...shades(up), ...sourceLines(), ...cursorLine()];

  /* --- the plot --- */

  const edgeNames = (up) => {
    const { sites } = picture();
    const told = (height, text) => ({ tickvals: height, ticktext: text });
    return [
      ...(sites.some((site) => site.state === "none") ? [told(up.none, "no error")] : []),
      ...(sites.some((site) => site.own?.state === "none") ? [told(up.ownNone, "own: none")] : []),
      ...(sites.some(isAtTop) ? [told(up.unknown, "not finite")] : []),
    ];
  };

  const upAxis = (up, narrow) => {
    const { tickvals, ticktext } = decades(up.low, up.high);
    const edges = edgeNames(up);
    const step = Math.ceil(tickvals.length / 9);
    const kept = [...tickvals.keys()].filter((at) => at % step === 0);
    return axis({
      title: narrow ? "" : "relative error",
      range: [up.bottom, up.top],
      tickvals: [...kept.map((at) => tickvals[at]), ...edges.map((edge) => edge.tickvals)],
      ticktext: [...kept.map((at) => ticktext[at]), ...edges.map((edge) => edge.ticktext)],
    });
  };

  /* The room that the names of a layer's sites take, on the slant. */
  const slanted = () => {
    const { first, last } = picture().layers[state.zoom];
    const names = picture().sites.slice(first, last + 1).map(({ name }) => short(name));
    return 22 + 5.2 * Math.max(...names.map(({ length }) => length));
  };

  const build = (width) => {
    const narrow = width < 560;
    const up = heights(picture());
    const margin = { l: narrow ? 70 : 84, r: 12, t: 26, b: state.zoom === null ? 48 : slanted() };
    const [from, to] = range();
    const perSite = (width - margin.l - margin.r) / (to - from);
    const size = Math.min(8, Math.max(narrow ? 3 : 4, perSite * 0.9));
    return {
      traces: [hover(up, narrow), ...tolerated(up), leaving(up), ...own(up, size), ...errors(up, size)],
      layout: frame({
        width,
        height: narrow ? 380 : Math.min(460, 0.44 * width), /* on paper it shares a page with the verdict */
        margin,
        hovermode: "x",
        hoverdistance: 30,
        shapes: shapes(up),
        annotations: [...outerNames(), ...sourceNames(perSite)],
        xaxis: axis({
          title: state.zoom === null ? "layer" : "", range: [from, to], showgrid: false, ticks: "", ...ticks(perSite),
        }),
        yaxis: upAxis(up, narrow),
      }),
    };
  };

  /* --- reading --- */

  const show = (at) => {
    const site = picture().sites[at];
    byId("growth-readout").textContent = `${site.place}: ${site.told.join("; ")}`;
  };

  const remark = () => Plotly.relayout("growth-plot", { shapes: shapes(heights(picture())) });

  const MOVES = {
    ArrowLeft: (at) => at - 1,
    ArrowRight: (at) => at + 1,
    ArrowUp: (at) => picture().layers[layerOf(at) + 1]?.first ?? at,
    ArrowDown: (at) => picture().layers[layerOf(at) - 1]?.first ?? at,
    Home: () => 0,
    End: () => picture().sites.length - 1,
  };

  /* The nearest site that is in view. */
  const inside = (at) => {
    const [from, to] = range();
    const [first, last] = [Math.max(0, Math.ceil(from)), Math.min(picture().sites.length - 1, Math.floor(to))];
    return Math.min(Math.max(at, first), last);
  };

  const onKey = (event) => {
    const move = MOVES[event.key];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    byId("growth-plot").classList.add("by-key");
    state.cursor = inside(state.cursor === null ? picture().sources[0] ?? 0 : move(state.cursor));
    show(state.cursor);
    remark();
  };

  /* The pointer, resting somewhere, must not speak while keys are used; once it moves, it is used again. */
  const leaveKeys = () => {
    if (state.cursor === null) return;
    state.cursor = null;
    byId("growth-plot").classList.remove("by-key");
    remark();
  };

  /* --- choosing --- */

  const fillZoom = () => {
    const options = [["", "all layers"], ...picture().layers.map(({ label: name }, at) => [String(at), name])];
    byId("zoom").replaceChildren(...options.map(([value, name]) => new Option(name, value)));
  };

  const startChoosing = () => {
    fillZoom();
    byId("zoom").addEventListener("change", ({ target: { value } }) => {
      Object.assign(state, { zoom: value === "" ? null : Number(value), cursor: null });
      noisescope.redraw();
    });
    byId("pass")?.addEventListener("change", ({ target: { value } }) => {
      Object.assign(state, { picture: Number(value), zoom: null, cursor: null });
      fillZoom();
      noisescope.redraw();
    });
  };

  const start = () => {
    if (!pictures.length) return;
    startChoosing();
    const element = draw("growth-plot", build);
    element.on("plotly_hover", ({ points }) => {
      if (state.cursor === null && points[0]) show(points[0].pointNumber);
    });
    element.addEventListener("keydown", onKey);
    element.addEventListener("blur", leaveKeys);
    element.addEventListener("pointermove", (event) => {
      if (event.movementX || event.movementY) leaveKeys(); /* a page that moves below it is no movement */
    });
  };

  return { state, start };
})();
