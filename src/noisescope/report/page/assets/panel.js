/* The panel of a pinned layer: its operators, the outlier channels of its modules, where its sensitivity lies. */
"use strict";

noisescope.panel = (() => {
  const { data, map } = noisescope;
  const READINGS = ["critical", "high", "moderate", "medium", "low", "robust"];
  const byId = (id) => document.getElementById(id);

  /* Text goes in as text: names of modules may hold anything. */
  const element = (tag, text = "", attributes = {}) => {
    const made = document.createElement(tag);
    made.textContent = text;
    Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
    return made;
  };

  const within = (parent, ...children) => {
    parent.append(...children);
    return parent;
  };

  const word = (text) => {
    const reading = text.toLowerCase();
    return element("span", text, { class: `word ${READINGS.includes(reading) ? reading : "other"}` });
  };

  const figure = (text) => {
    const at = text.indexOf(" [");
    return at < 0 ? [text] : [text.slice(0, at + 1), element("span", text.slice(at + 1), { class: "interval" })];
  };

  const INSIDE = {
    text: (text) => [text],
    run: (text) => [text],
    figure,
    name: (text) => [element("code", text)],
    word: (text) => [word(text)],
  };

  const cell = (text, kind, first, span) => {
    const made = first ? element("th", "", { scope: "row" }) : element("td");
    made.className = span > 1 ? "remark" : kind;
    if (span > 1) made.colSpan = span;
    return within(made, ...(span > 1 || !text ? [text] : INSIDE[kind](text)));
  };

  const row = (texts, columns) => within(element("tr"), ...texts.map((text, at) => {
    const last = at === texts.length - 1;
    return cell(text, columns[at][1], at === 0, last ? columns.length - at : 1);
  }));

  const table = ({ caption, columns, rows }) => {
    const headings = columns.map(([label, kind]) => element("th", label, { scope: "col", class: kind }));
    const head = within(element("tr"), ...headings);
    const made = within(
      element("table"),
      element("caption", caption),
      within(element("thead"), head),
      within(element("tbody"), ...rows.map((texts) => row(texts, columns))),
    );
    return within(element("div", "", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption }), made);
  };

  const fact = ([name, value]) => within(element("div"), element("dt", name), element("dd", value));

  const facts = (pairs) => within(element("dl", "", { class: "facts stacked" }), ...pairs.map(fact));

  const show = (column) => {
    byId("panel").hidden = column === null;
    byId("layer").value = column === null ? "" : String(column);
    if (column === null) {
      byId("panel-body").replaceChildren();
      return;
    }
    const found = data.panels[column];
    byId("panel-title").textContent = /^L\d+$/.test(found.title) ? `Layer ${found.title.slice(1)}` : found.title;
    byId("panel-body").replaceChildren(...(found.facts.length ? [facts(found.facts)] : []), ...found.tables.map(table));
    byId("panel-before").disabled = column === 0;
    byId("panel-after").disabled = column === map.layers.length - 1;
  };

  const start = () => {
    map.onPin(show);
    byId("layer").addEventListener("change", ({ target: { value } }) => map.pin(value === "" ? null : Number(value)));
    byId("panel-before").addEventListener("click", () => map.pin(map.state.pinned - 1));
    byId("panel-after").addEventListener("click", () => map.pin(map.state.pinned + 1));
    byId("panel-close").addEventListener("click", () => {
      map.pin(null);
      byId("map-plot").focus();
    });
  };

  return { start };
})();
